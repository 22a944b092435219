"""What the steps of a run send: all of it, a warm-up of `keep`, or the usual."""

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from jaxcomp import compressors
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Count, Pipe, Range, argument, build, calls, parse
from jaxcomp.core.types import Mixer
from jaxcomp.training.segments import RunSegments

Kept = Annotated[float, Range(above=0, most=1, says="a fraction kept, in (0, 1]")]


class Stage(NamedTuple):
    """What is sent at a step, and by which segment of the run it is used."""

    compressor: str | None  # None: the exchange has a way of its own
    dense: bool  # everything goes as it is, whatever the method
    phase: int = 0  # of a mixer
    segment: int = 0  # of the run, by its number from 0
    silent: bool = False  # a step between two rounds

    def __str__(self) -> str:
        part = f" (phase {self.phase})" if self.phase else ""
        part += f" (regime {self.segment + 1})" if self.segment else ""
        sent = self.compressor or "what the exchange sends"
        sent = "everything as it is" if self.dense else sent
        return f"{'a step alone' if self.silent else sent}{part}"


class Stages(NamedTuple):
    """The stages of a run."""

    at: Callable[[int], Stage]  # of a step, from 0
    dense_steps: int  # at the beginning
    warmup: tuple[Stage, ...]  # of the first epochs


def exponential(
    keep: float, epochs: Count = 5, coefficient: float | None = None
) -> list[float]:
    """keep(e) = max(coefficient^(e + 1), keep) for the first epochs.

    Args:
      keep: of the rest of the run.
      epochs: length of the warm-up.
      coefficient: default: keep^(1 / (epochs + 1)), so that each epoch keeps the same
        share of what the one before it kept.

    Example:
      >>> [round(k, 4) for k in exponential(0.001, epochs=5)]
      [0.3162, 0.1, 0.0316, 0.01, 0.0032]
    """
    factor = keep ** (1 / (epochs + 1)) if coefficient is None else coefficient
    if not 0 < factor < 1:
        raise UserError(f"coefficient is a number between 0 and 1, not {factor!r}")
    return [max(factor ** (e + 1), keep) for e in range(epochs)]


def listed(
    keep: float,
    keeps: Sequence[Kept] = (0.25, 0.0625, 0.015625, 0.004),
    epochs: Count | None = None,
) -> list[float]:
    """The given fractions, one after the other. 1 sends everything.

    Fractions below `keep` are left out.

    Args:
      keep: of the rest of the run.
      keeps: fractions KEPT. The default is the paper's.
      epochs: over which they are spread evenly; default: one for each.

    Example:
      >>> listed(0.01, epochs=6)
      [0.25, 0.25, 0.0625, 0.0625, 0.015625, 0.015625]
    """
    used = [k for k in keeps if k >= keep]
    count = len(used) if epochs is None else epochs
    if count < len(used):
        raise UserError(f"epochs is at least one for each of {used}, not {epochs!r}")
    return [used[e * len(used) // count] for e in range(count if used else 0)]


REGISTRY: dict[str, Callable[..., list[float]]] = {
    "exponential": exponential,
    "listed": listed,
}


def make_stages(
    config: Any, usual: Stage, segments: RunSegments, mixer: Mixer | None = None
) -> Stages:
    """The stages that a config asks for: warm-up of `keep`, and dense steps.

    Where workers talk in rounds, a round is dense if one of its steps is to be.

    Args:
      config: its keep_warmup, dense_for and flush_every.
      usual: what is sent at most steps. Without a compressor nothing warms up.
      segments: of the run.
      mixer: of the run; None for an exchange of gradients.
    """
    schedule, silent = (mixer.schedule, mixer.silent) if mixer else ((0,), ())
    warmup: list[Stage] = []
    if config.keep_warmup and usual.compressor:
        keep = _keep_of(usual.compressor)
        keeps = build(config.keep_warmup, REGISTRY, "warm-up", keep)
        warmup = [_warm(usual.compressor, k) if k > keep else usual for k in keeps]
    if mixer and mixer.workers and any(stage.dense for stage in warmup):
        raise UserError(
            f"keep_warmup={config.keep_warmup!r} begins with everything as it is, and "
            f"{mixer.name!r} compresses at every step: keep fractions below 1"
        )
    first = segments.steps_at(config, "dense_for")
    flushes = segments.every(config, "flush_every")

    def round_of(step: int) -> range:
        """The steps since the last one in which the same was sent."""
        cycle = range(1, len(schedule) + 1)
        now = schedule[step % len(schedule)]
        length = next(n for n in cycle if schedule[(step - n) % len(schedule)] == now)
        return range(max(step - length + 1, 0), step + 1)

    def sent_at(step: int) -> Stage:
        if any(n < first or flushes(n + 1) for n in round_of(step)):
            return usual._replace(dense=True)
        epoch = int(segments.epochs(step) - segments.epochs(first))
        return warmup[epoch] if epoch < len(warmup) else usual

    def at(step: int) -> Stage:
        phase = schedule[step % len(schedule)]
        is_silent = phase in silent
        stage = usual._replace(silent=True) if is_silent else sent_at(step)
        return stage._replace(phase=phase, segment=segments.number(step))

    return Stages(at, first, tuple(warmup))


def _warm(compressor: str, keep: float) -> Stage:
    if keep == 1:
        return Stage(compressor, dense=True)
    return Stage(_with_keep(compressor, keep), dense=False)


def _keep_of(spec: str) -> float:
    """The fraction that the first compressor of a spec keeps."""
    call = calls(spec)[0]
    try:
        keep = argument(call, compressors.REGISTRY[call.name], "keep")
    except KeyError:  # no such compressor, or one without
        keep = None
    if keep is None:
        message = (
            f"keep_warmup changes the `keep` of a compressor, and {str(call)!r} has "
            "none. Set keep_warmup to ''"
        )
        raise UserError(message)
    return float(keep)


def _with_keep(spec: str, keep: float) -> str:
    """The spec with another fraction in its first compressor.

    Example:
      >>> _with_keep("top_k(keep=0.001) | cast", 0.25)
      'top_k(keep=0.25) | cast'
      >>> _with_keep("count_sketch(0.4, keep=0.1)", 0.5)
      'count_sketch(ratio=0.4, keep=0.5)'
    """
    call = parse(spec)
    first = calls(call)[0]
    names = inspect.signature(compressors.REGISTRY[first.name]).parameters
    given = dict(zip(names, first.args, strict=False)) | first.kwargs
    changed = first._replace(args=(), kwargs=given | {"keep": keep})
    return str(call._replace(left=changed) if isinstance(call, Pipe) else changed)
