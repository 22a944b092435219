"""Functions of compressors, compiled once for each shape; indices within rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.core.coding.payloads import nbits
from jaxcomp.core.trees import spec_of, vary_like, wide_spec, zeros_like_spec
from jaxcomp.core.types import Array, Compressor, Figure, Payload, Spec, State


def add_at(
    total: Array, places: Array, values: Array, mode: str = "drop", **promises: Any
) -> Array:
    """A tensor with a value added at each place of the flattened tensor.

    Args:
      total: the tensor.
      places: [k] places; those beyond the end are left out.
      values: [k] values, in any float type.
      mode: as in `jax.numpy.ndarray.at`.
      **promises: `indices_are_sorted` or `unique_indices`, as in the same function.

    Example:
      >>> add_at(jnp.zeros(3), jnp.array([1, 3]), jnp.ones(2))
      Array([0., 1., 0.], dtype=float32)
    """
    values = values.astype(total.dtype)
    added = total.reshape(-1).at[places].add(values, mode=mode, **promises)
    return added.reshape(total.shape)


def clear_at(flat: Array, places: Array, values: Array) -> Array:
    """A vector with zeros at the places whose value is not zero.

    Example:
      >>> clear_at(jnp.ones(3), jnp.array([0, 2]), jnp.array([5.0, 0.0]))
      Array([0., 1., 1.], dtype=float32)
    """
    sent = jnp.where(values != 0, places, flat.size)
    return flat.at[sent].set(0, mode="drop")


def compressor(
    name: str,
    compress: Callable[[Array, State, Array], tuple[Payload, State]],
    decompress: Callable[[Payload, Spec], Array] | None = None,
    ideal_bits: Callable[[Spec], float] | None = None,
    contraction: Callable[[Spec], float | None] = lambda spec: None,
    *,
    accumulate: Callable[[Array, Payload], Array] | None = None,
    init: Callable[[Spec], State] = lambda spec: (),
    support: Callable[[Spec], int] = lambda spec: spec.size,
    unbiased: bool = False,
    aligned: bool = False,
    figures: tuple[Figure, ...] = (),
    clear: Callable[[Array, Payload], Array] | None = None,
) -> Compressor:
    """A compressor of arrays from the functions that make up its method.

    `Compressor` says what each function and each fact means. Only `compress` and one of
    `decompress` and `accumulate` are needed. The default of a fact promises nothing.

    Args:
      name: the spec string that builds the method again.
      compress: (x, state, key) -> (payload, state).
      decompress: (payload, spec) -> the elements of C(x), in any shape and float type;
        they get those of the spec. Default: add the payload to zeros.
      ideal_bits: spec -> bits that a perfect coder would send. Default: the bits of
        the payload, which is right where no coder could shorten it.
      contraction: spec -> delta. Default: None, the error has no bound below |x|^2.
      accumulate: (total, payload) -> total + C(x). A sparse method adds only the
        elements that were sent. Default: decompress, and add all elements.
      init: spec -> state before the first step. Default: the method has no state.
      support: spec -> largest number of nonzero elements of C(x). Default: all.
      unbiased: whether E[C(x)] == x.
      aligned: whether workers with the same key may add their `values`.
      figures: numbers that the method reports of each payload.
      clear: as in `Compressor`.
    """
    if decompress is None and accumulate is None:
        raise TypeError(f"{name} needs a function decompress or accumulate")

    def decode(payload: Payload, spec: Spec) -> Array:
        if decompress is None:
            return add(zeros_like_spec(spec), payload)
        return decompress(payload, spec).reshape(spec.shape).astype(spec.dtype)

    def add_all(total: Array, payload: Payload) -> Array:
        return total + decode(payload, spec_of(total))

    add = accumulate or add_all

    def decompress_sum(payloads: Payload, spec: Spec) -> Array:
        # The payloads are added one after the other. A single scatter of all sparse
        # payloads would add duplicate places in any order on a GPU, and replicas would
        # drift apart.
        def body(i: Array, total: Array) -> Array:
            return add(total, jax.tree.map(lambda leaf: leaf[i], payloads))

        count = jax.tree.leaves(payloads)[0].shape[0]
        start = vary_like(zeros_like_spec(wide_spec(spec)), payloads)
        return jax.lax.fori_loop(0, count, body, start)

    def payload_bits(spec: Spec) -> float:
        return float(nbits(payload_spec(compress, init, spec)))

    return Compressor(
        name=name,
        init=init,
        compress=jax.jit(compress),
        decompress=with_spec(decode),
        accumulate=add,
        decompress_sum=with_spec(decompress_sum),
        ideal_bits=ideal_bits or payload_bits,
        contraction=contraction,
        unbiased=unbiased,
        aligned=aligned,
        support=support,
        figures=figures,
        clear=clear,
    )


def payload_spec(
    compress: Callable[..., tuple[Payload, State]],
    init: Callable[[Spec], State],
    spec: Spec,
) -> Payload:
    """Shapes and dtypes of the payload of an array with this spec.

    Args:
      compress: of the compressor.
      init: of the compressor.
      spec: of the array.
    """

    def send(x: Array) -> Payload:
        return compress(x, init(x), jax.random.key(0))[0]

    return jax.eval_shape(send, spec)


def with_spec(decode: Callable[[Payload, Spec], Any]) -> Callable[..., Any]:
    """Compiles a decoder, and lets an array stand for its spec.

    Args:
      decode: (payload, spec) -> array, or a tuple of arrays for a tuple of specs.
    """
    compiled = jax.jit(decode, static_argnums=1)

    def decompress(payload: Payload, spec: Spec) -> Any:
        # Shape and dtype alone: a spec may also say on which devices an array lives.
        return compiled(payload, spec_of(spec))

    return decompress
