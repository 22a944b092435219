"""What each exchange with each memory guarantees: docs/methods.md says it, this checks.

The table in the document has a row for each exchange, a column for each memory, and one
of these words in each cell: conserves, exact, follows, lossy, refused, tracks, votes.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import SpecError, exchanges, memory
from jaxcomp.core.types import PerWorker
from tests.exchanges.matrix import (
    FIRST,
    MEMORIES,
    PAIRS,
    WORKERS,
    add,
    average,
    close,
    compiled,
    few_workers,
    gradients,
    name_of,
    steps_of,
    subtract,
    with_memory,
    zeros,
)
from tests.tiers import tiers

METHODS = Path(__file__).resolve().parents[2] / "docs" / "methods.md"
STEPS = 3
BETA = np.float32(0.9)


def read_table() -> dict[tuple[str, str], str]:
    """(exchange, memory) -> word."""
    after = METHODS.read_text().split("\n## What each pair guarantees\n")[1]
    section = after.split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    header, _, *rows = [
        [c.strip(" `") for c in li.strip("|").split("|")] for li in lines
    ]
    return {
        (row[0], name): word
        for row in rows
        for name, word in zip(header[1:], row[1:], strict=True)
    }


TABLE = read_table()


def word_for(exchange: str, memory_spec: str) -> str:
    """The cell of a pair; of memories in a row the last one decides."""
    row = exchange if (exchange, "none") in TABLE else name_of(exchange)
    return TABLE[row, name_of(memory_spec.split("|")[-1].strip())]


def test_the_table_has_every_pair():
    assert {name_of(pair[0]) for pair in TABLE} == set(exchanges.REGISTRY)
    assert {pair[1] for pair in TABLE} == set(memory.REGISTRY)
    assert {name_of(exchange) for exchange, _ in PAIRS} == set(exchanges.REGISTRY)
    assert {name_of(spec) for spec in MEMORIES} == set(memory.REGISTRY)


# Of one worker they are what `exact`, `gather` and `two_phase` are.
ALONE_ALIKE = {
    *("aligned_psum", "hierarchical(per_host=HOST)", "simulated"),
    "two_phase(server_feedback=True)",
}
USUAL_LADDER = ("budget(bits_per_step=6000, every=2)", "sign", 2)


def cases():
    for exchange, compressor in PAIRS:
        for workers in WORKERS:
            yield exchange, compressor, workers
    yield USUAL_LADDER


def is_quick(case):
    """Each exchange with one compressor on a few workers, and most of them alone.

    Whatever may go wrong with a number of workers does so with few of them, and with
    any compressor; `gather` with all of them is in test_plain.py.
    """
    exchange, compressor, workers = case
    many = workers == few_workers(exchange)
    alone = workers == 1 and exchange not in ALONE_ALIKE
    return FIRST.get(exchange, "") == compressor and (many or alone)


@pytest.mark.parametrize(
    ("exchange", "compressor", "workers"), tiers(cases(), is_quick)
)
def test_what_the_table_says(exchange, compressor, workers):
    """All memories around one exchange, which is compiled once."""
    inner = compiled(exchange, compressor, workers)
    for spec in MEMORIES:
        word = word_for(exchange, spec)
        if word == "refused":
            with pytest.raises(SpecError):
                with_memory(inner, spec)
            continue
        CHECKS[word](with_memory(inner, spec), workers)


@pytest.mark.parametrize("spec", [m for m in MEMORIES if m != "none"])
def test_narrow_gradients_have_the_steps_of_wide_ones(spec):
    """What is kept is the same to the bit; the mean is rounded at the very end."""
    exchange = with_memory(compiled("gather", "sign", 3), spec)

    def narrow(i):
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), gradients(3, i))

    def wide(i):
        return jax.tree.map(lambda x: x.astype(jnp.float32), narrow(i))

    pairs = zip(*(steps_of(exchange, 3, 2, g) for g in (narrow, wide)), strict=True)
    for step, expected in pairs:
        jax.tree.map(np.testing.assert_array_equal, step.state, expected.state)
        rounded = jax.tree.map(lambda m: m.astype(jnp.bfloat16), expected.mean)
        jax.tree.map(np.testing.assert_array_equal, step.mean, rounded)


def take(exchange, workers):
    return steps_of(exchange, workers, STEPS, lambda i: gradients(workers, i))


def obeys_the_law(steps):
    """mean == mean of sent + held before - held now, in shapes of the gradient."""
    before = zeros(steps[0].mean)
    for step in steps:
        expected = average(step.sent)
        if step.held is not None:
            now = average(step.held)
            expected, before = add(expected, subtract(before, now)), now
        close(step.mean, expected)
        for m, g in zip(*map(jax.tree.leaves, (step.mean, step.given)), strict=True):
            assert (m.shape, m.dtype) == (g.shape[1:], g.dtype)


def handed_over(exchange, steps, i):
    """What the outermost memory makes of the gradient at step i."""
    gradient = steps[i].given
    kind = name_of(exchange.name)
    if kind == "local_momentum" or kind == "ef21_momentum":
        return steps[i].state.momentum.value
    if kind not in ("dgc", "shared_momentum"):
        return gradient
    old = steps[i - 1].state.momentum if i else PerWorker(zeros(gradient))
    if kind == "shared_momentum":
        old = old if i else zeros(steps[0].mean)
        return jax.tree.map(lambda m, g: BETA * m + (1 - BETA) * g, old, gradient)
    if "nesterov" in exchange.name:
        new = jax.tree.map(lambda u, g: BETA * (u + g), old.value, gradient)
        return add(new, gradient)
    return jax.tree.map(lambda u, g: BETA * u + g, old.value, gradient)


def exact(exchange, workers):
    """What is handed over arrives, all of it."""
    steps = take(exchange, workers)
    for i, step in enumerate(steps):
        given = handed_over(exchange, steps, i)
        close(step.mean, average(given))
        close(step.sent, given)


def lossy(exchange, workers):
    """The law holds; what is not sent is gone."""
    assert exchange.lawful
    obeys_the_law(take(exchange, workers))


def conserves(exchange, workers):
    """All that arrived and what is held are all that was ever handed over."""
    assert exchange.held is not None
    steps = take(exchange, workers)
    given, arrived = zeros(steps[0].mean), zeros(steps[0].mean)
    for i, step in enumerate(steps):
        given = add(given, average(handed_over(exchange, steps, i)))
        arrived = add(arrived, step.mean)
        close(add(arrived, average(step.held)), given, tolerance=5e-5)


def follows(exchange, workers):
    """The mean is that of the workers' estimates."""
    lossy(exchange, workers)


def tracks(exchange, workers):
    """It follows, and estimates approach gradients that stand still."""
    # A hundredth of the places arrives where two phases choose tenths at random.
    count = 300 if "two_phase" in exchange.name and "random_k" in exchange.name else 25
    steps = steps_of(exchange, workers, count, lambda i: gradients(workers, 0))
    obeys_the_law(steps)
    first, last = steps[0], steps[-1]

    def distance(step):
        apart = subtract(step.given, step.sent)
        return sum(np.square(x).sum() for x in jax.tree.leaves(apart))

    assert distance(last) < 0.8 * distance(first) or distance(last) < 1e-6


def votes(exchange, workers):
    """Every element is -1, 0 or 1, and unanimous signs win."""
    assert not exchange.lawful
    for step in take(exchange, workers):
        assert all((m == np.sign(m)).all() for m in jax.tree.leaves(step.mean))
        for m, s in zip(*map(jax.tree.leaves, (step.mean, step.sent)), strict=True):
            agreed = (s == s[:1]).all(axis=0)
            np.testing.assert_array_equal(m[agreed], s[0][agreed])


CHECKS = {
    "conserves": conserves,
    "exact": exact,
    "follows": follows,
    "lossy": lossy,
    "tracks": tracks,
    "votes": votes,
}
