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
# A worker that sends 1 % of its gradient loses 99 % of it, unless it keeps what it did not
# send and adds it to the next gradient. That is error feedback:
#
#     p = g + e        what there is to send
#     send C(p)
#     e = p - C(p)     what waits for its turn
#
# This notebook shows what goes wrong without it, why it works, and when it makes things
# worse: a compressor that may lose more than it was given feeds its own noise back, and the
# run explodes.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxcomp
from jaxcomp import study
from jaxcomp.report import style

plt.rcParams.update(style.RC | {"figure.dpi": 110})

# %% [markdown]
# ## 1. Without a memory, a biased method stops in the wrong place
#
# Four workers share a linear regression. Each has data of its own, so at the common optimum
# their gradients are not zero: they cancel. `top_k` sends the largest elements of each, and
# those do not cancel.
#
# What to see: without a memory the run stops early and stays there, however long it runs.
# With error feedback the same message goes as far as sending everything.

# %%
problem = study.regression(workers=4, size=256, examples=512)
batches = [problem.batch] * 400
runs = {}
for name, compressor, memory in [
    ("everything", "none", "none"),
    ("top-k, no memory", "top_k(keep=0.05)", "none"),
    ("top-k, error feedback", "top_k(keep=0.05)", "error_feedback"),
]:
    exchange = jaxcomp.make_exchange(compressor=compressor, memory=memory)
    runs[name] = study.train(
        problem.loss, problem.start, batches, exchange, optax.sgd(0.1)
    )

# %%
figure, axes = plt.subplots(figsize=(8.2, 4), layout="constrained")
colours = [style.INK, style.BLUE, style.ORANGE]
for (name, run), colour in zip(runs.items(), colours, strict=True):
    above = np.maximum(run.losses - problem.optimum, 1e-6)
    axes.plot(above, color=colour)
    label = f"{name}: {run.step_bytes:,} bytes a step"
    axes.text(404, above[-1], label, color=colour, weight="bold", va="center")
axes.set(yscale="log", xlim=(0, 400), ylim=(1e-6, None), xlabel="step")
axes.set_ylabel("loss above the optimum")
axes.set_title("Without a memory, the bias of top-k remains")
plt.show()

# %% [markdown]
# ## 2. Late, but not lost
#
# The same four gradients are given again and again: the loss of worker i is `<g_i, w>`, and
# plain SGD with rate 1 adds up what arrives. How far is the average of all that arrived from
# the true mean?
#
# What to see: without a memory the same elements are lost every time, so waiting does not
# help. With error feedback the distance falls like `1/t`: what is missing is the residual,
# and the residual stays bounded while `t` grows.

# %%
task = study.digits("resnet8")
shards = task.batches(1, 4, 64)
gradients = study.gradients(task.loss, task.params, shards, optax.sgd(0.1))[0]
vectors = np.concatenate(
    [np.reshape(g, (4, -1)) for g in jax.tree.leaves(gradients)], axis=1
)
truth = vectors.mean(axis=0)
marks = [1, 3, 10, 30, 100, 300]
distances = {"none": [], "error_feedback": []}
for memory, found in distances.items():
    exchange = jaxcomp.make_exchange(compressor="top_k(keep=0.01)", memory=memory)
    for steps in marks:
        run = study.train(
            lambda w, g: w @ g,
            np.zeros_like(truth),
            [vectors] * steps,
            exchange,
            optax.sgd(1.0),
        )
        average = -np.asarray(run.params) / steps
        found.append(np.linalg.norm(average - truth) / np.linalg.norm(truth))

# %%
figure, axes = plt.subplots(figsize=(8.2, 3.8), layout="constrained")
for memory, colour in [("none", style.BLUE), ("error_feedback", style.ORANGE)]:
    axes.plot(marks, distances[memory], color=colour, marker="o")
    place = (marks[-1] * 1.08, distances[memory][-1])
    axes.text(*place, memory, color=colour, weight="bold", va="center")
late = np.array([60, 300])
axes.plot(late, distances["error_feedback"][-1] * 300 / late, "--", color=style.INK)
axes.text(58, distances["error_feedback"][-1] * 4.5, "1/t", ha="right")
axes.set(xscale="log", yscale="log", xlim=(1, 300))
axes.set_xticks(marks, map(str, marks))
axes.set_yticks([0.1, 0.2, 0.5, 1], ["0.1", "0.2", "0.5", "1"])
axes.minorticks_off()
axes.set(xlabel="steps t", ylabel="|average − mean| / |mean|")
axes.set_title("Average of what arrived in t steps, against the true mean")
plt.show()

# %% [markdown]
# ## 3. The combination that is refused
#
# Is an unbiased compressor better? `random_k` sends 10 % of the elements, at random. With
# `unbiased=True` it multiplies them by 10, so that it is right on average. Its error is then
# 9 times the gradient: more than sending nothing. jaxcomp refuses to put error feedback
# around it.

# %%
careless = jaxcomp.make_exchange(compressor="random_k(keep=0.1, unbiased=True)")
try:
    careless.init(problem.start)
except jaxcomp.UserError as error:
    print(error)

# %% [markdown]
# `allow=True` tries it all the same. The same elements are sent in both runs below; one of
# them multiplies them by 10.
#
# What to see: the residual of the unbiased method grows by the same factor in each step.
# What is not sent is `p - C(p)`, its energy is 9 times that of `p`, and so the residual
# becomes `√9 = 3` times as long in every step. After some twenty steps the model is gone,
# and after a hundred float32 has no numbers left. Nothing in the loop is wrong. Two good
# ideas, unbiasedness and error feedback, do not go together.

# %%
feedback = {}
for name, compressor in [
    ("random_k", "random_k(keep=0.1)"),
    ("random_k, unbiased", "random_k(keep=0.1, unbiased=True)"),
]:
    exchange = jaxcomp.make_exchange(
        compressor=compressor, memory="error_feedback(allow=True)"
    )
    feedback[name] = study.train(
        problem.loss, problem.start, [problem.batch] * 60, exchange, optax.sgd(0.02)
    )
alone = jaxcomp.make_exchange(
    compressor="random_k(keep=0.1, unbiased=True)", memory="none"
)
feedback["unbiased, no memory"] = study.train(
    problem.loss, problem.start, [problem.batch] * 60, alone, optax.sgd(0.02)
)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 4), layout="constrained")
looks = {
    "random_k": (style.GREEN, "error feedback"),
    "random_k, unbiased": (style.ORANGE, "unbiased\nand error feedback"),
    "unbiased, no memory": (style.BLUE, "unbiased, no memory"),
}
for name, (colour, label) in looks.items():
    run = feedback[name]
    left.plot(run.losses, color=colour, label=label)
    if np.any(run.residuals > 0):
        right.plot(run.residuals, color=colour)
start = feedback["random_k, unbiased"].residuals[0]
steps = np.arange(60)
right.plot(steps, start * 3.0**steps, "--", color=style.INK, lw=1.2)
right.text(16, 1e18, "3 times as long\nin every step", ha="right")
right.text(57, 4e28, "unbiased", color=style.ORANGE, weight="bold", ha="right")
right.text(57, 3e4, "random_k", color=style.GREEN, weight="bold", ha="right")
left.set(yscale="log", ylim=(1e0, 1e20), xlabel="step", ylabel="loss")
left.set_title("The same 10 % of the elements")
left.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, 0.98))
right.set(yscale="log", ylim=(1e0, 1e30), xlabel="step", ylabel="norm of the residual")
right.set_title("What waits for its turn")
plt.show()

# %% [markdown]
# ## 4. One number decides
#
# The residual obeys `e = p - C(p)` with `|p - C(p)|² ≈ ω |p|²`, where `ω` is the error of
# the compressor. If `ω < 1`, the compressor is a **contraction**, and the residual stays
# below `√ω / (1 - √ω)` times the gradient. If `ω > 1`, it grows by `√ω` in every step.
#
# Below: `ω`, measured on the gradient alone, and by how much the residual of a run of 12
# steps really grew in its last steps. What to see: the points lie on `√ω` to the right of
# 1, and stand still on its left. `qsgd` crosses the line when it has enough levels.

# %%
knobs = {
    "qsgd": [f"qsgd(levels={s})" for s in (1, 2, 3, 5, 8, 16, 64)],
    "random_k, unbiased": [f"random_k(keep={k}, unbiased=True)" for k in (0.1, 0.3)],
    "random_k": [f"random_k(keep={k})" for k in (0.1, 0.3)],
    "top_k": ["top_k(keep=0.05)"],
    "sign": ["sign"],
    "terngrad": ["terngrad"],
}
gradient = jax.grad(problem.loss)(problem.start, (problem.batch[0][0], problem.batch[1][0]))
points = {name: [] for name in knobs}
for name, specs in knobs.items():
    for spec in specs:
        error = study.measure(gradient, spec).error
        exchange = jaxcomp.make_exchange(
            compressor=spec, memory="error_feedback(allow=True)"
        )
        run = study.train(
            problem.loss, problem.start, batches[:12], exchange, optax.sgd(0.0)
        )
        growth = (run.residuals[-1] / run.residuals[5]) ** (1 / 6)
        points[name].append((error, growth))

# %%
figure, axes = plt.subplots(figsize=(8.2, 4.6), layout="constrained")
errors = np.geomspace(0.001, 100, 200)
axes.plot(errors, np.maximum(1, np.sqrt(errors)), "--", color=style.INK, lw=1.2)
axes.axvspan(1, 100, color=style.ORANGE, alpha=0.08, lw=0)
axes.text(1.15, 7, "no contraction:\nthe residual explodes", va="top")
axes.text(0.0013, 7, "contraction: the residual is bounded", va="top")
axes.text(22, 4.0, "√ω", va="top")
colours = [style.GREEN, style.ORANGE, style.BLUE, style.INK, style.PINK, style.YELLOW]
for (name, found), colour, marker in zip(points.items(), colours, "^DsoPX", strict=True):
    axes.plot(*zip(*found, strict=True), marker, color=colour, ms=8, label=name)
axes.set(xscale="log", yscale="log", xlim=(0.001, 100), ylim=(0.8, 8))
axes.set_yticks([1, 2, 3, 5], ["1", "2", "3", "5"])
axes.set_yticks([], minor=True)
axes.set(xlabel="ω: error of the compressor", ylabel="growth of the residual in a step")
axes.set_title("Error feedback needs a contraction")
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
plt.show()

# %% [markdown]
# ## 5. A neural network
#
# A small convolutional network on digits, four workers, 60 steps. What to see: one
# per cent of the elements with error feedback trains almost like the whole gradient, and
# without it the network learns more slowly. The noise that explodes in the regression does so here too;
# a network only takes a few steps longer to notice.

# %%
small = study.digits("tiny")
digits = small.batches(60, 4, 32)
curves = {}
for name, compressor, memory in [
    ("everything", "none", "none"),
    ("top-k 1 %, no memory", "top_k(keep=0.01)", "none"),
    ("top-k 1 %, error feedback", "top_k(keep=0.01)", "error_feedback"),
    ("qsgd(levels=1), no memory", "qsgd(levels=1)", "none"),
    ("qsgd(levels=1), feedback", "qsgd(levels=1)", "error_feedback(allow=True)"),
]:
    exchange = jaxcomp.make_exchange(
        compressor=compressor, memory=memory, scope="whole_tree"
    )
    curves[name] = study.train(
        small.loss, small.params, digits, exchange, optax.sgd(0.1)
    )
    accuracy = small.accuracy(curves[name].params)
    print(f"{name:28} {curves[name].step_bytes:7,} bytes  {accuracy:6.1%} correct")

# %%
figure, axes = plt.subplots(figsize=(8.2, 4), layout="constrained")
colours = [style.INK, style.BLUE, style.GREEN, style.SKY, style.ORANGE]
for (name, run), colour in zip(curves.items(), colours, strict=True):
    smooth = np.convolve(run.losses, np.ones(5) / 5, "valid")
    axes.plot(np.arange(2, 58), np.minimum(smooth, 20), color=colour, label=name)
axes.set(yscale="log", ylim=(0.08, 6), xlim=(0, 60), xlabel="step")
axes.set_yticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
axes.set_ylabel("loss, mean of 5 steps")
axes.set_title("Digits, 4 workers")
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. In section 1 let all workers have the same optimum: `study.regression(apart=0.0)`. Does
#    `top_k` without a memory now arrive? Why?
# 2. `decay` in `error_feedback(decay=0.9)` forgets a tenth of the residual in each step.
#    Does it save the unbiased `random_k(keep=0.1)`? From which `keep` on?
# 3. Section 4 says when `qsgd` becomes a contraction. `qsgd(levels=1, bucket=16)` has
#    smaller buckets: where does it lie?
# 4. `ef21` is another memory that keeps what was sent instead of what was not. Put it into
#    section 1.
#
# [docs/methods.md](../docs/methods.md#memories) has all memories, and what each pair of
# memory and compressor guarantees.
