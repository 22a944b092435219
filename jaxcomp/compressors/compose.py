"""Composition: in `left | right`, right compresses the values that left sends."""

import jax

from jaxcomp.compressors._kit.compiled import compressor, payload_spec
from jaxcomp.core.coding.payloads import nbits
from jaxcomp.core.specs import SpecError
from jaxcomp.core.trees import spec_of
from jaxcomp.core.types import Array, Compressor, Figure, Payload, Spec, State


def compose(left: Compressor, right: Compressor) -> Compressor:
    """Send the payload of `left` with its `values` compressed by `right`.

    The payload of `left` must have a field `values`, and its `decompress` must be
    linear in this field: sparsifiers and factorisations have one, quantisers do not. If
    `left` is biased, it is a projection, and the contraction is the product of both
    contractions. If both sides are unbiased with variances w = 1 - delta, the
    contraction follows from 1 + w = (1 + w_left)(1 + w_right).

    Args:
      left: a compressor whose payload has `values`.
      right: any compressor.

    Raises:
      SpecError: the payload of `left` has no `values`.

    Example:
      >>> from jaxcomp.compressors import make
      >>> spec = jax.ShapeDtypeStruct((8,), "float32")
      >>> make("top_k(keep=0.5) | sign").contraction(spec)
      0.125
    """

    def inner_spec(spec: Spec) -> Spec:
        """Shape and dtype of the values that `left` sends."""
        payload = payload_spec(left.compress, left.init, spec)
        if not hasattr(payload, "values"):
            message = (
                f"{left.name!r} sends no plain values that {right.name!r} could "
                "compress; put a sparsifier such as top_k on the left of '|'"
            )
            raise SpecError(message)
        return spec_of(payload.values)

    inner_spec(jax.ShapeDtypeStruct((8,), "float32"))  # refuses a quantiser at once

    def init(spec: Spec) -> State:
        return left.init(spec), right.init(inner_spec(spec))

    def compress(x: Array, state: State, key: Array) -> tuple[Payload, State]:
        left_key, right_key = jax.random.split(key)
        payload, left_state = left.compress(x, state[0], left_key)
        values, right_state = right.compress(payload.values, state[1], right_key)
        return payload._replace(values=values), (left_state, right_state)

    def restore(payload: Payload, spec: Spec) -> Payload:
        """The payload of `left` itself."""
        values = right.decompress(payload.values, inner_spec(spec))
        return payload._replace(values=values)

    def decompress(payload: Payload, spec: Spec) -> Array:
        return left.decompress(restore(payload, spec), spec)

    def accumulate(total: Array, payload: Payload) -> Array:
        return left.accumulate(total, restore(payload, spec_of(total)))

    def of_values(figure: Figure) -> Figure:
        def of(payload: Payload, spec: Spec) -> Array:
            return figure.of(payload.values, inner_spec(spec))

        return Figure(figure.name, of)

    def ideal_bits(spec: Spec) -> float:
        values = inner_spec(spec)
        return left.ideal_bits(spec) - nbits(values) + right.ideal_bits(values)

    def contraction(spec: Spec) -> float | None:
        outer, inner = left.contraction(spec), right.contraction(inner_spec(spec))
        if outer is None or inner is None:
            return None
        if not left.unbiased or outer == 1:
            return outer * inner
        delta = 2 - (2 - outer) * (2 - inner)
        return delta if right.unbiased and delta > 0 else None

    def support(spec: Spec) -> int:
        most, values = left.support(spec), inner_spec(spec)
        # A value is of one element; but those of factors and sketches, which are fewer.
        return min(most, right.support(values)) if values.size >= most else most

    return compressor(
        f"{left.name} | {right.name}",
        compress,
        decompress,
        ideal_bits,
        contraction,
        accumulate=accumulate,
        init=init,
        support=support,
        unbiased=left.unbiased and right.unbiased,
        aligned=left.aligned and right.aligned,
        figures=(*left.figures, *map(of_values, right.figures)),
    )
