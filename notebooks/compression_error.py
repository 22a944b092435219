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
# This notebook measures both on a real gradient. It takes a minute or two on a laptop
# CPU, most of it compiling, needs no download, and defines nothing: everything comes
# from `jaxcomp`.

# %%
import operator

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib.ticker import NullLocator

import jaxcomp
from jaxcomp import data, models, parallel
from jaxcomp.infos import measure
from jaxcomp.report import style
from jaxcomp.scope import lift

plt.rcParams.update(style.RC | {"figure.dpi": 120})

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
gradients = [loss_and_gradient(params, batch)[1] for batch in batches]
gradient = gradients[0]
size = sum(g.size for g in jax.tree.leaves(gradient))
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} after {len(losses)} steps")
print(f"a gradient of {size:,} numbers in {len(jax.tree.leaves(gradient))} tensors")

# %% [markdown]
# ## 2. Cost and loss, method by method
#
# `lift` turns a compressor of arrays into one of whole gradients, here tensor by tensor
# (`per_leaf`, the default). What to see: bits alone say little. `random_k` costs less
# than `top_k`, since a seed replaces the indices, and loses almost everything. Unbiased
# methods pay for being right on average with noise, and an error above 1 is common:
# `qsgd` shares one norm among 512 numbers, which is coarse for few levels.
#
# - **ideal**: bits that a perfect coder would need for the same message;
# - **error**: mean over five keys;
# - **contraction**: the `δ` in `E|x - C(x)|² ≤ (1 - δ)|x|²` that holds for *every* `x`,
#   the worst one included; `-` where there is none;
# - **joined**: the error when all tensors are joined into one vector (`whole_tree`).
#   Section 3 draws it, section 4 explains the difference.

# %%
specs = [
    "none",
    "top_k(keep=0.01)",
    "random_k(keep=0.01)",
    "random_k(keep=0.01, unbiased=True)",
    "qsgd(levels=1)",
    "qsgd(levels=7)",
    "qsgd(levels=127)",
    "sign",
    "top_k(keep=0.01) | qsgd(levels=7)",
]
keys = jax.random.split(jax.random.key(1), 5)

print(f"{'compressor':36}  bits  ideal    error  contraction  unbiased   joined")
for spec in specs:
    errors = {"whole_tree": [], "per_leaf": []}
    for scope in errors:
        codec = lift(scope, jaxcomp.make_compressor(spec))
        state = codec.init(gradient)
        for key in keys:
            payload, _ = codec.compress(gradient, state, key)
            decoded = codec.decompress(payload, gradient)
            errors[scope].append(measure(gradient, decoded).gradient_error)
    # The loop ended with per_leaf: these are its payload and its facts.
    bits = jaxcomp.nbits(payload) / size
    ideal = codec.ideal_bits(gradient) / size
    delta = codec.contraction(gradient)
    joined, error = (float(np.mean(errors[scope])) for scope in errors)
    print(
        f"{spec:36} {bits:5.2f} {ideal:6.2f} {error:8.3g}",
        f"{'-' if delta is None else f'{delta:.2g}':>12}",
        f"{'yes' if codec.unbiased else 'no':>9} {joined:8.3g}",
    )

# %% [markdown]
# ## 3. The trade-off in one picture
#
# Turn the knob of a method and you get a curve; here all tensors are joined into one
# vector. Down and to the left is better. The dashed line is Shannon's bound `4^-R`: on
# Gaussian noise no code of `R` bits per coordinate, however clever, loses less.
#
# What to see: where few bits are sent, `top_k` even beats the line, because a gradient
# is not Gaussian noise: few coordinates hold most of it. From about six bits on `qsgd`
# wins; it runs parallel to the bound, four bits to its right. `random_k` buys little
# either way. `sign` has no knob; joined, it loses to `top_k` at the same cost.

# %%
keeps = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3]
levels = [1, 3, 7, 15, 31, 127, 511]
sweeps = {
    "top_k": [f"top_k(keep={keep})" for keep in keeps],
    "random_k": [f"random_k(keep={keep})" for keep in keeps],
    "random_k, unbiased": [f"random_k(keep={keep}, unbiased=True)" for keep in keeps],
    "qsgd": [f"qsgd(levels={s})" for s in levels],
    "sign": ["sign"],
}
curves = {name: [] for name in sweeps}
for name, specs in sweeps.items():
    for spec in specs:
        codec = lift("whole_tree", jaxcomp.make_compressor(spec))
        errors = []
        for key in keys[:3]:
            payload, _ = codec.compress(gradient, codec.init(gradient), key)
            decoded = codec.decompress(payload, gradient)
            errors.append(measure(gradient, decoded).gradient_error)
        curves[name].append((jaxcomp.nbits(payload) / size, float(np.mean(errors))))

# %%
figure, axes = plt.subplots(figsize=(8.2, 5.4), layout="constrained")
rates = np.geomspace(0.025, 9, 100)
axes.plot(rates, 4.0**-rates, "--", color=style.INK, lw=1.4)
axes.text(3.4, 1.3e-3, "Shannon bound\nfor Gaussian noise", ha="right")
axes.axhline(1, color=style.GREY, lw=0.8)
axes.text(46, 1.12, "as bad as sending nothing", ha="right", color=style.GREY)

# Name, colour, marker, and where the name stands.
looks = [
    ("random_k", style.BLUE, "s", (10.8, 0.68)),
    ("top_k", style.ORANGE, "o", (21.5, 0.053)),
    ("random_k, unbiased", style.BLUE, "D", (0.38, 110)),
    ("qsgd", style.GREEN, "^", (9.9, 1.5e-3)),
    ("sign", style.PINK, "P", (1.1, 0.69)),
]
for name, colour, marker, place in looks:
    axes.plot(*zip(*curves[name], strict=True), color=colour, marker=marker, ms=6)
    axes.text(*place, name, color=colour, weight="bold", va="center")
axes.plot(32, 1.35e-4, "v", color=style.INK, ms=8)
axes.text(32, 2.1e-4, "none: error 0", ha="center", weight="bold")

# The value of the knob at some points: which point, text, and its offset.
for name, i, text, offset in [
    ("top_k", 0, "keep 0.1 %", (-20, -15)),
    ("top_k", 2, "1 %", (-18, -15)),
    ("top_k", 4, "10 %", (3, 4)),
    ("qsgd", 0, "1 level", (7, 3)),
    ("qsgd", 2, "7", (7, 2)),
    ("qsgd", 5, "127 levels", (7, -1)),
    ("qsgd", 6, "511", (7, -3)),
]:
    axes.annotate(text, curves[name][i], offset, textcoords="offset points")

axes.set(xscale="log", yscale="log", xlim=(0.025, 48), ylim=(1e-4, 2e3))
axes.set_xticks([0.1, 0.3, 1, 3, 10, 32], ["0.1", "0.3", "1", "3", "10", "32"])
axes.xaxis.set_minor_locator(NullLocator())
axes.yaxis.set_minor_locator(NullLocator())
axes.set(xlabel="bits sent per coordinate", ylabel="error  |x − C(x)|² / |x|²")
axes.set_title("What a bit buys, method by method")
plt.show()

# %% [markdown]
# ## 4. Tensor by tensor, or the whole model at once?
#
# Same gradient, same `top_k(keep=0.01)`: `per_leaf` sends 1 % of every tensor,
# `whole_tree` the largest 1 % of the model. What to see: joined, the budget goes to the
# tensors with large entries, and the total error falls a lot; but the big kernels with
# small entries are hardly sent at all. That is the price, and error feedback
# (section 5) is what gives them their turn.

# %%
compressor = jaxcomp.make_compressor("top_k(keep=0.01)")
layer_errors, totals = {}, {}
for scope in ("per_leaf", "whole_tree"):
    codec = lift(scope, compressor)
    payload, _ = codec.compress(gradient, codec.init(gradient), keys[0])
    decoded = codec.decompress(payload, gradient)
    each = jax.tree.map(lambda x, y: measure(x, y).gradient_error, gradient, decoded)
    layer_errors[scope] = jax.tree.leaves(each)
    totals[scope] = float(measure(gradient, decoded).gradient_error)

layers = [
    (i, jax.tree_util.keystr(path, simple=True, separator="/"), leaf.size)
    for i, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(gradient))
    if leaf.ndim > 1  # kernels; biases and norms hold under 3 % of |x|²
]

# %%
figure, axes = plt.subplots(figsize=(8.2, 4), layout="constrained")
rows = np.arange(len(layers))
for shift, scope, colour in [
    (-0.2, "per_leaf", style.BLUE),
    (0.2, "whole_tree", style.ORANGE),
]:
    heights = [float(layer_errors[scope][i]) for i, _, _ in layers]
    label = f"{scope}: {totals[scope]:.2f} in total"
    axes.barh(rows + shift, heights, height=0.36, color=colour, label=label)
axes.set_yticks(rows, [f"{name}\n{count:,} numbers" for _, name, count in layers])
axes.invert_yaxis()
axes.grid(visible=False, axis="y")
axes.set(xlim=(0, 1), xlabel="error of the layer  |x − C(x)|² / |x|²")
axes.set_title("top_k(keep=0.01): the same budget, spent in two ways")
figure.legend(loc="outside lower right", ncols=2, frameon=False)
plt.show()

# %% [markdown]
# ## 5. Error feedback: late, but not lost
#
# Four simulated workers send the same four gradients again and again with
# `top_k(keep=0.01)`. How far is the average of all they received so far from the true
# mean? What to see: without a memory the same coordinates are lost every time, so
# waiting does not help. With error feedback, what was not sent is added to the next
# gradient: half of the error is gone after 50 steps, and once the coordinates have had
# their turn, it falls like `1/t`.

# %%
workers = parallel.setup(4, mapper="vmap")
stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *gradients)
truth = jax.tree.map(lambda g: g.mean(axis=0), stacked)
distances = {"none": [], "error_feedback": []}
received = operator.attrgetter("mean", "state")  # of what an exchange returns
for memory in distances:
    exchange = jaxcomp.make_exchange("gather", "top_k(keep=0.01)", memory)
    state = exchange.init(truth)
    own = parallel.axes(state)  # which parts of the state differ between workers
    state = parallel.spread(state, workers)
    step = parallel.map_step(
        lambda *given, e=exchange: received(e.average(*given)),
        workers,
        in_axes=(0, own, None),
        out_axes=(None, own),
    )
    total = jax.tree.map(jnp.zeros_like, truth)
    for t in range(1, 501):
        mean, state = step(stacked, state, jax.random.key(t))
        total = jax.tree.map(jnp.add, total, mean)
        average = jax.tree.map(lambda x, t=t: x / t, total)
        distances[memory].append(measure(truth, average).gradient_error ** 0.5)

# %%
figure, axes = plt.subplots(figsize=(8.2, 3.8), layout="constrained")
steps = np.arange(1, 501)
for memory, colour in [("none", style.BLUE), ("error_feedback", style.ORANGE)]:
    axes.plot(steps, distances[memory], color=colour)
    last = float(distances[memory][-1])
    place = (steps[-1] * 1.06, last)
    axes.text(*place, f"{memory}\n{last:.2f}", color=colour, weight="bold", va="center")
axes.plot(steps[60:], 500 * last / steps[60:], "--", color=style.INK, lw=1.2)
axes.text(60, 500 * last / 60, "1/t ", ha="right", va="center")
axes.set(xscale="log", yscale="log", xlim=(1, 500), ylim=(0.05, 1.3))
axes.set_xticks([1, 10, 50, 100, 500], ["1", "10", "50", "100", "500"])
axes.set_yticks([0.05, 0.1, 0.2, 0.5, 1], ["0.05", "0.1", "0.2", "0.5", "1"])
axes.minorticks_off()
axes.set(xlabel="steps t", ylabel="|average − mean| / |mean|")
axes.set_title("Average of what arrived in t steps, against the true mean")
plt.show()

# %% [markdown]
# ## Where to go next
#
# - Put your own method into the picture: `docs/extend.md` shows the one file
#   and the one line it takes. Then add its spec to `specs` and `sweeps` above.
# - An error is not yet an accuracy: `README.md` shows how to train with a compressor
#   and how to read the report of a run.
