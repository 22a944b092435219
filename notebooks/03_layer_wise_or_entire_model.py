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
# # Layer by layer, or the entire model at once?
#
# A gradient is many tensors. A compressor can be given each tensor by itself
# (`per_leaf`, layer-wise) or all of them as one vector (`whole_tree`, the entire
# model). The papers that prove convergence compress one vector; most programs compress
# tensors, because that is what a framework hands them. The two are different methods,
# with different results.
#
# This notebook shows what each does to a real gradient, and to a training run.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

from benchmarks import style
from configs import default
from jaxcomp import study

plt.rcParams.update(style.RC | {"figure.dpi": 110})
scopes = {"per_leaf": style.BLUE, "whole_tree": style.ORANGE}

# %% [markdown]
# ## 1. Layers differ
#
# What to see: each dot is a tensor of a ResNet-8 after 20 steps. The size of a typical
# element differs by a factor of about 20 between layers. A threshold, or a scale, that
# is right for one of them is wrong for another.

# %%
config = default.get_config()
config.update(model="resnet8", augment="", workers=4, batch_size=256)
history = study.gradients(config, steps=21)
gradient = jax.tree.map(lambda g: np.asarray(g[0]), history[-1])  # of worker 0
total = np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(gradient)))

figure, axes = plt.subplots(figsize=(8.2, 3.6), layout="constrained")
for is_kernel, colour, label in [
    (True, style.BLUE, "kernels"),
    (False, style.ORANGE, "biases and norms"),
]:
    chosen = [g for g in jax.tree.leaves(gradient) if (g.ndim > 1) == is_kernel]
    sizes = [g.size for g in chosen]
    typical = [np.sqrt(np.mean(g**2)) for g in chosen]
    axes.plot(sizes, typical, "o", color=colour, ms=7, alpha=0.8, label=label)
axes.set(xscale="log", yscale="log", xlabel="elements of the tensor")
axes.set_yticks([0.003, 0.01, 0.03], ["0.003", "0.01", "0.03"])
axes.minorticks_off()
axes.set_ylabel("root mean square")
axes.set_title("A typical element, tensor by tensor")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## 2. The same budget, spent in two ways
#
# `per_leaf` sends 1 % of every tensor, `whole_tree` the largest 1 % of the model. What
# to see: joined, the budget goes to the tensors with large elements, and the total
# error falls; but large kernels with small elements are hardly sent at all. That is the
# price, and error feedback is what gives them their turn.

# %%
found = {scope: study.layers(gradient, "top_k(keep=0.01)", scope) for scope in scopes}
kernels = [i for i, row in enumerate(found["per_leaf"]) if row.size > 100]
names = [found["per_leaf"][i].name.replace("/kernel", "") for i in kernels]
places = np.arange(len(kernels))

figure, (left, right) = plt.subplots(
    1, 2, figsize=(9.4, 4.2), layout="constrained", sharey=True
)
for shift, (scope, colour) in zip((-0.2, 0.2), scopes.items(), strict=True):
    rows = found[scope]
    lost = sum(row.error * row.energy for row in rows)
    label = f"{scope}: {lost:.2f} in total"
    sent = [100 * rows[i].arrived for i in kernels]
    errors = [rows[i].error for i in kernels]
    left.barh(places + shift, sent, height=0.36, color=colour)
    right.barh(places + shift, errors, height=0.36, color=colour, label=label)
left.set_yticks(places, names)
left.invert_yaxis()
for ax in (left, right):
    ax.grid(visible=False, axis="y")
left.set(xlabel="elements that were sent, %", title="top_k(keep=0.01)")
right.set(xlim=(0, 1), xlabel="error of the tensor")
figure.legend(loc="outside lower right", ncols=2, frameon=False)
plt.show()

# %% [markdown]
# ## 3. It depends on the method
#
# The error of one method in both scopes, at the same number of bits. What to see:
# methods that *choose* elements (`top_k`) do better with all of them to choose from.
# Methods that *scale* (`sign`, `terngrad`) need a scale that fits, which a tensor gives
# and a model does not. `qsgd` and `block_scaled` have a scale for every block of
# elements anyway, and `eden` rotates, so for these the scope hardly matters.

# %%
methods = [
    "top_k(keep=0.01)",
    "top_k(keep=0.1)",
    "random_k(keep=0.1)",
    "sign",
    "terngrad",
    "qsgd(levels=15)",
    "block_scaled(bits=4)",
    "eden(bits=2)",
]
errors = {
    scope: [study.measure(gradient, m, scope, draws=2).error for m in methods]
    for scope in scopes
}
ratios = np.array(errors["per_leaf"]) / np.array(errors["whole_tree"])

# %%
figure, axes = plt.subplots(figsize=(8.2, 3.8), layout="constrained")
places = np.arange(len(methods))
colours = [style.BLUE if r < 1 else style.ORANGE for r in ratios]
axes.barh(places, ratios - 1, left=1, color=colours, height=0.6)
axes.axvline(1, color=style.INK, lw=1)
axes.set_yticks(places, methods)
axes.invert_yaxis()
axes.grid(visible=False, axis="y")
axes.set(xscale="log")
axes.set_xticks([0.1, 0.2, 0.5, 1, 2], ["1/10", "1/5", "1/2", "1", "2"])
axes.minorticks_off()
axes.set_xlim(min(0.25, 0.8 * ratios.min()), 3)
axes.set_xlabel("error layer-wise / error of the entire model")
axes.set_title("Left: layers are better. Right: the entire model is better")
plt.show()

# %% [markdown]
# ## 4. In a training run
#
# The error of one step is not the result of a run. Four workers, momentum SGD, top-k of
# 1 %, with and without error feedback. What to see: without a memory, both scopes learn
# slowly. With error feedback both train, and alike: what a layer does not send now
# waits for its turn, so the scope decides when an element is sent and not whether.

# %%
config.update(model="tiny", batch_size=128, train_for="88 steps")
config.update(warmup="", schedule="constant", weight_decay=0.0)
runs = {}
for memory in ("none", "error_feedback"):
    for scope in scopes:
        run = study.train(
            config, compressor="top_k(keep=0.01)", memory=memory, scope=scope
        )
        runs[scope, memory] = run.steps["loss"]
        sent = run.epochs["wire_bytes_per_step"][-1]
        accuracy = run.epochs["test_accuracy"][-1]
        print(f"{scope:11} {memory:15} {sent:5.0f} bytes  {accuracy:.1%} correct")

# %%
figure, axes = plt.subplots(figsize=(8.2, 3.8), layout="constrained")
for (scope, memory), losses in runs.items():
    line = "--" if memory == "none" else "-"
    label = f"{scope}, {'no memory' if memory == 'none' else 'error feedback'}"
    smooth = np.convolve(losses, np.full(5, 0.2), "valid")
    axes.plot(
        np.arange(len(smooth)) + 3, smooth, line, color=scopes[scope], label=label
    )
axes.set(yscale="log", xlim=(0, 88), xlabel="step", ylabel="loss, mean of 5 steps")
axes.set_yticks([0.1, 0.3, 1, 2], ["0.1", "0.3", "1", "2"])
axes.minorticks_off()
axes.set_title("Digits, 4 workers, top-k of 1 %")
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. `only_large(min_size=500)` sends small tensors whole, and `bucketed(bytes=4096)`
#    joins neighbours up to a size. Put both into section 2. What do they cost?
# 2. A policy gives each kind of tensor its own method, such as signs for kernels and
#    nothing for the rest:
#    `jaxcomp.make_exchange(policy=[("*/kernel", "sign"), ("*", "none")])`. Train with
#    it.
# 3. In section 3 multiply one tensor by 1000, as a badly scaled layer would be. Which
#    methods suffer in which scope?
# 4. Where does `whole_tree` send its 1 % after 20 steps, and where at `history[0]`?
#
# [docs/methods.md](../docs/methods.md#scopes) has all scopes.
