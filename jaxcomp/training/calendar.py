"""Which step belongs to which epoch and stage."""

import inspect
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Annotated, Any, NamedTuple

from jaxcomp import compressors
from jaxcomp.core.errors import UserError, within
from jaxcomp.core.specs import Count, Pipe, Range, argument, build, calls, parse
from jaxcomp.core.types import Mixer
from jaxcomp.training.schedules import Horizon, read_duration, steps_in


class Phase(NamedTuple):
    """A part of a run in which all steps take as many examples."""

    first: int  # step, from 0
    epoch: int  # epochs before it
    examples: int  # likewise
    horizon: Horizon

    def as_if(self, step: int, unit: str = "epoch") -> int:
        """The number of a step, had all before it been steps of this phase.

        Example:
          >>> Phase(20, 2, 640, Horizon(steps_per_epoch=5, batch_size=64)).as_if(21)
          11
        """
        before = {
            "step": self.first,
            "epoch": self.epoch * self.horizon.steps_per_epoch,
            "example": -(-self.examples // self.horizon.batch_size),
        }
        return before[unit] + step - self.first


class Calendar(NamedTuple):
    """The phases of a run, of which the first begins with it. Steps count from 0."""

    phases: tuple[Phase, ...]

    def at(self, step: int) -> Phase:
        """The phase of a step."""
        return next(p for p in reversed(self.phases) if p.first <= max(step, 0))

    def batch_at(self, step: int) -> int:
        """The examples of a step, of all workers together."""
        return self.at(step).horizon.batch_size

    def epochs(self, step: int) -> Fraction:
        """The epochs before a step; whole numbers are the ends of epochs."""
        phase = self.at(step)
        return Fraction(phase.as_if(step), phase.horizon.steps_per_epoch)

    def epoch_at(self, step: int) -> int:
        """The epoch of a step, from 1."""
        return int(self.epochs(step)) + 1

    def examples(self, step: int) -> int:
        """The examples before a step."""
        phase = self.at(step)
        return phase.examples + (step - phase.first) * phase.horizon.batch_size

    def end_of(self, epoch: int) -> int:
        """The steps in so many epochs."""
        return self.steps_of(f"{epoch} epochs", may_be_zero=True)

    def seen_from(self, phase: Phase, step: int) -> int | float:
        """The epochs before a step, in steps of a phase.

        Example:
          >>> run = calendar_of(Horizon(10, 32)).then(20, Horizon(5, 64))
          >>> run.seen_from(run.at(0), step=25), run.seen_from(run.at(25), step=11)
          (30, 5.5)
        """
        steps = self.epochs(step) * phase.horizon.steps_per_epoch
        return int(steps) if steps.denominator == 1 else float(steps)

    def steps_of(self, duration: str, *, may_be_zero: bool = False) -> int:
        """The steps in a duration, counted from the beginning of the run.

        Example:
          >>> run = calendar_of(Horizon(10, 32)).then(20, Horizon(5, 64))
          >>> run.steps_of("4 epochs"), run.steps_of("704 examples")
          (30, 21)
        """
        found = read_duration(duration, may_be_zero=may_be_zero)
        for phase in reversed(self.phases):
            before = {
                "step": phase.first,
                "epoch": phase.epoch,
                "example": phase.examples,
            }
            left = found.amount - before[found.unit]
            if left > 0:
                return phase.first + steps_in(
                    found._replace(amount=left), phase.horizon
                )
        return 0

    def steps_at(self, config: Any, key: str) -> int:
        """The steps of the duration at a key of a config."""
        with within(key):
            return self.steps_of(config[key])

    def every(self, config: Any, key: str) -> Callable[[int], bool]:
        """Make a function that says whether the interval at a key ends after a step.

        An interval is as long as it says in each phase, and one of epochs ends with
        epochs. An empty one never ends.

        Args:
          config: of the run.
          key: of a duration.

        Returns:
          A function of the number of finished steps.
        """
        with within(key):
            found = read_duration(config[key])
            lengths = {phase: steps_in(found, phase.horizon) for phase in self.phases}

        def ends(done: int) -> bool:
            phase = self.at(done - 1)
            length = lengths[phase]
            return length > 0 and phase.as_if(done, found.unit) % length == 0

        return ends

    def epochs_every(self, config: Any, key: str) -> int:
        """The epochs of the interval at a key; refuses parts of an epoch."""
        with within(key):
            found = read_duration(config[key])
            lengths = [
                Fraction(steps_in(found, phase.horizon), phase.horizon.steps_per_epoch)
                for phase in self.phases
            ]
        whole = -(-lengths[0] // 1)
        if any(length != whole for length in lengths):
            shown = " and ".join(dict.fromkeys(f"{float(x):.3g}" for x in lengths))
            steps = " and ".join(
                dict.fromkeys(str(p.horizon.steps_per_epoch) for p in self.phases)
            )
            raise UserError(
                f"{key} counts in whole epochs, and {config[key]!r} is {shown} epochs "
                f"of {steps} steps: write for example '{whole} epochs'"
            )
        return whole

    def then(self, first: int, horizon: Horizon) -> "Calendar":
        """The calendar with another phase from a step on.

        Args:
          first: its first step, in the last phase so far.
          horizon: its epochs and steps.

        Raises:
          UserError: no epoch ends before that step.
        """
        last = self.phases[-1]
        if horizon == last.horizon:
            return self
        epochs, examples = self.epochs(first), self.examples(first)
        if epochs.denominator > 1:
            raise UserError(
                "another batch_size begins with an epoch, and step "
                f"{first + 1} is {float(epochs):.4g} epochs into the run: write for "
                f"example '{round(epochs) or 1} epochs'"
            )
        kept = self.phases if last.first < first else self.phases[:-1]
        return Calendar((*kept, Phase(first, int(epochs), examples, horizon)))


def calendar_of(horizon: Horizon) -> Calendar:
    """The calendar of a run whose steps are all alike."""
    return Calendar((Phase(0, 0, 0, horizon),))


Kept = Annotated[float, Range(above=0, most=1, says="a fraction kept, in (0, 1]")]


class Stage(NamedTuple):
    """What is sent at a step, and by which regime it is used."""

    compressor: str | None  # None: the exchange has a way of its own
    dense: bool  # everything goes as it is, whatever the method
    phase: int = 0  # of a mixer
    regime: int = 0  # number of it, from 0
    silent: bool = False  # a step between two rounds

    def __str__(self) -> str:
        part = f" (phase {self.phase})" if self.phase else ""
        part += f" (regime {self.regime + 1})" if self.regime else ""
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
    config: Any,
    usual: Stage,
    calendar: Calendar,
    mixer: Mixer | None = None,
    regime_at: Callable[[int], int] = lambda step: 0,
) -> Stages:
    """The stages that a config asks for: warm-up of `keep`, and dense steps.

    Where workers talk in rounds, a round is dense if one of its steps is to be.

    Args:
      config: its keep_warmup, dense_for and flush_every.
      usual: what is sent at most steps. Without a compressor nothing warms up.
      calendar: of the run.
      mixer: of the run; None for an exchange of gradients.
      regime_at: the number of the regime of a step.
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
    first = calendar.steps_at(config, "dense_for")
    flushes = calendar.every(config, "flush_every")

    def round_of(step: int) -> range:
        """The steps since the last one in which the same was sent."""
        cycle = range(1, len(schedule) + 1)
        now = schedule[step % len(schedule)]
        length = next(n for n in cycle if schedule[(step - n) % len(schedule)] == now)
        return range(max(step - length + 1, 0), step + 1)

    def sent_at(step: int) -> Stage:
        if any(n < first or flushes(n + 1) for n in round_of(step)):
            return usual._replace(dense=True)
        epoch = int(calendar.epochs(step) - calendar.epochs(first))
        return warmup[epoch] if epoch < len(warmup) else usual

    def at(step: int) -> Stage:
        phase = schedule[step % len(schedule)]
        is_silent = phase in silent
        stage = usual._replace(silent=True) if is_silent else sent_at(step)
        return stage._replace(phase=phase, regime=regime_at(step))

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
