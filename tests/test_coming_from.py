"""docs/coming-from.md: what people of other systems are told to write works.

Words of a config are put behind the config of their table, and built with little data
and a tiny model; names of models, data sets and platforms are looked up.
"""

import contextlib
import functools
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import pytest

from jaxcomp import data, training
from jaxcomp.cli import main as cli
from jaxcomp.cli.config import FLAGS, load_config, override
from jaxcomp.training.tasks.named import named
from tests.test_configs import SMALL
from tests.training.small import built

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "coming-from.md").read_text()
KINDS_OF_DEVICES = ("cpu", "gpu", "tpu")
SECTIONS = PAGE.split("\n## ")[1:]
# The options of their parsers, section by section.
_LISTS = Path(__file__).with_name("coming_from.txt").read_text().split("\n\n")[1:]
PARSERS = [re.sub("#.*", "", part).split() for part in _LISTS]


class Line(NamedTuple):
    """A row of a table: what stood there, and what to write here."""

    base: str  # the config of its table
    there: str
    spans: tuple[str, ...]
    note: str

    def __str__(self) -> str:
        return self.there.replace("`", "")[:50]


def lines() -> list[Line]:
    found = []
    for section in SECTIONS:
        [base] = re.findall(r"^Config: `(\S+)`$", section, re.MULTILINE)
        rows = [
            re.split(r"(?<!\\)\|", x)[1:-1] for x in section.splitlines() if "|" in x
        ]
        for row in rows[2:]:
            there, here, note = (cell.strip().replace("\\|", "|") for cell in row)
            spans = re.findall(r"`((?:--|jaxcomp )[^`]*)`", f"{here} {note}")
            found.append(Line(base, there, tuple(spans), note))
    return found


LINES = lines()
BASES = list(dict.fromkeys(line.base for line in LINES))


@functools.cache
def _help(command: str) -> str:
    """What a command says of its flags."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        cli([command, "--help"])
    return out.getvalue()


def small(base: str, words: list[str]) -> Any:
    """A config with little data; models and data sets of the words are looked up."""
    config: Any = load_config(base)
    config.update(SMALL["classification"])
    rest = []
    for word in words:
        key, _, value = word.removeprefix("--config.").partition("=")
        if key == "model":
            named("classification", "model", value, nn.Module, {"num_classes": 10})
        elif key == "dataset":
            assert value in data.REGISTRY
        elif key == "platform":
            assert value in KINDS_OF_DEVICES
        else:
            rest.append(word)
    override(config, rest)
    with config.unlocked():
        config.warmup = config.warmup if "--config.warmup" in " ".join(rest) else ""
        if config.workers > jax.device_count():
            config.mapper = "vmap"
    return config


def check(base: str, span: str) -> None:
    """Fails if a piece of a command line names what is not there."""
    if span.startswith("jaxcomp "):
        command, *words = span.split()[1:]
        for word in words:
            if word.startswith("-"):
                assert re.search(rf"(^|[\s,]){re.escape(word)}\b", _help(command)), word
            elif word.endswith(".py"):
                assert (ROOT / word).exists()
        assert _help(command)
        return
    words = [word.strip() for word in re.split(r" (?=--)", span)]
    of_config = [word for word in words if word.startswith("--config.")]
    for word in set(words) - set(of_config):
        name, _, value = word.removeprefix("--").partition("=")
        assert name in FLAGS, f"--{name}"
        base = value if name == "config" else base
    if of_config or base.count(",") or any(w.startswith("--config=") for w in words):
        assert built(small(base, of_config)).method.name


@pytest.mark.parametrize("line", LINES, ids=str)
def test_a_line_works(line):
    assert line.spans or line.note, f"{line.there}: nothing is said"
    for span in line.spans:
        check(line.base, span)


@pytest.mark.parametrize("section", range(len(PARSERS)))
def test_each_flag_of_the_five_parsers_is_in_the_table_or_left_out(section):
    for flag in PARSERS[section]:
        dashes = "--" if len(flag) > 1 else "-"
        found = re.search(rf"(?<![\w-]){dashes}{flag}(?![\w-])", SECTIONS[section])
        assert found, f"{dashes}{flag} is not in section {section}"


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
def test_the_config_of_a_table_runs_for_two_steps(base, tmp_path):
    config = small(base, ["--config.train_for=2 steps", "--config.schedule=cosine"])
    with config.unlocked():
        config.update(batch_size=4 * config.workers, keep_warmup="", flush_every="")
    # Adam's counts are integers that optax multiplies by floats.
    with jax.numpy_dtype_promotion("standard"):
        assert training.train_and_evaluate(config, tmp_path).steps == 2
