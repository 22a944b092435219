"""The types everything else is made of. No algorithm, no collective.

A `Compressor` turns an array (or, lifted by a scope, a tree) into a payload and back.
An `Exchange` turns the trees of all workers into their mean. A `Memory` wraps an
exchange and keeps what was not sent. A `Mixer` lets each worker keep a model of its own
and draws the models together. `PerWorker` marks state that differs between workers,
`Clock` state that goes on when a step is not applied; `Info` carries what we report and
never what the next step needs.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
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
    "cast",
    "cast_like",
    "compressor",
    "is_clock",
    "is_per_worker",
    "joint_dtype",
    "no_bound",
    "no_choice",
    "spec_of",
    "ticked",
    "vary_like",
    "varies_over",
    "wide_spec",
    "widen",
    "zeros_like_spec",
]

Array: TypeAlias = jax.Array
Tree: TypeAlias = Any  # a pytree of arrays
Payload: TypeAlias = Any  # a pytree of arrays whose shapes do not depend on the data
State: TypeAlias = Any  # a pytree; () when there is nothing to remember
Spec: TypeAlias = Any  # ShapeDtypeStruct, or a pytree of them
Axis: TypeAlias = Any  # name of a mapped axis, or a part of one: exchanges/collectives


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
    """What one exchange reports. Scalars of this worker; nothing reads them back."""

    gradient_error: Array  # |given - sent|^2 / |given|^2
    unsent_norm: Array  # |given - sent|
    residual_norm: Array  # norm of what the memory kept; 0 without memory
    # A method's own, named in `Exchange.figures`. Only the type protects the dict: to
    # JAX an immutable mapping is a leaf, or a tree of another structure.
    extra: Mapping[str, Array] = {}
    # Whether anything was sent; where nothing was, there is no error to tell.
    sends: Array | np.bool_ = np.True_


class Averaged(NamedTuple):
    """The result of `Exchange.average`."""

    mean: Tree  # identical on every worker
    sent: Tree  # what is charged to this worker: mean over workers == `mean`
    state: State
    info: Info
    # Not zero where something of this worker's own went out. None: `sent` tells it, as
    # nobody is charged with what was lost of others.
    own: Tree | None = None


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

    A step is the worker's own update followed by what its program sends. Programs
    repeat in a cycle: a graph that changes with time has one for each of its rounds,
    local training has one that sends nothing.
    """

    name: str
    # (params) -> state, on the host, outside any mapped axis. All workers start from
    # these params. All of the state is the worker's own.
    init: Callable[[Tree], State]
    # (params, updates, state, key, program) -> Mixed, under the axis. The program is a
    # Python number, the same on all workers.
    mix: Callable[[Tree, Tree, State, Array, int], Mixed]
    axis: Axis
    schedule: tuple[int, ...] = (0,)  # the program of each step of a cycle
    figures: tuple[str, ...] = ()  # keys of `Info.extra`, known before the first step
    simulated: bool = False  # what it sends is not what its method is meant to send
    workers: int | None = None  # the nodes of its graph; None: it has none

    def program(self, step: int) -> int:
        """The program of a step, from 0."""
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


def spec_of(tree: Tree) -> Spec:
    """Shapes and dtypes of a tree of arrays, tracers or specs.

    Example:
        >>> spec_of(jnp.zeros((2, 3)))
        ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def zeros_like_spec(spec: Spec) -> Tree:
    """A tree of zeros with the given shapes and dtypes."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec)


def varies_over(x: Any) -> frozenset[str]:
    """The axes along which `jax.shard_map` takes an array to differ.

    None where nothing is known: under other mappers, and under `check_vma=False`.

    Example:
        >>> varies_over(jnp.ones(3))
        frozenset()
    """
    kind = jax.typeof(x)
    # The first jax versions of 0.10 call it `vma`.
    return (
        kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else kind.vma
    )


def vary_like(tree: Tree, like: Tree) -> Tree:
    """The same arrays, typed to differ along all axes along which `like` does.

    A loop begins with what has the type of its result, and branches have results of
    one type: constants have to be told so where `jax.shard_map` checks types. Nothing
    is computed.

    Args:
      tree: arrays.
      like: arrays.
    """
    axes = frozenset[str]().union(*map(varies_over, jax.tree.leaves(like)))

    def typed(x: Array) -> Array:
        missing = axes - varies_over(x)
        return jax.lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x

    return jax.tree.map(typed, tree)


def wide_spec(spec: Spec) -> Spec:
    """The same shapes in at least float32: sums and residuals live there.

    Example:
        >>> wide_spec(jax.ShapeDtypeStruct((2,), jnp.bfloat16)).dtype
        dtype('float32')
    """

    def widen(s: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(s.shape, np.promote_types(s.dtype, np.float32))

    return jax.tree.map(widen, spec)


def joint_dtype(dtypes: Iterable[Any]) -> Any:
    """The type of a vector of parts of several types: theirs, or at least float32.

    Example:
        >>> joint_dtype([jnp.dtype("float16"), jnp.dtype("bfloat16")])
        dtype('float32')
        >>> joint_dtype([jnp.dtype("float16")])
        dtype('float16')
    """
    first, *others = set(dtypes)
    if not others:
        return first
    # float16 and bfloat16 have no common type in NumPy.
    wide = [np.promote_types(dtype, np.float32) for dtype in (first, *others)]
    return functools.reduce(np.promote_types, wide)


def cast(x: Array, dtype: Any) -> Array:
    """An array in another dtype; numbers beyond its largest become the largest.

    A NaN or an infinity stays what it is: it is to be seen.

    Example:
        >>> cast(jnp.array([1e6, jnp.inf]), jnp.float16).tolist()
        [65504.0, inf]
    """
    if np.promote_types(x.dtype, dtype) != dtype:
        largest = jnp.asarray(jnp.finfo(dtype).max, x.dtype)
        x = jnp.where(jnp.isfinite(x), jnp.clip(x, -largest, largest), x)
    return x.astype(dtype)


def cast_like(tree: Tree, spec: Spec) -> Tree:
    """The tree in the dtypes of a spec, as by `cast`; another tree serves as one.

    Example:
        >>> cast_like(jnp.zeros(2), jax.ShapeDtypeStruct((2,), jnp.bfloat16)).dtype
        dtype(bfloat16)
    """
    return jax.tree.map(lambda x, s: cast(x, s.dtype), tree, spec)


def widen(tree: Tree) -> Tree:
    """The tree in at least float32.

    Example:
        >>> widen(jnp.zeros(2, jnp.bfloat16)).dtype
        dtype('float32')
    """
    return cast_like(tree, wide_spec(tree))


def compressor(
    name: str,
    *,
    compress: Callable[[Array, State, Array], tuple[Payload, State]],
    decompress: Callable[[Payload, Spec], Array],
    ideal_bits: Callable[[Spec], float],
    contraction: Callable[[Spec], float | None],
    unbiased: bool,
    aligned: bool = False,
    init: Callable[[Spec], State] = lambda spec: (),
    accumulate: Callable[[Array, Payload], Array] | None = None,
    support: Callable[[Spec], int] = lambda spec: math.prod(spec.shape),
    figures: tuple[Figure, ...] = (),
) -> Compressor:
    """A `Compressor` for arrays, compiled, with the usual defaults filled in.

    Args:
      name: the spec string, canonical.
      compress: (x, state, key) -> (payload, state).
      decompress: (payload, spec) -> x_hat.
      ideal_bits: spec -> information bound in bits.
      contraction: spec -> delta, or None where no bound below |x|^2 holds.
      unbiased: whether E[C(x)] == x.
      aligned: see `Compressor.aligned`.
      init: spec -> state; default: no state.
      accumulate: (total, payload) -> total + x_hat, for payloads that can be added
        without a dense x_hat; default: decompress and add.
      support: spec -> bound on the elements of C(x) that are not zero; default: all.
      figures: what the method reports of each payload.
    """

    def dense_add(total: Array, payload: Payload) -> Array:
        return total + decompress(payload, spec_of(total))

    add = accumulate or dense_add

    def decompress_sum(payloads: Payload, spec: Spec) -> Array:
        # One payload after the other. A single scatter of all sparse payloads would
        # add duplicates in any order on a GPU, and replicas would drift apart.
        def body(i: Array, total: Array) -> Array:
            return add(total, jax.tree.map(lambda leaf: leaf[i], payloads))

        count = jax.tree.leaves(payloads)[0].shape[0]
        start = vary_like(zeros_like_spec(wide_spec(spec)), payloads)
        return jax.lax.fori_loop(0, count, body, start)

    return Compressor(
        name=name,
        init=init,
        compress=jax.jit(compress),
        decompress=_with_spec(jax.jit(decompress, static_argnums=1)),
        accumulate=add,
        decompress_sum=_with_spec(jax.jit(decompress_sum, static_argnums=1)),
        ideal_bits=ideal_bits,
        contraction=contraction,
        unbiased=unbiased,
        aligned=aligned,
        support=support,
        figures=figures,
    )


def _with_spec(decode: Callable[[Payload, Spec], Array]) -> Callable[..., Array]:
    """Let an array stand for its spec, and forget where a spec's array lived."""

    def decompress(payload: Payload, spec: Spec) -> Array:
        return decode(payload, spec_of(spec))

    return decompress
