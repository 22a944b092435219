"""Every method of the registries, and what its program on 8 GPUs may cost at most."""

import csv
from pathlib import Path
from typing import NamedTuple

from jaxcomp import compressors, exchanges, memory
from jaxcomp.mixers import gossip, local


class Ceiling(NamedTuple):
    """The most that a program may need; times are not among it."""

    launches: int
    # A search for thresholds has one, which corrects a first one that misled it. It
    # usually ends before its first round.
    open_loops: int = 1
    temporary: float = 3.0  # in gradients


class Case(NamedTuple):
    """One method, and its ceiling."""

    exchange: str = "gather"  # "" for a mixer
    compressor: str = "none"
    memory: str = "none"
    scope: str = "whole_tree"
    mixer: str = ""
    graph: str = ""
    ceiling: Ceiling = Ceiling(450)

    @property
    def title(self) -> str:
        sent = [self.compressor] if self.compressor != "none" else []
        if self.exchange == "gather":
            sent = [self.compressor]
        kept = [self.memory] if self.memory != "none" else []
        parts = [self.mixer, self.exchange, *sent, *kept, self.scope]
        return " ".join(part for part in parts if part)


_LOW_RANK = Ceiling(1000)
_LIGHT = "top_k(keep=0.001)"
_ARGUMENTS = {"top_k": "(keep=0.001)", "threshold": "(v=0.001)"}
# What is unbiased needs no memory, and some of it may grow with one.
_UNBIASED = {"none", "natural", "qsgd", "qsgd_sparse", "terngrad", "atomo", "eden"}
_MATRICES = {"atomo", "qsvd", "svd"}
_TWO_LEVELS = "hierarchical(per_host=4)"
# Exchanges that do not take top_k, with what they take.
_COMPRESSORS = {
    **dict.fromkeys(("exact", "power_sgd", "majority_vote", "shared_scale"), "none"),
    "aligned_psum": "random_k(keep=0.01)",
    "budget": "sign",
    "two_phase": "sign",
}
_OF_EXCHANGE = {
    "budget": "budget(bits_per_step=100000000)",
    "hierarchical": _TWO_LEVELS,
    "power_sgd": "power_sgd(rank=2)",
}
_NO_MEMORY = {"exact", "majority_vote", "shared_scale"}
_GRAPHS = {"delayed_sgd": "complete", "stale_hypercube": "hypercube(one_peer=True)"}
_PLAIN_MIXERS = {"d_psgd", "delayed_sgd", "stale_hypercube"}  # send models as they are


def _by_tensor() -> list[str]:
    """Those with a form for many tensors at once."""
    made = {name: name + _ARGUMENTS.get(name, "") for name in compressors.REGISTRY}
    return [name for name, text in made.items() if compressors.make(text).segmented]


def _of_compressor(name: str, scope: str) -> Case:
    return Case(
        compressor=name + _ARGUMENTS.get(name, ""),
        memory="none" if name in _UNBIASED else "error_feedback",
        scope="per_leaf" if name in _MATRICES else scope,
        ceiling=_LOW_RANK if name in _MATRICES else Ceiling(450),
    )


def _of_exchange(name: str) -> Case:
    return Case(
        _OF_EXCHANGE.get(name, name),
        _COMPRESSORS.get(name, _LIGHT),
        memory="none" if name in _NO_MEMORY else "error_feedback",
        scope="per_leaf" if name == "power_sgd" else "whole_tree",
        ceiling=_LOW_RANK if name == "power_sgd" else Ceiling(450),
    )


def _of_mixer(name: str) -> Case:
    if name in local.REGISTRY:
        sends = ("gather", _LIGHT) if name == "sparse_loco" else ("exact", "none")
        return Case(*sends, mixer=f"{name}(h=2)")
    compressor = "none" if name in _PLAIN_MIXERS else "sign"
    graph = _GRAPHS.get(name, "ring")
    return Case("", compressor, mixer=name, graph=graph)


CASES = (
    *(_of_exchange(name) for name in exchanges.REGISTRY),
    *(_of_compressor(name, "whole_tree") for name in compressors.REGISTRY),
    *(_of_compressor(name, "per_leaf") for name in _by_tensor()),
    *(Case("gather", _LIGHT, it) for it in memory.REGISTRY if it != "none"),
    *(_of_mixer(name) for name in (*gossip.REGISTRY, *local.REGISTRY)),
)
CASES = tuple({case.title: case for case in CASES}.values())

TABLE = Path(__file__).parents[2] / "docs" / "measured" / "targets.csv"


def _most(row: dict[str, str]) -> Ceiling:
    """What a program may need that was measured above its ceiling: no more."""
    launches, temporary = int(row["launches"]), float(row["temporary"])
    loops = int(row["open_loops"])
    return Ceiling(round(1.02 * launches) + 5, loops, round(1.02 * temporary + 0.1, 1))


# Who mends one measures it again.
with TABLE.open(newline="") as file:
    MEASURED = {row["method"]: _most(row) for row in csv.DictReader(file)}
