"""What a config of a convex run names: mistakes, problems, bytes, batches."""

import jax
import numpy as np
import pytest

import jaxcomp
from jaxcomp.cli import train
from jaxcomp.convex.experiment import build, partition_of
from jaxcomp.convex.runner import batches_between
from tests.convex.small import CENTRALISED, small


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem": "digit"}, "unknown convex problem 'digit'. Did you mean 'digits'"),
        ({"problem": "libsvm(path='no.txt')"}, "No such file or directory. Sets to"),
        ({"problem": "libsvm(path='.')"}, "libsvm(path='.'): Is a directory."),
        ({"problem": "digits | digits"}, "a convex problem is one name"),
        ({"mixer": "chocco"}, "unknown mixer 'chocco'. Did you mean 'choco'"),
        ({"mixer": "local_sgd(h=2)", "topology": ""}, "local_sgd needs an exchange"),
        ({"partition": "sort"}, "unknown partition 'sort'. Did you mean 'sorted'"),
        ({"partition": "dirichlet(alpha=0)"}, "alpha is a number above 0"),
        ({"partition": "dirichlet(beta=1)"}, "no argument 'beta'. Valid: alpha"),
        ({"partition": "all | all"}, "a partition cannot be composed"),
        ({"topology": ""}, "choco needs a topology, such as 'ring'"),
        ({"topology": "rng"}, "unknown topology 'rng'. Did you mean 'ring'"),
        ({"mixer": "", "exchange": "exact"}, "topology 'ring' is of no use"),
        ({"learning_rate": "decai"}, "unknown learning rate 'decai'"),
        ({"average": "means"}, "unknown average 'means'. Did you mean 'mean'"),
        ({"average": ""}, "average is empty"),
        ({"mixer": "", "topology": ""}, "set mixer, such as 'choco(gamma=0.05)', or"),
        ({"workers": 0}, "workers is a whole number of at least 1, not 0"),
        ({"batch_size": 6}, "a batch of 6 does not divide over 4 workers"),
        ({"batch_size": 4000}, "a batch of 4000 is more than 569 examples"),
        ({"train_for": "two epochs"}, "not a number"),
        ({"eval_every": ""}, "eval_every is empty: write for example"),
        ({"seeds": 0}, "seeds is a whole number of at least 1, not 0"),
        ({"seed": -1}, "seed is a whole number from 0 to 4294967295, not -1"),
        ({"regulariser": 0.5}, "regulariser stands here and in the config"),
        ({"memory": "error_feedback"}, "it takes no exchange, no memory"),
        ({"mixer": "", "topology": "", "exchange": "gahter"}, "Did you mean 'gather'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_mistakes_are_one_message(changes, message, tmp_path, capsys):
    assert train.run(small(**changes), str(tmp_path / "run")) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "run").exists()


def test_the_regulariser_of_the_config_is_that_of_the_problem():
    experiment = build(small(problem="breast_cancer", regulariser=0.5))
    assert experiment.problem.regulariser == 0.5


@pytest.mark.parametrize("compressor", ["top_k(keep=0.1)", "qsgd(levels=7)", "sign"])
def test_bytes_are_those_of_the_payload(compressor):
    traffic = build(small(compressor=compressor)).traffic
    x = jax.ShapeDtypeStruct((30,), np.float32)
    method = jaxcomp.make_compressor(compressor)
    payload = jax.eval_shape(method.compress, x, (), jax.random.key(0))[0]
    neighbours = 2
    each = jaxcomp.nbits(payload) / 8
    for step in (1, 7):
        sent, left, exact = traffic.of(step)
        words = sent / step / neighbours
        assert each <= words < each + 4 * len(jax.tree.leaves(payload))
        assert left == sent, "a message to a neighbour leaves the worker once"
        assert exact == step * 2 * (4 - 1) / 4 * 4 * 30


@pytest.mark.parametrize(
    ("sent", "message", "left"),
    [("exact", 120, 180), ("gather", 8, 3 * 8)],
)
def test_bytes_follow_the_turns_of_a_mixer(sent, message, left):
    """Local SGD sends at every third step alone; `exact` would send at each."""
    changes = {"mixer": "local_sgd(h=3)", "exchange": sent, "compressor": "sign"}
    traffic = build(small(**(CENTRALISED | changes))).traffic
    assert (traffic.wire, traffic.left) == ((0, 0, message), (0, 0, left))
    assert [traffic.of(t)[0] for t in (2, 3, 5)] == [0, message, message]
    assert traffic.of(6) == (2 * message, 2 * left, 6 * 180)


def test_batches_run_through_epochs():
    divided = partition_of(small(), np.zeros(569), 0)
    whole = batches_between(divided, 4, 0, 300)
    assert whole.shape == (300, 4, 1)
    parts = [batches_between(divided, 4, a, b) for a, b in ((0, 140), (140, 300))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
