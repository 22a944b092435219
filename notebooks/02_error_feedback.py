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
# # Error feedback, and what happens without it
#
# A worker that sends 1 % of its gradient loses 99 % of it, unless it keeps what it did
# not send and adds it to the next gradient. That is error feedback:
#
#     p = g + e        what there is to send
#     send C(p)
#     e = p - C(p)     what waits for its turn
#
# This notebook shows what goes wrong without it, why it works, and when it makes things
# worse: a compressor that may lose more than it was given feeds its own noise back, and
# the run explodes.

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
# ## 1. Without a memory, a biased method stops in the wrong place
#
# Four workers share a logistic regression. Each has examples of nearly one class, so at
# the common optimum their gradients are not zero: they cancel. `top_k` sends the
# largest elements of each, and those do not cancel.
#
# What to see: without a memory the run stops early and stays there, however long it
# runs and however small the learning rate becomes. With error feedback the same
# messages go on towards the optimum as the rate falls.

# %%
problem = default.get_config()
problem.update(task="logistic_regression", model="linear", partition="sorted")
problem.update(dataset="synthetic(examples=512, features=256)", augment="", warmup="")
problem.update(workers=4, batch_size=512)  # all examples in each step
problem.update(optimizer="sgd(momentum=0)", learning_rate=20.0, weight_decay=0.0)
problem.update(train_for="300 steps", eval_every="300 epochs", checkpoint_every="")
runs = {}
for name, compressor, memory in [
    ("everything", "none", "none"),
    ("top-k, no memory", "top_k(keep=0.05)", "none"),
    ("top-k, error feedback", "top_k(keep=0.05)", "error_feedback"),
]:
    run = study.train(problem, compressor=compressor, memory=memory)
    runs[name] = run.steps["suboptimality"]
    sent = run.epochs["wire_bytes_per_step"][-1]
    print(f"{name:22} {sent:5,.0f} bytes a step")

# %%
figure, axes = plt.subplots(figsize=(8.2, 4), layout="constrained")
colours = [style.INK, style.BLUE, style.ORANGE]
for (name, run), colour in zip(runs.items(), colours, strict=True):
    above = np.maximum(run, 1e-6)
    axes.plot(above, color=colour)
    place = 304, above[-1]
    axes.text(
        *place, name.replace(", ", ",\n"), color=colour, weight="bold", va="center"
    )
axes.set(yscale="log", xlim=(0, 300), ylim=(1e-6, None), xlabel="step")
axes.set_ylabel("loss above the optimum")
axes.set_title("Without a memory, the bias of top-k remains")
plt.show()

# %% [markdown]
# ## 2. Late, but not lost
#
# The same four gradients are given again and again, and what arrives is added up. How
# far is the average of all that arrived from the true mean?
#
# What to see: without a memory the same elements are lost every time, so waiting does
# not help. With error feedback the distance falls like `1/t`: what is missing is the
# residual, and the residual stays bounded while `t` grows.

# %%
network = default.get_config()
network.update(model="tiny", augment="", workers=4, batch_size=256)
gradients = study.gradients(network, steps=1)[0]
vectors = np.concatenate(
    [np.reshape(g, (4, -1)) for g in jax.tree.leaves(gradients)], axis=1
)
truth = vectors.mean(axis=0)
steps = np.arange(1, 301)
again = np.repeat(vectors[:, None], len(steps), axis=1)
distances = {}
for memory in ("none", "error_feedback"):
    exchange = jaxcomp.make_exchange(compressor="top_k(keep=0.01)", memory=memory)
    arrived, _ = study.exchanged(exchange, again)
    averages = np.cumsum(arrived[0], axis=0) / steps[:, None]
    missing = np.linalg.norm(averages - truth, axis=1)
    distances[memory] = missing / np.linalg.norm(truth)

# %%
figure, axes = plt.subplots(figsize=(8.2, 3.8), layout="constrained")
for memory, colour in [("none", style.BLUE), ("error_feedback", style.ORANGE)]:
    axes.plot(steps, distances[memory], color=colour)
    place = (steps[-1] * 1.08, distances[memory][-1])
    axes.text(*place, memory, color=colour, weight="bold", va="center")
late = np.array([40, 300])
axes.plot(late, distances["error_feedback"][-1] * 300 / late, "--", color=style.INK)
axes.text(38, distances["error_feedback"][-1] * 300 / 40, "1/t", ha="right", va="top")
axes.set(xscale="log", yscale="log")
marks = [1, 3, 10, 30, 100, 300]
axes.set_xticks(marks, map(str, marks))
parts = [0.02, 0.05, 0.1, 0.2, 0.5, 1]
axes.set_yticks(parts, map(str, parts))
axes.minorticks_off()
axes.set(xlim=(1, 300), ylim=(0.02, 1.1))
axes.set(xlabel="steps t", ylabel="|average − mean| / |mean|")
axes.set_title("Average of what arrived in t steps, against the true mean")
plt.show()

# %% [markdown]
# ## 3. The combination that is refused
#
# Is an unbiased compressor better? `random_k` sends 10 % of the elements, at random.
# With `unbiased=True` it multiplies them by 10, so that it is right on average. Its
# error is then 9 times the gradient: more than sending nothing. jaxcomp refuses to put
# error feedback around it.

# %%
careless = jaxcomp.make_exchange(compressor="random_k(keep=0.1, unbiased=True)")
try:
    careless.init(truth)
except jaxcomp.UserError as error:
    print(error)

# %% [markdown]
# `allow=True` tries it all the same. The same elements are sent in both runs below; one
# of them multiplies them by 10.
#
# What to see: the residual of the unbiased method grows without end. What is not sent
# is `p - C(p)`, and its energy is on average 9 times that of `p`: `√9 = 3` times the
# length in each step (dashed). A single run grows more slowly, because that mean is
# made by the few elements that are drawn again and again, and 256 elements have hardly
# any of these. After twenty steps the loss has exploded all the same, and after a few
# hundred float32 has no numbers left. Nothing in the loop is wrong. Two good ideas,
# unbiasedness and error feedback, do not go together.

# %%
short = problem.copy_and_resolve_references()
short.update(train_for="60 steps", eval_every="60 epochs")
short.update(learning_rate=2.0, schedule="constant")
allowed = "error_feedback(allow=True)"
feedback = {
    name: study.train(short, compressor=compressor, memory=memory).steps
    for name, compressor, memory in [
        ("random_k", "random_k(keep=0.1)", allowed),
        ("random_k, unbiased", "random_k(keep=0.1, unbiased=True)", allowed),
        ("unbiased, no memory", "random_k(keep=0.1, unbiased=True)", "none"),
    ]
}

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 4), layout="constrained")
looks = {
    "random_k": (style.GREEN, "error feedback"),
    "random_k, unbiased": (style.ORANGE, "unbiased, error feedback"),
    "unbiased, no memory": (style.BLUE, "unbiased, no memory"),
}
for name, (colour, label) in looks.items():
    run = feedback[name]
    left.plot(run["loss"], color=colour, label=label)
    if np.any(run["residual_norm"] > 0):
        right.plot(run["residual_norm"], color=colour)
start = feedback["random_k, unbiased"]["residual_norm"][0]
steps = np.arange(60)
right.plot(steps, start * 3.0**steps, "--", color=style.INK, lw=1.2)
right.text(24, 1e13, "3 times as long\nin a step", ha="right")
right.text(58, 1e14, "unbiased", color=style.ORANGE, weight="bold", ha="right")
right.text(58, 1e2, "random_k", color=style.GREEN, weight="bold", ha="right")
left.set(yscale="log", ylim=(1e-2, 1e24), xlabel="step", ylabel="loss")
left.set_title("The same 10 % of the elements")
left.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, 1.0))
right.set(yscale="log", ylim=(1e-2, 1e24), xlabel="step")
right.set_ylabel("norm of the residual")
right.set_title("What waits for its turn")
plt.show()

# %% [markdown]
# ## 4. One number decides
#
# The residual obeys `e = p - C(p)` with `|p - C(p)|² ≈ ω |p|²`, where `ω` is the error
# of the compressor. If `ω < 1`, the compressor is a **contraction**, and the residual
# stays below `√ω / (1 - √ω)` times the gradient. If `ω > 1`, nothing bounds it.
#
# Below: `ω`, measured on the gradient alone, and by how much the residual of a run of
# 12 steps really grew in each of its last steps. What to see: left of 1 the residual
# has settled, and right of 1 it grows, at most by `√ω` and by less where few elements
# are drawn. `qsgd` crosses the line when it has enough levels.

# %%
knobs = {
    "qsgd": [f"qsgd(levels={s})" for s in (1, 3, 8, 64)],
    "random_k, unbiased": [f"random_k(keep={k}, unbiased=True)" for k in (0.1, 0.3)],
    "random_k": ["random_k(keep=0.3)"],
    "top_k": ["top_k(keep=0.05)"],
    "sign": ["sign"],
    "terngrad": ["terngrad"],
}
gradient = jax.tree.map(lambda g: g[0], study.gradients(short, steps=1)[0])
short.update(train_for="12 steps", eval_every="12 epochs", learning_rate=0.0)
points = {name: [] for name in knobs}
for name, specs in knobs.items():
    for spec in specs:
        error = study.measure(gradient, spec).error
        run = study.train(short, compressor=spec, memory=allowed)
        kept = run.steps["residual_norm"]
        growth = (kept[-1] / kept[5]) ** (1 / 6)
        points[name].append((error, growth))

# %%
figure, axes = plt.subplots(figsize=(8.2, 4.6), layout="constrained")
errors = np.geomspace(0.001, 100, 200)
axes.plot(errors, np.maximum(1, np.sqrt(errors)), "--", color=style.INK, lw=1.2)
axes.axvspan(1, 100, color=style.ORANGE, alpha=0.08, lw=0)
axes.text(1.15, 3.7, "no contraction:\nthe residual grows", va="top")
axes.text(0.0013, 3.7, "contraction: the residual is bounded", va="top")
axes.text(9.5, 2.6, "√ω", va="top")
colours = [style.GREEN, style.ORANGE, style.BLUE, style.INK, style.PINK, style.YELLOW]
for (name, found), colour, marker in zip(
    points.items(), colours, "^DsoPX", strict=True
):
    axes.plot(*zip(*found, strict=True), marker, color=colour, ms=8, label=name)
axes.set(xscale="log", yscale="log")
axes.set_yticks([1, 1.5, 2, 3], ["1", "1.5", "2", "3"])
axes.set_yticks([], minor=True)
axes.set(xlim=(0.001, 100), ylim=(0.85, 4))
axes.set(xlabel="ω: error of the compressor", ylabel="growth of the residual in a step")
axes.set_title("Error feedback needs a contraction")
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
plt.show()

# %% [markdown]
# ## 5. A neural network
#
# A small convolutional network on digits, four workers, momentum SGD, 88 steps. What to
# see: with error feedback, one per cent of the elements learns on where the same
# message without it hardly moves; it is late, as section 2 says, and catches up in
# longer runs. The combination that exploded in the regression explodes here too.

# %%
network.update(batch_size=128, train_for="88 steps", warmup="", scope="whole_tree")
network.update(schedule="constant", weight_decay=0.0, nonfinite="skip")
curves = {}
for name, compressor, memory in [
    ("everything", "none", "none"),
    ("top-k 1 %, no memory", "top_k(keep=0.01)", "none"),
    ("top-k 1 %, error feedback", "top_k(keep=0.01)", "error_feedback"),
    ("qsgd(levels=1), feedback", "qsgd(levels=1)", "error_feedback(allow=True)"),
]:
    run = study.train(network, compressor=compressor, memory=memory)
    curves[name] = run.steps["loss"]
    sent = run.epochs["wire_bytes_per_step"][-1]
    accuracy = run.epochs["test_accuracy"][-1]
    print(f"{name:28} {sent:7,.0f} bytes  {accuracy:6.1%} correct")

# %%
figure, axes = plt.subplots(figsize=(8.2, 4), layout="constrained")
colours = [style.INK, style.BLUE, style.GREEN, style.ORANGE]
for (name, losses), colour in zip(curves.items(), colours, strict=True):
    smooth = np.convolve(losses, np.full(5, 0.2), "valid")
    axes.plot(np.arange(len(smooth)) + 3, smooth, color=colour, label=name)
axes.set(yscale="log")
axes.set_yticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
axes.minorticks_off()
axes.set(ylim=(0.05, 20), xlim=(0, 88), xlabel="step")
axes.set_ylabel("loss, mean of 5 steps")
axes.set_title("Digits, 4 workers")
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. In section 1 let all workers have the same classes: `partition="random"`. Does
#    `top_k` without a memory now arrive? Why?
# 2. `decay` in `error_feedback(decay=0.9)` forgets a tenth of the residual in each
#    step. Does it save the unbiased `random_k(keep=0.1)`? From which `keep` on?
# 3. Section 4 says when `qsgd` becomes a contraction. `qsgd(levels=1, bucket=16)` has
#    smaller buckets: where does it lie?
# 4. `ef21` is another memory that keeps what was sent instead of what was not. Put it
#    into section 1.
#
# [docs/methods.md](../docs/methods.md#memories) has all memories, and what each pair
# of memory and compressor guarantees.
