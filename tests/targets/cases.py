"""Every method of the registries, and what its program on 8 GPUs may cost at most."""

from typing import NamedTuple

from jaxcomp import compressors, exchanges, memory
from jaxcomp.mixers import gossip, local

__all__ = ["CASES", "MISSED", "Case", "Ceiling"]


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
        return Case(
            compressor=_LIGHT if name == "sparse_loco" else "none",
            exchange="gather" if name == "sparse_loco" else "exact",
            mixer=f"{name}(h=2)",
        )
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

# What the cases that are above their ceiling need today: launches, open loops, memory.
# None of them may need more. Who mends one takes it out.
MISSED: dict[str, Ceiling] = {
    "aligned_psum random_k(keep=0.01) error_feedback whole_tree": Ceiling(470, 0, 1.5),
    "budget(bits_per_step=100000000) sign error_feedback whole_tree": Ceiling(
        4040, 1, 5.2
    ),
    "gather top_k(keep=0.001) error_feedback whole_tree": Ceiling(670, 1, 1.5),
    "hierarchical(per_host=4) top_k(keep=0.001) error_feedback whole_tree": Ceiling(
        660, 1, 1.8
    ),
    "power_sgd(rank=2) error_feedback per_leaf": Ceiling(1020, 0, 0.2),
    "simulated top_k(keep=0.001) error_feedback whole_tree": Ceiling(930, 1, 1.5),
    "sparse_reduce top_k(keep=0.001) error_feedback whole_tree": Ceiling(1780, 3, 3.3),
    "gather adaptive_threshold error_feedback whole_tree": Ceiling(770, 1, 1.9),
    "gather atomo per_leaf": Ceiling(12370, 0, 0.5),
    "gather block_scaled error_feedback whole_tree": Ceiling(380, 0, 4.4),
    "gather block_top_k error_feedback whole_tree": Ceiling(530, 0, 2.2),
    "gather cast error_feedback whole_tree": Ceiling(350, 0, 5.6),
    "gather count_sketch error_feedback whole_tree": Ceiling(880, 0, 4.3),
    "gather dgc_top_k error_feedback whole_tree": Ceiling(800, 2, 1.5),
    "gather eden whole_tree": Ceiling(3050, 0, 2.3),
    "gather natural whole_tree": Ceiling(200, 0, 4.6),
    "gather none whole_tree": Ceiling(190, 0, 10.1),
    "gather qsgd whole_tree": Ceiling(210, 0, 5.1),
    "gather qsvd error_feedback per_leaf": Ceiling(11710, 0, 0.5),
    "gather random_k error_feedback whole_tree": Ceiling(500, 0, 1.5),
    "gather rotating_slice error_feedback whole_tree": Ceiling(480, 0, 1.5),
    "gather svd error_feedback per_leaf": Ceiling(8620, 0, 0.8),
    "gather threshold(v=0.001) error_feedback whole_tree": Ceiling(760, 1, 1.9),
    "gather top_k(keep=0.001) error_feedback per_leaf": Ceiling(700, 1, 1.3),
    "gather dgc_top_k error_feedback per_leaf": Ceiling(790, 2, 1.3),
    "gather threshold(v=0.001) error_feedback per_leaf": Ceiling(740, 1, 2.1),
    "gather qsgd per_leaf": Ceiling(70, 0, 4.1),
    "gather adaptive_threshold error_feedback per_leaf": Ceiling(740, 1, 2.1),
    "gather natural per_leaf": Ceiling(60, 0, 4.6),
    "gather top_k(keep=0.001) dgc whole_tree": Ceiling(840, 1, 2.5),
    "gather top_k(keep=0.001) ef21 whole_tree": Ceiling(1150, 1, 3.5),
    "gather top_k(keep=0.001) ef21_momentum whole_tree": Ceiling(1350, 1, 3.5),
    "gather top_k(keep=0.001) local_momentum whole_tree": Ceiling(540, 1, 1.5),
    "gather top_k(keep=0.001) shared_momentum whole_tree": Ceiling(660, 1, 1.5),
    "choco sign whole_tree": Ceiling(660, 0, 1.9),
    "choco_overlapped sign whole_tree": Ceiling(560, 0, 2.7),
    "d_psgd whole_tree": Ceiling(320, 0, 3.1),
    "dcd_psgd sign whole_tree": Ceiling(490, 0, 1.2),
    "delayed_sgd whole_tree": Ceiling(1020, 0, 9.1),
    "ecd_psgd sign whole_tree": Ceiling(500, 0, 0.5),
    "stale_hypercube whole_tree": Ceiling(850, 0, 18.8),
    "diloco(h=2) exact whole_tree": Ceiling(980, 0, 0.4),
    "local_sgd(h=2) exact whole_tree": Ceiling(980, 0, 0.4),
    "sparse_loco(h=2) gather top_k(keep=0.001) whole_tree": Ceiling(930, 1, 1.5),
}
