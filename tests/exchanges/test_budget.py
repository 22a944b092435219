"""Budget: the law, one message of one size, and choices that follow the errors."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import compressors, exchanges, make_exchange, nbits, parallel, wire
from jaxcomp.core.specs import SpecError
from jaxcomp.exchanges.budget import LADDER, assign
from tests.tiers import tiers
from tests.workers import averaging, compiled, gradients, start, take

QUANTISERS = ("sign", "block_scaled(bits=4)", "block_scaled(bits=8)")
PAIR = QUANTISERS[:2]  # each option is a part of the program


def make(bits, ladder=QUANTISERS, every=100, memory="none", scope="per_leaf"):
    spec = f"budget(bits_per_step={bits}, ladder={tuple(ladder)!r}, every={every})"
    return make_exchange(spec, "sign", memory, scope)


two = functools.partial(gradients, names=("kernel", "deep"))


def words_of(ladder, *sizes):
    """[groups, options]: whole words of each payload."""
    options = [compressors.make(spec) for spec in ladder]
    key = jax.random.key(0)

    def words(option, n):
        x = jax.ShapeDtypeStruct((n,), jnp.float32)
        payload, _ = jax.eval_shape(lambda x, k: option.compress(x, (), k), x, key)
        assert nbits(payload) % 32 == 0, "sizes without padding are easier to count"
        return nbits(payload) // 32

    return np.array([[words(option, n) for option in options] for n in sizes])


def normal(workers, size, scale, seed):
    rng = np.random.default_rng(seed)
    return jnp.asarray(scale * rng.normal(size=(workers, size)), jnp.float32)


# --- The law ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scope", tiers(["per_leaf", "whole_tree"], "whole_tree".__eq__)
)
def test_a_ladder_of_one_is_gather(scope):
    trees = [two(3, seed) for seed in range(2)]
    # Workers and tensors have keys of their own.
    method = "random_k(keep=0.1) | qsgd(levels=7)"
    steps = take(make(8000, (method,), scope=scope), *trees)
    expected = take(make_exchange("gather", method, "none", scope), *trees)
    for a, b in zip(steps, expected, strict=True):
        jax.tree.map(np.testing.assert_array_equal, a.shared, b.shared)
        jax.tree.map(np.testing.assert_array_equal, a.own[0], b.own[0])


def test_a_nan_is_seen_by_all_and_changes_no_choice():
    """The next step is measured in its place, however far the next choice is."""
    trees = [two(2, seed) for seed in range(6)]
    trees[2] = jax.tree.map(lambda x: x.at[1].set(jnp.nan), trees[2])
    steps = take(make(2500, PAIR, every=2), *trees)
    finite = [all(np.isfinite(m).all() for m in s.shared.values()) for s in steps]
    assert finite == [True, True, False, True, True, True]
    choices = [step.state[1].choices for step in steps]
    assert choices[0].any()
    np.testing.assert_array_equal(choices[1], choices[2])
    assert [int(step.state[1].due) for step in steps] == [2, 2, 2, 4, 6, 6]


# --- The message --------------------------------------------------------------------


@pytest.mark.parametrize("bits", tiers([2231, 4000, 100_000], (2231).__eq__))
def test_one_message_within_the_budget(bits):
    """Table of errors included; what could never be used is not sent."""
    sizes = {f"w{n}": n for n in (256, 512)}
    one = {k: jax.ShapeDtypeStruct((n,), jnp.float32) for k, n in sizes.items()}
    exchange = make(bits)
    state = jnp.int32(0), exchange.init(one)
    program = compiled(averaging(exchange), state, one, workers=4)
    traced = wire.traced_collectives(
        averaging(exchange), state, one, axis="workers", workers=4
    )
    dearest = 6 + words_of(QUANTISERS, *sizes.values()).max(axis=1).sum()
    assert [c.kind for c in wire.collectives(program)] == ["all-gather"]
    assert wire.collective_bytes(traced) == wire.collective_bytes(program)
    assert wire.collective_bytes(program) == {
        "all-gather": 4 * min(bits // 32, dearest)
    }


def test_choices_follow_the_gradient_and_nothing_is_compiled_again():
    """The heavy tensor has most bits; when another is heavy, it has, from then on."""
    words = words_of(QUANTISERS, 512, 512)
    budget = int(6 + words[0, 0] + words[0, 2])
    exchange = make(32 * budget + 31, every=3)
    crew = parallel.setup(2, "vmap")
    state = parallel.spread(
        start(exchange, {"a": jnp.zeros((2, 512)), "b": jnp.zeros((2, 512))}), crew
    )
    axes = parallel.axes(state)
    step = parallel.map_step(
        averaging(exchange), crew, in_axes=(axes, 0), out_axes=(None, 0, axes)
    )
    choices, used = [], []
    for i in range(7):
        heavy, easy = normal(2, 512, 100, i), normal(2, 512, 0.01, i + 9)
        tree = {"a": heavy, "b": easy} if i < 2 else {"a": easy, "b": heavy}
        _, (_, info), state = step(state, tree)
        choices.append(state[1].choices.tolist())
        used.append(info.extra["budget_words_used"].tolist())
    assert choices == [[2, 0]] * 3 + [[0, 2]] * 4
    assert used == [[6 + 2 * words[0, 0]] * 2] + [[budget] * 2] * 6
    assert step._cache_size() == 1
    assert int(state[1].clock.step) == 7


# --- The choice ---------------------------------------------------------------------


def slow_greedy(errors, words, limit):
    """The same rule, with lists."""
    groups, options = errors.shape
    choices = [int(np.argmin(row)) for row in words]
    while True:
        best = None
        used = sum(int(words[g, choices[g]]) for g in range(groups))
        for g, o in itertools.product(range(groups), range(options)):
            added = int(words[g, o] - words[g, choices[g]])
            saved = np.float32(errors[g, choices[g]] - errors[g, o])
            if saved <= 0 or added < 0 or used + added > limit:
                continue
            rate = saved / np.maximum(np.float32(added), np.float32(1e-30))
            if best is None or rate > best[0]:
                best = rate, g, o
        if best is None:
            return choices
        choices[best[1]] = best[2]


def random_tables(seed):
    """Errors need not fall along the ladder, and some options cost the same."""
    rng = np.random.default_rng(seed)
    errors = rng.exponential(size=(6, 4)).astype(np.float32)
    words = rng.integers(1, 12, size=(6, 4))
    least, most = words.min(axis=1).sum(), words.max(axis=1).sum()
    return errors, words, range(least, most + 1)


@pytest.mark.parametrize("seed", range(5))
def test_assign_against_a_slow_greedy(seed):
    errors, words, limits = random_tables(seed)
    solve = jax.jit(lambda limit: assign(jnp.asarray(errors), words, limit))
    totals = []
    for limit in limits:
        choices = np.asarray(solve(limit))
        assert choices.tolist() == slow_greedy(errors, words, limit)
        assert words[np.arange(6), choices].sum() <= limit
        totals.append(errors[np.arange(6), choices].sum())
    assert (np.diff(totals) <= 1e-6).all(), "more room, more error"


def test_the_usual_ladder_errs_less_with_every_step():
    x = normal(1, 4096, 1.0, 0)[0]
    bits, errors = [], []
    for spec in LADDER:
        c = compressors.make(spec)
        assert c.name == spec, "so that names leave the usual ladder out"
        payload, _ = c.compress(x, (), jax.random.key(0))
        bits.append(nbits(payload))
        errors.append(float(jnp.sum((x - c.decompress(payload, x)) ** 2)))
    assert bits == sorted(bits)
    assert errors == sorted(errors, reverse=True)
    assert all(a > 2 * b for a, b in itertools.pairwise(errors))


# --- Names and errors ---------------------------------------------------------------


def test_a_budget_below_the_cheapest_choice_is_refused_with_both_numbers():
    """Signs of 256 and a scale: 9 words; table: 3; three dense numbers."""
    tree = {"w": jnp.zeros(256), "b": jnp.zeros(3)}
    least = 32 * (9 + 3 + 3)
    make(least, scope="only_large(min_size=10)").init(tree)
    with pytest.raises(ValueError, match=f"bits_per_step={least - 1} .* {least} bits"):
        make(least - 1, scope="only_large(min_size=10)").init(tree)


def test_nothing_to_choose_is_refused():
    exchange = exchanges.make("budget(5000)", "none")
    with pytest.raises(ValueError, match="nothing to choose"):
        exchange.init({"w": jnp.zeros(256)})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("budget(5000, ladder=['rotating_slice'])", "without state.*rotating_slice"),
        ("budget(5000, ladder=['sing'])", "Did you mean 'sign'"),
        ("budget(5000, ladder='sign')", "ladder is a list.*'sign'"),
        ("budget(5000, ladder=sign)", "ladder is a list"),
        ("budget(5000, ladder=[])", "ladder is a list"),
        ("budget(0)", "bits_per_step is a whole number of at least 1, not 0"),
        ("budget(5000, every=0.5)", "every is a whole number of at least 1, not 0.5"),
        ("budget", "needs bits_per_step"),
    ],
)
def test_bad_arguments_are_refused(spec, message):
    with pytest.raises(SpecError, match=message):
        exchanges.make(spec, "sign")
