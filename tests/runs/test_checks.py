"""Numbers that do not fit together."""

import pytest

from jaxcomp.cli import train
from tests.training.small import small_config

BAD = [
    ({"workers": -1}, "workers is a whole number of at least "),
    ({"batch_size": 0}, "batch_size is a whole number of at least 1, not 0"),
    ({"batch_size": 63, "workers": 4}, "63 does not divide over 4 workers: take"),
    ({"batch_size": 9999}, "a batch of 9999 is more than"),
    ({"seed": -1}, "seed is a whole number from 0 to 4294967295, not -1"),
    ({"seed": 2**32}, "seed is a whole number from 0 to 4294967295, not 4294967296"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_a_run_refuses_them(changes, message, tmp_path, capsys):
    config = small_config(**{"workers": 1, **changes})
    assert train.run(config, str(tmp_path / "run")) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
