"""One run of a sweep: train.py in a process that ends when the sweep does.

Its input is a pipe from the sweep, to which nothing is written. The kernel closes it
when the sweep ends, whatever ends it.
"""

import os
import sys
import threading

from jaxcomp import parallel
from jaxcomp.cli.train import main

__all__: list[str] = []


def _end_with_the_sweep() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)  # at once: the sweep that is started next goes on with this run


if __name__ == "__main__":
    parallel.keep_pages()
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    sys.exit(main(sys.argv[1:]))
