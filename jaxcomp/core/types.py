"""The types of all parts: compressors, exchanges, mixers, and the laws they obey."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Array: TypeAlias = jax.Array
Tree: TypeAlias = Any  # a pytree of arrays
Payload: TypeAlias = Any  # a pytree of arrays whose shapes do not depend on the data
State: TypeAlias = Any  # a pytree; () when there is nothing to remember
Spec: TypeAlias = Any  # ShapeDtypeStruct, or a pytree of them
Axis: TypeAlias = Hashable  # a mapped axis: its name, names, or a `collectives.Part`


class Resize(NamedTuple):
    """How states of one type go on with another number of workers.

    Marked floats are averaged or copied, so that their mean over the workers stays.
    Whatever else is marked has to be equal on all workers. Fields for which this is
    wrong are built anew instead.
    """

    of: type  # of the states
    # The fields that are built anew; `rebuild` is given what they were before.
    rebuilt: tuple[str, ...] = ()
    # (state, params, workers) -> state. Marked arrays have an axis of the new workers
    # in front; params have it too, where each worker has a model of its own. They are
    # those of the whole model, also where the state is of a part of it.
    rebuild: Callable[[Any, Tree, int], Any] | None = None
    # Fields of which new worker i takes those of old worker i modulo their number: of
    # whoever has the same part of what a host has, if as many as before share a host.
    handed_on: tuple[str, ...] = ()


Kind = TypeVar("Kind", bound=type)
_AVERAGED: set[type] = set()


def averaged_on_resize(kind: Kind) -> Kind:
    """Declare that marked floats of this type count in the mean over the workers.

    It decorates the state of an exchange or memory. If a run goes on with another
    number of workers, their values are then averaged or copied. Without the decorator
    such a state is refused, unless it is equal on all workers.
    """
    _AVERAGED.add(kind)
    return kind


def is_averaged_on_resize(kind: type) -> bool:
    """Whether `averaged_on_resize` was applied to a type."""
    return kind in _AVERAGED


def worst(contractions: Iterable[float | None]) -> float | None:
    """The contraction that holds for all: the least, or None if one of them is None.

    Example:
      >>> worst([1.0, 0.5]), worst([1.0, None]), worst([])
      (0.5, None, 1.0)
    """
    every = list(contractions)
    known = [delta for delta in every if delta is not None]
    return min(known, default=1.0) if len(known) == len(every) else None


class Figure(NamedTuple):
    """A number that a method reports of each payload, such as what found no room."""

    name: str
    of: Callable[[Any, Any], Array]  # (payload, spec) -> number; summed over tensors


class Compressor(NamedTuple):
    """A lossy code for one array: pure functions, and facts that the tests check.

    The scopes of `jaxcomp.scope` return the same type for trees, so whatever takes a
    compressor of arrays takes one of trees.
    """

    name: str  # the spec string that builds it again
    # Array or spec -> the state before the first step; called on the host, outside any
    # mapped axis. It depends on shape and dtype alone.
    init: Callable[[Any], State]
    # (x, state, key) -> the payload and the next state. The key is the only source of
    # randomness: the same arguments give the same bits. The payload's shapes follow
    # from the array's shape and dtype alone.
    compress: Callable[[Any, State, Array], tuple[Payload, State]]
    # (payload, spec) -> an array with the shape and dtype of the spec.
    decompress: Callable[[Payload, Spec], Any]
    # (total, payload) -> `total` plus the array of the payload, at the cost of what the
    # payload holds.
    accumulate: Callable[[Any, Payload], Any]
    # As `decompress`, of payloads with a leading axis: the sum of their arrays in at
    # least float32. It adds them in the order of that axis, and does not hold all of
    # them at once.
    decompress_sum: Callable[[Payload, Spec], Any]
    # Spec -> the information in a payload, in bits: what a perfect coder would send.
    ideal_bits: Callable[[Spec], float]
    # Spec -> the delta with E|x - C(x)|^2 <= (1 - delta) |x|^2 for every x of this
    # shape: 1 where nothing is lost, 0 where the error is never larger than x, and None
    # where it may be larger.
    contraction: Callable[[Spec], float | None]
    # E[C(x)] == x
    unbiased: bool
    # Workers that share key and state may sum the `values` of their payloads instead of
    # the payloads: which elements are sent, and the new state, depend on key and state
    # alone, and `decompress` is linear in `values`.
    aligned: bool
    # Spec -> how many elements of C(x) may differ from zero; few for a sparsifier.
    support: Callable[[Spec], int]
    figures: tuple[Figure, ...] = ()
    # The same method for a tuple of arrays of one dtype, each with a threshold or scale
    # of its own, as one program whose size does not grow with their number. Its
    # payload is one for all, its state a tuple. None: each array is compressed alone.
    segmented: "Compressor | None" = None
    # (x, payload) -> x with zeros where C(x) is not zero, at the cost of what the
    # payload holds. Offered where the `values` of a payload are elements of x as they
    # are. None: only the decoded payload tells what was sent.
    clear: Callable[[Any, Payload], Any] | None = None


class Info(NamedTuple):
    """What an exchange reports of one step, as scalars of this worker.

    No step reads it and no checkpoint holds it, so a new figure does not make older
    checkpoints unreadable.
    """

    gradient_error: Array  # |given - sent|^2 / |given|^2
    unsent_norm: Array  # |given - sent|
    residual_norm: Array  # norm of what the memory kept; 0 without memory
    # Figures of the method, named in `Exchange.figures`. A dict, although nobody may
    # change it: JAX takes an immutable mapping for a leaf, or for another structure.
    extra: Mapping[str, Array] = {}
    # Whether anything was sent; a step that sends nothing has no error to report.
    sends: Array | np.bool_ = np.True_
    given_norm: Array | np.float32 = np.float32(0)  # |given|; 0 if nothing can be lost


def is_report(node: Any) -> bool:
    """True for an `Info` node; the `is_leaf` of tree functions."""
    return isinstance(node, Info)


class Averaged(NamedTuple):
    """The result of `Exchange.average`."""

    mean: Tree  # identical on every worker
    # What this worker contributed: the mean of it over workers is `mean`. Where one
    # worker compresses a sum for all, it includes what that compression changed.
    sent: Tree
    state: State
    info: Info
    # Not zero where something of this worker's own gradient was sent. None: `sent`
    # tells it, as it includes nothing that belongs to others.
    own_sent: Tree | None = None
    # Given minus `sent`, in at least float32, where that costs less than both of them:
    # nobody has to read `sent` then, and what nobody reads is not computed.
    missing: Tree | None = None
    payload: Payload = ()  # what `Exchange.clear` takes

    def unsent(self, given: Tree) -> Tree:
        """Given minus `sent`, in at least float32."""
        if self.missing is not None:
            return self.missing
        return jax.tree.map(jnp.subtract, given, self.sent)


def no_bound(spec: Spec) -> list[float | None]:
    """For each leaf, that nothing is known of what is lost of it."""
    return [None] * len(jax.tree.leaves(spec))


def no_choice(spec: Spec) -> list[bool]:
    """For each leaf, that either all of its elements are sent or none."""
    return [False] * len(jax.tree.leaves(spec))


class Exchange(NamedTuple):
    """A way to average a tree over the workers of a mapped axis.

    An exchange may hold back a part of what it was given and send it later. Then the
    mean over workers of `sent`, plus what was `held` before, minus what is held now,
    equals `mean`.
    """

    name: str
    init: Callable[[Tree], State]  # as that of a compressor
    # (tree, state, key) -> one step, called under the mapped axis. The law: the mean
    # over workers of `sent` equals `mean`. Memories lose nothing if and only if it
    # holds.
    average: Callable[[Tree, State, Array], Averaged]
    axis: Axis
    lawful: bool = True  # whether the law of `average` holds
    figures: tuple[str, ...] = ()  # keys of `Info.extra`, known before the first step
    # What this worker was given and has not yet sent, as a tree; None: nothing ever.
    held: Callable[[State], Tree] | None = None
    # For each leaf of a tree, the contraction of what the exchange loses of it, and
    # whether some of its elements are sent and others are not.
    contraction: Callable[[Spec], list[float | None]] = no_bound
    chooses: Callable[[Spec], list[bool]] = no_choice
    # The memory that keeps what was not sent, and the one that gives a momentum to what
    # is sent, by name: a second of either kind would do it twice.
    keeper: str | None = None
    momentum: str | None = None
    simulated: bool = False  # it sends more than its method is meant to send
    ignores_compressor: bool = False  # it compresses in a way of its own
    # (tree, `Averaged.payload`) -> the tree with zeros where something of this worker's
    # own was sent. None: `Averaged.sent` or `own_sent` tells it.
    clear: Callable[[Tree, Payload], Tree] | None = None
    # What averaging does not do when the number of workers changes.
    resize: tuple[Resize, ...] = ()
    per_host: int = 1  # neighbouring workers that it takes to share a host
    is_complex: bool = False  # whether it averages complex numbers too
    # What reads the norm of a worker's whole gradient, by name; None: nothing does.
    whole: str | None = None
    patterns: tuple[str, ...] = ()  # of a policy; each is to fit a tensor of the model
    # How it cuts a tree into parts with a message each, an `overlap.Cut`; or None.
    cut: Any = None


Memory: TypeAlias = Callable[[Exchange], Exchange]


class Mixed(NamedTuple):
    """The result of `Mixer.mix`."""

    updates: Tree  # params + updates is this worker's model after the step
    state: State
    info: Info


class Mixer(NamedTuple):
    """A way to train a model for each worker of a mapped axis, and to keep them close.

    In each step a worker applies its own update and then does what the phase of the
    step says. Phases repeat in a cycle: a graph that changes with time has one for each
    of its rounds, local training has one that sends nothing.
    """

    name: str
    # Given the params that all workers start from; the state is the worker's own.
    init: Callable[[Tree], State]
    # (params, updates, state, key, phase) -> one step, called under the mapped axis.
    # `updates` are what the worker's own optimiser wants to add to `params`. The phase
    # is a Python number, the same on all workers.
    mix: Callable[[Tree, Tree, State, Array, int], Mixed]
    axis: Axis
    schedule: tuple[int, ...] = (0,)  # the phase of each step of a cycle
    figures: tuple[str, ...] = ()  # keys of `Info.extra`, known before the first step
    simulated: bool = False  # it sends more than its method is meant to send
    workers: int | None = None  # the nodes of its graph; None: it has none
    # How its state goes on with another number of workers; without an entry for the
    # type of its state, a mixer that has a state refuses that.
    resize: tuple[Resize, ...] = ()
    silent: tuple[int, ...] = ()  # the phases in which nothing is sent
    per_host: int = 1  # of its exchange
    patterns: tuple[str, ...] = ()  # as in `Exchange`

    def phase(self, step: int) -> int:
        """The phase of a step; steps are counted from 0."""
        return self.schedule[step % len(self.schedule)]


class PerWorker(NamedTuple):
    """Marks state that differs between workers: residuals, local momenta, models.

    Inside a mapped step `value` is the worker's own; outside of it there is a leading
    axis of workers. If such state is mapped as replicated, training still runs, but a
    checkpoint then holds one worker's value for all. `jaxcomp.parallel` reads the mark,
    so state enters and leaves mapped functions through it.
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


def counted(count: Array) -> Array:
    """The next number of an int32 counter, which never is that of a first step again.

    A full counter goes on from 2^30, so that phases, keys and intervals go on too.

    Example:
      >>> [int(counted(jnp.int32(n))) for n in (0, 2**31 - 1)]
      [1, 1073741824]
    """
    return jnp.where(count == 2**31 - 1, 2**30, count + 1)


def ticked(state: State) -> State:
    """The state one step later, where nothing but its clocks goes on.

    Example:
      >>> ticked({"clock": Clock(jnp.int32(3)), "kept": 5})
      {'clock': Clock(step=Array(4, dtype=int32)), 'kept': 5}
    """

    return jax.tree.map(
        lambda node: Clock(counted(node.step)) if is_clock(node) else node,
        state,
        is_leaf=is_clock,
    )
