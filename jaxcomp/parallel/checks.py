"""Checks of what a training loop passes in: the mapped axis, the arrays, the state.

Under `jax.shard_map` types say along which axes an array differs, unless
`check_vma=False` is given. Other mappers have no such types.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxcomp.core.specs import SpecError, meant
from jaxcomp.core.trees import label_of, name_of, varies_over
from jaxcomp.core.types import Array, Spec, State, Tree
from jaxcomp.scope.plans import leaf_test, leaves_of

# Messages of `check_differs`, for gradients and for models.
SUMMED = (
    "it is summed or averaged already. Under jax.shard_map, jax.grad sums gradients of "
    "params that all workers share. Leave out psum and pmean, and take gradients of "
    "params that are the worker's own:"
)
SHARED = (
    "each worker trains a model of its own. Pass the models with a leading axis of the "
    "workers, or begin with"
)

# Messages of `check_whole`, for means of gradients and for models that are mixed.
LOCAL = (
    "each worker would apply its own gradient there, and replicas drift apart. To send "
    "tensors uncompressed, do not mask them: make_exchange(policy=[('*/bias', 'none')])"
    ". Say allow_masked=True where something else looks after the rest, as in "
    "optax.multi_transform another link, or optax.set_to_zero"
)
UNMIXED = (
    "nothing would draw these together. To send tensors uncompressed, do not mask "
    "them: make_mixer(policy=[('*/bias', 'none')]). Say allow_masked=True where each "
    "worker is to keep its own, or something else looks after the rest"
)

# Usual names of the axis of workers, to be suggested if the given one is not mapped.
_USUAL = ("workers", "batch", "data", "devices", "device", "i", "dp", "replica")


def axis_size(axis: Any) -> int:
    """Length of a mapped axis, or of several by a tuple; known while tracing.

    Raises:
      NameError: the axis is not mapped; the message says what to do.
    """
    try:
        return jax.lax.axis_size(axis)
    except NameError:
        raise NameError(_unbound(axis)) from None


def is_mapped(axis: Any) -> bool:
    """Whether an axis is mapped here, or all of several by a tuple."""
    try:
        jax.lax.axis_size(axis)
    except NameError:
        return False
    return True


def axis_index(axis: Any) -> Array:
    """This worker's place along a mapped axis."""
    axis_size(axis)
    return jax.lax.axis_index(axis)


def is_typed(axis: Any) -> bool:
    """Whether types say which arrays differ along a mapped axis."""
    return bool(varies_over(axis_index(axis)))


def check_differs(tree: Tree, axis: Any, otherwise: str) -> None:
    """Refuse arrays whose types say that they are the same on all workers.

    Args:
      tree: of this worker.
      axis: of the workers.
      otherwise: what is wrong then; a part of the message.
    """
    if not is_typed(axis):
        return
    names = set(axis) if isinstance(axis, tuple) else {axis}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if not names <= varies_over(leaf):
            where = name_of(path)
            raise ValueError(
                f"{where or 'what is given'} is the same on all workers of {axis!r}: "
                f"{otherwise} jax.lax.pcast(params, {axis!r}, to='varying'). Zeros "
                "that merely happen to be equal take the same pcast"
            )


def check_real(tree: Tree, name: str) -> None:
    """Refuse complex numbers, of which most methods would see the real parts alone.

    Args:
      tree: arrays or their specs.
      name: of the method.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise SpecError(
                f"{label_of(path)} is of {leaf.dtype}, and {name!r} computes with real "
                "numbers: make two tensors of its real and its imaginary parts, or "
                "take the exchange 'exact'"
            )


def check_patterns(patterns: tuple[str, ...], params: Tree) -> None:
    """Refuse a policy with a path that no tensor of the model has.

    A comparison may well fit none: "size<100" says what to do if there are such.

    Args:
      patterns: of the policy.
      params: of the whole model; of a part, which `optax.masked` leaves, nothing is
        known.
    """
    if any(map(is_masked, jax.tree.leaves(params, is_leaf=is_masked))):
        return
    leaves = leaves_of(params)
    for part in "&".join(patterns).split("&"):
        path = part.strip(" !")
        is_path = path and not set(path) & set("<>=")
        if leaves and is_path and not any(map(leaf_test(path), leaves)):
            known = [leaf.path for leaf in leaves]
            more = f" and {len(known) - 12} more" if len(known) > 12 else ""
            raise SpecError(
                f"the path {path!r} of the policy fits no tensor. "
                f"{meant(path, known)}Valid: {', '.join(known[:12])}{more}"
            )


def check_whole(params: Tree, otherwise: str) -> None:
    """Refuse a model of which `optax.masked` hides some tensors.

    Args:
      params: as passed to the `init` of a link.
      otherwise: what would happen to the hidden tensors; a part of the message.
    """
    pairs, _ = jax.tree_util.tree_flatten_with_path(params, is_leaf=is_masked)
    masked = [path for path, leaf in pairs if is_masked(leaf)]
    if masked:
        where = name_of(masked[0])
        others = f", as are {len(masked) - 1} others" if len(masked) > 1 else ""
        raise ValueError(f"{where} is hidden by optax.masked{others}: {otherwise}")


def check_fit(fresh: Spec, state: State) -> None:
    """Refuse state that was made for arrays of other shapes.

    Otherwise a residual of another shape would be broadcast when it is added.

    Args:
      fresh: of a state that fits these arrays.
      state: to be checked.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(fresh)
    if jax.tree.structure(state) != structure:
        raise ValueError(
            "the state is not the one of these gradients and this method: `init` is "
            "given the params that gradients are taken of"
        )
    for (path, wanted), found in zip(pairs, jax.tree.leaves(state), strict=True):
        if wanted.shape != jnp.shape(found):
            raise ValueError(
                f"{label_of(path)} of the state has the shape {jnp.shape(found)}, and "
                f"with these gradients it is {wanted.shape}: the state is of other "
                "params, or it was given to the workers twice, as by `spread` and "
                "flax.jax_utils.replicate"
            )


def is_masked(node: Any) -> bool:
    """True for the node that `optax.masked` puts in place of a leaf."""
    return isinstance(node, optax.MaskedNode)


def _unbound(axis: Any) -> str:
    """The message for an axis that is not mapped."""
    manual = jax.sharding.get_abstract_mesh().manual_axes
    found = [name for name in dict.fromkeys((*manual, *_USUAL)) if is_mapped(name)]
    if found:
        way_out = f"is it {found[0]!r}? Then make_exchange(..., axis={found[0]!r})"
    else:
        way_out = (
            "under jit alone use jaxcomp.data_parallel(exchange, mesh), or, for a "
            "mixer, jaxcomp.decentralised(mixer, mesh); under pmap, shard_map or vmap "
            f"name the axis {axis!r}, or tell us its name: "
            "make_exchange(..., axis='batch')"
        )
    return f"no axis {axis!r} is mapped here, so there is nobody to talk to: {way_out}"
