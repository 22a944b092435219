"""The walks of docs/architecture.md are those that the programs take: they are traced.

Each hop of a walk is crossed, in the order of the table; and files that are crossed on
the way and stand in no hop are plumbing, of which this file says why.
"""

import fnmatch
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import jaxcomp
from jaxcomp.cli import main, train

PACKAGE = Path(jaxcomp.__file__).parent
MAP = PACKAGE.parent / "docs" / "architecture.md"
MOST_HOPS = 10

# What a walk crosses and leaves out, and why: patterns of files.
EVERYWHERE = {
    "core/*": "types, trees, specs, output and errors, in the words of all rooms",
    "parallel/*": "which devices there are, and how arrays and steps get there",
    "*__init__.py": "registries, which look up a name",
    "*/_*": "what the methods of a room share",
}
IN_A_STEP = {
    "exchanges/*": "figures of a step, and its parts where messages overlap",
    "transforms/*": "the other links of the chain",
    "training/*": "the state, and the rate of the step",
    "data/*": "the pixels of a batch, within the loss",
    "models/*": "the forward pass, within the loss",
}
# What their first function makes is called after all has been built.
TRACED = ("One step", "One gossip round")
PLUMBING: dict[str, dict[str, str]] = {
    "One step": IN_A_STEP
    | {
        "scope/*": "what a memory may keep of a leaf",
        "wire/*": "bytes are read from the program before it runs",
        "runs/*": "the console says that it compiles",
    },
    "One gossip round": {k: v for k, v in IN_A_STEP.items() if k != "exchanges/*"}
    | {
        "exchanges/*": "figures of a step",
        "training/tasks/*": "the loss, as in a step",
    },
    "One resume": IN_A_STEP
    | {
        "cli/*": "the words of the command",
        "compressors/*": "the method is built as it was",
        "scope/*": "which compressor a tensor gets",
        "memory/*": "the method is built as it was",
        "mixers/*": "of a graph, its picture would be drawn",
        "runs/*": "loggers, and the signals that end a run",
        "wire/*": "bytes of the compiled step",
        "checkpoint/*": "what `read` does with a leaf",
    },
    "One report": {"runs/*": "the names of files in a run folder"},
}


class Call(NamedTuple):
    """A function of the package that was called; nested ones have dots."""

    file: str
    name: str

    def of(self, hop: tuple[str, str]) -> bool:
        """Whether it is the function of a hop, or is nested in it."""
        return self.file == hop[0] and f"{self.name}.".startswith(f"{hop[1]}.")


def traced(run: Callable[[], Any]) -> list[Call]:
    """The calls of functions of the package while something runs."""
    calls: list[Call] = []
    folder = f"{PACKAGE}/"

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folder):
            calls.append(Call(code.co_filename[len(folder) :], code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        run()
    finally:
        sys.setprofile(before)
    return [call for call in calls if call.file.endswith(".py")]


def walks() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The heading of each walk and the (file, function) of its hops."""
    for part in MAP.read_text().split("\n### ")[1:]:
        hops = re.findall(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", part, re.MULTILINE)
        if hops:
            yield part.splitlines()[0], hops


WALKS = dict(walks())


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """What the programs of the walks call: a run, one that goes on, and a report."""
    folder = tmp_path_factory.mktemp("walks") / "run"
    small = "dataset=digits(size=8) model=tiny(width=2) augment= workers=2"
    small += " scope=whole_tree batch_size=128 warmup= log_every=4"
    gossip = "mixer=choco(gamma=0.3) topology=ring exchange= memory= compressor=sign"

    def words(settings: str, *more: str) -> list[str]:
        keys = [f"--config.{word}" for word in f"{small} {settings}".split()]
        return ["--config=default", *more, *keys]

    def trained(steps: int) -> Callable[[], Any]:
        there = words("compressor=top_k(keep=0.1)", f"--workdir={folder}")
        return lambda: train.main([*there, f"--config.train_for={steps} steps"])

    return {
        "One step": traced(trained(2)),
        "One gossip round": traced(lambda: train.main(words(gossip, "--dry-run"))),
        "One resume": traced(trained(3)),
        "One report": traced(lambda: main(["report", str(folder)])),
    }


def test_there_are_four_which_are_short_and_meet_no_file_twice():
    assert list(WALKS) == list(PLUMBING)
    for hops in WALKS.values():
        files = [file for file, _ in hops]
        assert len(set(files)) == len(files) <= MOST_HOPS


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_crosses_its_hops_in_their_order_and_nothing_else(name, calls):
    hops, found = WALKS[name], calls[name]
    inner = f"{hops[0][1]}.<locals>." if name in TRACED else ""
    start = next(i for i, c in enumerate(found) if c.of(hops[0]) and inner in c.name)
    left, places = enumerate(found[start:], start), []
    for hop in hops:
        place = next((i for i, call in left if call.of(hop)), None)
        assert place is not None, f"{hop} is not called after the hop above it"
        places.append(place)

    ignored = EVERYWHERE | PLUMBING[name]
    between = {c.file for c in found[start : places[-1]]} - {file for file, _ in hops}
    used = {p: fnmatch.filter(between, p) for p in ignored}
    assert between == {file for files in used.values() for file in files}
    assert {p for p in PLUMBING[name] if not used[p]} == set(), "ignored, never crossed"


# Distinct functions and files, at most.
METHOD = [("build", 25, 9), ("update", 120, 16)]


@pytest.fixture(scope="module")
def crossed():
    """What building a method crosses, and tracing a step of it."""
    words = ("gather", "top_k(keep=0.01)", "error_feedback")
    exchange = jaxcomp.make_exchange(*words)
    link = jaxcomp.distributed(exchange, seed=0)
    params = {"w": jnp.ones((64, 32)), "b": jnp.ones(32)}
    state = link.init(params)
    step = jax.vmap(lambda g: link.update(g, state, params), axis_name="workers")
    workers = jax.tree.map(lambda x: jnp.stack([x, x]), params)
    return {
        "build": traced(lambda: jaxcomp.make_exchange(*words)),
        "update": traced(lambda: jax.make_jaxpr(step)(workers)),
    }


@pytest.mark.parametrize(("what", "most", "files"), METHOD)
def test_a_method_is_made_and_traced_by_few_functions(crossed, what, most, files):
    named = {call for call in crossed[what] if not call.name.endswith(">")}
    assert len({call.file for call in named}) <= files
    assert len(named) <= most
