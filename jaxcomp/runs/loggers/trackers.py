"""Trackers outside of this machine, which must not stop a run."""

import hashlib
import importlib
from collections.abc import Callable

from jaxcomp.core.errors import UserError
from jaxcomp.runs.folder import read_json
from jaxcomp.runs.loggers.files import Logger, Opener, Row, RunSoFar, numbers


def wandb(project: str = "jaxcomp") -> Opener:
    """Weights & Biases; a run that goes on goes on there. Needs the package `wandb`.

    Its own settings come from the environment: WANDB_MODE=offline sends nothing.

    Args:
      project: under which the run is listed.
    """
    try:
        package = importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        if error.name != "wandb":
            raise
        message = "is not installed: pip install wandb, or leave it out of loggers"
        raise UserError(message) from None

    def open_(run: RunSoFar) -> Logger:
        started = read_json(run.folder / "environment.json").get("started", "")
        identity = hashlib.sha256(f"{run.folder.resolve()} {started}".encode())
        tracked = package.init(
            project=project,
            name=run.folder.name,
            id=identity.hexdigest()[:16],
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
        )

        def add(kind: str, row: Row) -> None:
            known = numbers(row)
            step = int(known.pop("step"))
            tagged = {f"{kind}/{name}": value for name, value in known.items()}
            tracked.log(tagged, step=step)

        return Logger(
            lambda row: add("epoch", row), lambda row: add("step", row), tracked.finish
        )

    return open_


def offline_safe(name: str, open_: Opener, say: Callable[[str], None]) -> Opener:
    """The same logger; its first error is said, and then it is left out.

    Args:
      name: of the logger.
      open_: from its factory.
      say: where a line for people goes.
    """

    def safe_open(run: RunSoFar) -> Logger:
        working: list[Logger] = []  # nothing after the first error

        def leave_out(error: Exception) -> None:
            working.clear()
            problem = f"{type(error).__name__}: {error}"
            say(f"WARNING: logger {name!r} is left out from here on: {problem}")

        def attempt(act: Callable[[Logger], None]) -> None:
            for logger in working[:]:
                try:
                    act(logger)
                except Exception as error:
                    leave_out(error)

        try:
            working.append(open_(run))
        except Exception as error:
            leave_out(error)
        return Logger(
            epoch=lambda row: attempt(lambda logger: logger.epoch(row)),
            step=lambda row: attempt(lambda logger: logger.step(row)),
            close=lambda: attempt(lambda logger: logger.close()),
        )

    return safe_open
