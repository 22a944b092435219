"""The program of one worker, run alone, and what is read from programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcomp
from benchmarks.loopback import loopback_seconds
from jaxcomp import UserError, wire
from jaxcomp.wire import predict as measuring
from jaxcomp.wire import targets
from jaxcomp.wire.cost import Link
from jaxcomp.wire.predict import predict
from jaxcomp.wire.traced import without_collectives
from tests.every_method import EXCHANGES, WORKERS, exchange, trees
from tests.targets.test_reading import GPU

TREE = {"b": (1000,), "w": (200, 300)}
LINK = Link(bandwidth=1e6, latency=1e-3)


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_worker_alone_computes_all_shapes_of_its_exchange(name):
    built, tree = exchange(name), trees()
    step, state = measuring.step_of(built), measuring.start_of(built, tree)
    run = without_collectives(step, state, tree, axis="workers", workers=WORKERS)
    mapped = jax.vmap(step, axis_name="workers", axis_size=WORKERS, in_axes=None)
    whole = jax.eval_shape(mapped, state, tree)
    own = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), whole)
    assert jax.eval_shape(run, state, tree) == own


def test_a_worker_alone_decodes_what_equal_workers_would_send():
    """All messages are copies of its own, so it gets what equal workers get."""
    built = jaxcomp.make_exchange("gather", "top_k(keep=0.2)", "none", "whole_tree")
    tree, step = trees(), measuring.step_of(built)
    state = (jnp.int32(0), built.init(tree))
    run = without_collectives(step, state, tree, axis="workers", workers=WORKERS)
    mean, (count, _) = jax.jit(run)(state, tree)
    mapped = jax.vmap(step, axis_name="workers", axis_size=WORKERS, in_axes=None)
    expected, _ = jax.jit(mapped)(state, tree)
    for own, equal in zip(*map(jax.tree.leaves, (mean, expected)), strict=True):
        np.testing.assert_allclose(own, equal[0], rtol=1e-6)
    assert int(count) == 1
    assert not wire.collective_bytes(jax.jit(run).lower(state, tree).compile())


def test_collectives_in_loops_and_branches_are_replaced():
    def step(x):
        def body(total, row):
            return total + jax.lax.psum(row, "i"), jax.lax.axis_index("i")

        total, places = jax.lax.scan(body, x[0], x)
        both = (lambda y: jax.lax.pmax(y, "i"), lambda y: y)
        return jax.lax.cond(total[0] > 0, *both, total), places

    x = jnp.arange(6.0).reshape(3, 2)
    total, places = without_collectives(step, x, axis="i", workers=4)(x)
    np.testing.assert_array_equal(total, x[0] + x.sum(0))
    np.testing.assert_array_equal(places, [0, 0, 0])

    def endless(x):
        return jax.lax.while_loop(
            lambda y: y.sum() < 9, lambda y: y + jax.lax.psum(y, "i"), x
        )

    with pytest.raises(UserError, match="'while'"):
        without_collectives(endless, x, axis="i", workers=4)(x)


def test_what_is_measured_here_is_positive_and_for_all_who_share(monkeypatch):
    monkeypatch.setattr(measuring, "_LONGEST", 0.01)
    for sharing in (1, 2):
        found = predict(
            *(TREE, ["top_k(keep=0.1)", "two_phase: sign"]),
            link=LINK,
            workers=4,
            compute=0.1,
            sharing=sharing,
        )
        assert all(0 < row.exchange.local < 10 for row in found.rows)
    with pytest.raises(UserError, match="99 workers that share"):
        predict(TREE, [], link=LINK, compute=0.1, sharing=99)


@pytest.mark.slow
def test_local_processes_exchange_for_real():
    spec = [jax.ShapeDtypeStruct((300, 40), jnp.float32)]
    found = loopback_seconds(["exact", "sign"], spec, workers=2)
    assert set(found) == {"exact", "sign"}
    assert all(0 < seconds < 60 for seconds in found.values())
    with pytest.raises(UserError, match="local processes ended"):
        loopback_seconds(["sing"], spec, workers=2)


def test_traffic_counts_kernels_and_loops_but_no_collectives():
    """A pass that reads and writes 8 floats, in a loop of three rounds."""
    text = """HloModule m

%body (s: f32[8]) -> f32[8] {
  %s = f32[8]{0} parameter(0)
  ROOT %t = f32[8]{0} negate(f32[8]{0} %s)
}

ENTRY %main {
  %x = f32[8]{0} parameter(0)
  %y = f32[8]{0} while(%x), condition=%c, body=%body, TRIPS
  %z = f32[8]{0} all-reduce(%y), to_apply=%add
  ROOT %r = (f32[8]{0}, pred[8]{0}) fusion(%z, %y), kind=kLoop, calls=%body
}

%c (s: f32[8]) -> pred[] {
  ROOT %p = pred[] constant(true)
}
"""
    counted = text.replace("TRIPS", 'backend_config={"known_trip_count":{"n":"3"}}')
    last = 32 + 8 + 32 + 32
    assert targets.memory_traffic(counted) == 3 * 64 + last
    assert targets.memory_traffic(text.replace(", TRIPS", "")) == 64 + last
    assert targets.memory_traffic(GPU) > 0
