"""Many tensors as segments of one matrix: the same as each tensor by itself."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import make_compressor
from jaxcomp.compressors._kit.segments import Segments, segments_of, to_rows
from jaxcomp.compressors._kit.selection import (
    largest,
    largest_of_each,
)
from jaxcomp.core.trees import spec_of
from jaxcomp.core.types import Compressor
from jaxcomp.scope import lift
from tests.tiers import tiers


def drawn(sizes: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_t(3, size=n).astype(np.float32) for n in sizes]


def test_numbers_of_long_tensors_are_reduced_in_several_rounds() -> None:
    segments = Segments((100_000, 7, 16_384, 16_385), 1)  # 128^2 rows are two rounds
    rows = np.arange(segments.rows, dtype=np.uint32) % 1000
    cut = np.split(rows, segments.starts[1:])
    sums = segments.sums(jnp.asarray(rows))
    np.testing.assert_array_equal(sums, [x.sum() for x in cut])
    maxima = segments.sums(jnp.asarray(rows), jnp.max)
    np.testing.assert_array_equal(maxima, [x.max() for x in cut])


LONG = (70_000, 100, 64, 9000)


@functools.partial(jax.jit, static_argnums=1)
def selected(arrays: list[Any], keep: float) -> tuple[Any, Any]:
    """Places of the largest elements, of all at once and of each tensor by itself."""
    segments = segments_of([x.size for x in arrays])
    most = [max(1, round(keep * x.size)) for x in arrays]
    at_once = largest_of_each(to_rows(arrays, segments), segments, most).places
    starts = segments.starts * np.uint32(segments.width)
    pairs = zip(arrays, most, starts, strict=True)
    return at_once, [start + largest(x, k).places for x, k, start in pairs]


@pytest.mark.parametrize("kind", ["heavy", "ties", "zeros", "nan", "crowded"])
def test_largest_of_each_is_largest_of_every_one(kind: str) -> None:
    arrays = drawn(LONG)
    for x in arrays:
        match kind:
            case "ties":
                np.round(x, out=x)
            case "zeros":
                x[3:] = 0
            case "nan":
                x[::50], x[1] = np.nan, np.inf
            case "crowded":  # all large elements are neighbours
                x[: x.size // 20] *= 1000
    at_once, one_by_one = selected(arrays, 0.01)
    np.testing.assert_array_equal(at_once, np.concatenate(one_by_one))


# Where a method adds numbers, it may add them in another order than one by one.
ROUNDED = [
    *("sign", "qsgd(levels=7, bucket=None, rounding='nearest')", "terngrad(clip=2.5)"),
    *("qsgd", "qsgd(levels=1, damped=True)", "sign(scale='l2')"),
]
EXACT = [
    *("sign(scaled=False)", "top_k(keep=0.01)", "top_k(keep=0.6)"),
    *("threshold(v=1.5, cap=0.2)", "threshold(v=0.5, cap=0.1, overflow=nan)"),
    *("adaptive_threshold(cap=0.01)", "terngrad", "qsgd(bucket=None, norm='max')"),
    "qsgd(levels=5, bucket=50, norm='max', rounding='nearest')",
    *("dgc_top_k(keep=0.1, sample=0.1)", "dgc_top_k(keep=0.1, resample=False)"),
    "dgc_top_k(keep=0.05, sample=0.1, strided=False, lower=1.0)",
    "natural",
]
# One for each way through; the others draw, round or select as one of these does.
QUICK = {
    *("sign", "qsgd", "terngrad(clip=2.5)", "top_k(keep=0.01)", "natural"),
    *("threshold(v=0.5, cap=0.1, overflow=nan)", "adaptive_threshold(cap=0.01)"),
    "dgc_top_k(keep=0.1, sample=0.1)",
    "qsgd(levels=5, bucket=50, norm='max', rounding='nearest')",
}
assert {*ROUNDED, *EXACT} > QUICK
SEGMENTED = tiers([*ROUNDED, *EXACT], QUICK.__contains__)


@functools.cache
def both(method: str) -> tuple[Compressor, Compressor]:
    """A method with its segmented form, and the same without it."""
    one = make_compressor(method)
    assert one.segmented is not None
    return lift("per_leaf", one), lift("per_leaf", one._replace(segmented=None))


@functools.partial(jax.jit, static_argnums=0)
def through(compressor: Compressor, tree: Any, key: jax.Array) -> tuple[Any, Any]:
    spec = spec_of(tree)
    payload, _ = compressor.compress(tree, compressor.init(spec), key)
    return payload, compressor.decompress(payload, spec)


def a_tree() -> dict[str, Any]:
    """Tensors shorter and longer than a row, and two of another dtype."""
    shapes = {"a": (13,), "b": (9, 71), "c": (), "d": (3000,)}
    rng = np.random.default_rng(1)
    tree = {
        n: jnp.asarray(rng.standard_t(3, size=s), jnp.float32)
        for n, s in shapes.items()
    }
    narrow = {n + "16": x.astype(jnp.bfloat16) for n, x in tree.items() if n in "ab"}
    return {**tree, **narrow}


@pytest.mark.parametrize("method", SEGMENTED)
def test_all_at_once_is_the_same_as_one_by_one(method: str, key: jax.Array) -> None:
    """Random choices too: they follow from the key and the number of a tensor."""
    tree, (at_once, one_by_one) = a_tree(), both(method)
    _, found = through(at_once, tree, key)
    _, expected = through(one_by_one, tree, key)
    assert spec_of(found) == spec_of(expected)
    for name, x in expected.items():
        x, y = (np.asarray(v, np.float32) for v in (x, found[name]))
        rtol = 0.0 if method in EXACT else 1e-2 if name.endswith("16") else 1e-6
        np.testing.assert_allclose(y, x, rtol=rtol)


@pytest.mark.parametrize("method", SEGMENTED)
def test_who_else_is_in_the_matrix_changes_nothing(method: str, key: jax.Array) -> None:
    """To the bit: a part of the tree gives what the tree gives."""
    tree, (at_once, _) = a_tree(), both(method)
    _, whole = through(at_once, tree, key)
    for names in (("a", "d", "b16"), ("b", "c", "a16")):
        part = {name: x if name in names else None for name, x in tree.items()}
        _, found = through(at_once, part, key)
        for name in names:
            x, y = (np.asarray(v, np.float32) for v in (whole[name], found[name]))
            np.testing.assert_array_equal(y, x)


# What cuts and joins tensors; compilers put it into the operations around it.
MOVES = {
    *("broadcast_in_dim", "concatenate", "convert_element_type", "dynamic_slice"),
    *("jit", "pjit", "reshape", "slice", "squeeze", "copy"),
}


def operations(jaxpr: Any) -> int:
    """Equations of a program and of all that it calls, but those in MOVES."""
    count = 0
    for equation in jaxpr.eqns:
        count += equation.primitive.name not in MOVES
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)  # of a closed one
            count += operations(inner) if hasattr(inner, "eqns") else 0
    return count


def work(codec: Compressor, tensors: int) -> int:
    """Operations of what an exchange of four workers asks of a codec."""
    sizes = [(64, 300, 30_000)[i % 3] + i for i in range(tensors)]
    spec = [jax.ShapeDtypeStruct((size,), jnp.float32) for size in sizes]

    def step(tree: Any, key: jax.Array) -> Any:
        payload, _ = codec.compress(tree, codec.init(spec), key)
        four = jax.tree.map(lambda x: jnp.stack([x] * 4), payload)
        return codec.decompress(payload, spec), codec.decompress_sum(four, spec)

    return operations(jax.make_jaxpr(step)(spec, jax.random.key(0)).jaxpr)


@pytest.mark.parametrize(
    "method", tiers(sorted(QUICK), {"sign", "top_k(keep=0.01)"}.__contains__)
)
def test_a_program_does_not_grow_with_the_number_of_tensors(method: str) -> None:
    at_once, one_by_one = both(method)
    many = work(at_once, 161)
    assert many == work(at_once, 20)
    assert many < 1200  # of some searches the forms for CPUs and for others
    assert work(one_by_one, 20) > 20 * 5  # what is counted is the work of a tensor


def test_what_found_no_room_is_counted_over_all_tensors(key: jax.Array) -> None:
    tree, spec = a_tree(), spec_of(a_tree())
    counts = []
    for codec in both("threshold(v=0.5, cap=0.1)"):
        payload, _ = through(codec, tree, key)
        (figure,) = codec.figures
        counts.append(float(figure.of(payload, spec)))
    assert counts[0] == counts[1] > 0
