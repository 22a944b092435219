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
# # Gossip on graphs: consensus, spectral gap and step size
#
# Without a mean over all workers, each worker talks to its neighbours in a graph, and
# keeps a model of its own. How fast do they agree? One number of the graph says so, its
# **spectral gap**; and with compressed messages, one number of the algorithm, its
# **step size**.
#
# No gradients here: each worker starts with a random vector, and all it wants is the
# mean.

# %%
import matplotlib.pyplot as plt
import numpy as np

import jaxcomp
from benchmarks import style
from jaxcomp import study
from jaxcomp.report import graph as graph_layout

plt.rcParams.update(style.RC | {"figure.dpi": 110})
workers = 16
models = np.random.default_rng(0).normal(size=(workers, 200)).astype(np.float32)

# %% [markdown]
# ## 1. Graphs
#
# Each line is a message in both directions; those that close the torus lie on the
# others. `exponential` sends to the workers 1, 2, 4 and 8 places further on, one way.

# %%
names = {
    "ring": style.BLUE,
    "torus": style.GREEN,
    "exponential": style.ORANGE,
    "complete": style.INK,
}
graphs = {name: jaxcomp.topology(name, workers) for name in names}
places = {name: graph_layout.circle(workers).positions for name in names}
places["torus"] = graph_layout.grid(4, 4).positions
figure, axes = plt.subplots(1, 4, figsize=(9.4, 2.9), layout="constrained")
for ax, (name, graph) in zip(axes, graphs.items(), strict=True):
    at = places[name]
    for i, j in np.argwhere(graph.matrix - np.diag(np.diag(graph.matrix)) > 0):
        ax.plot(*at[[i, j]].T, color=names[name], lw=0.7, alpha=0.6)
    ax.plot(*at.T, "o", color=names[name], ms=7)
    ax.set_title(f"{name}\n{graph.degree} neighbours\ngap {graph.spectral_gap:.3f}")
    ax.set_aspect("equal")
    ax.set_axis_off()
plt.show()

# %% [markdown]
# ## 2. How fast they agree
#
# In each round a worker replaces its vector by a weighted mean of its own and its
# neighbours'. `W` has these weights; its largest eigenvalue is 1, which is the mean,
# and the second largest in magnitude is `1 - gap`: whatever is not the mean shrinks at
# least by this factor in each round.
#
# What to see: the lines are straight, and as steep as the gap says (dashed). Twice the
# neighbours is not twice the speed: what counts is how far the graph reaches.

# %%
agreed = {}
for name in names:
    mixer = jaxcomp.make_mixer("d_psgd", name, workers)
    agreed[name] = study.consensus(mixer, models, rounds=80)

# %%
figure, axes = plt.subplots(figsize=(8.2, 4.2), layout="constrained")
rounds = np.arange(81)
for name, colour in names.items():
    distances = np.maximum(agreed[name].distances, 1e-16)
    axes.plot(rounds, distances, color=colour)
    if name != "complete":
        predicted = distances[4] * (1 - graphs[name].spectral_gap) ** (2 * (rounds - 4))
        axes.plot(rounds[4:], predicted[4:], "--", color=colour, lw=1)
axes.text(60, 2e-2, "ring", color=names["ring"], weight="bold")
axes.text(23, 2e-9, "torus", color=names["torus"], weight="bold")
axes.text(
    17, 1e-9, "exponential", color=names["exponential"], weight="bold", ha="right"
)
axes.text(3, 1e-12, "complete:\nat once", color=names["complete"], weight="bold")
axes.set(yscale="log", ylim=(1e-13, 2), xlim=(0, 80), xlabel="round")
axes.set_ylabel("|x − mean|², of that at the start")
axes.set_title("Distance to consensus, 16 workers, whole vectors")
plt.show()

# %% [markdown]
# ## 3. More workers
#
# What to see: the gap of a ring falls with `1/n²`, so 64 workers need 16 times the
# rounds of
# 16. An exponential graph needs hardly more. It costs `log n` messages in place of 2.

# %%
sizes = [4, 8, 16, 32, 64]
figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.6), layout="constrained")
for name, colour in names.items():
    valid = [n for n in sizes if name != "torus" or n in (16, 64)]
    made = [jaxcomp.topology(name, n) for n in valid]
    left.plot(
        valid, [g.spectral_gap for g in made], color=colour, marker="o", label=name
    )
    right.plot(valid, [g.degree for g in made], color=colour, marker="o")
wide = np.array([8, 64])
ring8 = jaxcomp.topology("ring", 8).spectral_gap
left.plot(wide, 0.6 * ring8 * (8 / wide) ** 2, "--", color=style.INK, lw=1)
left.text(20, 0.008, "1/n²", ha="right")
for ax in (left, right):
    ax.set(xscale="log", yscale="log", xlabel="workers n")
    ax.set_xticks(sizes, map(str, sizes))
    ax.minorticks_off()
left.set(ylabel="spectral gap", title="Speed")
right.set(ylabel="messages of a worker in a round", title="Price")
right.set_yticks([2, 4, 8, 16, 32, 64], ["2", "4", "8", "16", "32", "64"])
left.legend(frameon=False)
plt.show()

# %% [markdown]
# ## 4. Compressed messages, and the step size γ
#
# If a worker simply sent `C(x)`, the error would never leave the vectors. CHOCO-SGD
# sends the compressed *difference* to what the neighbours know already, and then moves
# by γ towards what it knows of them. What to see: too small a γ is slow, and with too
# large a γ the workers drift apart. `top_k` of 2 % bears a γ of 0.3, of 10 % one of
# 0.4, and 15 levels one of 0.7. Signs of Gaussian numbers bear every γ: such vectors
# are what signs are best at.

# %%
ring = graphs["ring"]
gammas = np.geomspace(0.003, 1, 15)
compressors = {
    "none": style.INK,
    "qsgd(levels=15)": style.GREEN,
    "sign": style.PINK,
    "top_k(keep=0.1)": style.ORANGE,
    "top_k(keep=0.02)": style.BLUE,
}
shrunk = {name: study.step_sizes(name, ring, gammas, size=500) for name in compressors}

# %%
figure, axes = plt.subplots(figsize=(8.2, 4.4), layout="constrained")
for name, colour in compressors.items():
    values = np.where(np.isfinite(shrunk[name]), shrunk[name], 1e9)
    axes.plot(gammas, np.clip(values, 1e-14, 1e9), color=colour, marker="o", label=name)
axes.axhspan(1, 1e4, color=style.ORANGE, alpha=0.08, lw=0)
axes.text(0.0032, 10, "the workers drift apart")
axes.set(xscale="log", yscale="log", ylim=(1e-6, 1e3), xlim=(0.003, 1.05))
sizes = [0.003, 0.01, 0.03, 0.1, 0.3, 1]
axes.set_xticks(sizes, map(str, sizes))
axes.minorticks_off()
axes.set(xlabel="step size γ", ylabel="|x − mean|² after 150 rounds, of that before")
axes.set_title("A ring of 16 workers")
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
plt.show()
for name in ("sign", "top_k(keep=0.1)"):
    best = gammas[np.nanargmin(shrunk[name])]
    print(f"{name}: best of these {best:.3f}")

# %% [markdown]
# ## 5. Rounds or bytes
#
# What to see: counted in rounds, compression is slower. Counted in bytes it is not,
# until the messages are so small that agreement takes for ever.

# %%
chosen = {
    "none": ("d_psgd", None),
    "qsgd(levels=15)": ("choco(gamma=0.9)", "qsgd(levels=15)"),
    "sign": ("choco(gamma=0.4)", "sign"),
    "top_k(keep=0.1)": ("choco(gamma=0.3)", "top_k(keep=0.1)"),
}
runs = {}
for name, (mixer, compressor) in chosen.items():
    made = jaxcomp.make_mixer(mixer, "ring", workers, compressor=compressor)
    runs[name] = study.consensus(made, models, rounds=250)

# %%
figure, (left, right) = plt.subplots(
    1, 2, figsize=(9.4, 3.9), layout="constrained", sharey=True
)
for name, run in runs.items():
    rounds = np.arange(len(run.distances))
    left.plot(rounds, run.distances, color=compressors[name])
    label = f"{name}: {run.round_bytes} bytes a round"
    right.plot(
        rounds * run.round_bytes / 1000,
        run.distances,
        color=compressors[name],
        label=label,
    )
left.set(yscale="log", ylim=(1e-6, 1.5), xlabel="round")
left.set(ylabel="|x − mean|², of that at the start", title="By rounds")
right.set(xlim=(0, 60), xlabel="kB sent by one worker", title="By bytes")
figure.legend(loc="outside lower center", ncols=2, frameon=False)
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. `jaxcomp.topology("star", 16)` needs only 15 edges. Which gap does it have, and
#    what is wrong with it in a real network?
# 2. `exponential(one_peer=True)` sends one message in a round. After how many rounds do
#    16 workers have the exact mean, and why?
# 3. Add an edge across the ring: `edges(list=[[0, 1], [1, 2], ..., [0, 8]])`. How much
#    does the gap change?
# 4. Find the best γ for `top_k(keep=0.02)` on `torus` and on `ring`. Which graph
#    forgives more?
#
# `jaxcomp topology ring 16` shows a graph on the terminal;
# [docs/methods.md](../docs/methods.md#gossip) has all algorithms, with gradients.
