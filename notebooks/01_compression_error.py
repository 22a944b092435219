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
# - **cost**: bits sent for each element (an uncompressed float32 takes 32);
# - **loss**: the normalised error `|x - C(x)|² / |x|²`. 0 is perfect, and 1 is what you
#   would get by sending nothing at all.
#
# This notebook measures both on a real gradient. It takes about a minute on a laptop
# CPU, most of it compiling, needs no download, and defines nothing: everything comes
# from `jaxcomp`, and the experiments from `jaxcomp.study`.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullLocator

from benchmarks import style
from configs import default
from jaxcomp import study

plt.rcParams.update(style.RC | {"figure.dpi": 110})

# %% [markdown]
# ## 1. A real gradient
#
# A ResNet-8 on the handwritten digits that come with scikit-learn, after 20 plain SGD
# steps: the gradient of random weights is not what a training run sends.
#
# What to see: the elements are far from a normal distribution of the same variance.
# Most are tiny, and a few are very large. That is what makes gradients compressible.

# %%
config = default.get_config()
config.update(model="resnet8", augment="", workers=4, batch_size=256)
history = study.gradients(config, steps=21)
gradient = jax.tree.map(lambda g: np.asarray(g[0]), history[-1])  # of worker 0
flat = np.concatenate([g.ravel() for g in jax.tree.leaves(gradient)])
print(
    f"a gradient of {flat.size:,} numbers in {len(jax.tree.leaves(gradient))} tensors"
)

# %%
scaled = flat / flat.std()
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
edges = np.linspace(-8, 8, 121)
left.hist(scaled, edges, density=True, color=style.BLUE, alpha=0.75)
normal = np.exp(-(edges**2) / 2) / np.sqrt(2 * np.pi)
left.plot(edges, normal, "--", color=style.INK, lw=1.4)
left.text(1.7, 0.2, "normal distribution\nof the same variance", va="center")
left.set(yscale="log", ylim=(1e-4, 6), xlabel="element / standard deviation")
left.set(ylabel="density", title="Few elements are large")

energy = np.cumsum(np.sort(flat**2)[::-1]) / np.sum(flat**2)
noise = np.sort(np.random.default_rng(0).normal(size=flat.size) ** 2)[::-1]
part = np.arange(1, flat.size + 1) / flat.size
right.plot(100 * part, 100 * energy, color=style.BLUE)
right.plot(100 * part, 100 * np.cumsum(noise) / noise.sum(), "--", color=style.INK)
right.text(1.3, 80, "gradient", color=style.BLUE, weight="bold", ha="right")
right.text(3.2, 26, "normal noise", ha="right")
right.set(xscale="log", xlim=(0.01, 100), ylim=(0, 101))
right.set_xticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
right.set(xlabel="largest elements, % of all", ylabel="their part of |x|², %")
right.set_title("and hold most of the energy")
plt.show()

# %% [markdown]
# ## 2. Cost and loss, method by method
#
# All tensors are joined into one vector. What to see: bits alone say little. `random_k`
# costs less than `top_k`, since a seed replaces the places, and loses almost
# everything. Unbiased methods pay for being right on average with noise, and an error
# above 1 is common: `qsgd` shares one norm among 512 numbers, which is coarse for few
# levels.
#
# - **ideal_bits**: what a perfect coder would need for the same message;
# - **contraction**: the `δ` in `E|x - C(x)|² ≤ (1 - δ)|x|²` that holds for *every* `x`,
#   the worst one included; `-` where there is none. Notebook 2 shows what that is for.

# %%
methods = [
    "none",
    "top_k(keep=0.01)",
    "random_k(keep=0.01)",
    "random_k(keep=0.01, unbiased=True)",
    "qsgd(levels=1)",
    "qsgd(levels=7)",
    "qsgd(levels=127)",
    "eden(bits=1)",
    "sign",
    "top_k(keep=0.01) | qsgd(levels=7)",
]
points = [study.measure(gradient, m, "whole_tree", draws=2) for m in methods]
print(f"{'method':46} {'bits':>6} {'ideal':>6} {'error':>6}  contraction  unbiased")
for p in points:
    sure = "-" if p.contraction is None else f"{p.contraction:.3g}"
    print(
        f"{p.method:46} {p.bits:6.3g} {p.ideal_bits:6.3g} {p.error:6.3f}  {sure:>11}"
        f"  {'yes' if p.unbiased else 'no':>8}"
    )

# %% [markdown]
# ## 3. What arrives
#
# The same elements before and after. What to see: `top_k` keeps the tails exactly and
# drops the middle; `sign` sends two values; `qsgd` rounds to a grid, so that small
# elements become 0 or jump to the first level; `eden` rotates first, and its error
# looks like noise that is the same for small and large elements.

# %%
shown = ["top_k(keep=0.01)", "sign", "qsgd(levels=7)", "eden(bits=2)"]
figure, axes = plt.subplots(1, 4, figsize=(9, 2.9), layout="constrained", sharey=True)
for ax, method in zip(axes, shown, strict=True):
    arrived = study.round_trip(gradient, method, "whole_tree")
    values = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(arrived)])
    ax.plot([-9, 9], [-9, 9], color=style.GREY, lw=0.8)
    ax.plot(scaled, values / flat.std(), ".", color=style.BLUE, ms=1.5, rasterized=True)
    ax.set(xlim=(-9, 9), ylim=(-9, 9), xlabel="x", title=method)
    ax.title.set_fontsize(style.FONT_SIZE)
axes[0].set_ylabel("C(x)")
plt.show()

# %% [markdown]
# ## 4. The trade-off in one picture
#
# Turn the knob of a method and you get a curve; here all tensors are joined into one
# vector. Down and to the left is better. The dashed line is Shannon's bound `4^-R`: on
# Gaussian noise no code of `R` bits for each element, however clever, loses less.
#
# What to see: where few bits are sent, `top_k` even beats the line, because a gradient
# is not Gaussian noise: few elements hold most of it. `eden` follows the line, whatever
# the gradient looks like. `qsgd` runs parallel to it, about four bits to its right.
# `random_k` buys little either way.

# %%
keeps = (0.001, 0.01, 0.1, 0.3)
knobs = {
    "random_k": ("random_k(keep={})", keeps),
    "random_k, unbiased": ("random_k(keep={}, unbiased=True)", keeps),
    "top_k": ("top_k(keep={})", keeps),
    "qsgd": ("qsgd(levels={})", (1, 7, 31, 127, 511)),
    "eden": ("eden(bits={})", (1, 2, 4, 6)),
    "sign": ("{}", ("sign",)),
}
curves = {
    name: study.sweep(gradient, spec, values, "whole_tree", draws=2)
    for name, (spec, values) in knobs.items()
}

# %%
figure, axes = plt.subplots(figsize=(8.6, 5.4), layout="constrained")
rates = np.geomspace(0.025, 9, 100)
axes.plot(rates, study.shannon_bound(rates), "--", color=style.INK, lw=1.4)
axes.text(2.3, 1.5e-2, "Shannon bound\nfor Gaussian noise", ha="right")
axes.axhline(1, color=style.GREY, lw=0.8)
axes.text(46, 1.15, "as bad as sending nothing", ha="right", color=style.GREY)
# Name, colour, marker, and where the name stands.
looks = [
    ("random_k", style.BLUE, "s", (10.8, 0.68)),
    ("top_k", style.ORANGE, "o", (12, 0.05)),
    ("random_k, unbiased", style.SKY, "D", (0.38, 110)),
    ("qsgd", style.GREEN, "^", (10, 2e-3)),
    ("eden", style.INK, "v", (3.1, 1.2e-3)),
    ("sign", style.PINK, "P", (1.12, 1.55)),
]
for name, colour, marker, place in looks:
    line = [(point.bits, point.error) for point in curves[name]]
    axes.plot(*zip(*line, strict=True), color=colour, marker=marker, ms=6)
    axes.text(*place, name, color=colour, weight="bold", va="center")
# The value of the knob at some points: which point, text, and its offset.
for name, i, text, offset in [
    ("top_k", 0, "keep 0.1 %", (-20, -15)),
    ("top_k", 1, "1 %", (-18, -15)),
    ("top_k", 2, "10 %", (-26, -12)),
    ("qsgd", 0, "1 level", (7, 3)),
    ("qsgd", 1, "7", (7, 2)),
    ("qsgd", 3, "127 levels", (7, -1)),
]:
    point = curves[name][i]
    axes.annotate(text, (point.bits, point.error), offset, textcoords="offset points")
axes.set(xscale="log", yscale="log", xlim=(0.025, 48), ylim=(1e-4, 2e3))
axes.set_xticks([0.1, 0.3, 1, 3, 10, 32], ["0.1", "0.3", "1", "3", "10", "32"])
axes.xaxis.set_minor_locator(NullLocator())
axes.yaxis.set_minor_locator(NullLocator())
axes.set(xlabel="bits sent for each element", ylabel="error  |x − C(x)|² / |x|²")
axes.set_title("What a bit buys, method by method")
plt.show()

# %% [markdown]
# ## 5. Where the error is
#
# The error of the whole gradient hides that of its layers. What to see: one per cent of
# *every* tensor loses about as much of each, whatever its size, although joined they
# would lose half as much (the table in section 2). Notebook 3 goes on from here.

# %%
rows = study.layers(gradient, "top_k(keep=0.01)")
for row in sorted(rows, key=lambda row: -row.energy)[:8]:
    print(
        f"{row.name:44} {row.size:7,}  energy {row.energy:.3f}  error {row.error:.3f}"
    )

# %% [markdown]
# ## Exercises
#
# 1. Add `natural`, `block_scaled(bits=4)` and `cast(dtype='bfloat16')` to the curves.
#    Which of them lies on the line of `qsgd`?
# 2. Compress Gaussian noise of the same size instead of the gradient
#    (`np.random.default_rng(0).normal(size=flat.size).astype("float32")`). Which curves
#    move, and which do not?
# 3. Take the gradient of the first step, `history[0]`. Is it easier or harder to
#    compress?
# 4. `top_k(keep=0.1) | qsgd(levels=7)` compresses the values that `top_k` sends. Where
#    in the picture is it?
#
# Go on with [error feedback](02_error_feedback.ipynb): a biased compressor is not
# useless.
