"""Exchanges between as many processes of this machine, over its loopback.

What they take here is what workers compute, and what the transport copies and adds.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxcomp import parallel
from jaxcomp.cli.supervise import free_port, process_group
from jaxcomp.core.errors import RunFailed
from jaxcomp.core.types import Spec
from jaxcomp.wire.predict import make_method, step_of

_WARM_UP, _TIMED = 8, 7  # steps
_PATIENCE = 300.0  # seconds for each method, most of them to compile
_SHOWN = 2000  # characters of what processes wrote before they ended


def loopback_seconds(
    methods: Sequence[str], spec: Spec, workers: int
) -> dict[str, float]:
    """The median seconds of exchanges between so many processes of this machine.

    Args:
      methods: one line each.
      spec: of the tree.
      workers: their number; all of them share the cores.

    Raises:
      RunFailed: a process ended, or they have not answered in time.
    """
    leaves = [(x.shape, str(x.dtype)) for x in jax.tree.leaves(spec)]
    place = {"workers": workers, "processes": workers}
    place |= {"coordinator": f"127.0.0.1:{free_port()}"}
    task = {"leaves": leaves, "methods": list(methods)}
    tasks = [task | {"place": place | {"process": rank}} for rank in range(workers)]
    answers = _asked(tasks, _PATIENCE * (1 + len(methods)))
    # Of each exchange the slowest worker counts: the others wait for it.
    steps = [zip(*each, strict=True) for each in zip(*answers, strict=True)]
    return {
        method: statistics.median(map(max, every))
        for method, every in zip(methods, steps, strict=True)
    }


def _asked(tasks: Sequence[Any], patience: float) -> list[Any]:
    """Start a process for each task; returns what they answer."""
    until = time.monotonic() + patience
    with tempfile.TemporaryFile("w+") as log, process_group(grace=0) as group:
        crew = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.loopback", json.dumps(task)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=group,
            )
            for task in tasks
        ]
        try:
            left = [
                process.communicate(timeout=until - time.monotonic())[0]
                for process in crew
            ]
        except subprocess.TimeoutExpired:
            left = [""]
        if not all(left):
            log.seek(0)
            raise RunFailed(f"local processes ended:\n{log.read()[-_SHOWN:]}")
        return [json.loads(text) for text in left]


def answer(text: str) -> None:
    """In one of these processes: exchange for real, and print the seconds of steps."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Gloo prints, from C++
    task = json.loads(text)
    parallel.keep_pages()
    crew = parallel.setup(platform="cpu", **task["place"])
    leaves = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in task["leaves"]]
    times = [_exchanged(method, leaves, crew) for method in task["methods"]]
    print(json.dumps(times), file=answers, flush=True)
    os._exit(0)  # the others may have gone, and the end of jax would wait for them


def _exchanged(text: str, spec: list[Any], crew: parallel.Workers) -> list[float]:
    """Seconds of each of some exchanges between all processes."""
    exchange = make_method(text, spec, crew.axis)
    state = parallel.spread((jax.numpy.int32(0), exchange.init(spec)), crew)
    generator = np.random.default_rng(jax.process_index())
    drawn = [generator.standard_normal((1, *x.shape), np.float32) for x in spec]
    tree = parallel.place(
        [x.astype(s.dtype) for x, s in zip(drawn, spec, strict=True)], crew, 0
    )
    axes = parallel.axes(state)
    mapped = parallel.map_step(
        step_of(exchange),
        crew,
        in_axes=(axes, 0),
        out_axes=(None, axes),
        donate_argnums=(0,),
    )
    taken = []
    for _ in range(_WARM_UP + _TIMED):
        began = time.perf_counter()
        state = jax.block_until_ready(mapped(state, tree))[1]
        taken.append(time.perf_counter() - began)
    return taken[_WARM_UP:]


if __name__ == "__main__":
    answer(sys.argv[1])
