"""Drift between the copies of a state: it is injected, found and named."""

import jax
import numpy as np
import pytest

from jaxcomp import parallel, training
from jaxcomp.core.types import PerWorker
from jaxcomp.training import loop
from jaxcomp.training.diagnostics import ReplicasDiffer, make_replica_check
from tests.training.small import rows, small_config


def drifted(x: jax.Array, worker: int) -> jax.Array:
    """A replicated array of which one device's copy differs in one bit."""
    parts = [np.array(shard.data) for shard in x.addressable_shards]
    bits = parts[worker].view(np.uint32).reshape(-1)
    bits[-1] ^= 1
    devices = [shard.device for shard in x.addressable_shards]
    pieces = [jax.device_put(p, d) for p, d in zip(parts, devices, strict=True)]
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, pieces)


@pytest.mark.parametrize("mapper", ["pmap", "shard_map"])
def test_one_bit_of_one_copy_is_found_and_named(mapper):
    workers = parallel.setup(4, mapper)
    rng = np.random.default_rng(0)
    fresh = {
        "w": rng.normal(size=(3, 5)).astype(np.float32),
        "none": np.zeros((0, 2), np.float32),
        "half": np.asarray(rng.normal(size=7), np.float16),
        "flags": np.ones(3, bool),
        "key": jax.random.key(1),
        "count": np.int32(3),
        "kept": PerWorker(np.zeros(2, np.float32)),
    }
    state = parallel.spread(fresh, workers)
    own = rng.normal(size=(4, 2)).astype(np.float32)
    state["kept"] = parallel.place(PerWorker(own), workers, PerWorker(0))
    check = make_replica_check(workers, state)
    check(state, 1)
    for name in ("w", "count"):
        with pytest.raises(ReplicasDiffer) as error:
            check({**state, name: drifted(state[name], 2)}, 7)
        message = str(error.value)
        assert "after step 7 the copies of 1 of 4 workers differ" in message
        assert f"  worker 2 ({jax.devices()[2]}): {name}\n" in message
        assert message.count("  worker ") == 1


def test_simulated_workers_have_one_copy():
    workers = parallel.setup(4, "vmap")
    check = make_replica_check(workers, {"w": np.zeros(3, np.float32)})
    check({}, 1)


def test_a_run_stops_before_it_saves_a_state_that_has_drifted(tmp_path, monkeypatch):
    take_step, taken = loop.take_step, []

    def drifting(program, state, *args):
        if len(taken) == 13:
            kernel = state.params["Dense_0"]["kernel"]
            state.params["Dense_0"]["kernel"] = drifted(kernel, 1)
        taken.append(1)
        return take_step(program, state, *args)

    monkeypatch.setattr(loop, "take_step", drifting)
    with pytest.raises(ReplicasDiffer, match="after step 22"):
        training.train_and_evaluate(small_config(), tmp_path)
    assert [row["step"] for row in rows(tmp_path / "metrics.csv")] == ["11"]
    monkeypatch.undo()
    assert training.train_and_evaluate(small_config(), tmp_path).steps == 22
