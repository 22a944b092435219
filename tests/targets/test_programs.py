"""Programs that XLA compiles for accelerators which are not here: `make test-targets`.

Each test is skipped where the compiler of its target is not installed.
"""

import jax
import jax.numpy as jnp
import pytest

from jaxcomp import make_exchange, parallel, targets, wire
from tests import workers

pytestmark = [pytest.mark.slow, pytest.mark.targets]


def needs(name):
    """A mark that skips a test where nothing can be compiled for a target."""
    return pytest.mark.skipif(bool(targets.missing(name)), reason=targets.missing(name))


def exchanged(target, exchange, tree):
    """The program of one exchange, and its state's memory is used again."""
    step = workers.averaging(exchange)

    def mean_and_state(state, grads):
        mean, _, state = step(state, grads)
        return mean, state

    state = jax.eval_shape(lambda: (jnp.int32(0), exchange.init(tree)))
    axes = parallel.axes(state)
    mapped = parallel.map_step(
        mean_and_state,
        target.workers,
        in_axes=(axes, 0),
        out_axes=(None, axes),
        donate_argnums=(0,),
    )
    given = targets.specs(state, target, axes), targets.specs(tree, target)
    return targets.compiled(mapped, target, *given)


@pytest.mark.parametrize("mapper", ["pmap", "shard_map"])
@pytest.mark.parametrize("hosts", [1, 2])
@needs("a100")
def test_one_exchange_on_a100s(mapper, hosts):
    exchange = make_exchange(compressor="sign", scope="whole_tree")
    target = targets.make("a100", hosts, 8, mapper)
    assert len({d.process_index for d in target.mesh.devices}) == hosts
    tree = workers.resnet20()
    program = targets.read(exchanged(target, exchange, tree))
    [message] = program.collectives
    assert (message.kind, message.workers) == ("all-gather", 8 * hosts)
    # One bit for each element, and the scale.
    assert message.nbytes == pytest.approx(wire.dense_bytes(tree) / 32, abs=64)
    assert program.open_loops == ()
    assert program.launches < 4 * len(jax.tree.leaves(tree))
    assert program.memory is not None
    assert program.memory.temporary < 2 * wire.dense_bytes(tree)
    assert program.memory.reused > 0.9 * wire.dense_bytes(tree)
