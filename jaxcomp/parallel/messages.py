"""Short texts between processes, through the coordinator instead of the devices.

A collective would first have to be compiled, and waits for ever for a process that does
not take part. These messages have time limits, and need no devices.
"""

import itertools
import platform

import jax

# jax has no public way to the store that all processes share.
from jax._src import distributed

from jaxcomp.errors import RunFailed, UserError

__all__ = ["Silent", "check_same", "texts_of_all"]

_START_SECONDS = 60
_numbers = itertools.count()


class Silent(RunFailed):
    """Another process did not come to the same place of the program in time."""

    def __init__(self, message: str, texts: dict[int, str]) -> None:
        super().__init__(message)
        self.texts = texts  # of those who came


def texts_of_all(text: str, seconds: float) -> dict[int, str]:
    """The texts of all processes by their index; empty ones are left out.

    All processes call it in the same order.

    Args:
      text: of this process.
      seconds: for all others to come here.

    Raises:
      Silent: one has not come; the message of the coordinator names it.

    Example:
      >>> texts_of_all("mine", 1)
      {0: 'mine'}
    """
    state = distributed.global_state
    client = state.client
    if client is None:
        return {0: text} if text else {}
    name = f"jaxcomp/{next(_numbers)}"
    if text:
        client.key_value_set(f"{name}/{state.process_id}", text)

    def found() -> dict[int, str]:
        texts = sorted(client.key_value_dir_get(f"{name}/"))
        return {int(key.rsplit("/", 1)[1]): value for key, value in texts}

    try:
        client.wait_at_barrier(name, round(seconds * 1000))
    except jax.errors.JaxRuntimeError as error:
        raise Silent(
            f"process {state.process_id} of {state.num_processes} on "
            f"{platform.node()} has lost others: {str(error).splitlines()[0]}",
            found(),
        ) from None
    return found()


def check_same(facts: dict[str, str], seconds: float = _START_SECONDS) -> None:
    """Refuse a run of processes that are not about to do the same.

    Args:
      facts: by name, such as versions; the same names on all processes.
      seconds: for all others to come here.

    Raises:
      UserError: names the fact, two processes and their hosts; on all of them.

    Example:
      >>> check_same({"jax": "1.0"})
    """
    host = platform.node()
    for name, mine in facts.items():
        texts = texts_of_all(f"{host}\n{mine}", seconds)
        split = {i: text.split("\n", 1) for i, text in sorted(texts.items())}
        first = split[0]
        for index, (other_host, text) in split.items():
            if text != first[1]:
                a, b = _apart(first[1], text)
                raise UserError(
                    f"the processes do not run the same: {name} is {a} in process 0 on "
                    f"{first[0]}, and {b} in process {index} on {other_host}"
                )


def _apart(a: str, b: str) -> tuple[str, str]:
    """Two texts, or their first lines that differ if they have several.

    Example:
      >>> _apart("x\\ny=1", "x\\ny=2")
      ('y=1', 'y=2')
    """
    lines = itertools.zip_longest(a.split("\n"), b.split("\n"), fillvalue="nothing")
    return next((x.strip(" ,"), y.strip(" ,")) for x, y in lines if x != y)
