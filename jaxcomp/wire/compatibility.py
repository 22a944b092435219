"""What a method costs and what it goes together with, found by building it.

Nothing is computed: shapes go through the method as they would in a step, and what does
not fit is refused by the same rules as in a run.
"""

from typing import NamedTuple

import jax

from jaxcomp import compressors
from jaxcomp.core.coding.payloads import nbits
from jaxcomp.core.errors import UserError
from jaxcomp.core.trees import zeros_like_spec
from jaxcomp.core.types import Exchange, Spec
from jaxcomp.scope import lift, make_plan
from jaxcomp.scope.contraction import leaf_contractions, worst
from jaxcomp.transforms.make import make_exchange, make_mixer
from jaxcomp.wire import collective_bytes, link_bytes, traced_collectives

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
        models = jax.tree.map(_stacked, spec)
        jax.eval_shape(jax.vmap(built.init, axis_name=built.axis), models)
    except UserError as error:
        return Verdict(name, _first_line(error))
    return Verdict(name)


def _stacked(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((WORKERS, *leaf.shape), leaf.dtype)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
