"""`jaxcomp inspect`, on CPU devices in place of those of a target."""

import re

import jax
import pytest

from jaxcomp import UserError, cli, parallel
from jaxcomp.core.units import bytes_text, times_text
from jaxcomp.training import programs
from jaxcomp.wire import targets
from tests.training.small import small_config

CONFIG = """
from tests.training.small import small_config


def get_config():
    batch = {"batch_size": 0, "batch_per_worker": 64}
    return small_config(workers=1, dense_for="1 epoch", **batch).unlock()
"""


@pytest.fixture
def here(monkeypatch):
    """A target whose devices are two CPUs, and that needs no other compiler."""

    def make(name, hosts, devices, mapper):
        workers = parallel.setup(hosts * devices, mapper)
        return targets.Target(name, "CPU", hosts, devices, workers, {})

    monkeypatch.setattr(targets, "make", make)


def test_the_figures_are_those_of_the_program(here, tmp_path, capsys):
    path = tmp_path / "config.py"
    path.write_text(CONFIG)
    config = f"--config={path},parts/top_k,parts/sign"
    words = ["inspect", config, "--target=cpu", "--hosts=1", "--devices=2"]
    assert cli.main([*words, "--config.dense_for=1 epoch"]) == 0
    told = capsys.readouterr().out
    assert "gather(whole_tree: sign)" in told
    assert "target: 2 x CPU (1 host), pmap, a batch of 64 each" in told
    assert re.search(r"step 22 of 22, sign; compiled in", told)
    size = sum(x.size for x in jax.tree.leaves(_params(2)))
    message = 4 * -(-size // 32) + 4  # one bit for each element, and the scale
    assert re.search(rf"all-gather +1 between 2 workers, {message} B\n", told)
    assert re.search(r"loops of unknown length +0\n", told)
    dense = 4 * size  # of two workers, as much as that leaves each with `exact`
    line = f"{bytes_text(message)} as rings, and {bytes_text(dense)} with exact"
    assert re.search(rf"leaves a worker +{line}\n", told)
    # Half of the steps are dense.
    ratio = times_text(2 * dense / (dense + message))
    assert re.search(rf"fewer over the run +{ratio}\n", told)


def _params(workers):
    config = small_config(workers=workers, compressor="sign")
    setup = programs.build(config, parallel.setup(workers))
    return jax.eval_shape(setup.fresh).params


def test_a_step_of_another_stage(here):
    config = small_config(dense_for="1 epoch", compressor="sign").unlock()
    found = programs.inspect(config, "cpu", 1, 2, step=1)
    assert found.stage.dense
    [message] = found.program.collectives
    assert (message.kind, message.nbytes) == ("all-reduce", found.sent.dense)
    with pytest.raises(UserError, match="steps 1 to 22, and no step 23"):
        programs.inspect(config, "cpu", 1, 2, step=23)
