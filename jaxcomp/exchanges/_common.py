"""What exchanges share: making one, messages of trees, means of payloads, `Info`."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp.core import trees, types
from jaxcomp.core.coding.payloads import fuse, payload_values, scaled, split
from jaxcomp.core.specs import Call, SpecError, build
from jaxcomp.core.trees import name_of, norm, quick_norm, spec_of, wide_spec, widen
from jaxcomp.core.types import Array, Averaged, Axis, Compressor, Exchange, Info, Tree
from jaxcomp.parallel import collectives
from jaxcomp.parallel.checks import check_real
from jaxcomp.scope import Plan, make_plan
from jaxcomp.scope.contraction import leaf_choices, leaf_contractions

REGISTRY: dict[str, Callable[..., Exchange]] = {}  # filled by `jaxcomp.exchanges`


def make(
    spec: str | Call | Exchange,
    compressor: str | Compressor = "none",
    scope: str | Plan = "per_leaf",
    axis: Axis = "workers",
) -> Exchange:
    """Build an exchange, without a memory, from spec strings.

    It sends nothing if the tree has no elements, and refuses complex numbers, if it has
    no use for their imaginary parts.

    Example:
      >>> make("gather", "sign").name
      'gather(sign)'
    """
    if isinstance(spec, Exchange):
        return spec
    plan = make_plan(scope, compressor)
    exchange = build(spec, REGISTRY, "exchange", plan, axis)

    def init(tree: Tree) -> types.State:
        if not exchange.is_complex:
            check_real(tree, exchange.name)
        return exchange.init(tree)

    def average(tree: Tree, state: types.State, key: Array) -> Averaged:
        if not exchange.is_complex:
            check_real(tree, exchange.name)
        if any(leaf.size for leaf in jax.tree.leaves(tree)):
            return exchange.average(tree, state, key)
        empty = trees.zeros_like_spec(spec_of(tree))
        return Averaged(
            empty, empty, types.ticked(state), nothing_lost(exchange.figures)
        )

    return exchange._replace(init=init, average=average, patterns=plan.patterns)


def gather_trees(tree: Tree, axis: Axis, alike: bool = False) -> Tree:
    """Every worker's tree, stacked in the order of the workers, by one all-gather.

    Args:
      tree: of this worker.
      axis: the mapped axis, or a part of it.
      alike: as in `collectives.gather`.
    """
    messages = collectives.gather(fuse(tree), axis, alike)
    return jax.vmap(lambda words: split(words, spec_of(tree)))(messages)


def swap_rows(tree: Tree, axis: Axis) -> Tree:
    """Send row j of each leaf to worker j, by one all-to-all.

    Args:
      tree: leaves [N, ...], with a row for each worker.
      axis: the mapped axis.

    Returns:
      Leaves [N, ...]: row i is what worker i sent to this one.
    """
    received = collectives.swap(jax.vmap(fuse)(tree), axis)
    return jax.vmap(lambda words: split(words, row_spec(tree)))(received)


def row_spec(tree: Tree) -> types.Spec:
    """Shapes and dtypes of one row of each leaf."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)


def compress_own(
    codec: Compressor, tree: Tree, state: types.PerWorker, key: Array, axis: Axis
) -> tuple[types.Payload, types.PerWorker]:
    """This worker's payload, with a key and a state of its own.

    Args:
      codec: compressor of trees.
      tree: of this worker.
      state: of the codec on this worker.
      key: the same on every worker.
      axis: the mapped axis.
    """
    own_key = jax.random.fold_in(key, collectives.index(axis))
    payload, new = codec.compress(tree, state.value, own_key)
    return payload, types.PerWorker(new)


def mean_of_payloads(
    name: str,
    plan: Plan,
    codec: Compressor,
    axis: Axis,
    mean: Callable[[types.Payload, Tree], Tree],
    *,
    is_aligned: bool = False,
) -> Exchange:
    """An exchange in which every worker compresses its tree once.

    Args:
      name: of the way to average.
      plan: which tensors are compressed as one vector, and how.
      codec: the plan, lifted to trees.
      axis: the mapped axis.
      mean: (payload, what it decodes to), both of this worker, -> the mean.
      is_aligned: all workers draw with one key and keep one state, so that they choose
        the same places.
    """

    def init(tree: Tree) -> types.State:
        state = codec.init(spec_of(tree))
        return state if is_aligned else types.PerWorker(state)

    def average(tree: Tree, state: types.State, key: Array) -> Averaged:
        if is_aligned:
            payload, state = codec.compress(tree, state, key)
        else:
            payload, state = compress_own(codec, tree, state, key, axis)
        sent = codec.decompress(payload, spec_of(tree))
        # Where few elements are sent, these alone are taken from what was given.
        opposite = scaled(payload, -1) if is_sparse(codec, spec_of(tree)) else None
        if opposite is None:
            missing = jax.tree.map(jnp.subtract, widen(tree), widen(sent))
        else:
            missing = codec.accumulate(widen(tree), opposite)
        info = measure(tree, sent, codec, payload, missing=missing, is_own=True)
        return Averaged(
            mean(payload, sent), sent, state, info, missing=missing, payload=payload
        )

    return Exchange(
        f"{name}({codec.name})",
        init=init,
        average=average,
        axis=axis,
        figures=tuple(figure.name for figure in codec.figures),
        contraction=functools.partial(leaf_contractions, plan),
        chooses=functools.partial(leaf_choices, plan),
        clear=codec.clear,
    )


def is_sparse(codec: Compressor, spec: types.Spec) -> bool:
    """Whether a payload holds fewer elements than the tree."""
    return codec.support(spec) < sum(leaf.size for leaf in jax.tree.leaves(spec))


def with_method(exchange: str, method: str) -> str:
    """The name of an exchange together with the name of what it sends.

    Example:
      >>> with_method("gather", "sign"), with_method("two_phase(a=1)", "sign")
      ('gather(sign)', 'two_phase(a=1; sign)')
    """
    head, _, arguments = exchange.removesuffix(")").partition("(")
    return f"{head}({arguments + '; ' if arguments else ''}{method})"


def check_wide(params: Tree, name: str) -> None:
    """Refuse parameters of less than float32, for a change of the number of workers.

    Whether an exchange is given them or, by a memory, wider ones decides which tensors
    it joins, and afterwards nobody knows that.
    """
    spec = spec_of(params)
    named, wide_leaves = (
        jax.tree.leaves_with_path(spec),
        jax.tree.leaves(wide_spec(spec)),
    )
    for (path, found), wide in zip(named, wide_leaves, strict=True):
        if found.dtype != wide.dtype:
            raise SpecError(
                f"{name} goes on with another number of workers only if all "
                f"parameters are at least float32, and {name_of(path)} is {found.dtype}"
            )


def measure(
    given: Tree,
    sent: Tree,
    codec: Compressor | None = None,
    payload: Any = None,
    *,
    missing: Tree | None = None,
    is_own: bool = False,
) -> Info:
    """`Info` of one exchange: |given - sent|^2 / |given|^2, 0 for a zero tree.

    Args:
      given: what the exchange was given.
      sent: what counts as sent by this worker, as in `Averaged`.
      codec: the compressor; its figures of `payload` are reported too.
      payload: of this worker.
      missing: given minus sent, in at least float32; then nobody reads `sent`.
      is_own: whether `sent` is what the payload decodes to.
    """
    if missing is None:
        missing = jax.tree.map(jnp.subtract, widen(given), widen(sent))
    spec = spec_of(given)
    figures = codec.figures if codec else ()
    extra = {figure.name: figure.of(payload, spec) for figure in figures}
    lost = quick_norm(missing)
    if is_own and codec is not None and codec.clear is not None:
        # Each element is sent as it is, or missing: nobody has to read `given` again.
        whole = norm([lost, *payload_values(payload)])
    else:
        whole = quick_norm(widen(given))
    return report(lost, whole)._replace(extra=extra)


def report(lost: Array, whole: Array) -> Info:
    """`Info` from the norm of what is lost and the norm of what was given.

    It takes norms, because their squares may be too large for float32.
    """
    relative = jnp.square(lost / jnp.where(whole == 0, 1.0, whole))
    return Info(relative, lost, residual_norm=jnp.float32(0), given_norm=whole)


def nothing_lost(figures: tuple[str, ...] = ()) -> Info:
    """`Info` of a step that loses nothing; a method's figures are 0."""
    zero = jnp.zeros((), jnp.float32)
    return Info(zero, zero, zero, dict.fromkeys(figures, zero))


def figure_names(codec: Compressor) -> tuple[str, ...]:
    """The keys that `measure` puts into `Info.extra` for a codec."""
    return tuple(figure.name for figure in codec.figures)
