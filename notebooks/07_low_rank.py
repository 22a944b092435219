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
# # Low rank: spectra of gradients, and PowerSGD's warm start
#
# The gradient of a layer is a matrix: each example contributes an outer product of what
# came in and what came back. If a few directions hold most of it, a few columns can be
# sent in place of the matrix. This notebook looks at the singular values of real
# gradients, at how close one power iteration comes to the best approximation, and at
# why PowerSGD keeps its result from step to step.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import jaxcomp
from benchmarks import style
from configs import default
from jaxcomp import study

plt.rcParams.update(style.RC | {"figure.dpi": 110})

# %% [markdown]
# ## 1. Are gradients of low rank?
#
# The gradients of a ResNet-8 over 40 steps. A convolution of 3 x 3 with 64 channels is
# a matrix of 576 x 64. What to see: the singular values fall far faster than those of a
# random matrix of the same size (dashed). Two directions hold 80 to 90 % of the first
# blocks, and a third of the last ones.

# %%
config = default.get_config()
config.update(model="resnet8", augment="", workers=4, batch_size=256)
history = study.gradients(config, steps=40)
means = [jax.tree.map(lambda g: np.asarray(g).mean(axis=0), each) for each in history]
found = [s for s in study.spectra(means[-1]) if min(s.rows, s.columns) >= 16]
print(f"{'tensor':44}   shape     rank 1  rank 2  rank 4")
for spectrum in found:
    shape = f"{spectrum.rows} x {spectrum.columns}"
    errors = "  ".join(f"{spectrum.error(rank):6.2f}" for rank in (1, 2, 4))
    print(f"{spectrum.name:44} {shape:>9}   {errors}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.9), layout="constrained")
noise = np.random.default_rng(0)
shown = [found[0], found[len(found) // 2], max(found, key=lambda s: s.rows * s.columns)]
colours = (style.BLUE, style.GREEN, style.ORANGE)
for spectrum, colour in zip(shown, colours, strict=True):
    share = spectrum.values**2 / np.sum(spectrum.values**2)
    ranks = np.arange(1, len(share) + 1)
    label = f"{spectrum.rows} x {spectrum.columns}"
    left.plot(ranks, share, color=colour, label=label)
    random = noise.normal(size=(spectrum.rows, spectrum.columns))
    values = np.linalg.svd(random, compute_uv=False) ** 2
    left.plot(ranks, values / values.sum(), "--", color=colour, lw=1)
    rest = [spectrum.error(rank) for rank in ranks]
    right.plot(ranks, rest, color=colour, marker="o", ms=3)
left.set(yscale="log", ylim=(1e-6, 1), xlabel="number of the singular value")
left.set(ylabel="its part of |A|²", title="Singular values")
left.legend(frameon=False, title="dashed: a random matrix", loc="lower left")
right.set(xlim=(0, 17), ylim=(0, 1), xlabel="rank r", ylabel="|A − A_r|² / |A|²")
right.set_title("What the best matrix of rank r loses")
plt.show()

# %% [markdown]
# ## 2. The warm start
#
# PowerSGD does not compute singular vectors. It multiplies the matrix once with a thin
# one, `P = A Q`, orthonormalises, and multiplies back, `Q = Aᵀ P`. That is one step of
# a power iteration, and a poor one if `Q` is random. But gradients change slowly, so
# `Q` of the last step is a good start for the next. It costs nothing: both sides have
# it already.
#
# What to see: with the warm start the error is close to that of the best matrix of the
# same rank, as soon as the second or third step. A random start of twice the rank is no
# better.

# %%
ranks = {1: style.BLUE, 2: style.ORANGE, 4: style.GREEN}


stacked = jax.tree.map(lambda *steps: np.stack(steps)[None], *means)  # one worker
warm, cold = {}, {}
for rank in ranks:
    exchange = jaxcomp.make_exchange(f"power_sgd(rank={rank})", memory="none")
    warm[rank] = study.exchanged(exchange, stacked)[1][0]
    cold[rank] = study.exchanged(exchange, stacked, warm=False)[1][0]
# What PowerSGD compresses: matrices that are at least twice as large as their factors.
best = {rank: [] for rank in ranks}
for mean in means:
    total = sum(np.sum(g**2) for g in jax.tree.leaves(mean))
    for rank in ranks:
        lost = sum(
            s.error(rank) * np.sum(s.values**2)
            for s in study.spectra(mean)
            if 2 * rank * (s.rows + s.columns) < s.rows * s.columns
        )
        best[rank].append(lost / total)

# %%
figure, axes = plt.subplots(1, 3, figsize=(9.4, 3.4), layout="constrained", sharey=True)
for ax, (rank, colour) in zip(axes, ranks.items(), strict=True):
    ax.plot(cold[rank], ":", color=colour, label="random start")
    ax.plot(warm[rank], color=colour, label="warm start")
    ax.plot(best[rank], "--", color=style.INK, lw=1.2, label="best of this rank")
    ax.set(ylim=(0, 0.8), xlabel="step", title=f"rank {rank}")
    ax.legend(frameon=False, loc="upper right")
axes[0].set_ylabel("error of the step")
plt.show()

# %% [markdown]
# ## 3. Bits against error
#
# The best matrix of a rank (`svd`) beside methods that take single elements, all of
# them tensor by tensor. What to see: on these gradients low rank is far better than
# leaving elements out; from two bits on, a few bits for every element are better than
# both.

# %%
gradient = means[-1]
curves = {
    "svd": study.sweep(gradient, "svd(rank={})", (1, 2, 4), draws=1),
    "top_k": study.sweep(gradient, "top_k(keep={})", (0.03, 0.1, 0.2), draws=1),
    "eden": study.sweep(gradient, "eden(bits={}, unbiased=False)", (1, 2), draws=1),
}

# %%
figure, axes = plt.subplots(figsize=(7.6, 3.8), layout="constrained")
for (name, points), colour in zip(
    curves.items(), (style.GREEN, style.ORANGE, style.INK), strict=True
):
    line = [(point.bits, point.error) for point in points]
    axes.plot(*zip(*line, strict=True), color=colour, marker="o", label=name)
axes.set(xscale="log", ylim=(0, 1), xlabel="bits for each element", ylabel="error")
axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
axes.minorticks_off()
axes.set_title("A ResNet-8, tensor by tensor")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## 4. In training
#
# PowerSGD is biased, so it has error feedback around it. What to see: rank 2 sends 17
# times fewer bytes and trains a few steps behind the whole gradient; without the memory
# it falls far behind.

# %%
config.update(batch_size=128, train_for="44 steps", optimizer="sgd(momentum=0)")
config.update(warmup="", schedule="constant", weight_decay=0.0, compressor="none")
runs = {}
for name, spec, memory in [
    ("exact", "exact", "none"),
    ("rank 2, error feedback", "power_sgd(rank=2)", "error_feedback"),
    ("rank 2, no memory", "power_sgd(rank=2)", "none"),
]:
    run = study.train(config, exchange=spec, memory=memory)
    runs[name] = run.steps["loss"]
    sent, accuracy = (
        run.epochs[c][-1] for c in ("wire_bytes_per_step", "test_accuracy")
    )
    print(f"{name:24} {sent:8,.0f} bytes a step  {accuracy:.1%} correct")

# %%
figure, axes = plt.subplots(figsize=(7.6, 3.6), layout="constrained")
for (name, losses), colour in zip(
    runs.items(), (style.INK, style.ORANGE, style.BLUE), strict=True
):
    smooth = np.convolve(losses, np.full(5, 0.2), "valid")
    axes.plot(np.arange(len(smooth)) + 3, smooth, color=colour, label=name)
axes.set(yscale="log", xlabel="step", ylabel="loss, mean of 5 steps")
axes.set_yticks([0.1, 0.3, 1, 2], ["0.1", "0.3", "1", "2"])
axes.minorticks_off()
axes.set_title("Digits, ResNet-8, 4 workers")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Are the gradients of single workers (`history[-1]`, worker 0) of lower or of higher
#    rank than their mean? Why?
# 2. Leave out nine of ten steps: `means[::10]`. Is the warm
#    start still worth something?
# 3. Compare the spectra of `means[0]` and `means[-1]`. Does training change the rank?
# 4. Subtract `A_2` from the largest matrix, as error feedback would, and look at what
#    remains: how many steps would rank 2 need for all of it?
