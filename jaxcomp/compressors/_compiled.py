"""A `Compressor` for arrays from its functions, compiled, with the usual defaults."""

import math
from collections.abc import Callable

import jax

from jaxcomp.base import Array, Compressor, Figure, Payload, Spec, State
from jaxcomp.trees import spec_of, vary_like, wide_spec, zeros_like_spec

__all__ = [
    "compressor",
]


def compressor(
    name: str,
    *,
    compress: Callable[[Array, State, Array], tuple[Payload, State]],
    decompress: Callable[[Payload, Spec], Array],
    ideal_bits: Callable[[Spec], float],
    contraction: Callable[[Spec], float | None],
    unbiased: bool,
    aligned: bool = False,
    init: Callable[[Spec], State] = lambda spec: (),
    accumulate: Callable[[Array, Payload], Array] | None = None,
    support: Callable[[Spec], int] = lambda spec: math.prod(spec.shape),
    figures: tuple[Figure, ...] = (),
) -> Compressor:
    """A `Compressor` for arrays, compiled, with the usual defaults filled in.

    Args:
      name: the spec string, canonical.
      compress: (x, state, key) -> (payload, state).
      decompress: (payload, spec) -> x_hat.
      ideal_bits: spec -> information bound in bits.
      contraction: spec -> delta, or None where no bound below |x|^2 holds.
      unbiased: whether E[C(x)] == x.
      aligned: see `Compressor.aligned`.
      init: spec -> state; default: no state.
      accumulate: (total, payload) -> total + x_hat, for payloads that can be added
        without a dense x_hat; default: decompress and add.
      support: spec -> bound on the elements of C(x) that are not zero; default: all.
      figures: what the method reports of each payload.
    """

    def dense_add(total: Array, payload: Payload) -> Array:
        return total + decompress(payload, spec_of(total))

    add = accumulate or dense_add

    def decompress_sum(payloads: Payload, spec: Spec) -> Array:
        # One payload after the other. A single scatter of all sparse payloads would
        # add duplicates in any order on a GPU, and replicas would drift apart.
        def body(i: Array, total: Array) -> Array:
            return add(total, jax.tree.map(lambda leaf: leaf[i], payloads))

        count = jax.tree.leaves(payloads)[0].shape[0]
        start = vary_like(zeros_like_spec(wide_spec(spec)), payloads)
        return jax.lax.fori_loop(0, count, body, start)

    return Compressor(
        name=name,
        init=init,
        compress=jax.jit(compress),
        decompress=_with_spec(jax.jit(decompress, static_argnums=1)),
        accumulate=add,
        decompress_sum=_with_spec(jax.jit(decompress_sum, static_argnums=1)),
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=unbiased,
        aligned=aligned,
        support=support,
        figures=figures,
    )


def _with_spec(decode: Callable[[Payload, Spec], Array]) -> Callable[..., Array]:
    """Let an array stand for its spec, and forget where a spec's array lived."""

    def decompress(payload: Payload, spec: Spec) -> Array:
        return decode(payload, spec_of(spec))

    return decompress
