"""What the benchmarks share: turns of all sides, peers, memory pages, tables as CSV."""

import argparse
import csv
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp import parallel

# What the C library does with memory that is freed, for our side and for all peers. A
# fresh page costs more than the arithmetic on it, so it would be what is measured.
_KINDS = {
    "kept": "glibc.malloc.mmap_max=0:glibc.malloc.arena_max=1:"
    f"glibc.malloc.trim_threshold={2**62}",
    "huge": "glibc.malloc.hugetlb=1",
    "fresh": "",
}
# The option that chooses: a parent of a benchmark's own parser.
PAGES = argparse.ArgumentParser(add_help=False)
PAGES.add_argument(
    "--pages",
    choices=_KINDS,
    default="kept",
    help="what glibc does with freed memory: keep it (default), use huge pages, or "
    "return it to the system; for all sides",
)


def in_turns(
    sides: Mapping[str, Callable[[], tuple[float, float]]],
    repeats: int,
    warm_up: int = 1,
) -> dict[str, list[tuple[float, float]]]:
    """Run all sides in turns, so that other load on the machine affects all of them.

    Args:
      sides: each runs once and returns two times in seconds.
      repeats: number of turns.
      warm_up: runs of each side before the first turn.

    Example:
      >>> in_turns({"ours": lambda: (1.0, 2.0)}, repeats=2)
      {'ours': [(1.0, 2.0), (1.0, 2.0)]}
    """
    for run in sides.values():
        for _ in range(warm_up):
            run()
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            time.sleep(0.005)  # idle threads of the side before spin for a while
            seconds[name].append(run())
    return seconds


def others(specs: Iterable[str], registry: Iterable[str]) -> list[str]:
    """The names of a registry that none of the specs is for; compositions do not count.

    Example:
      >>> others(["top_k(keep=0.1)", "sign | top_k"], ["sign", "top_k"])
      ['sign']
    """
    covered = {spec.partition("(")[0].strip() for spec in specs if "|" not in spec}
    return [name for name in registry if name not in covered]


def ratio(own: Sequence[float], others: Sequence[tuple[float, float]]) -> float:
    """The median over turns of the ratio of two times.

    Both times are of the same turn, so that other load on the machine affects both.

    Example:
      >>> ratio([2.0, 4.0, 9.0], [(1.0, 0.0), (2.0, 0.0), (3.0, 0.0)])
      2.0
    """
    pairs = zip(own, others, strict=True)
    return statistics.median(mine / other for mine, (other, _) in pairs)


def timed(program: Any, *inputs: Any) -> Callable[[], tuple[float, float]]:
    """A side for `in_turns` that runs a program and waits for it."""

    def run() -> tuple[float, float]:
        began = time.perf_counter()
        jax.block_until_ready(program(*inputs))
        return time.perf_counter() - began, 0.0

    return run


def read_pass(crew: parallel.Workers, tree: Any) -> Callable[[], tuple[float, float]]:
    """All workers read their own tree once."""

    def total(tree: Any) -> jax.Array:
        return sum(map(jnp.sum, jax.tree.leaves(tree)), start=jnp.float32(0))

    mapped = parallel.map_step(total, crew, in_axes=(0,), out_axes=0)
    return timed(mapped.lower(tree).compile(), tree)


def torch_peers() -> Any:
    """The module `peers_torch`, or None after a message if torch is not installed."""
    try:
        found = importlib.import_module("benchmarks.peers_torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print("torch is not installed: own figures alone (`make oracles` installs it)")
        return None
    found.torch.set_num_threads(os.cpu_count() or 1)
    return found


def with_pages(module: str, main: Callable[[], Any]) -> None:
    """Run a benchmark with the pages of its command line, in it and in its processes.

    The C library reads its settings when a process starts, so this one starts anew.

    Args:
      module: the benchmark's name for `python -m`.
      main: what it runs.
    """
    setting = _KINDS[PAGES.parse_known_args()[0].pages]
    if os.environ.get("GLIBC_TUNABLES", "") != setting:
        command = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"GLIBC_TUNABLES": setting})
    main()


def write_csv(file: Path, rows: Sequence[Any], digits: int = 5) -> None:
    """Write NamedTuples as rows of a CSV file; None becomes an empty field.

    Args:
      file: to write.
      rows: NamedTuples of one type.
      digits: of floats.
    """

    def short(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.{digits}g}")
        return "" if value is None else value

    with open(file, "w", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(rows[0]._fields)
        for row in rows:
            writer.writerow(map(short, row))
