"""One of several local processes that exchange for real: see `processes`.

It reads a task from its standard input and writes its seconds to the standard output.
"""

import json
import os
import sys
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import parallel
from jaxcomp.wire.compatibility import make_method
from jaxcomp.wire.predict import step_of

__all__: list[str] = []

_WARM_UP, _TIMED = 8, 7  # steps, as many in each process


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Gloo prints, from C++
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_input, daemon=True).start()
    parallel.keep_pages()
    crew = parallel.setup(platform="cpu", **task["place"])
    leaves = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in task["leaves"]]
    times = [_seconds(text, leaves, crew) for text in task["methods"]]
    print(json.dumps(times), file=answers, flush=True)
    os._exit(0)  # the others may have gone, and the end of jax would wait for them


def _seconds(text: str, spec: list[Any], crew: parallel.Workers) -> list[float]:
    """Seconds of each of some exchanges between all processes."""
    exchange = make_method(text, spec, crew.axis)
    state = parallel.spread((jnp.int32(0), exchange.init(spec)), crew)
    axes = parallel.axes(state)
    generator = np.random.default_rng(jax.process_index())
    drawn = [generator.standard_normal((1, *x.shape), np.float32) for x in spec]
    tree = parallel.place(
        [x.astype(s.dtype) for x, s in zip(drawn, spec, strict=True)], crew, 0
    )
    mapped = parallel.map_step(
        step_of(exchange),
        crew,
        in_axes=(axes, 0),
        out_axes=(None, axes),
        donate_argnums=(0,),
    )
    compiled = mapped.lower(state, tree).compile()
    taken: list[float] = []
    for _ in range(_WARM_UP + _TIMED):
        began = time.perf_counter()
        mean, state = compiled(state, tree)
        jax.block_until_ready((mean, state))
        taken.append(time.perf_counter() - began)
    return taken[_WARM_UP:]


def _end_with_the_input() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    _serve()
