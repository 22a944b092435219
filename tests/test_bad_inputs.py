"""What people get wrong, and the words of the one message that they are told.

A row is what is typed and what the message has to say: the value, and the way out. All
of them fail before anything is compiled, so that a row costs milliseconds.
"""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict, config_dict

from jaxcomp import cli
from jaxcomp.cli import train
from jaxcomp.cli.config import override
from jaxcomp.mixers import local

# Words of train.py; RUN is a folder that does not exist, FILES has the files below.
FILES = {
    "text.py": "no Python at all",
    "binary.py": "\0",
    "empty.py": "",
    "none.py": "def get_config():\n    pass\n",
    "dict.py": "def get_config():\n    return {'workers': 4}\n",
    "few.py": "from ml_collections import ConfigDict\n"
    "def get_config():\n    return ConfigDict({'workers': 4})\n",
    "word.py": "from configs import default\n"
    "def get_config():\n    return default.get_config().update(workers='four')\n",
    "typo.py": "def update(config):\n    config.leraning_rate = 0.2\n",
    "three.py": "def get_sweep():\n    return 3\n",
    "taken.md": "mine",
}
LINKS = {"gone": "nowhere", "loop": "loop"}


SHORT = {
    "NOTHING": "",
    "DEFAULT": "--config=configs/default.py --workdir=RUN",
    "INSPECT": "inspect --config=configs/default.py",
    "FIND": "find-rate --config=configs/default.py",
    "PREDICT": "predict --bandwidth=1MB --model='[(300, 40), (40,)]'",
    "SWEEP": "sweep configs/sweeps/digits.py",
}
DURATIONS = (
    *("checkpoint_every", "dense_for", "eval_every", "eval_workers_every"),
    *("flush_every", "keep_every", "layers_every", "train_for", "warmup"),
)


def overriding(config: str, keys: str) -> str:
    """The words of train.py for KEY=VALUE pairs."""
    flags = [f"--config.{word}" for word in shlex.split(keys)]
    return shlex.join([f"--config=configs/{config}.py", "--workdir=RUN", *flags])


def listed() -> Iterator[tuple[str, str, str]]:
    """What bad_inputs.txt says: section, what is typed, what is told."""
    section = typed = ""
    for line in Path(__file__).with_name("bad_inputs.txt").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line.startswith("    "):
            yield section, typed, line.strip()
        elif not line.startswith("#"):
            typed = line


LISTED = [
    *listed(),
    ("train.py", f"--config=configs/default.py --workdir={'long' * 75}", "too lon"),
    *(
        ("default", f"{key}='1e308 epochs'", f"{key}: 1e+308 epochs are more than 2,")
        for key in DURATIONS
    ),
    *(
        ("default", f"mixer='{name}(h=65537)' memory=none", "to 65536, not 65537")
        for name in local.REGISTRY
    ),
]


def row(section: str, typed: str, says: str) -> tuple[Any, str, str]:
    """The command, its words, and what it says."""
    word, _, rest = typed.partition(" ")
    typed = f"{SHORT.get(word, word)} {rest}".strip() if word in SHORT else typed
    if section in ("train.py", "jaxcomp"):
        return (train.main if section == "train.py" else cli.main), typed, says
    return train.main, overriding(section, typed), says


ROWS = [row(*each) for each in LISTED]


@pytest.mark.parametrize(("main", "words", "says"), ROWS)
def test_what_is_wrong_is_told_in_one_message(
    main, words, says, tmp_path, capsys, monkeypatch
):
    for name in [*os.environ]:
        if name.startswith("JAXCOMP_"):
            monkeypatch.delenv(name)
    timeouts = ("JOIN_TIMEOUT", "PEER_TIMEOUT")
    for name in ("COORDINATOR", "PROCESSES", "PROCESS", *timeouts):
        # What `main` sets is taken back.
        monkeypatch.setenv(f"JAXCOMP_{name}", "")
        monkeypatch.delenv(f"JAXCOMP_{name}")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for name, target in LINKS.items():
        (tmp_path / name).symlink_to(tmp_path / target)
    run = tmp_path / "run"
    words = words.replace("RUN", str(run)).replace("FILES", str(tmp_path))
    assert main(shlex.split(words)) in (1, 2)
    out, err = capsys.readouterr()
    first, *caret = err.rstrip("\n").split("\n")
    assert says in first
    assert first.startswith(("train.py: ", "jaxcomp ", "jaxcomp: "))
    assert not caret or (len(caret) == 2 and caret[1].strip() == "^")
    assert out == ""
    assert not run.exists()


def test_values_of_every_type_are_set(tmp_path):
    config = ConfigDict({"b": False, "f": 1.0, "i": 1, "s": "", "t": (), "c": {"i": 1}})
    config.n = config_dict.placeholder(float)
    words = (
        "--config.b=true --config.f 3 --config.i=-2 --config.s=x(y='1') --config.n=.5"
    )
    more = ["--config.t=[('a', 'b')]", "--config.c.i=4", "--config.i=7"]
    set_ = override(config, [*words.split(), *more])
    assert set_.to_dict() == {
        "b": True,
        "f": 3.0,
        "i": 7,
        "s": "x(y='1')",
        "t": (("a", "b"),),
        "c": {"i": 4},
        "n": 0.5,
    }
    assert type(set_.f) is float
    with pytest.raises(AttributeError):
        set_.new = 1


def test_there_are_a_hundred():
    assert len(ROWS) >= 100
