"""What a method costs and what it goes together with, found by building it.

Nothing is computed: shapes go through the method as they would in a step, and what does
not fit is refused by the same rules as in a run.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from jaxcomp import compressors, exchanges, memory, scope
from jaxcomp.core.coding.payloads import nbits
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import SpecError, calls, suggest
from jaxcomp.core.trees import zeros_like_spec
from jaxcomp.core.types import Exchange, Spec, worst
from jaxcomp.scope import lift, make_plan
from jaxcomp.scope.contraction import leaf_contractions
from jaxcomp.transforms.make import make_exchange
from jaxcomp.transforms.make_mixer import make_mixer
from jaxcomp.wire.bytes import collective_bytes, link_bytes
from jaxcomp.wire.traced import traced_collectives

WORKERS = 8


class MethodCost(NamedTuple):
    """What a compressor makes of a tree, tensor by tensor."""

    elements: int
    message_bits: int  # of the payload, as it is packed
    ideal_bits: float  # of the best code that the method has
    unbiased: bool
    contraction: float | None  # E|x - C(x)|^2 <= (1 - it) |x|^2; None: no such bound


class Verdict(NamedTuple):
    """Whether two parts go together."""

    name: str
    why_not: str = ""  # empty: they do
    sent: float = 0.0  # bytes that a worker hands to collectives in a step
    links: float = 0.0  # bytes that leave it, if collectives run as rings


def cost_of(compressor: str, spec: Spec) -> MethodCost:
    """The cost of a compressor for a tree.

    Args:
      compressor: its spec string.
      spec: shapes and dtypes of the tree.

    Example:
      >>> cost_of("sign", jax.ShapeDtypeStruct((320,), "float32")).message_bits
      352
    """
    plan = make_plan("per_leaf", compressor)
    codec = lift(plan)

    def payload(key: jax.Array) -> object:
        zeros = zeros_like_spec(spec)
        return codec.compress(zeros, codec.init(zeros), key)[0]

    given = jax.eval_shape(payload, jax.eval_shape(lambda: jax.random.key(0)))
    return MethodCost(
        elements=sum(leaf.size for leaf in jax.tree.leaves(spec)),
        message_bits=int(nbits(given)),
        ideal_bits=float(codec.ideal_bits(spec)),
        unbiased=compressors.make(compressor).unbiased,
        contraction=worst(leaf_contractions(plan, spec)),
    )


def traffic_of(
    exchange: Exchange, spec: Spec, workers: int = WORKERS
) -> tuple[float, float]:
    """Bytes of a step that a worker hands over, and that leave it by rings.

    Args:
      exchange: with its memory; over the axis "workers".
      spec: of the gradient.
      workers: their number.
    """

    def step(tree: Spec, key: jax.Array) -> object:
        return exchange.average(tree, exchange.init(tree), key).mean

    key = jax.eval_shape(lambda: jax.random.key(0))
    found = traced_collectives(step, spec, key, axis="workers", workers=workers)
    return sum(collective_bytes(found).values()), link_bytes(found)


def of_exchange(
    name: str,
    exchange: str,
    compressor: str | None,
    memory: str,
    spec: Spec,
    *,
    count: bool = False,
) -> Verdict:
    """Whether an exchange, a compressor and a memory go together.

    Args:
      name: of the verdict.
      exchange: spec string.
      compressor: likewise; None for an exchange that uses none.
      memory: likewise.
      spec: of the gradient.
      count: the bytes of a step too.

    Example:
      >>> spec = jax.ShapeDtypeStruct((320,), "float32")
      >>> of_exchange("this", "gather", "sign", "none", spec).why_not
      ''
      >>> of_exchange("this", "exact", "sign", "none", spec).why_not.split(":")[0]
      "'exact' has no use for the compressor 'sign'"
    """
    try:
        built = make_exchange(exchange, compressor, memory)
        jax.eval_shape(built.init, spec)
        sent = traffic_of(built, spec) if count else (0.0, 0.0)
    except UserError as error:
        return Verdict(name, _first_line(error))
    return Verdict(name, "", *sent)


def of_mixer(name: str, mixer: str, compressor: str, spec: Spec) -> Verdict:
    """Whether gossip on a ring goes together with a compressor.

    Args:
      name: of the verdict.
      mixer: spec string.
      compressor: likewise.
      spec: of the model.
    """
    try:
        built = make_mixer(mixer, "ring", WORKERS, compressor=compressor)
        models = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((WORKERS, *x.shape), x.dtype), spec
        )
        jax.eval_shape(jax.vmap(built.init, axis_name=built.axis), models)
    except UserError as error:
        return Verdict(name, _first_line(error))
    return Verdict(name)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


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
