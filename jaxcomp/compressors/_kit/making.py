"""Compressors, made of the functions of a method: for one array and for many at once.

`compressor` completes a method of any kind, `sparsifier` one that chooses elements.
`of_many` gives a method its form for many arrays, and `compose` puts two together.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from jaxcomp.compressors._kit import segments as segment
from jaxcomp.compressors._kit.segments import Segments
from jaxcomp.core.coding.payloads import nbits
from jaxcomp.core.specs import Call, Pipe, Range, SpecError, build, error_at, parse
from jaxcomp.core.trees import spec_of, vary_like, wide_spec, zeros_like_spec
from jaxcomp.core.types import Array, Compressor, Figure, Payload, Spec, State, worst

REGISTRY: dict[str, Callable[..., Compressor]] = {}  # filled by `jaxcomp.compressors`

# Some other libraries take the fraction that is DROPPED, so the message for a value
# above 1 says which of the two is meant here.
Keep = Annotated[float, Range(above=0, most=1, says="the fraction kept, in (0, 1]")]


def make(spec: str | Call | Pipe | Compressor) -> Compressor:
    """Build a compressor from its spec string.

    Args:
      spec: a string such as "top_k(keep=0.01)" or "top_k(keep=0.01) | cast", a parsed
        spec, or a compressor, which is returned as it is.

    Raises:
      SpecError: a name, an argument or a value is unknown; the message lists the valid
        ones.

    Example:
      >>> make("top_k(keep=0.01) | qsgd(levels=7, damped=True)").name
      'top_k(keep=0.01) | qsgd(levels=7, bucket=512, damped=True)'
    """
    if isinstance(spec, Compressor):
        return spec
    if isinstance(spec, str):
        spec = parse(spec)
    if isinstance(spec, Pipe):
        left, right = make(spec.left), make(spec.right)
        try:
            return compose(left, right)
        except ValueError as error:
            raise error_at(spec.left, str(error)) from error
    return build(spec, REGISTRY, "compressor")


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


def of_many(
    one: Compressor,
    compress: Callable[[Array, Segments, Array], Payload],
    decompress: Callable[[Payload, Segments, Any], Array] | None = None,
    width: int | None = None,
) -> Compressor:
    """A method for a tuple of arrays of one dtype, which are the rows of one matrix.

    Args:
      one: the same method for one array. It has no state.
      compress: (rows, segments, keys) -> payload; a key for each tensor.
      decompress: (payload, segments, dtype) -> rows, in any float type; they are cast
        to this dtype. None: some elements are sent, by `send_rows`.
      width: of the rows; None leaves it to `segments_of`.
    """
    add_at = functools.partial(segment.add_at, indices_are_sorted=True)

    def layout(arrays: Any) -> Segments:
        return segment.segments_of([x.size for x in arrays], width)

    def compress_all(
        arrays: Sequence[Array], state: State, keys: Array
    ) -> tuple[Payload, State]:
        segments = layout(arrays)
        return compress(segment.to_rows(arrays, segments), segments, keys), state

    def decompress_all(payload: Payload, specs: Spec) -> tuple[Array, ...]:
        segments, dtype = layout(specs), specs[0].dtype
        if decompress:
            rows = decompress(payload, segments, dtype).astype(dtype)
            return segment.from_rows(rows, segments, specs)
        zeros = jnp.zeros(sum(segments.sizes), dtype)
        flat = add_at(zeros, *segment.read(payload, zeros.size))
        return segment.cut(flat, [spec.shape for spec in specs])

    def decompress_sum(payloads: Payload, specs: Spec) -> tuple[Array, ...]:
        segments, dtype = layout(specs), wide_spec(specs[0]).dtype
        size, shape = sum(segments.sizes), (segments.rows, segments.width)
        found = payloads
        if not decompress:  # what all sent is small, and read at once
            found = jax.vmap(lambda payload: segment.read(payload, size))(payloads)
            shape = (size,)

        # One after the other, for the reason given in `compressor`.
        def body(i: Array, total: Array) -> Array:
            part = jax.tree.map(lambda leaf: leaf[i], found)
            if not decompress:
                return add_at(total, *part)
            return total + decompress(part, segments, dtype).astype(dtype)

        count = jax.tree.leaves(payloads)[0].shape[0]
        start = vary_like(jnp.zeros(shape, dtype), payloads)
        total = jax.lax.fori_loop(0, count, body, start)
        if decompress:
            return segment.from_rows(total, segments, specs)
        return segment.cut(total, [spec.shape for spec in specs])

    def add_all(total: Sequence[Array], payload: Payload) -> tuple[Array, ...]:
        return tuple(map(jnp.add, total, decode(payload, tuple(total))))

    decode = with_spec(decompress_all)
    return one._replace(
        init=lambda specs: tuple(one.init(spec) for spec in specs),
        compress=jax.jit(compress_all),
        decompress=decode,
        accumulate=add_all if decompress else functools.partial(_changed, add_at),
        decompress_sum=with_spec(decompress_sum),
        ideal_bits=lambda specs: sum((one.ideal_bits(s) for s in specs), 0.0),
        contraction=lambda specs: worst(one.contraction(s) for s in specs),
        support=lambda specs: sum(map(one.support, specs)),
        segmented=None,
        clear=None if decompress else functools.partial(_changed, segment.clear_at),
    )


def _changed(
    change: Callable[..., Array], arrays: Sequence[Array], payload: Payload
) -> tuple[Array, ...]:
    """Arrays changed at the places that `send_rows` took; in the rows of `compress`."""
    segments = segment.segments_of([x.size for x in arrays])
    places, values = segment.read(payload, sum(segments.sizes))
    rows = segment.to_rows(arrays, segments)
    flat = change(rows.reshape(-1), segments.in_rows(places), values)
    return segment.from_rows(flat.reshape(rows.shape), segments, arrays)


def sparsifier(
    name: str,
    compress: Callable[[Array, State, Array], tuple[Payload, State]],
    compress_rows: Callable[[Array, Segments, Array], Payload],
    capacity: Callable[[int], int],
    contraction: Callable[[Spec], float | None],
    index: str,
    figures: tuple[Figure, ...] = (),
) -> Compressor:
    """A biased compressor whose payload has the fields that `send` makes.

    Plain places have no form for many arrays: the narrow integers that are enough for
    the places of a short tensor are not enough for those of all tensors.

    Args:
      name: the spec string that builds the method again.
      compress: (x, state, key) -> (payload, state). The payload has the fields `values`
        and `indices` of `send`.
      compress_rows: (rows, segments, keys) -> the payload of `send_rows`.
      capacity: size of the tensor -> number of elements in a payload.
      contraction: as in `Compressor`.
      index: one of `indices.CODES`.
      figures: as in `Compressor`, also of a tuple of specs.
    """

    def ideal_bits(spec: Spec) -> float:
        count = capacity(spec.size)
        return count * value_bits(spec) + subset_bits(spec.size, count)

    def accumulate(total: Array, payload: Payload) -> Array:
        places, values = segment.read(payload, total.size)
        # Ascending but not unique: absent elements all stand at n, out of range.
        return segment.add_at(total, places, values, indices_are_sorted=True)

    def clear(x: Array, payload: Payload) -> Array:
        places, values = segment.read(payload, x.size)
        return segment.clear_at(x.reshape(-1), places, values).reshape(x.shape)

    one = compressor(
        name,
        compress,
        ideal_bits=ideal_bits,
        contraction=contraction,
        accumulate=accumulate,
        clear=clear,
        support=lambda spec: capacity(spec.size),
        figures=figures,
    )
    if index == "plain":
        return one
    return one._replace(segmented=of_many(one, compress_rows))


def kept(size: int, keep: float) -> int:
    """Number of elements kept of `size`: round(keep * size), at least one.

    Example:
      >>> kept(1000, 0.01), kept(3, 0.01), kept(100, 0.07)
      (10, 1, 7)
    """
    return min(size, max(1, round(keep * size)))


def value_bits(spec: Spec) -> int:
    """Bits of one element."""
    return jnp.finfo(spec.dtype).bits


def subset_bits(n: int, k: int) -> float:
    """log2 of the number of subsets of k places out of n.

    Example:
      >>> round(subset_bits(4, 2), 3)  # six subsets
      2.585
    """
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return log / math.log(2)


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

    def ideal_bits(spec: Spec) -> float:
        values = inner_spec(spec)
        return left.ideal_bits(spec) - nbits(values) + right.ideal_bits(values)

    def contraction(spec: Spec) -> float | None:
        return _of_both(left, right, spec, inner_spec(spec))

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
        figures=(*left.figures, *(_of_values(f, inner_spec) for f in right.figures)),
    )


def _of_values(figure: Figure, inner_spec: Callable[[Spec], Spec]) -> Figure:
    return Figure(figure.name, lambda p, s: figure.of(p.values, inner_spec(s)))


def _of_both(
    left: Compressor, right: Compressor, spec: Spec, values: Spec
) -> float | None:
    """The contraction of a composition."""
    outer, inner = left.contraction(spec), right.contraction(values)
    if outer is None or inner is None:
        return None
    if not left.unbiased or outer == 1:
        return outer * inner
    delta = 2 - (2 - outer) * (2 - inner)
    return delta if right.unbiased and delta > 0 else None
