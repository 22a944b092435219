"""Local-update methods against NumPy, and what they send."""

import jax
import numpy as np
import pytest

import jaxcomp
from jaxcomp import wire
from jaxcomp.mixers.local import REGISTRY
from jaxcomp.transforms.distributed import find_state
from tests.gossip.runs import BETA, RATE, flat, problem, train
from tests.gossip.test_messages import program
from tests.references import local as references
from tests.tiers import tiers

WORKERS, STEPS = 4, 24


def mixer_of(spec, exchange="exact", **settings):
    settings = {"memory": "none", "scope": "whole_tree", **settings}
    return jaxcomp.make_mixer(spec, exchange=exchange, **settings)


def expected(given, run, beta=BETA, **arguments):
    targets = flat(given.targets, 1)
    buffer = np.zeros_like(targets)

    def updates(x):
        nonlocal buffer
        buffer = beta * buffer + (x - targets)
        return -RATE * buffer

    x = np.stack([flat(given.start, 0)] * len(targets))
    return np.stack(list(run(x, updates, STEPS, **arguments)))


@pytest.mark.parametrize(
    ("spec", "arguments"),
    [
        ("local_sgd(h=1)", {"h": 1}),
        ("local_sgd(h=5)", {"h": 5}),
        ("diloco(h=4)", {"h": 4, "rate": 0.7, "momentum": 0.9}),
        ("diloco(h=3, rate=1, momentum=0)", {"h": 3}),
        # Two tensors, of 5 and of 42 elements: a fragment each.
        (
            "diloco(h=5, fragments=2)",
            {
                "h": 5,
                "rate": 0.7,
                "momentum": 0.9,
                "parts": [slice(0, 5), slice(5, None)],
            },
        ),
    ],
)
@pytest.mark.parametrize("mapper", tiers(["vmap", "pmap"], "vmap".__eq__))
def test_rounds_equal_the_reference(spec, arguments, mapper):
    given = problem(WORKERS)
    models = flat(train(mixer_of(spec), given, STEPS, mapper=mapper), 2)
    reference = expected(given, references.diloco, **arguments)
    np.testing.assert_allclose(models, reference, atol=3e-5)


def test_sparse_loco_equals_the_reference():
    given = problem(WORKERS)
    mixer = mixer_of("sparse_loco(h=4)", "gather", compressor="top_k(keep=0.2)")
    models = flat(train(mixer, given, STEPS), 2)
    kept = round(0.2 * models.shape[-1])
    reference = expected(given, references.sparse_loco, h=4, keep=kept)
    np.testing.assert_allclose(models, reference, atol=3e-5)


@pytest.mark.parametrize(
    "spec", ["local_sgd(h=3)", "diloco(h=3)", "sparse_loco(h=3, rate=0.7)"]
)
def test_four_bits_reach_the_optimum(spec):
    """The mean of the targets, with a constant rate and to within what 4 bits leave."""
    given = problem(WORKERS)
    mixer = mixer_of(spec, "gather", compressor="qsgd(levels=7, norm='max')")
    models = flat(train(mixer, given, 400, rate=0.02, beta=0.0), 2)
    targets = flat(given.targets, 1)
    start = np.linalg.norm(flat(given.start, 0) - targets.mean(axis=0))
    left = np.linalg.norm(models[398, 0] - targets.mean(axis=0))
    assert left < 0.05 * start


@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.parametrize("name", REGISTRY)
def test_leaves_are_known_by_their_places(name, fragments):
    """Two paths may read alike: one leaf would get the other's update."""
    mixer = mixer_of(f"{name}(h=2, fragments={fragments})")

    def trained(second):
        def run(scale):
            x = {"a": {"b": jax.numpy.zeros(3)}, second: jax.numpy.zeros(3)}
            updates = {
                "a": {"b": scale * jax.numpy.ones(3)},
                second: -jax.numpy.ones(3),
            }
            state = mixer.init(x)
            for number in mixer.schedule:
                mixed = mixer.mix(x, updates, state, jax.random.key(0), number)
                x, state = jax.tree.map(jax.numpy.add, x, mixed.updates), mixed.state
            return jax.tree.leaves(x)

        mapped = jax.jit(jax.vmap(run, axis_name="workers"))
        return mapped(jax.numpy.array([1.0, 2.0]))

    np.testing.assert_array_equal(trained("a/b"), trained("c"))


def test_a_policy_sees_the_paths_of_the_model():
    """In a fragment as in the whole."""
    params = {"a": {"bias": jax.numpy.zeros(9)}, "w": jax.numpy.zeros((3, 3))}
    mixer = mixer_of(
        "local_sgd(h=2, fragments=2)",
        "gather",
        compressor="sign",
        scope="per_leaf",
        policy=[("a/bias", "top_k(keep=0.2)")],
    )
    sent = [sent_by(mixer, number, params)["all-gather"] for number in (1, 2)]
    assert sent == [12, 8]  # two values and their places; signs and a scale


# --- What is sent -----------------------------------------------------------------


def sent_by(mixer, number, params):
    """Bytes of one of the mixer's phases, compiled for real workers."""
    only = mixer._replace(schedule=(number,))
    return wire.collective_bytes(program(only, params, WORKERS))


def test_only_the_last_step_of_a_round_sends():
    mixer = mixer_of("diloco(h=6)", "gather", compressor="qsgd(levels=7)")
    assert mixer.schedule == (0, 0, 0, 0, 0, 1)
    params = problem(WORKERS).start
    assert sent_by(mixer, 0, params) == {}
    # 47 elements of 4 bits and one unit.
    assert sent_by(mixer, 1, params) == {"all-gather": 28}


def test_fragments_share_the_bytes_of_a_round():
    params = {"a": jax.numpy.zeros(100), "b": jax.numpy.zeros(100)}
    mixer = mixer_of("diloco(h=6, fragments=2)", "gather", compressor="sign")
    assert mixer.schedule == (0, 0, 1, 0, 0, 2)
    parts = [sent_by(mixer, number, params) for number in (1, 2)]
    assert parts == [{"all-gather": 20}] * 2  # 100 bits and a scale, in whole words


def test_one_program_or_many_are_the_same_run():
    """A compiled step for each phase, and one that looks at the step count."""
    mixer = mixer_of("diloco(h=3)", "gather", compressor="sign")
    params = problem(1).start

    def run(tx_of):
        def worker(noise):
            x, state = params, jaxcomp.mixing(mixer, seed=0).init(params)
            for step in range(7):
                updates = jax.tree.map(lambda p, s=step: noise * (p + s), x)
                updates, state = tx_of(step).update(updates, state, x)
                x = jax.tree.map(jax.numpy.add, x, updates)
            return x

        mapped = jax.jit(jax.vmap(worker, axis_name="workers"))
        return mapped(jax.numpy.array([0.1, -0.2]))

    one = run(lambda step: jaxcomp.mixing(mixer, seed=0))
    many = run(lambda step: jaxcomp.mixing(mixer, 0, mixer.phase(step)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), one, many)


@pytest.mark.parametrize("sends", [False, True])
def test_a_step_tells_whether_it_sent_anything(sends):
    """And has no error that is not a number, which `jax_debug_nans` would refuse."""
    given, tx = problem(WORKERS), jaxcomp.mixing(mixer_of("local_sgd(h=2)"), 0, sends)

    def step(target):
        x = given.start
        return find_state(tx.update(target, tx.init(x), x)[1]).info.value

    info = jax.jit(jax.vmap(step, axis_name="workers"))(given.targets)
    np.testing.assert_array_equal(info.sends, sends)
    np.testing.assert_array_equal(info.gradient_error, 0)


# --- Refusals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "settings", "reason"),
    [
        ("diloco(h=0)", {}, "h is a whole number from 1 to 65536, not 0"),
        ("diloco(h=2.5)", {}, "not 2.5"),
        ("diloco(rate=-1)", {}, "not -1"),
        ("diloco(momentum=1.0)", {}, r"\[0, 1\), not 1.0"),
        ("diloco(h=2, fragments=3)", {}, "3 fragments"),
        ("diloco(steps=2)", {}, "no argument 'steps'"),
        ("sparse_loco", {"memory": "error_feedback"}, "set memory to 'none'"),
        ("local_sgd", {"topology": "ring"}, "no topology"),
        ("local_sgd", {"exchange": None}, "needs an exchange"),
        ("locl_sgd", {}, "Did you mean 'local_sgd'"),
        ("choco", {"exchange": None}, "needs a topology"),
        ("choco", {"topology": "ring"}, "no exchange"),
        ("choco | diloco", {}, "one name"),
    ],
)
def test_what_makes_no_sense_is_refused(spec, settings, reason):
    with pytest.raises(jaxcomp.SpecError, match=reason):
        jaxcomp.make_mixer(spec, **{"exchange": "exact", **settings})


def test_a_link_of_models_needs_the_models():
    tx = jaxcomp.mixing(mixer_of("local_sgd"), seed=0)
    x = jax.numpy.ones(3)
    with pytest.raises(TypeError, match="needs params"):
        tx.update(x, tx.init(x))
    with pytest.raises(TypeError, match="needs key="):
        jaxcomp.mixing(mixer_of("local_sgd")).update(x, tx.init(x), x)
    with pytest.raises(TypeError, match="takes a Mixer"):
        jaxcomp.mixing(jaxcomp.make_exchange())  # pyright: ignore[reportArgumentType]
