"""A step that is not finite, under every memory and every optimiser that go together.

Which of them go together is asked of the product itself. One of each is enough for the
default tier: what is left out is decided in one place, for all of them.
"""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from jaxcomp import make_exchange, parallel, training
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Call, parse
from jaxcomp.core.types import ticked
from jaxcomp.memory import REGISTRY as MEMORIES
from jaxcomp.training.optimizers import OF_OPTIMIZERS, check_one_momentum, of_memory
from jaxcomp.training.optimizers import REGISTRY as OPTIMIZERS
from jaxcomp.training.running_metrics import check_applied, step_figures
from tests.training.small import assert_same_state, built, small_config

METHOD: dict[str, Any] = {"exchange": "gather", "compressor": "top_k(keep=0.2)"}
SETTINGS: dict[str, Any] = {
    **METHOD,
    "task": "logistic_regression",
    "dataset": "breast_cancer",
    "model": "linear",
    "batch_size": 64,
    "train_for": "6 steps",
    "dense_for": "1 steps",  # one_bit_adam learns its variance then
    "checkpoint_every": "1 steps",
    "mapper": "vmap",
    "log_every": 1,
}
BAD = 3  # the step, from 0


def goes_with(memory: str, optimizer: str) -> bool:
    """Whether the product takes both together."""
    call = parse(optimizer)
    assert isinstance(call, Call)
    given = of_memory(make_exchange(**METHOD, memory=memory).momentum)
    try:
        check_one_momentum(given, call, OPTIMIZERS[call.name])
    except UserError:
        return False
    return True


def spec_for(memory: str, optimizer: str) -> str | None:
    """The optimiser, or without its own momentum; None if it is refused either way."""
    own = OF_OPTIMIZERS.get(optimizer)
    specs = [optimizer, *([f"{optimizer}({own}=0)"] if own else [])]
    return next((spec for spec in specs if goes_with(memory, spec)), None)


@functools.cache
def pairs() -> list[tuple[str, str]]:
    """All memories with all optimisers that they go together with."""
    every = [(m, spec_for(m, o)) for m in MEMORIES for o in OPTIMIZERS]
    return [(memory, spec) for memory, spec in every if spec]


def some_pairs() -> list[tuple[str, str]]:
    """So many of them that each memory and each optimiser is in one."""
    chosen: list[tuple[str, str]] = []
    left = {*MEMORIES, *OPTIMIZERS}

    def names(pair: tuple[str, str]) -> set[str]:
        return {pair[0], pair[1].partition("(")[0]}

    while left:
        best = max(pairs(), key=lambda pair: len(names(pair) & left))
        assert names(best) & left, f"nothing goes together with {left}"
        chosen.append(best)
        left -= names(best)
    return chosen


def cases() -> list[Any]:
    quick = some_pairs()
    return [
        pytest.param(*pair, marks=[] if pair in quick else pytest.mark.slow)
        for pair in pairs()
    ]


def finite(state: Any) -> bool:
    floats = [x for x in jax.tree.leaves(state) if x.dtype.kind == "f"]
    return all(np.isfinite(x).all() for x in floats)


@pytest.mark.parametrize(("memory", "optimizer"), cases())
def test_a_bad_step_changes_nothing_but_clocks_on_any_worker(memory, optimizer):
    """Of one worker, after a step that filled residuals and momenta."""
    setup = built(small_config(**SETTINGS, memory=memory, optimizer=optimizer))
    task, workers = setup.task, setup.workers
    state = parallel.spread(setup.fresh(), workers)
    axes = parallel.axes(state)
    step = parallel.map_step(
        setup.step(setup.stages.at(BAD)),
        workers,
        in_axes=(axes, *(0 for _ in task.train)),
        out_axes=(axes, 0),
    )

    def taken(state: Any, number: int, value: float = 0.0) -> Any:
        chosen = task.shares(0)[number]
        features, *others = (np.array(array[chosen]) for array in task.train)
        if value != 0:
            features[1] = value  # all that worker 1 sees
        with jax.numpy_dtype_promotion("standard"):  # optax.adam is not strict
            return parallel.to_host(step(state, features, *others))

    state, _ = taken(state, 0)
    for value in (np.nan, np.inf):
        after, metrics = taken(state, 1, value)
        assert finite(state)
        assert_same_state(after, ticked(state))
        assert not np.any(metrics.applied)
        assert step_figures(metrics)["skipped"] == 1
        with pytest.raises(training.NonFinite, match="step 4 is not finite"):
            check_applied(BAD, metrics, setup.leaf_names)
        state = after
    after, metrics = taken(state, 2)
    assert np.all(metrics.applied)
    assert finite(after)
    changed = zip(*map(jax.tree.leaves, (after.params, state.params)), strict=True)
    assert any(not np.array_equal(new, old) for new, old in changed)


def test_what_goes_together_is_not_nothing():
    assert len(pairs()) > len(some_pairs()) >= len(OPTIMIZERS)
    assert not goes_with("dgc", "sgd(momentum=0.9)")
