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
# # Your own gradients: load them and find the method
#
# Which method suits a model depends on its gradients. Save one from your own training,
# load it here, and look: how heavy are the tails, which methods are best at which
# number of bits, which layers lose most, and is low rank an option?
#
# In JAX, one line saves what this notebook loads:
#
#     jaxcomp.study.save("gradient.npz", grads)
#
# In PyTorch, these do:
#
#     grads = {n: p.grad.float().cpu().numpy() for n, p in model.named_parameters()}
#     numpy.savez("gradient.npz", **grads)
#
# The file holds arrays and nothing that could run; pickled files are not read.

# %%
import tempfile
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

from benchmarks import style
from configs import default
from jaxcomp import study

plt.rcParams.update(style.RC | {"figure.dpi": 110})
path = None  # your file: .npz or .npy

# %% [markdown]
# ## 1. Load
#
# Without a file of your own, a ResNet-8 on digits stands in: saved and loaded the same
# way.

# %%
if path is None:
    path = Path(tempfile.mkdtemp()) / "gradient.npz"
    config = default.get_config()
    config.update(model="resnet8", augment="", workers=4, batch_size=256)
    last = study.gradients(config, steps=21)[-1]
    study.save(path, jax.tree.map(lambda g: g[0], last))
gradient = study.load(path)
leaves = jax.tree.leaves(gradient)
flat = np.concatenate([np.ravel(g).astype(np.float32) for g in leaves])
print(f"{flat.size:,} numbers in {len(leaves)} tensors, {4 * flat.size:,} bytes")

# %% [markdown]
# ## 2. How heavy are the tails?
#
# What to see: the part of the elements that holds half of the energy. Gaussian noise
# has 7.4 %: its elements are all alike, so send each of them with few bits (`sign`,
# `eden`, `qsgd`). Below 1 %, leave most of them out (`top_k`). Here each tensor by
# itself is near the noise, and all together are far below, because layers differ in
# scale: a reason to compress them as one vector (`whole_tree`).

# %%
rows = []
for row, leaf in zip(study.layers(gradient, "none"), leaves, strict=True):
    energy = np.cumsum(np.sort(np.ravel(leaf).astype(float) ** 2)[::-1])
    if row.size >= 64 and energy[-1] > 0:
        half = (np.searchsorted(energy, energy[-1] / 2) + 1) / row.size
        rows.append((row.name, row.size, row.energy, half))
squares = np.cumsum(np.sort(flat.astype(float) ** 2)[::-1])
half = (np.searchsorted(squares, squares[-1] / 2) + 1) / flat.size
print(f"half of the energy of the whole gradient is in {half:.2%} of its elements")

# %%
figure, axes = plt.subplots(figsize=(8.2, 3.8), layout="constrained")
counts = np.array([row[1] for row in rows])
halves = np.array([100 * row[3] for row in rows])
weights = np.array([row[2] for row in rows])
axes.scatter(counts, halves, s=20 + 900 * weights, color=style.BLUE, alpha=0.6)
axes.axhline(7.4, ls="--", color=style.INK, lw=1)
axes.text(counts.min(), 6.8, "Gaussian noise", va="top")
axes.axhline(100 * half, color=style.ORANGE, lw=1.4)
axes.text(counts.min(), 108 * half, "all together", color=style.ORANGE)
axes.set(xscale="log", yscale="log", xlabel="elements of the tensor")
axes.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
axes.set_ylabel("elements that hold half of |x|², %")
axes.set_title("One circle is a tensor; its area is its part of the energy")
plt.show()

# %% [markdown]
# ## 3. All methods, and the best of them
#
# Each dot is a method with one setting. The line joins those that no other one beats in
# both bits and error. What to see: read your budget on the horizontal axis, and go up
# to the line.

# %%
methods = [
    *(f"top_k(keep={k})" for k in (0.001, 0.01, 0.1)),
    *(f"top_k(keep={k}) | qsgd(levels=7, norm='max')" for k in (0.01, 0.1)),
    *(f"block_top_k(keep={k})" for k in (0.01, 0.1)),
    "random_k(keep=0.1)",
    "sign",
    *(f"eden(bits={b}, unbiased=False)" for b in (1, 2, 4)),
    *(f"qsgd(levels={s})" for s in (7, 127)),
    "terngrad",
    "natural",
    *(f"block_scaled(bits={b})" for b in (4, 8)),
    "cast(dtype='bfloat16')",
]
points = [study.measure(gradient, m, "whole_tree", draws=1) for m in methods]
best = study.frontier(points)
for p in best:
    sure = "-" if p.contraction is None else f"{p.contraction:.3g}"
    print(f"{p.method:58} {p.bits:6.3g} bits  error {p.error:6.3f}  contraction {sure}")

# %%
families = {
    "top_k": style.ORANGE,
    "block_top_k": style.YELLOW,
    "random_k": style.BLUE,
    "sign": style.PINK,
    "eden": style.GREEN,
    "qsgd": style.SKY,
}
figure, axes = plt.subplots(figsize=(8.6, 4.8), layout="constrained")
axes.plot(
    [p.bits for p in best], [p.error for p in best], color=style.GREY, lw=1.2, zorder=1
)
for point in points:
    family = point.method.split("(")[0]
    colour = families.get(family, style.INK)
    marker = "D" if "|" in point.method else "o"
    axes.plot(point.bits, point.error, marker, color=colour, ms=7)
for name, colour in [*families.items(), ("others", style.INK)]:
    axes.plot([], [], "o", color=colour, label=name)
axes.plot([], [], "D", color=style.ORANGE, label="top_k | qsgd")
for point in (best[0], best[len(best) // 2], best[-1]):
    axes.annotate(
        point.method, (point.bits, point.error), (6, 5), textcoords="offset points"
    )
axes.axhline(1, color=style.GREY, lw=0.8)
axes.set(xscale="log", yscale="log", xlim=(0.03, 60))
axes.set_xticks([0.1, 1, 4, 8, 16], ["0.1", "1", "4", "8", "16"])
axes.minorticks_off()
axes.set(xlabel="bits for each element", ylabel="error", title="Your candidates")
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
plt.show()

# %% [markdown]
# ## 4. Which layers lose most
#
# What to see: layers with an error near 1 are hardly sent. If a layer is important to
# you (embeddings, the last layer), give it a method of its own with a policy.

# %%
lost = study.layers(gradient, "top_k(keep=0.01)", "whole_tree")
worst = sorted((r for r in lost if r.energy > 0.01), key=lambda r: -r.error)[:8]
for r in worst:
    print(
        f"{r.name:44} {r.size:7,}  energy {r.energy:.3f}  arrived {r.arrived:.2%}  "
        f"error {r.error:.3f}"
    )

# %% [markdown]
# ## 5. Is low rank an option?
#
# What to see: the error of the best matrix of rank 2, over the whole gradient, with
# tensors that PowerSGD would send as they are counted as sent. Below about 0.5,
# `power_sgd(rank=2)` with error feedback is worth a run; it is one of the few methods
# whose traffic does not grow with the workers.

# %%
total = float(np.sum(flat.astype(float) ** 2))
for rank in (1, 2, 4):
    error = sum(
        s.error(rank) * float(np.sum(s.values**2))
        for s in study.spectra(gradient)
        if 2 * rank * (s.rows + s.columns) < s.rows * s.columns
    )
    print(f"rank {rank}: error {error / total:.2f}")

# %% [markdown]
# ## 6. What to do with it
#
# An error is not an accuracy: a biased method needs a memory, and a memory needs a
# contraction (a number in the column `contraction` above). Take two or three points of
# the line, and train with each:
#
#     python train.py --config=configs/default.py --workdir=runs/a \
#         --config.compressor='top_k(keep=0.01)'
#
# [Choosing a method](../docs/choosing.md) goes on from here: workers, links, and what
# was measured.
#
# ## Exercises
#
# 1. Save a gradient early and one late in your training. Does the line move?
# 2. Sum the gradients of all workers before compressing. Is the mean easier or harder
#    to compress than what one worker has?
# 3. Load weights in place of a gradient, or the difference of two checkpoints, which is
#    what local training sends. Which methods change places?
