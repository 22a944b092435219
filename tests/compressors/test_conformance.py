"""Every law on every compressor: a new line of the registry is tested by itself."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import compressors
from tests import laws
from tests.laws import make
from tests.tiers import STANDS_FOR, tiers

FURTHER = [
    "adaptive_threshold(cap=0.5)",
    "atomo(rank=2)",
    "block_scaled(bits=4)",
    "atomo(rank=2, chance='relative')",
    "block_scaled(bits=4, rounding='stochastic')",
    "block_top_k(keep=0.1) | qsgd(levels=7)",
    "block_top_k(keep=0.1, per_block=3)",
    "cast(dtype='float8_e4m3fn')",
    "count_sketch(estimate='mean')",
    "count_sketch(ratio=0.3, rows=3, estimate='median')",
    "dgc_top_k(keep=0.1, sample=0.1)",
    "dgc_top_k(keep=0.1, sample=0.1, strided=False, resample=False)",
    "eden(bits=3, unbiased=False)",
    "qsgd(levels=1)",
    "qsgd(levels=7, bucket=None)",
    "qsgd(levels=127, bucket=100)",
    "qsgd(levels=7, norm='max', damped=True)",
    "qsgd(bucket=25, norm='max', rounding='nearest')",
    "qsvd(rank=1, unbiased=True)",
    "random_k(keep=0.25, unbiased=True)",
    "random_k(keep=0.5, unbiased=True) | qsgd(levels=15)",
    "sign(scale='l2')",
    "sign(scaled=False)",
    "svd(rank=1)",
    "svd(rank=2) | qsgd(levels=127)",
    "terngrad(clip=2.5, bucket=64)",
    "threshold(v=1.0, cap=0.5)",
    "top_k(keep=0.1) | qsgd(levels=7)",
    "top_k(keep=0.1, index='plain')",
    "top_k(keep=0.2) | sign",
    "top_k(keep=1.0)",
]
METHODS = [*compressors.REGISTRY, *FURTHER]
# The registry runs by default, and of its variations these: each law meets one.
QUICK = {
    *compressors.REGISTRY,
    "qsgd(levels=7, norm='max', damped=True)",
    "random_k(keep=0.25, unbiased=True)",
    "sign(scaled=False)",
    "top_k(keep=0.1) | qsgd(levels=7)",
}

# Odd, no multiple of the 32 symbols of a word, and with an order of elements to keep.
SHAPE = (3, 87)
SIZE = 261
SHAPES = [(), (3,), SHAPE, (2, 3, 5)]
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]
SPEC = jax.ShapeDtypeStruct(SHAPE, jnp.float32)


def is_quick(case: str | tuple) -> bool:
    return (case if isinstance(case, str) else case[0]) in QUICK


def is_of_its_own_kind(method: str) -> bool:
    """Quick, and no other method has its kind of payload."""
    return is_quick(method) and method not in itertools.chain(*STANDS_FOR.values())


UNBIASED = [m for m in METHODS if make(m).unbiased]
ALIGNED = [m for m in METHODS if make(m).aligned]
CONTRACTIVE = [m for m in METHODS if make(m).contraction(SPEC) is not None]


def name(dtype: jnp.dtype) -> str:
    return jnp.dtype(dtype).name


def normal(*shape: int, seed: int = 0) -> jax.Array:
    values = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(values, jnp.float32)


def vectors() -> dict[str, jax.Array]:
    """Random, heavy-tailed and adversarial vectors."""
    rng = np.random.default_rng(1)
    signs = rng.choice([-1.0, 1.0], SIZE)
    one_hot = np.where(np.arange(SIZE) == 100, 1.0, 0.0)
    values = {
        "normal": rng.normal(size=SIZE),
        "student t": rng.standard_t(1.5, size=SIZE),
        "log-normal": rng.lognormal(0, 3, size=SIZE) * signs,
        "one hot": one_hot,
        "constant": np.full(SIZE, 0.3),
        "equal magnitudes": signs,
        "one huge among small": one_hot * 1e3 + signs,
        "between levels": (signs + one_hot) / 2,
    }
    return {k: jnp.asarray(v.reshape(SHAPE), jnp.float32) for k, v in values.items()}


EXTREMES = {
    "zero": 0.0,
    "constant": 0.3,
    "negative": -2.0,
    "tiny": 1e-38,
    "denormal": 1e-44,
    "huge": 1e37,
}


@pytest.mark.parametrize("method", tiers(METHODS, is_quick))
def test_round_trip_of_every_shape_and_dtype(method: str, key: jax.Array) -> None:
    pairs = {(shape, jnp.float32) for shape in SHAPES} | {(SHAPE, d) for d in DTYPES}
    for shape, dtype in pairs:
        laws.check_round_trip(make(method), jnp.ones(shape, dtype), key)


@pytest.mark.parametrize("method", tiers(METHODS, is_of_its_own_kind))
def test_sum_of_payloads(method: str, key: jax.Array) -> None:
    laws.check_sum(make(method), normal(3, *SHAPE), jax.random.split(key, 3))


@pytest.mark.parametrize("method", tiers(compressors.REGISTRY, is_of_its_own_kind))
def test_payloads_of_narrow_numbers_are_summed_in_float32(
    method: str, key: jax.Array
) -> None:
    xs = normal(3, *SHAPE).astype(jnp.bfloat16)
    laws.check_sum(make(method), xs, jax.random.split(key, 3))


@pytest.mark.parametrize("method", tiers(METHODS, is_quick))
def test_bits(method: str, key: jax.Array) -> None:
    laws.check_bits(make(method), normal(*SHAPE), key)


@pytest.mark.parametrize(
    "first", ["svd(rank=1)", "count_sketch(ratio=0.3)", "block_top_k(keep=1.0)"]
)
def test_compositions_send_as_many_elements_as_they_say(
    first: str, key: jax.Array
) -> None:
    """A value of a factor or of a sketch is of many elements."""
    made = make(f"{first} | random_k(keep=0.1)")
    laws.check_finite(made, normal(*SHAPE), key)


@pytest.mark.parametrize("method", tiers(METHODS, is_quick))
def test_extreme_values_stay_finite(method: str, key: jax.Array) -> None:
    for value in EXTREMES.values():
        laws.check_finite(make(method), jnp.full(SHAPE, value), key)
        laws.check_finite(make(method), jnp.zeros(SHAPE).at[1, 5].set(value), key)


@pytest.mark.parametrize("method", tiers(METHODS, is_quick))
def test_zero_answers_zero(method: str, key: jax.Array) -> None:
    laws.check_zero(make(method), normal(*SHAPE), key)


def mixes(method: str) -> bool:
    """Whether C(x)_i takes in other elements: rotated, hashed, of low rank, or a mean.

    A memory takes back what such a method adds to elements that are zero.
    """
    marks = ("eden", "count_sketch", "svd", "atomo")
    is_mean = make(method).name.endswith(("sign", "sign(scale='l2')"))
    return is_mean or method.startswith(marks)


@pytest.mark.parametrize(
    "method", tiers([m for m in METHODS if not mixes(m)], is_quick)
)
def test_zeros_among_others_answer_zero(method: str, key: jax.Array) -> None:
    """Half of the elements, in every row, in every block."""
    laws.check_zeros_stay(make(method), normal(*SHAPE).at[:, ::2].set(0), key)


@pytest.mark.parametrize("method", compressors.REGISTRY)
def test_one_element_stays_finite(method: str, key: jax.Array) -> None:
    for value in EXTREMES.values():
        laws.check_finite(make(method), jnp.full(1, value), key)


def enlarges(method: str) -> bool:
    """Whether n/k takes the largest numbers out of range: no finite output is right."""
    marks = ("unbiased=True", "atomo(rank=", "estimate='me", "qsgd_sparse")
    return any(mark in make(method).name for mark in marks)


NEAR_THE_LARGEST = [(m, jnp.float32) for m in METHODS if not enlarges(m)]
# A coarse quantiser sends the norm, which float16 cannot hold.
NEAR_THE_LARGEST += [(m, jnp.float16) for m in ("qsgd", "qsgd(levels=1)", "sign")]


@pytest.mark.parametrize(("method", "dtype"), tiers(NEAR_THE_LARGEST, is_quick))
def test_numbers_near_the_largest(
    method: str, dtype: jnp.dtype, key: jax.Array
) -> None:
    largest = 0.9 * float(jnp.finfo(dtype).max)
    x = jnp.full(SHAPE, largest, dtype)
    laws.check_finite(make(method), x, key)
    laws.check_finite(make(method), x.at[:, ::2].multiply(-1), key)


# Draws of eden take longest; test_eden.py has that a NaN and an infinity stay.
@pytest.mark.parametrize(
    "method", tiers(METHODS, lambda m: is_quick(m) and m != "eden")
)
def test_non_finite_values_surface(method: str) -> None:
    laws.check_non_finite_surfaces(make(method), normal(*SHAPE))


# Of these, sign and qsgd have all that reduces more than a block.
SHORT = {*STANDS_FOR["qsgd"], "top_k(keep=0.1) | qsgd(levels=7)"} - {"eden"}


@pytest.mark.parametrize(
    "method",
    tiers(METHODS, lambda m: m in compressors.REGISTRY and m not in SHORT),
)
def test_long_vectors_hide_nothing(method: str) -> None:
    laws.check_long_vectors_hide_nothing(make(method), normal(5003))


# That of eden takes longest, and test_eden.py has it of other vectors.
@pytest.mark.parametrize(
    "method", tiers(UNBIASED, lambda m: is_quick(m) and m != "eden")
)
def test_unbiased(method: str) -> None:
    laws.check_unbiased(make(method), normal(*SHAPE))
    laws.check_unbiased(make(method), vectors()["student t"])


@pytest.mark.parametrize("scale", [1e-30, 1e30, 3e38])
@pytest.mark.parametrize(
    "method", tiers([m for m in UNBIASED if not enlarges(m)], is_quick)
)
def test_unbiased_at_every_scale(method: str, scale: float) -> None:
    x = normal(*SHAPE)
    laws.check_unbiased(make(method), x / jnp.max(jnp.abs(x)) * scale)


@pytest.mark.parametrize("method", tiers(CONTRACTIVE, is_quick))
def test_contraction(method: str) -> None:
    for vector in vectors().values():
        laws.check_contraction(make(method), vector)


@pytest.mark.parametrize("method", tiers(ALIGNED, is_quick))
def test_aligned(method: str, key: jax.Array) -> None:
    x, other = normal(*SHAPE), vectors()["log-normal"]
    laws.check_aligned(make(method), x, other, key)


@pytest.mark.parametrize("method", tiers(METHODS, is_of_its_own_kind))
def test_same_key_same_payload(method: str, key: jax.Array) -> None:
    laws.check_same_key_same_payload(make(method), normal(*SHAPE), key)


@pytest.mark.parametrize("method", tiers(METHODS, is_quick))
def test_no_recompilation(method: str, key: jax.Array) -> None:
    laws.check_no_recompilation(make(method), normal(*SHAPE), key)


@pytest.mark.parametrize("method", tiers(METHODS, is_of_its_own_kind))
def test_vmap_over_workers(method: str, key: jax.Array) -> None:
    laws.check_vmap(make(method), normal(3, *SHAPE), jax.random.split(key, 3))


@pytest.mark.parametrize("method", tiers(METHODS, is_of_its_own_kind))
def test_payload_travels_in_one_buffer(method: str, key: jax.Array) -> None:
    laws.check_fuses(make(method), normal(*SHAPE), key)
