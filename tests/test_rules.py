"""docs/rules.md: each rule has a test of its number here, and each test a rule.

One task, whose gradient is the mean of the rows that it is given, so that what has to
come out can be computed by hand.
"""

import functools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxcomp import make_exchange, parallel
from jaxcomp.core.errors import UserError
from jaxcomp.core.types import ticked
from jaxcomp.memory import REGISTRY as MEMORIES
from jaxcomp.memory.dgc import DgcState
from jaxcomp.memory.error_feedback import FeedbackState
from jaxcomp.training.tasks import Learnt, Sums, Task, Variables
from jaxcomp.transforms.distributed import find_state
from tests.training.small import assert_same_state, built, small_config

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "rules.md").read_text()
HERE, WORKERS, WIDTH, START = __name__, 2, 4, 20.0
LIMIT, DECAY, MOMENTUM = 2.0, 0.25, 0.5


def given(config: Any, workers: Any) -> Task:
    """loss = <w, mean of the rows>, of which w has the mean as its gradient."""
    rows = np.zeros((64, WIDTH), np.float32)

    def loss(params: Any, stats: Any, carry: Any, batch: Any, key: Any) -> Any:
        mean = jnp.mean(batch[0], axis=0)
        seen = 0.5 * stats["seen"] + mean
        drawn = jax.random.uniform(key)
        return params["w"] @ mean, Learnt({"seen": seen, "drawn": drawn}, carry, drawn)

    def score(variables: Any, carry: Any, batch: Any, weights: Any) -> Any:
        total = jnp.sum(weights)
        return Sums(total, total, total), carry

    def init(key: Any) -> Variables:
        stats = {"seen": jnp.zeros(WIDTH), "drawn": jnp.float32(0)}
        return Variables({"w": jnp.full(WIDTH, START)}, stats)

    return Task(
        model="given",
        data="rows",
        train=(rows,),
        test=(rows,),
        shares=lambda epoch: np.arange(64).reshape(-1, workers.size, 2),
        init=init,
        loss=loss,
        score=score,
    )


def rate(horizon: Any, total: int) -> Any:
    """1 and 1/2, and then 0."""
    return lambda step: jnp.where(step < 2, jnp.exp2(-jnp.float32(step)), 0.0)


USUAL: dict[str, Any] = {
    "task": f"{HERE}:given",
    "mapper": "vmap",
    "workers": WORKERS,
    "batch_size": 2 * WORKERS,
    "learning_rate": 1.0,
    "schedule": f"{HERE}:rate",
    "compressor": "top_k(keep=0.25)",  # the largest of four elements
    "memory": "error_feedback",
    "optimizer": f"sgd(momentum={MOMENTUM}, nesterov=False)",
    "weight_decay": DECAY,
    "clip": f"local(limit={LIMIT})",
}
DGC = {"memory": f"dgc(momentum={MOMENTUM})", "optimizer": "sgd(momentum=0)"}
OWN = {"optimizer": "sgd(momentum=0)"}
MIXED = {"exchange": "", "memory": "", "topology": "ring", "compressor": "none"}


@functools.cache
def program(**changes: Any) -> Any:
    """State before the first step of a config, and its compiled step at any stage."""
    setup = built(small_config(**{**USUAL, **changes}))
    state = parallel.spread(setup.fresh(), setup.workers)
    axes = parallel.axes(state)

    @functools.cache
    def of_stage(stage: Any) -> Any:
        both = (axes, 0)
        step = setup.step(stage)
        return parallel.map_step(step, setup.workers, in_axes=both, out_axes=both)

    return SimpleNamespace(
        start=state, step_at=lambda number: of_stage(setup.stages.at(number))
    )


def play(gradients: Any, **changes: Any) -> list[Any]:
    """The state before the first step and after each, with what the step reported.

    Args:
      gradients: [steps, workers, WIDTH], or with an axis of two examples before WIDTH.
      **changes: of the config.
    """
    ours = program(**changes)
    state, played = ours.start, [seen(parallel.to_host(ours.start), None)]
    for number, gradient in enumerate(np.asarray(gradients, np.float32)):
        both = gradient if gradient.ndim == 3 else np.stack([gradient] * 2, axis=1)
        state, metrics = ours.step_at(number)(state, jnp.asarray(both))
        played.append(seen(parallel.to_host(state), parallel.to_host(metrics)))
    return played


def seen(state: Any, metrics: Any) -> Any:
    """The parts of a state that rules speak of."""

    def first(kind: Any, field: str) -> Any:
        nodes = jax.tree.leaves(state.opt_state, is_leaf=lambda x: isinstance(x, kind))
        found = [getattr(x, field) for x in nodes if isinstance(x, kind)]
        tree = getattr(found[0], "value", found[0]) if found else None
        return tree["w"] if tree else None

    params, stats = (getattr(x, "value", x) for x in (state.params, state.stats))
    return SimpleNamespace(
        state=state,
        w=params["w"],
        stats=stats,
        metrics=metrics,
        trace=first(optax.TraceState, "trace"),
        residual=first(FeedbackState, "residual"),
        u=first(DgcState, "momentum"),
        v=first(DgcState, "velocity"),
    )


def clipped(g: np.ndarray) -> np.ndarray:
    """Each worker's gradient, by its norm."""
    norms = np.linalg.norm(g, axis=-1, keepdims=True)
    return g * np.minimum(1, LIMIT / np.maximum(norms, 1e-30))


def largest(x: np.ndarray) -> np.ndarray:
    """What top-k sends: the largest element of each worker."""
    keeps = np.abs(x) == np.abs(x).max(axis=-1, keepdims=True)
    return x * keeps


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# Two steps of two workers; the norms of all but one are above the limit.
ONE = np.array([[8.0, 4.0, 2.0, 1.0], [1.0, -6.0, 3.0, 2.0]])
TWO = np.array([[1.0, 9.0, 3.0, -2.0], [0.1, 0.2, 0.3, 0.4]])
NOTHING = np.zeros((WORKERS, WIDTH))
BAD = ONE * [[1.0], [np.nan]]


# --- The page ------------------------------------------------------------------------


def table(title: str) -> list[list[str]]:
    """The cells of the first table of a section, without the line below its head."""
    part = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = re.search(r"(^\|.*\n)+", part, re.MULTILINE)
    assert lines
    cells = [re.split(r"(?<!\\)\|", line.strip("|")) for line in lines[0].splitlines()]
    return [[c.strip(" *") for c in row] for i, row in enumerate(cells) if i != 1]


def rules() -> list[str]:
    return re.findall(r"^\| ([A-Z]\d) \|", PAGE, re.MULTILINE)


def test_every_rule_has_a_test_and_every_test_a_rule():
    tested = re.findall(r"^test_([a-z]\d)_", "\n".join(globals()), re.MULTILINE)
    assert sorted(name.upper() for name in tested) == sorted(rules())


def test_any_pair_can_be_looked_up():
    """Each feature meets each other one once, in a rule that exists."""
    head, *body = table("Two features that meet")
    names = [body[0][0], *head[1:]]
    for i, (name, *cells) in enumerate(body):
        assert name == names[i]
        for j, cell in enumerate(cells):
            assert (cell in rules()) == (j >= i), (name, names[j + 1])
            assert cell or j < i


def test_the_memories_of_the_page_are_all_there_are_and_keep_what_it_says():
    _, *body = table("What each memory keeps")
    found = {}
    for name in MEMORIES:
        exchange = make_exchange(compressor="top_k(keep=0.25)", memory=name)
        yes_no = [bool(x) for x in (exchange.keeper, exchange.momentum)]
        found[f"`{name}`"] = ["yes" if x else "no" for x in yes_no]
    assert {row[0]: row[2:] for row in body} == found


# --- Loss scale ----------------------------------------------------------------------


def test_s1_a_scale_changes_nothing_else():
    """Every other feature takes part: parts of a batch, clip, decay, momentum, rate."""
    halves = [np.stack([g, 3 * g], axis=1) for g in (ONE, TWO)]
    one = play(halves, accumulate=2)[-1]
    other = play(halves, accumulate=2, loss_scale="static(scale=1024)")[-1]
    assert_same_state(one.state, other.state)
    close(other.metrics.loss, one.metrics.loss)


def test_s2_an_overflow_is_a_bad_step_and_halves_the_scale():
    """1e32 is a float32, and 2^24 times that is none."""
    scale = {"loss_scale": "dynamic(start=16777216)"}
    _, before, after = play([ONE, TWO * [[1], [1e32]]], **scale)
    assert not np.any(after.metrics.applied)
    assert float(after.state.loss_scale.scale) == 2**23
    both = (x.state._replace(loss_scale=()) for x in (before, after))
    kept, left = both
    assert_same_state(left, ticked(kept))


# --- Accumulation --------------------------------------------------------------------


def test_a1_parts_are_averaged_before_all_else():
    """Clipped by themselves, the parts would give another mean."""
    parts = [np.stack([2 * g, 0 * g], axis=1) for g in (ONE, TWO)]
    whole, apart = play([ONE, TWO])[-1], play(parts, accumulate=2)[-1]
    for name in ("w", "trace", "residual"):
        close(getattr(apart, name), getattr(whole, name))


def test_a2_statistics_go_on_with_each_part():
    parts = np.stack([ONE, TWO], axis=1)
    close(play([parts], accumulate=2)[-1].stats["seen"], 0.5 * ONE + TWO)


def test_a3_each_part_draws_by_itself():
    last = play([ONE], accumulate=2)[-1]
    second = last.stats["drawn"]
    first = 2 * last.metrics.accuracy - second  # their mean is reported
    assert np.all(np.abs(first - second) > 1e-3)


def test_a4_one_bad_part_makes_the_step_bad():
    _, before, after = play(
        [np.stack([ONE, ONE], axis=1), np.stack([ONE, BAD], axis=1)], accumulate=2
    )
    assert not np.any(after.metrics.applied)
    assert_same_state(after.state, ticked(before.state))


# --- Clip ----------------------------------------------------------------------------


def test_c1_what_is_kept_is_clipped_once():
    kept = clipped(ONE) - largest(clipped(ONE))
    given = clipped(TWO) + kept
    assert np.linalg.norm(given, axis=-1).max() > LIMIT
    _, first, second = play([ONE, TWO])
    close(first.residual, kept)
    close(second.residual, given - largest(given))


def test_c2_decay_is_not_clipped():
    """Its norm is 10, five times the limit."""
    assert np.linalg.norm(np.full(WIDTH, DECAY * START)) > LIMIT
    close(play([NOTHING])[-1].w, START - DECAY * START)


def test_c3_the_rate_does_not_change_the_limit():
    """The rate of the second step is 1/2, and so is the move of a clipped gradient."""
    _, first, second = play([NOTHING, 100 * ONE])
    sent = largest(clipped(100 * ONE)).mean(0)
    usual = DECAY * first.w + MOMENTUM * first.trace
    close(first.w - second.w, 0.5 * (sent + usual))


def test_c4_a_clip_hides_no_infinity():
    """By value it would make a 1 of it."""
    _, before, after = play([ONE, ONE * [[1], [np.inf]]], clip="value(limit=1)")
    assert not np.any(after.metrics.applied)
    assert_same_state(after.state, ticked(before.state))


def test_c5_the_optimiser_s_momentum_sums_clipped_gradients():
    sent = largest(clipped(1e6 * ONE)).mean(0)
    close(play([1e6 * ONE])[-1].trace, sent + DECAY * START)


def test_c6_a_memory_s_momentum_sums_clipped_gradients():
    first = play([ONE], **DGC)[-1]
    sent = largest(clipped(ONE)) != 0
    close(first.u, np.where(sent, 0, clipped(ONE)))


# --- Weight decay and momenta --------------------------------------------------------


@pytest.mark.parametrize("method", [{}, DGC], ids=["error_feedback", "dgc"])
def test_w1_decay_is_neither_sent_nor_kept(method):
    last = play([NOTHING, NOTHING], **method)[-1]
    kept = [x for x in (last.residual, last.u, last.v) if x is not None]
    assert kept
    assert not any(x.any() for x in kept)
    assert np.all(last.w < START)


def test_w2_decay_is_inside_of_the_momentum():
    _, first, second = play([NOTHING, NOTHING])
    close(first.trace, DECAY * START)
    close(second.trace, MOMENTUM * DECAY * START + DECAY * first.w)


def test_w3_decay_is_multiplied_by_the_rate():
    """Without a momentum in the optimiser: rates 1 and 1/2."""
    _, first, second = play([NOTHING, NOTHING], **DGC)
    close(first.w, START * (1 - DECAY))
    close(second.w, first.w * (1 - 0.5 * DECAY))


def test_w4_decay_in_the_gradient_is_treated_as_gradient():
    """Its norm is 10, five times the limit; with a scale and two parts, still once."""
    own = {"decay_at": "gradient", "loss_scale": "static(scale=8)", "accumulate": 2}
    _, first, second = play([ONE, TWO], **own)
    given = clipped(ONE) + DECAY * START
    sent = largest(given)
    close(first.residual, given - sent)
    close(first.trace, sent.mean(0))
    close(first.w, START - sent.mean(0))
    given = clipped(TWO) + DECAY * first.w + first.residual
    close(second.residual, given - largest(given))
    close(first.w - second.w, 0.5 * (largest(given).mean(0) + MOMENTUM * first.trace))


def test_w5_decay_is_added_at_one_place():
    twice = {"decay_at": "gradient", "memory": "none", "compressor": "none"}
    once = play([NOTHING], **twice, exchange="exact")[-1]
    close(once.w, START - DECAY * START)
    for name in ("adamw", "lamb", "lars", "one_bit_adam"):
        memory = "shared_momentum" if name == "one_bit_adam" else "none"
        with pytest.raises(UserError, match="decay_at"):
            program(**{**twice, "memory": memory}, optimizer=name)


def test_m1_the_optimiser_s_momentum_sums_what_arrived():
    _, first, second = play([ONE, TWO])
    sent = largest(clipped(ONE))
    then = largest(clipped(TWO) + clipped(ONE) - sent)
    trace = sent.mean(0) + DECAY * START
    close(first.trace, trace)
    close(second.trace, MOMENTUM * trace + then.mean(0) + DECAY * first.w)


def test_m2_two_momenta_are_refused():
    with pytest.raises(UserError, match="two momenta, one after the other"):
        built(small_config(**{**USUAL, "memory": "dgc"}))


def test_m3_a_new_rate_acts_on_the_whole_momentum():
    _, first, second, third = play([ONE, TWO, TWO])
    close(first.w - second.w, 0.5 * second.trace)
    np.testing.assert_array_equal(third.w, second.w)  # the rate is 0
    assert third.trace.any()


def test_q1_what_goes_out_is_cleared_in_momentum_and_velocity():
    """Of dgc; a momentum before error feedback stays as it is."""
    _, first, second = play([ONE, TWO], **DGC)
    v = clipped(ONE) - largest(clipped(ONE))
    close(first.v, v)
    u = MOMENTUM * v + clipped(TWO)  # u was equal to v
    given = v + u
    close(second.v, given - largest(given))
    close(second.u, np.where(largest(given) != 0, 0, u))
    plain = {"memory": "local_momentum(beta=0.5) | error_feedback", **OWN}
    [state] = [
        find_state(x.state.opt_state).exchange for x in play([ONE], **plain)[-1:]
    ]
    close(state.momentum.value["w"], 0.5 * clipped(ONE))
    kept = 0.5 * clipped(ONE)
    close(state.exchange.residual.value["w"], kept - largest(kept))


# --- Learning rate, statistics, keys, bad steps --------------------------------------


def test_l1_what_is_kept_goes_out_with_the_rate_of_its_step():
    """Kept at rate 1, sent at rate 1/2; the same in a velocity with its momentum."""
    _, first, second = play([ONE, NOTHING])
    kept = clipped(ONE) - largest(clipped(ONE))
    usual = DECAY * first.w + MOMENTUM * first.trace
    close(first.w - second.w, 0.5 * (largest(kept).mean(0) + usual))
    _, first, second = play([ONE, NOTHING], **DGC)
    close(
        first.w - second.w,
        0.5 * (largest((1 + MOMENTUM) * kept).mean(0) + DECAY * first.w),
    )


def test_n1_statistics_come_from_the_forward_pass_alone():
    """And are each worker's own: of gradients as they are, neither clipped nor sent."""
    for method in ({}, DGC):
        _, first, second = play([ONE, TWO], **method)
        close(first.stats["seen"], ONE)
        close(second.stats["seen"], 0.5 * ONE + TWO)


def test_k1_keys_follow_from_seed_step_and_worker():
    draws = [
        np.array([x.metrics.accuracy for x in play([ONE, TWO], **method)[1:]])
        for method in ({}, DGC, {"clip": "value(limit=1)"})
    ]
    assert len(np.unique(draws[0])) == 2 * WORKERS
    for other in draws[1:]:
        np.testing.assert_array_equal(other, draws[0])


def test_k2_a_bad_step_uses_up_its_keys():
    good, bad = play([ONE, TWO])[-1], play([BAD, TWO])[-1]
    np.testing.assert_array_equal(good.metrics.accuracy, bad.metrics.accuracy)


@pytest.mark.parametrize("method", [{}, DGC], ids=["error_feedback", "dgc"])
def test_b1_a_bad_step_changes_nothing_but_clocks(method):
    """Of every memory and optimiser in tests/training/test_clock.py."""
    _, before, after = play([ONE, BAD], **method)
    assert not np.any(after.metrics.applied)
    assert_same_state(after.state, ticked(before.state))


def test_b2_the_rate_goes_on_over_a_bad_step():
    _, first, second = play([BAD, NOTHING])
    close(first.w, START)
    close(second.w, START - 0.5 * DECAY * START)


# --- Averaged weights ----------------------------------------------------------------


def test_e1_the_average_follows_the_weights_and_nothing_looks_at_it():
    for method in ({}, D_PSGD):  # whose workers have averages of their own
        averaged, plain = (play([ONE, TWO], ema=ema, **method) for ema in (0.5, 0.0))
        last = averaged[-1].state
        assert_same_state(last._replace(ema=()), plain[-1].state)
        expected = START
        for step, played in enumerate(plain[1:]):
            share = min(0.5, (1 + step) / (10 + step))
            expected = share * expected + (1 - share) * played.w
        close(getattr(last.ema, "value", last.ema)["w"], expected)


def test_e2_a_bad_step_leaves_the_average():
    _, before, after = play([ONE, BAD], ema=0.5)
    np.testing.assert_array_equal(after.state.ema["w"], before.state.ema["w"])


# --- Models of the workers' own ------------------------------------------------------

D_PSGD = {**MIXED, "mixer": "d_psgd"}


def test_g1_models_are_mixed_after_each_worker_s_own_step():
    """On a ring of two, both have the mean of what both have made."""
    _, first, second = play([ONE, TWO], **D_PSGD)
    trace = clipped(ONE) + DECAY * START
    w = (START - trace).mean(0)
    close(first.trace, trace)
    close(first.w, [w, w])
    trace = MOMENTUM * trace + clipped(TWO) + DECAY * w
    w = (w - 0.5 * trace).mean(0)
    close(second.trace, trace)
    close(second.w, [w, w])


def test_g2_models_agree_further_without_a_rate():
    _, _, apart, closer = play(
        [ONE, TWO, TWO], **{**MIXED, "mixer": "choco(gamma=0.25)"}
    )
    close(closer.w.mean(0), apart.w.mean(0))
    distances = [np.abs(x.w[0] - x.w[1]).max() for x in (apart, closer)]
    assert 0 < distances[1] < 0.9 * distances[0]


def test_g3_a_bad_step_of_one_worker_is_its_own():
    _, first, second = play([ONE, TWO * [[1], [np.nan]]], **D_PSGD)
    gradient = clipped(TWO) * [[1], [0]]
    trace = MOMENTUM * first.trace + gradient + DECAY * first.w
    w = (first.w - 0.5 * trace).mean(0)
    close(second.trace, trace)
    close(second.w, [w, w])  # its neighbour has got its message
    close(second.stats["seen"], [0.5 * ONE[0] + TWO[0], ONE[1]])
    assert second.metrics.applied.tolist() == [True, False]


def test_g4_each_worker_has_a_loss_scale_of_its_own():
    """1e32 overflows on worker 1 alone."""
    scale = {**D_PSGD, "loss_scale": "dynamic(start=16777216)"}
    last = play([TWO * [[1], [1e32]]], **scale)[-1]
    assert last.state.loss_scale.value.scale.tolist() == [2**24, 2**23]


def test_g5_a_round_keeps_differences_of_models():
    """Of two steps, with their rates; the second one is bad on worker 1."""
    local = {**MIXED, "topology": "", "mixer": "local_sgd(h=2)", "exchange": "gather"}
    local |= {"memory": "error_feedback", "compressor": "top_k(keep=0.25)"}
    _, first, second = play([ONE, TWO * [[1], [np.nan]]], **local, **OWN)
    made = START - clipped(ONE) - DECAY * START
    close(first.w, made)
    made = made - 0.5 * (clipped(TWO) * [[1], [0]] + DECAY * made)
    learnt = START - made
    close(second.residual, learnt - largest(learnt))
    close(second.w, np.tile(START - largest(learnt).mean(0), (WORKERS, 1)))
