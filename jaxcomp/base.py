"""The types everything else is made of. No algorithm, no collective.

A `Compressor` turns an array (or, lifted by a scope, a tree) into a payload and back.
An `Exchange` turns the trees of all workers into their mean. A `Memory` wraps an
exchange and keeps what was not sent. A `Mixer` lets each worker keep a model of its own
and draws the models together. `PerWorker` marks state that differs between workers,
`Clock` state that goes on when a step is not applied; `Info` carries what we report and
never what the next step needs.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

__all__ = [
    "Averaged",
    "Axis",
    "Clock",
    "Compressor",
    "Exchange",
    "Figure",
    "Info",
    "Memory",
    "Mixed",
    "Mixer",
    "PerWorker",
    "is_clock",
    "is_per_worker",
    "is_report",
    "no_bound",
    "no_choice",
    "ticked",
]

Array: TypeAlias = jax.Array
Tree: TypeAlias = Any  # a pytree of arrays
Payload: TypeAlias = Any  # a pytree of arrays whose shapes do not depend on the data
State: TypeAlias = Any  # a pytree; () when there is nothing to remember
Spec: TypeAlias = Any  # ShapeDtypeStruct, or a pytree of them
Axis: TypeAlias = Any  # name of a mapped axis, or a part of one: collectives


class Figure(NamedTuple):
    """Something a method reports of each payload, such as what found no room in it."""

    name: str
    of: Callable[[Any, Any], Array]  # (payload, spec) -> number; summed over tensors


class Compressor(NamedTuple):
    """A lossy code for one array: pure functions plus facts that the tests check.

    The scopes of `jaxcomp.scope` return the same type with "array" read as "tree", so
    whatever accepts a compressor accepts a lifted one.
    """

    name: str  # the spec string that builds it again
    init: Callable[[Spec], State]
    # (x, state, key) -> (payload, state). The key is the only source of randomness.
    compress: Callable[[Any, State, Array], tuple[Payload, State]]
    # (payload, spec) -> x_hat, of the spec's shape and dtype; x itself serves as spec
    decompress: Callable[[Payload, Spec], Any]
    # (total, payload) -> total + x_hat, at the cost of what the payload holds
    accumulate: Callable[[Any, Payload], Any]
    # (payloads with a leading axis, spec) -> sum of their x_hat, in at least float32,
    # in the order of the axis and without holding all x_hat at once.
    decompress_sum: Callable[[Payload, Spec], Any]
    # The information bound in bits: what a perfect coder would send.
    ideal_bits: Callable[[Spec], float]
    # delta with E|x - C(x)|^2 <= (1 - delta) |x|^2 for every x; 0 where nothing but x
    # itself may be lost; None where the error may be larger than x.
    contraction: Callable[[Spec], float | None]
    unbiased: bool  # E[C(x)] == x
    # Support and new state depend on key and state alone, and decompress is linear in
    # the `values` of the payload: workers that share these may sum values instead of
    # payloads.
    aligned: bool
    # At most so many elements of C(x) are not zero; a sparsifier has few.
    support: Callable[[Spec], int]
    figures: tuple[Figure, ...] = ()


class Info(NamedTuple):
    """What one exchange reports. Scalars of this worker; nothing reads them back.

    No checkpoint holds it, so that one more figure makes no state another.
    """

    gradient_error: Array  # |given - sent|^2 / |given|^2
    unsent_norm: Array  # |given - sent|
    residual_norm: Array  # norm of what the memory kept; 0 without memory
    # A method's own, named in `Exchange.figures`. Only the type protects the dict: to
    # JAX an immutable mapping is a leaf, or a tree of another structure.
    extra: Mapping[str, Array] = {}
    # Whether anything was sent; where nothing was, there is no error to tell.
    sends: Array | np.bool_ = np.True_


def is_report(node: Any) -> bool:
    """True for an `Info` node; the `is_leaf` of tree functions."""
    return isinstance(node, Info)


class Averaged(NamedTuple):
    """The result of `Exchange.average`."""

    mean: Tree  # identical on every worker
    sent: Tree  # what is charged to this worker: mean over workers == `mean`
    state: State
    info: Info
    # Not zero where something of this worker's own tree was sent. None where that is
    # where `sent` is not zero: then `sent` holds no losses of other workers' trees.
    own_sent: Tree | None = None


def no_bound(spec: Spec) -> list[float | None]:
    """For each leaf, that nothing is known of what is lost of it."""
    return [None] * len(jax.tree.leaves(spec))


def no_choice(spec: Spec) -> list[bool]:
    """For each leaf, that all of its elements are sent, or none."""
    return [False] * len(jax.tree.leaves(spec))


class Exchange(NamedTuple):
    """A way to average a tree over the workers of a mapped axis.

    The law: the mean over workers of `sent` equals `mean`. Memories conserve mass if
    and only if it holds, so a method that breaks it says `lawful=False`. Where an
    exchange itself holds back, the mean over workers of `sent`, plus what was `held`
    before, minus what is held now, equals `mean`.
    """

    name: str
    init: Callable[[Tree], State]  # runs on the host, outside any mapped axis
    average: Callable[[Tree, State, Array], Averaged]  # runs under the axis
    axis: Axis
    lawful: bool = True
    figures: tuple[str, ...] = ()  # keys of `Info.extra`, known before the first step
    # What this worker was given and has not yet sent, as a tree; None: nothing ever.
    held: Callable[[State], Tree] | None = None
    # For each leaf the contraction of what is lost of it, as in `Compressor`. 1: it
    # arrives as it was given.
    contraction: Callable[[Spec], list[float | None]] = no_bound
    # For each leaf, whether some of its elements are sent and others are not.
    chooses: Callable[[Spec], list[bool]] = no_choice
    # Names of the memories that keep what was not sent, and that give a momentum to
    # what is: a second of either kind would do it twice.
    keeper: str | None = None
    momentum: str | None = None
    simulated: bool = False  # what it sends is not what its method is meant to send
    ignores_compressor: bool = False  # has a way of its own


Memory: TypeAlias = Callable[[Exchange], Exchange]


class Mixed(NamedTuple):
    """The result of `Mixer.mix`."""

    updates: Tree  # params + updates is this worker's model after the step
    state: State
    info: Info


class Mixer(NamedTuple):
    """A way to train a model for each worker of a mapped axis, and to keep them close.

    Steps repeat in a cycle of phases, each of which sends a message of its own shape. A
    graph that changes with time has one phase for each of its rounds; local training
    has a phase that sends nothing.
    """

    name: str
    # (params) -> state, on the host, outside any mapped axis. All workers start from
    # these params. All of the state is the worker's own.
    init: Callable[[Tree], State]
    # (params, updates, state, key, phase) -> Mixed, under the axis. The phase is a
    # Python number, the same on all workers.
    mix: Callable[[Tree, Tree, State, Array, int], Mixed]
    axis: Axis
    schedule: tuple[int, ...] = (0,)  # the phase of each step of a cycle
    figures: tuple[str, ...] = ()  # keys of `Info.extra`, known before the first step
    simulated: bool = False  # what it sends is not what its method is meant to send
    workers: int | None = None  # the nodes of its graph; None: it has none

    def phase(self, step: int) -> int:
        """The phase of a step; steps are counted from 0."""
        return self.schedule[step % len(self.schedule)]


class PerWorker(NamedTuple):
    """Marks state that differs between workers: residuals, local momenta, models.

    Inside a mapped step `value` is the worker's own; outside it has a leading worker
    axis. Declaring such state replicated runs without an error and is silently wrong
    after a checkpoint, so everything that crosses the border goes through
    `jaxcomp.parallel`, which reads this mark.
    """

    value: Any


def is_per_worker(node: Any) -> bool:
    """True for a `PerWorker` node; the `is_leaf` of tree functions."""
    return isinstance(node, PerWorker)


class Clock(NamedTuple):
    """Counts the steps of a run, whether they are applied or not.

    A step that is not applied leaves the state as it was, all but its clocks. So what
    depends on the number of the step, such as a rate, reads a clock, and all clocks of
    a run agree. What depends on how much was learnt has a count of its own.
    """

    step: Array  # [] int32, steps done


def is_clock(node: Any) -> bool:
    """True for a `Clock` node; the `is_leaf` of tree functions."""
    return isinstance(node, Clock)


def ticked(state: State) -> State:
    """The state one step later, where nothing but its clocks goes on.

    Example:
        >>> ticked({"clock": Clock(3), "kept": 5})
        {'clock': Clock(step=4), 'kept': 5}
    """

    def later(node: Any) -> Any:
        return Clock(node.step + 1) if is_clock(node) else node

    return jax.tree.map(later, state, is_leaf=is_clock)
