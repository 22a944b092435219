"""A whole method in one line: `dgc: sparse_reduce: top_k(keep=0.01)`."""

import re
from collections.abc import Mapping
from typing import Any

from jaxcomp import compressors, exchanges, memory, scope
from jaxcomp.base import Exchange, Spec
from jaxcomp.make import make_exchange
from jaxcomp.specs import SpecError, calls, suggest

__all__ = ["USUAL", "make_method"]

# What people try first, and one method of each kind.
USUAL = (
    "exact",
    "two_phase: cast(bfloat16)",
    "two_phase: qsgd(levels=7, norm='max')",
    "two_phase: sign",
    "top_k(keep=0.01)",
    "power_sgd(rank=2)",
)
# Matrices of low rank are those of single tensors; the others compile quickest, and
# take the same time, with all tensors in one vector.
_OF_TENSORS = ("atomo", "power_sgd", "qsvd", "svd")
_FRONT: Mapping[str, Mapping[str, object]] = {
    "memory": memory.REGISTRY,
    "exchange": exchanges.REGISTRY,
    "scope": scope.REGISTRY,
}


def make_method(text: str, spec: Spec, axis: str = "workers") -> Exchange:
    """Build a method from one line.

    Args:
      text: a compressor, or an exchange with a way of its own; before it, each with a
        colon, what else is chosen of memory, exchange and scope. Without an exchange it
        is `gather`. Without a memory it is error feedback, if something is lost and a
        memory may keep it.
      spec: of the tree, on which that depends.
      axis: of the workers.

    Raises:
      SpecError: a name or an argument is unknown, or the parts do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> make_method("two_phase: sign", {"w": jnp.ones((8, 8))}).name
      'error_feedback: two_phase(whole_tree: sign)'
      >>> make_method("exact", {"w": jnp.ones((8, 8))}).name
      'exact'
    """
    *front, last = _cut(text)
    chosen: dict[str, Any] = {}
    for part in front:
        kind = _kind_of(part, text)
        if kind in chosen:
            raise SpecError(f"{text!r} names two of a kind: {chosen[kind]} and {part}")
        chosen[kind] = part
    names = [call.name for call in calls(last)]
    own = names[0] in exchanges.REGISTRY and "exchange" not in chosen
    if not own and names[0] not in compressors.REGISTRY:
        hint = suggest(names[0], [*compressors.REGISTRY, *exchanges.REGISTRY])
        raise SpecError(f"{text!r}: no method is called {names[0]!r}. {hint}")
    chosen = {"exchange": last, **chosen} if own else {"compressor": last, **chosen}
    chosen.setdefault(
        "scope", "per_leaf" if {*names} & {*_OF_TENSORS} else "whole_tree"
    )
    plain = make_exchange(**{**chosen, "memory": "none"}, axis=axis)
    if "memory" not in chosen:
        deltas = plain.contraction(spec)
        if None in deltas or all(delta == 1 for delta in deltas):
            return plain
    return make_exchange(**{"memory": "error_feedback", **chosen}, axis=axis)


def _cut(text: str) -> list[str]:
    """The parts of a line between colons; one in brackets or quotes does not count.

    Example:
      >>> _cut("dgc: gather: top_k(keep=0.1)")
      ['dgc', 'gather', 'top_k(keep=0.1)']
    """
    parts = re.split(r":(?![^()]*\))(?=(?:[^'\"]|'[^']*'|\"[^\"]*\")*$)", text)
    return [part.strip() for part in parts]


def _kind_of(part: str, text: str) -> str:
    name = calls(part)[0].name
    kinds = [kind for kind, registry in _FRONT.items() if name in registry]
    if not kinds:
        hint = suggest(name, [n for registry in _FRONT.values() for n in registry])
        message = (
            f"a memory, an exchange or a scope stands before a colon, not {name!r}"
        )
        raise SpecError(f"{text!r}: {message}. {hint}")
    return kinds[0]
