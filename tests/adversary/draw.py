"""What is drawn: a program, as a line that can be pasted; and what is simpler than it.

Arguments of methods are drawn from the annotations of their factories, so a new method
or argument takes part without a line here.
"""

import inspect
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import numpy as np

from jaxcomp import compressors, exchanges, memory, scope
from jaxcomp.core.specs import Range, kinds_of
from jaxcomp.mixers import gossip, local
from jaxcomp.mixers.gossip.topology import NAMED

Rng = np.random.Generator


class Leaf(NamedTuple):
    """A tensor of the tree."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    cut: int | None = None  # the axis that lies over "model", under data_parallel


class Program(NamedTuple):
    """A method, what it is given, and what happens to it."""

    kind: str = "exchange"  # or "mixer", "optimizer", "compressor"
    method: str = "gather"
    compressor: str = "none"
    memory: str = "none"
    scope: str = "per_leaf"
    policy: tuple[tuple[str, str], ...] = ()
    overlap: int = 1
    graph: str = "ring"
    mapper: str = "vmap"
    workers: int = 2
    per_device: int = 1
    tree: tuple[Leaf, ...] = (Leaf("w", (3, 5), "float32"),)
    dead: str = ""  # of each tensor: "first", "last" or "middle" rows, or "columns"
    scale: float = 1.0
    resize: int = 0  # to so many workers
    saved: bool = False  # and restored
    counted: bool = False  # bytes of the traced and of the compiled program
    seed: int = 0


# Of whole numbers without a limit; others are at most 5.
MOST = {
    **{"bits_per_step": 20_000, "bucket": 40, "bytes": 2_000, "levels": 300},
    **{"min_size": 40},
}
# Of what argument another spec is drawn, by its name.
NESTED: dict[str, Callable[[Rng], str]] = {
    "inner": lambda rng: spec_of_any(rng, exchanges.REGISTRY, 2),
    "outer": lambda rng: spec_of_any(rng, exchanges.REGISTRY, 2),
    "ladder": lambda rng: f"[{', '.join(compressor(rng) for _ in range(2))}]",
    "values": lambda rng: compressor(rng),
    "scope": lambda rng: spec_of_any(rng, scope.REGISTRY, 1),
}
# Optimisers are no specs: their annotations have no borders.
DECAY = {"weight_decay": (0.0, 0.1)}
OPTIMIZERS: dict[str, dict[str, tuple[float, float]]] = {
    "dgc_sgd": {"momentum": (0, 0.99), "clip": (0.1, 3), **DECAY},
    "ef_signsgd": DECAY,
    "lion": {"b1": (0, 0.99), "b2": (0, 0.99), **DECAY},
    "one_bit_adam": {"b1": (0, 0.95), "b2": (0.5, 0.999), **DECAY},
    "signum": {"beta": (0, 0.99), **DECAY},
}
SPARSE = ("block_top_k", "random_k", "rotating_slice", "svd", "threshold", "top_k")
SHAPES = [(), (0,), (1,), (2,), (7,)]
SHAPES += [(3, 5), (1, 9), (2, 3, 4), (16, 16), (4, 0), (130,)]
CUT = [(2,), (8,), (4, 3), (3, 2), (6, 10), (2, 3, 4)]  # an axis of each divides by 2
NAMES = ["w", "b", "Dense_0/kernel", "Dense_0/bias", "blocks/a/scale"]
PATTERNS = ["*kernel*", "b*", "size<10", "ndim>=2", "*", "ndim>=2&size>20"]
MAPPERS = ["vmap", "pmap", "shard_map", "typed", "lanes"] + ["data_parallel"] * 2


def one(rng: Rng, values: Any) -> Any:
    """Any of them."""
    values = list(values)
    return values[int(rng.integers(len(values)))]


def value(rng: Rng, name: str, kind: Any) -> str:
    """A value of an annotation without a union."""
    if name in NESTED:
        return NESTED[name](rng)
    if get_origin(kind) is Literal:
        return repr(one(rng, get_args(kind)))
    borders = Range()
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        borders = next((n for n in notes if isinstance(n, Range)), borders)
    if kind is bool:
        return repr(bool(rng.integers(2)))
    low = borders.least if borders.above is None else borders.above
    high = borders.most if borders.below is None else borders.below
    if kind is int:
        low, high = int(low or 0), int(min(high or math.inf, MOST.get(name, 5)))
        size = math.exp(rng.uniform(0, math.log(high - low + 2)))
        return repr(min(low + int(size) - 1, high))
    if kind is float:
        low, high = float(low or 0), float(min(high or math.inf, (low or 0) + 4))
        if rng.random() < 0.15 and borders.holds(edge := one(rng, (low, high))):
            return repr(edge)
        return repr(round(low + (high - low) * rng.uniform(0.02, 0.98) ** 2, 4))
    raise TypeError(f"nothing is drawn for {name}: {kind}")


def spec_of_any(rng: Rng, registry: Any, given: int) -> str:
    """A member of a registry, with some of its arguments."""
    name = one(rng, sorted(registry))
    words = []
    for p in list(inspect.signature(registry[name]).parameters.values())[given:]:
        kinds = kinds_of(p.annotation)
        rare = 0.1 if p.name == "allow" else 0.5
        if p.name == "rules" or (p.default is not p.empty and rng.random() > rare):
            continue
        kind = one(rng, [k for k in kinds if k is not type(None)])
        words.append(f"{p.name}={value(rng, p.name, kind)}")
    return f"{name}({', '.join(words)})" if words else name


def compressor(rng: Rng, names: Sequence[str] = ()) -> str:
    """One of these, or of all; or rarely two."""
    registry = {name: compressors.REGISTRY[name] for name in names}
    found = [spec_of_any(rng, registry or compressors.REGISTRY, 0)]
    if rng.random() < 0.15:
        # Few compressors send values that another one could compress.
        first = SPARSE if rng.random() < 0.8 else compressors.REGISTRY
        found.insert(
            0, spec_of_any(rng, {n: compressors.REGISTRY[n] for n in first}, 0)
        )
    return " | ".join(found)


def memories(rng: Rng) -> str:
    if rng.random() < 0.3:
        return "none" if rng.random() < 0.5 else "error_feedback"
    found = [spec_of_any(rng, memory.REGISTRY, 1)]
    if rng.random() < 0.15:
        found.append(spec_of_any(rng, memory.REGISTRY, 1))
    return " | ".join(found)


def tree(rng: Rng, is_cut: bool) -> tuple[Leaf, ...]:
    """Up to four tensors, most of them of one dtype."""
    usual = one(rng, ["float32"] * 6 + ["bfloat16", "float16", "complex64"])
    leaves = []
    for name in rng.permutation(NAMES)[: rng.integers(1, 5)]:
        cut, shape = None, one(rng, SHAPES)
        if is_cut and rng.random() < 0.7:
            shape = one(rng, CUT)
            cut = one(rng, [i for i, n in enumerate(shape) if n % 2 == 0])
        mixed = one(rng, ["float32", "bfloat16", "float16"])
        dtype = mixed if rng.random() < 0.1 else usual
        leaves.append(Leaf(str(name), shape, dtype, cut))
    if len(leaves) == 1 and rng.random() < 0.3:
        return (leaves[0]._replace(name=""),)
    return tuple(leaves)


def with_numbers(leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
    """The tree, of which one tensor has an element: XLA cannot cut programs of none."""
    if any(0 not in leaf.shape for leaf in leaves):
        return leaves
    return (leaves[0]._replace(shape=(1,)), *leaves[1:])


def draw(seed: int) -> Program:
    """The program of a seed."""
    rng = np.random.default_rng(seed)
    kind = one(rng, ["exchange"] * 5 + ["mixer"] * 3 + ["optimizer", "compressor"])
    mapper, workers = one(rng, MAPPERS), int(rng.integers(1, 6))
    if mapper == "lanes":
        workers = 2 * int(rng.integers(1, 4))
    if mapper == "data_parallel":
        workers = one(rng, [2, 2, 4])
    drawn = Program(
        kind=kind,
        compressor=compressor(rng),
        mapper=mapper,
        workers=workers,
        per_device=2 if mapper == "lanes" else 1,
        tree=tree(rng, mapper == "data_parallel"),
        dead=one(rng, [""] * 4 + ["first", "last", "middle", "columns"]),
        scale=one(rng, [1.0, 1.0, 1.0, 1e-3, 30.0]),
        resize=int(rng.integers(1, 6)) if rng.random() < 0.35 else 0,
        saved=bool(rng.random() < 0.2),
        counted=bool(rng.random() < 0.2),
        seed=seed,
    )
    if rng.random() < 0.25:
        drawn = drawn._replace(scope=spec_of_any(rng, scope.REGISTRY, 1))
    elif rng.random() < 0.2:
        rules = [(one(rng, PATTERNS), compressor(rng)) for _ in range(2)]
        drawn = drawn._replace(policy=tuple(rules))
    if kind == "mixer" or mapper == "data_parallel":
        drawn = drawn._replace(tree=with_numbers(drawn.tree))
    if kind in ("exchange", "optimizer"):
        return exchanging(rng, drawn)
    return mixing(rng, drawn) if kind == "mixer" else drawn


def exchanging(rng: Rng, drawn: Program) -> Program:
    method = spec_of_any(rng, exchanges.REGISTRY, 2)
    if rng.random() < 0.35:
        usual = ["gather", "two_phase", "two_phase(server_feedback=True)"]
        method = one(rng, [*usual, "exact"])
    if method.startswith("hierarchical") and "per_host" not in method:
        share = one(rng, [n for n in (1, 2, 3) if drawn.workers % n == 0])
        rest = method.partition("(")[2] or ")"
        method = f"hierarchical(per_host={share}{', ' * (rest != ')')}{rest}"
    if method.startswith(("aligned_psum", "sparse_reduce")) and rng.random() < 0.7:
        aligned = compressor(rng, ("random_k", "rotating_slice"))
        drawn = drawn._replace(compressor=aligned, policy=())
    drawn = drawn._replace(method=method, overlap=one(rng, [1, 1, 1, 2, 3]))
    if drawn.kind == "optimizer":
        name = one(rng, OPTIMIZERS)
        words = [
            f"{argument}={round(rng.uniform(*borders), 3)}"
            for argument, borders in OPTIMIZERS[name].items()
            if rng.random() < 0.3
        ]
        if name == "one_bit_adam":
            words.append(f"dense_steps={rng.integers(1, 8)}")
        if name == "dgc_sgd" and rng.random() < 0.5:
            words.append(f"nesterov={bool(rng.integers(2))}")
        spec = f"{name}({', '.join(words)})" if words else name
        return drawn._replace(memory=spec)
    return drawn._replace(memory=memories(rng))


def mixing(rng: Rng, drawn: Program) -> Program:
    if rng.random() < 0.3:
        spec = spec_of_any(rng, local.REGISTRY, 1)
        inner = spec_of_any(rng, exchanges.REGISTRY, 2)
        return drawn._replace(method=spec, graph=inner, memory=memories(rng))
    if rng.random() < 0.3:
        drawn = drawn._replace(compressor="none")
    spec = spec_of_any(rng, gossip.REGISTRY, 3)
    graphs = {"delayed_sgd": "complete", "stale_hypercube": "hypercube(one_peer=True)"}
    name = spec.split("(")[0]
    if name in ("d_psgd", "stale_hypercube"):
        drawn = drawn._replace(compressor="none", policy=(), scope="per_leaf")
    if name in graphs and rng.random() < 0.8:
        return drawn._replace(method=spec, graph=graphs[name])
    small = {name: graph for name, graph in NAMED.items() if name != "social"}
    return drawn._replace(method=spec, graph=spec_of_any(rng, small, 1))


# --- As a line ------------------------------------------------------------------------


def line_of(program: Program) -> str:
    """JSON of what is not the default."""
    default = Program()
    pairs = zip(Program._fields, program, default, strict=True)
    return json.dumps({name: new for name, new, old in pairs if new != old})


def program_of(line: str) -> Program:
    """The inverse of `line_of`."""
    found = json.loads(line)
    if "tree" in found:
        leaves = [Leaf(n, tuple(s), *rest) for n, s, *rest in found["tree"]]
        found["tree"] = tuple(leaves)
    if "policy" in found:
        found["policy"] = tuple((a, b) for a, b in found["policy"])
    return Program(**found)


def simpler(program: Program) -> Iterator[Program]:
    """Programs with one thing less each."""
    default = Program(method=program.method, workers=min(program.workers, 2))
    for i in range(len(program.tree) if len(program.tree) > 1 else 0):
        yield program._replace(tree=program.tree[:i] + program.tree[i + 1 :])
    names = "mapper resize saved counted overlap policy scope dead scale"
    for name in [*names.split(), "memory", "compressor", "workers"]:
        change = {name: getattr(default, name)}
        if name == "mapper":
            plain = tuple(leaf._replace(cut=None) for leaf in program.tree)
            change |= {"per_device": 1, "tree": plain}
        if program._replace(**change) != program:
            yield program._replace(**change)
    for i, leaf in enumerate(program.tree):
        for less in ({"cut": None}, {"dtype": "float32"}, {"shape": (4, 6)}):
            new = leaf._replace(**less)
            if new != leaf:
                leaves = program.tree[:i] + (new,) + program.tree[i + 1 :]
                yield program._replace(tree=leaves)
    for name in ("method", "compressor", "memory"):
        short = getattr(program, name).split(" | ")[0].split("(")[0]
        if short != getattr(program, name):
            yield program._replace(**{name: short})
