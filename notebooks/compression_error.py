# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What does a compressor lose, and what does it cost?
#
# A compressor `C` makes a gradient `x` small enough to send, and what comes out at the
# other end, `C(x)`, is not quite `x`. Two numbers describe it:
#
# - **cost**: bits sent per coordinate (an uncompressed float32 takes 32);
# - **loss**: the normalised error `|x - C(x)|² / |x|²`. 0 is perfect, and 1 is what you
#   would get by sending nothing at all.
#
# This notebook measures both on a real gradient. It runs in about a minute on a laptop
# CPU, needs no download, and defines nothing: everything comes from `jaxcomp`.

# %%
# %config InlineBackend.figure_formats = ["svg"]
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib.ticker import NullLocator

import jaxcomp
from jaxcomp import data, models, parallel
from jaxcomp.exchanges.common import measure, squared_norm
from jaxcomp.report import style
from jaxcomp.scope import lift

plt.rcParams.update(style.RC)

# %% [markdown]
# ## 1. A real gradient
#
# A ResNet-8 on the handwritten digits that come with scikit-learn. We take 20 plain SGD
# steps first, because the gradient of random weights is not what a training run sends.
# What to see: the loss falls, so this gradient is worth sending.

# %%
digits = data.load("digits")
model = models.make("resnet8", num_classes=digits.num_classes)
images = data.normalize(jnp.asarray(digits.train_images), digits.mean, digits.std)
labels = jnp.asarray(digits.train_labels)
variables = model.init(jax.random.key(0), images[:2], train=False)
params, stats = variables["params"], variables["batch_stats"]

# In training mode BatchNorm uses the batch alone, so we may drop its running averages.
loss_and_gradient = jax.jit(
    jax.value_and_grad(
        lambda params, batch: optax.softmax_cross_entropy_with_integer_labels(
            model.apply(
                {"params": params, "batch_stats": stats},
                images[batch],
                train=True,
                mutable=["batch_stats"],
            )[0],
            labels[batch],
        ).mean()
    )
)

order = data.epoch_order(len(labels), seed=0, epoch=0)
losses = []
for (batch,) in data.batches(order, global_batch=64, workers=1)[:20]:
    loss, gradient = loss_and_gradient(params, batch)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
    losses.append(float(loss))

# The batches of four workers at the next step. Worker 0 is our example until section 5.
order = data.epoch_order(len(labels), seed=0, epoch=1)
batches = data.batches(order, global_batch=256, workers=4)[0]
gradients = jax.vmap(loss_and_gradient, in_axes=(None, 0))(params, batches)[1]
gradient = jax.tree.map(lambda g: g[0], gradients)
size = sum(g.size for g in jax.tree.leaves(gradient))
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} after {len(losses)} steps")
print(f"a gradient of {size:,} numbers in {len(jax.tree.leaves(gradient))} tensors")
