"""Scopes: which tensors are one vector, and that the laws survive the lifting."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import SpecError, make_compressor, nbits
from jaxcomp.core.coding.indices import coded_bits
from jaxcomp.core.trees import spec_of, wide_spec
from jaxcomp.core.types import Compressor
from jaxcomp.scope import lift
from tests import laws, references

SCOPES = [
    "per_leaf",
    "whole_tree",
    "bucketed(bytes=500)",
    "only_large(min_size=50, scope=whole_tree)",
]


def a_tree(seed: int = 0) -> dict[str, Any]:
    """Odd shapes, a scalar, a tensor without elements, two dtypes."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_t(3, size=shape), jnp.float32)

    return {
        "bias": draw(13),
        "empty": jnp.zeros((0, 4), jnp.bfloat16),
        "kernel": draw(7, 13),
        "narrow": draw(5, 11).astype(jnp.bfloat16),
        "scale": draw(),
    }


def floats() -> dict[str, Any]:
    """A part of it in float32, for laws that need many draws or no rounding."""
    return {name: a_tree()[name] for name in ("bias", "kernel", "scale")}


@functools.cache
def lifted(scope: str, method: str) -> Compressor:
    return lift(scope, make_compressor(method))


@functools.partial(jax.jit, static_argnums=0)
def through(compressor: Compressor, tree: Any, key: jax.Array) -> tuple[Any, Any]:
    spec = spec_of(tree)
    payload, _ = compressor.compress(tree, compressor.init(spec), key)
    return payload, compressor.decompress(payload, spec)


def assert_equal(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("scope", SCOPES)
def test_laws_of_a_tree(scope: str, key: jax.Array) -> None:
    compressor, tree = lifted(scope, "sign"), a_tree()
    laws.check_round_trip(compressor, tree, key)
    laws.check_finite(compressor, tree, key)
    laws.check_bits(compressor, tree, key)
    laws.check_fuses(compressor, tree, key)


@pytest.mark.parametrize("scope", SCOPES)
def test_sum_of_trees(scope: str, key: jax.Array) -> None:
    trees = [a_tree(seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    keys = jax.random.split(key, 3)
    compressor = lifted(scope, "sign")
    laws.check_sum(compressor, stacked, keys)
    laws.check_vmap(compressor, stacked, keys)


@pytest.mark.parametrize("scope", SCOPES)
def test_contraction_of_a_tree(scope: str) -> None:
    """One element alone meets the bound of its group exactly."""
    tree = floats()
    zeros = jax.tree.map(jnp.zeros_like, tree)
    in_kernel = {**zeros, "kernel": zeros["kernel"].at[3, 3].set(1.0)}
    in_bias = {**zeros, "bias": zeros["bias"].at[3].set(1.0)}
    for x in (tree, in_kernel, in_bias):
        laws.check_contraction(lifted(scope, "random_k(keep=0.1)"), x)


@pytest.mark.parametrize("scope", SCOPES)
def test_unbiased_stays_unbiased(scope: str) -> None:
    compressor = lifted(scope, "qsgd(levels=7, bucket=None)")
    assert compressor.unbiased
    laws.check_unbiased(compressor, floats())


@pytest.mark.parametrize("scope", SCOPES)
def test_aligned_stays_aligned(scope: str, key: jax.Array) -> None:
    other = jax.tree.map(lambda x: -2 * x + 1, floats())
    laws.check_aligned(lifted(scope, "random_k(keep=0.1)"), floats(), other, key)


@pytest.mark.parametrize("scope", SCOPES)
def test_facts_that_do_not_hold_are_not_claimed(scope: str) -> None:
    compressor = lifted(scope, "top_k(keep=0.1)")
    assert not compressor.unbiased
    assert not compressor.aligned
    unknown = lifted(scope, "qsgd(levels=1, bucket=None)")
    assert unknown.contraction(spec_of(a_tree())) is None


def test_contraction_is_the_worst_of_all_groups() -> None:
    spec = spec_of(a_tree())
    assert lifted("per_leaf", "sign").contraction(spec) == 1 / 91
    assert lifted("whole_tree", "sign").contraction(spec) == 1 / (13 + 91 + 55 + 1)


def test_tensors_of_one_tree_do_not_share_their_randomness(key: jax.Array) -> None:
    tree = {"a": jnp.arange(1.0, 92.0), "b": jnp.arange(1.0, 92.0)}
    _, output = through(lifted("per_leaf", "random_k(keep=0.1)"), tree, key)
    assert not np.array_equal(output["a"], output["b"])


def test_whole_tree_keeps_the_largest_of_all(key: jax.Array) -> None:
    tree = floats()
    payload, output = through(lifted("whole_tree", "top_k(keep=0.1)"), tree, key)
    assert len(payload) == 1
    joined = laws.flat(tree)
    expected = references.top_k(joined, round(0.1 * joined.size))
    np.testing.assert_array_equal(laws.flat(output), expected)


def sizes_of_groups(scope: str, tree: Any) -> list[int]:
    """Elements of each group, read off what `none` sends."""
    compressor = lift(scope, make_compressor("none"))
    spec = spec_of(tree)
    state = compressor.init(spec)
    key = jax.random.key(0)
    payload, _ = jax.eval_shape(compressor.compress, spec, state, key)
    return [grouped.payload.values.size for grouped in payload]


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [
        (1, [10, 20, 5, 40, 2]),  # each is too large: a bucket of its own
        (120, [30, 5, 40, 2]),  # the first two fit exactly; 40 elements never do
        (140, [35, 40, 2]),
        (168, [35, 42]),
        (10_000, [77]),
    ],
)
def test_buckets_are_filled_in_order_and_cut_no_tensor(
    limit: int, sizes: list[int]
) -> None:
    tree = [jnp.zeros(n) for n in (10, 20, 5, 40, 2)]
    assert sizes_of_groups(f"bucketed(bytes={limit})", tree) == sizes


def test_a_bucket_of_two_dtypes_is_measured_as_it_is_joined() -> None:
    """Joined with float32, a bfloat16 tensor takes twice its bytes."""
    tree = [jnp.zeros(40, jnp.bfloat16), jnp.zeros(5)]
    assert sizes_of_groups("bucketed(bytes=100)", tree) == [40, 5]
    assert sizes_of_groups("bucketed(bytes=180)", tree) == [45]


@pytest.mark.parametrize("scope", SCOPES)
def test_groups_are_the_same_in_narrow_and_wide_trees(scope):
    """A message of narrow tensors is decoded, and summed, in float32."""
    wide = {f"w{n}": jnp.zeros(n) for n in (7, 30, 31, 60, 64, 90, 130)}
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), wide)
    assert sizes_of_groups(scope, narrow) == sizes_of_groups(scope, wide)


def test_small_tensors_go_as_they_are(key: jax.Array) -> None:
    tree = a_tree()
    compressor = lifted("only_large(min_size=50, scope=whole_tree)", "top_k(keep=0.1)")
    payload, output = through(compressor, tree, key)
    for name in ("bias", "empty", "scale"):
        np.testing.assert_array_equal(output[name], tree[name])
    for name in ("kernel", "narrow"):
        assert np.count_nonzero(np.asarray(output[name], np.float32)) < 30
    large = 13 + 1  # elements that are sent dense
    kept = round(0.1 * (91 + 55))
    places = coded_bits(91 + 55 + 1, kept)
    assert nbits(payload) == large * 32 + kept * 32 + places


def test_min_size_is_the_first_large_size(key: jax.Array) -> None:
    tree = {"at": jnp.ones(50), "below": jnp.ones(49)}
    _, output = through(lifted("only_large(min_size=50)", "top_k(0.1)"), tree, key)
    assert np.count_nonzero(output["at"]) == 5
    assert np.count_nonzero(output["below"]) == 49


@pytest.mark.parametrize("scope", SCOPES)
def test_sums_are_wide_even_without_elements(scope: str) -> None:
    compressor, spec = lifted(scope, "none"), spec_of(a_tree())
    state = compressor.init(spec)
    payload, _ = jax.eval_shape(compressor.compress, spec, state, jax.random.key(0))
    stacked = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct((2, *s.shape), s.dtype), payload
    )
    total = jax.eval_shape(lambda p: compressor.decompress_sum(p, spec), stacked)
    assert total == wide_spec(spec)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("tree", [{}, {"a": jnp.zeros((0, 3))}], ids=["none", "empty"])
def test_a_tree_of_nothing_sends_nothing(scope: str, tree: Any, key: jax.Array) -> None:
    payload, output = through(lifted(scope, "sign"), tree, key)
    assert nbits(payload) == 0
    assert spec_of(output) == spec_of(tree)


@pytest.mark.parametrize(
    ("scope", "message"),
    [
        ("per_leav", "Did you mean 'per_leaf'?"),
        ("bucketed(bytes=0)", "bytes is a whole number of at least 1"),
        ("bucketed(bytes=1.5)", "bytes is a whole number of at least 1"),
        ("only_large(min_size=-1)", "min_size is a whole number of at least 0"),
        ("only_large(scope=nowhere)", "unknown scope 'nowhere'"),
        ("per_leaf(compressor=sign)", "no argument 'compressor'"),
        ("whole_tree | per_leaf", "a scope cannot be composed"),
    ],
)
def test_mistakes_in_a_scope(scope: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        lift(scope, make_compressor("sign"))
    assert message in str(error.value)
