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
# # Your own compressor in ten minutes
#
# A compressor is a factory that returns two pure functions: one from an array to a
# payload, one back. This notebook writes one, checks what it promises, compares it with
# top-k, and trains with it. At the end it is one file and one line in the library.
#
# The idea to try: **send means of neighbours**. Cut the vector into blocks of `b`
# elements and send the mean of each block. That is `b` times less, and needs no places.

# %%
from typing import Annotated

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxcomp
from benchmarks import style
from configs import default
from jaxcomp import compressors, study
from jaxcomp.compressors import compressor
from jaxcomp.core.coding.payloads import Dense, Seeded
from jaxcomp.core.specs import Range, method

plt.rcParams.update(style.RC | {"figure.dpi": 110})

# %% [markdown]
# ## 1. The first attempt
#
# `@method` checks arguments by their annotations, and gives the compressor its name:
# the spec string that builds it again. `compress` takes an array, a state and a key;
# `decompress` gets the payload and the shape to restore. What is in the payload is what
# is sent, and the bits are read from it.


# %%
@method("block")
def pooled(name: str, block: Annotated[int, Range(least=1)] = 8):
    """Send the mean of each block of neighbours."""

    def compress(x, state, key):
        flat = jnp.pad(x.ravel(), (0, -x.size % block))
        return Dense(flat.reshape(-1, block).mean(axis=1)), state

    def decompress(payload, spec):
        return jnp.repeat(payload.values, block)[: spec.size]

    return compressor(name, compress, decompress)


compressors.REGISTRY["pooled"] = pooled  # the one line
x = jnp.arange(8.0)
print(study.round_trip(x, "pooled(block=4)"))

# %% [markdown]
# From here on `"pooled(block=4)"` works in every spec string, with every scope, memory
# and exchange; `pooled | qsgd` too, because the field is called `values`. Bad values
# are refused with a message that nobody had to write:

# %%
try:
    jaxcomp.make_compressor("pooled(block=0)")
except jaxcomp.UserError as error:
    print(error)

# %% [markdown]
# ## 2. Does it train?
#
# A logistic regression on four workers, each with examples of one class, with error
# feedback. What to see: it does not. The means
# of blocks are learnt, and then the loss stands still for ever.

# %%
problem = default.get_config()
problem.update(task="logistic_regression", model="linear", partition="sorted")
problem.update(dataset="synthetic(examples=512, features=256)", augment="", warmup="")
problem.update(
    workers=4, batch_size=512, train_for="300 steps", eval_every="300 epochs"
)
problem.update(optimizer="sgd(momentum=0)", learning_rate=5.0, schedule="constant")
problem.update(weight_decay=0.0, checkpoint_every="")
runs = {}
for spec in ("top_k(keep=0.125)", "pooled(block=8)"):
    run = study.train(problem, compressor=spec, memory="error_feedback(allow=True)")
    runs[spec] = run.steps["suboptimality"]
    sent = run.epochs["wire_bytes_per_step"][-1]
    print(f"{spec:18} {sent:.0f} bytes, {runs[spec][-1]:.3g} above the optimum")

# %% [markdown]
# Why? Differences inside a block are never sent. They wait in the residual, where they
# are orthogonal to everything that the compressor sends, and wait for ever. In the
# words of [notebook 2](02_error_feedback.ipynb): for such vectors
# `|x - C(x)|² = |x|²`, so there is no `δ > 0`, and the compressor is no contraction.
#
# ## 3. The second attempt
#
# Flip the sign of each element at random before the mean, and flip it back afterwards.
# Both sides draw the same signs from the key, so nothing more has to be sent. Now every
# element is in every mean, with another sign in each step.
#
# With flips `D` the expected result is `E[D P D x] = x / b`, because the signs of two
# elements agree half of the time. And `P` is a projection, so
# `E|x - C(x)|² = (1 - 1/b) |x|²`: a contraction with `δ = 1/b`, for every `x`. We
# declare it.


# %%
@method("block")
def pooled(name: str, block: Annotated[int, Range(least=1)] = 8):
    """Send means of neighbours with random signs.

    C(x) = D P D x, with signs D from the key and P the mean over blocks.
    """

    def signs(size, seed):
        return jax.random.rademacher(
            jax.random.wrap_key_data(seed), (size,), jnp.float32
        )

    def compress(x, state, key):
        seed = jax.random.key_data(key)
        flat = x.ravel() * signs(x.size, seed)
        flat = jnp.pad(flat, (0, -x.size % block))
        return Seeded(flat.reshape(-1, block).mean(axis=1), seed), state

    def decompress(payload, spec):
        flat = jnp.repeat(payload.values, block)[: spec.size]
        return flat * signs(spec.size, payload.seed)

    return compressor(name, compress, decompress, contraction=lambda spec: 1 / block)


compressors.REGISTRY["pooled"] = pooled
print(study.round_trip(x, "pooled(block=4)"))

# %% [markdown]
# ## 4. Is it true?
#
# A declared fact is a promise that memories rely on, so check it: many keys, and inputs
# that are chosen to break it. What to see: on every kind of vector the mean error is `1
# - δ = 0.875`, up to chance. The first attempt lost all of the third one.

# %%
rng = np.random.default_rng(0)
inputs = {
    "Gaussian": rng.normal(size=1024),
    "one large element": np.eye(1024)[5] * 100,
    "alternating": np.tile([1.0, -1.0], 512),
    "constant": np.ones(1024),
    "heavy tails": rng.standard_t(1.5, size=1024),
}
for name, values in inputs.items():
    vector = jnp.asarray(values, jnp.float32)
    point = study.measure(vector, "pooled(block=8)", draws=200)
    print(f"{name:18} error {point.error:.3f}  of at most {1 - point.contraction:.3f}")

# %% [markdown]
# The library's own tests do this for every method in the registry, and more: shapes and
# dtypes, zeros and huge numbers, NaN, the same bits from the same key.
# `pytest tests/compressors -k pooled` runs them once the file is there.
#
# ## 5. Against the others
#
# On a real gradient and in training. What to see: on one gradient, and in the run, it
# is as good as random-k, which is not good: neither of them looks at the gradient, as
# top-k does. `pooled | qsgd` adds the noise of 7 levels, and loses more than there is.
# But the second attempt trains where the first one stood still, and that is what the
# contraction promises.

# %%
config = default.get_config()
config.update(model="resnet8", augment="", workers=4, batch_size=256)
history = study.gradients(config, steps=11)
gradient = jax.tree.map(lambda g: np.asarray(g[0]), history[-1])
knobs = {
    "top_k": ("top_k(keep={})", (0.003, 0.01, 0.03, 0.1)),
    "random_k": ("random_k(keep={})", (0.003, 0.01, 0.03, 0.1)),
    "pooled": ("pooled(block={})", (300, 100, 32, 10)),
    "pooled | qsgd": ("pooled(block={}) | qsgd(levels=7)", (100, 32, 10, 3)),
}
curves = {
    name: study.sweep(gradient, spec, values, "whole_tree", draws=1)
    for name, (spec, values) in knobs.items()
}
for spec in ("pooled(block=8)", "random_k(keep=0.125)"):
    name = spec.replace("(block=8)", ", with signs")
    runs[name] = study.train(problem, compressor=spec).steps["suboptimality"]

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 4), layout="constrained")
colours = [style.ORANGE, style.SKY, style.GREEN, style.INK]
for (name, points), colour in zip(curves.items(), colours, strict=True):
    line = [(point.bits, point.error) for point in points]
    left.plot(*zip(*line, strict=True), color=colour, marker="o", label=name)
left.set(xscale="log", xlabel="bits for each element", ylabel="error", ylim=(0, 1.02))
left.set_xticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
left.minorticks_off()
left.set_title("One gradient of a ResNet-8")
left.legend(frameon=False)
looks = {
    "top_k(keep=0.125)": style.ORANGE,
    "random_k(keep=0.125)": style.SKY,
    "pooled(block=8)": style.PINK,
    "pooled, with signs": style.GREEN,
}
for name, colour in looks.items():
    label = name.replace("pooled(block=8)", "first attempt")
    right.plot(runs[name], color=colour, label=label)
right.set(yscale="log", xlabel="step", ylabel="loss above the optimum")
right.set_title("Training, an eighth of the elements")
right.legend(frameon=False)
plt.show()

# %% [markdown]
# ## 6. Into the library
#
# 1. Save the factory as `jaxcomp/compressors/pooled.py`.
# 2. Add `"pooled": pooled` to `REGISTRY` in `jaxcomp/compressors/__init__.py`.
# 3. `pytest tests/compressors -k pooled`
#
# Then a training run can have it:
#
#     python train.py --config=configs/default.py --workdir=runs/pooled \
#         --config.compressor='pooled(block=32)'
#
# [docs/extend.md](../docs/extend.md) shows the same for exchanges, memories, mixers
# and everything else.
#
# ## Exercises
#
# 1. Multiply by `b` in `decompress`. The method is now unbiased. What does notebook 2
#    say about it, and what does `error_feedback` say?
# 2. Blocks of neighbours are arbitrary. Draw a random permutation from the key as well.
#    Does the error change? Does the run?
# 3. Send the median of a block instead of the mean. Which of the two facts in section 3
#    survives?
# 4. `jax.random` is slow for long vectors: `jaxcomp.core.prng` has hashes that are 30
#    times faster. Use them for the signs.
