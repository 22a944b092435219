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
# # Reading the wire: which bytes leave a worker?
#
# A paper says "32 times fewer bits". Whether a program sends them is another question:
# a dtype is widened, a mask is sent as bytes, places cost as much as values. This
# notebook does not believe anybody. It compiles a step, and reads the collectives from
# the program.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxcomp
from benchmarks import style
from jaxcomp import parallel, wire
from jaxcomp.wire import cost, targets

jax.config.update("jax_platforms", "cpu")  # do not look for an accelerator here
workers = parallel.setup(workers=4)  # virtual devices of this CPU
plt.rcParams.update(style.RC | {"figure.dpi": 110})

# %% [markdown]
# ## 1. A step and its text
#
# Four workers, a gradient of 100,000 numbers, signs. The compiled program is text; the
# line with `all-gather` is the message. Its operand `u32[...]` is what this worker
# hands over: one bit for each element, and a scale.

# %%
shapes = {"w": (300, 320), "b": (4000,)}
gradient = {
    name: jnp.asarray(np.random.default_rng(0).normal(size=(4, *shape)), jnp.float32)
    for name, shape in shapes.items()
}
size = sum(int(np.prod(shape)) for shape in shapes.values())
exchange = jaxcomp.make_exchange(compressor="sign", memory="none")
mapped = parallel.map_step(
    lambda tree: exchange.average(tree, exchange.init(tree), jax.random.key(0)).mean,
    workers,
    in_axes=0,
    out_axes=None,
)
program = mapped.lower(gradient).compile()
for line in program.as_text().splitlines():
    if " all-gather(" in line or " all-gather-start(" in line:
        print(line.strip().split(", metadata")[0][:120])
print(wire.collective_bytes(program), "of", 4 * size, "bytes uncompressed")

# %% [markdown]
# ## 2. What a dtype is worth
#
# All numbers below are sums over workers that *ask* for fewer bytes. What to see: on
# this CPU a bfloat16 sum travels as float32, so it saves nothing at all; booleans take
# a byte each. The program does not hide it, but Python does. That is why jaxcomp packs
# its messages into integers.

# %%
sums = {"float32": jnp.float32, "float16": jnp.float16, "bfloat16": jnp.bfloat16}
asked = {f"psum of {name}": 100_000 * jnp.dtype(t).itemsize for name, t in sums.items()}
read = {}
for name, dtype in sums.items():
    reduced = parallel.map_step(
        lambda x: jax.lax.psum(x, parallel.AXIS), workers, in_axes=0, out_axes=None
    )
    x = jax.ShapeDtypeStruct((4, 100_000), dtype)
    found = wire.collective_bytes(reduced.lower(x).compile())
    read[f"psum of {name}"] = sum(found.values())
gathered = parallel.map_step(
    lambda x: jax.lax.all_gather(x, parallel.AXIS), workers, in_axes=0, out_axes=None
)
mask = jax.ShapeDtypeStruct((4, 100_000), jnp.bool_)
asked["all_gather of bool"] = 100_000 // 8
read["all_gather of bool"] = sum(
    wire.collective_bytes(gathered.lower(mask).compile()).values()
)
for name in asked:
    print(f"{name:20} {asked[name]:8,} bytes of information, {read[name]:8,} sent")

# %% [markdown]
# ## 3. Every exchange
#
# The same gradient through different exchanges. What to see: most send one message, of
# one kind of collective. `two_phase` and `power_sgd` send two.

# %%
chosen = {
    "exact": ("exact", None),
    "gather, top-k 1 %": ("gather", "top_k(keep=0.01)"),
    "gather, signs": ("gather", "sign"),
    "gather, qsgd 7": ("gather", "qsgd(levels=7)"),
    "two_phase, signs": ("two_phase", "sign"),
    "sparse_reduce, top-k 1 %": ("sparse_reduce", "top_k(keep=0.01)"),
    "aligned_psum, random-k 1 %": ("aligned_psum", "random_k(keep=0.01)"),
    "power_sgd(rank=2)": ("power_sgd(rank=2)", None),
    "majority_vote": ("majority_vote", None),
}
one = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
key = jax.random.key(0)
messages = {}
for name, (spec, compressor) in chosen.items():
    made = jaxcomp.make_exchange(spec, compressor, memory="none", scope="whole_tree")
    messages[name] = {
        count: wire.traced_collectives(
            lambda tree, state, key, e=made: e.average(tree, state, key).mean,
            one,
            jax.eval_shape(lambda e=made: e.init(one)),
            key,
            axis=parallel.AXIS,
            workers=count,
        )
        for count in (2, 4, 8, 16, 32, 64, 128)
    }
    kinds = wire.collective_bytes(messages[name][4])
    print(f"{name:27}", ", ".join(f"{kind} {n:,}" for kind, n in kinds.items()))

# %% [markdown]
# `traced_collectives` reads the same from the traced function, without compiling, for
# any number of workers.
#
# ## 4. What leaves the network card
#
# Bytes that a worker hands over are not all that travels. A gathered message is
# forwarded to everybody, so with N workers N - 1 of them pass each card. What to see:
# `gather` grows with the workers, and crosses the uncompressed sum: with signs at 64
# workers. `two_phase`, `sparse_reduce`, `aligned_psum` and `power_sgd` stay flat.

# %%
figure, axes = plt.subplots(figsize=(8.6, 4.4), layout="constrained")
looks = {
    "exact": (style.INK, "-"),
    "gather, signs": (style.PINK, "-"),
    "two_phase, signs": (style.PINK, "--"),
    "gather, top-k 1 %": (style.ORANGE, "-"),
    "sparse_reduce, top-k 1 %": (style.ORANGE, "--"),
    "aligned_psum, random-k 1 %": (style.BLUE, "--"),
    "power_sgd(rank=2)": (style.GREEN, "--"),
}
for name, (colour, line) in looks.items():
    counts = list(messages[name])
    sent = [wire.link_bytes(messages[name][n]) for n in counts]
    axes.plot(counts, sent, line, color=colour, marker="o", label=name)
axes.set(
    xscale="log", yscale="log", xlabel="workers", ylabel="bytes that leave a worker"
)
axes.set_xticks(counts, map(str, counts))
axes.set_yticks([1e4, 1e5, 1e6], ["10 kB", "100 kB", "1 MB"])
axes.minorticks_off()
axes.set_title("A gradient of 400 kB, collectives as rings")
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
plt.show()

# %% [markdown]
# ## 5. Seconds
#
# `jaxcomp.wire.cost` turns these messages into time on a link. It does not know how
# long compressing takes: add what you measure on your machine. What to see: on a slow
# link the bytes decide, on a fast one the latency of the rounds does, and compression
# saves nothing.

# %%
figure, axes = plt.subplots(figsize=(8.6, 4.2), layout="constrained")
bandwidths = np.geomspace(1e7, 1e11, 60)  # bits a second
for name, (colour, line) in looks.items():
    seconds = [
        cost.cost(messages[name][8], cost.Link(b / 8, latency=5e-5)).seconds
        for b in bandwidths
    ]
    axes.plot(bandwidths, 1e3 * np.array(seconds), line, color=colour, label=name)
axes.set(
    xscale="log", yscale="log", xlabel="bandwidth of a link", ylabel="milliseconds"
)
axes.set_xticks(
    [1e7, 1e8, 1e9, 1e10, 1e11],
    ["10 Mbit/s", "100 Mbit/s", "1 Gbit/s", "10 Gbit/s", "100 Gbit/s"],
)
axes.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
axes.minorticks_off()
axes.set_title("On the network: 8 workers, 50 µs latency, 400 kB")
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
plt.show()

# %% [markdown]
# ## 6. A GPU that is not here
#
# XLA compiles for GPUs on any CPU, if its compiler is installed:
# `pip install "jax[cuda12]"`, no driver is needed. Then the same reader tells which
# bytes eight A100s would send, and how many kernels the host would start. Where it is
# not installed, the next cell says so and goes on.

# %%
reason = targets.missing("a100")
print(reason or "XLA's compiler for NVIDIA GPUs is installed")
gpu = {}
if not reason:
    target = targets.make("a100", hosts=1, devices=8)
    for name in ("exact", "gather, top-k 1 %", "gather, signs", "two_phase, signs"):
        spec, compressor = chosen[name]
        made = jaxcomp.make_exchange(
            spec, compressor, memory="none", scope="whole_tree"
        )
        step = parallel.map_step(
            lambda x, e=made: e.average(x, e.init(x), jax.random.key(0)).mean,
            target.workers,
            in_axes=0,
            out_axes=None,
        )
        given = targets.specs(one, target)
        gpu[name] = targets.read(targets.compiled(step, target, given))
for name, found in gpu.items():
    kinds = wire.collective_bytes(found.collectives)
    sent = ", ".join(f"{kind} {n:,}" for kind, n in kinds.items())
    print(f"{name:20} {found.launches:4} kernel launches   {sent}")

# %% [markdown]
# The bytes are those of the CPU program wherever both send the same dtypes. The
# launches are what compression costs a GPU: each takes the host 2 to 4 microseconds,
# whatever it computes. [docs/accelerators.md](../docs/accelerators.md) has the table
# of all methods, and `jaxcomp inspect --config=configs/default.py --target=a100` reads
# a whole training step.
#
# ## Exercises
#
# 1. Section 1 with `top_k(keep=0.01)`: how many bytes of the message are places? (Count
#    the values: 1 % of the elements, 4 bytes each.)
# 2. Give the exchange `scope="per_leaf"`. How many messages are sent? Why?
# 3. From how many workers on does `gather` with `qsgd(levels=7)` send more than
#    `exact`? Work it out from section 4's rule, then check.
# 4. Write a step with two `psum`s. How many collectives has the compiled program?
