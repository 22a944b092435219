"""A state of some workers, for another number of workers.

The rules, for what is marked as each worker's own:

- Floats are averaged where workers are merged, and copied where they are split, so that
  their mean over the workers stays: residuals, momenta, models, optimiser states,
  running statistics.
- Typed keys stay different where they were (`regrouping.succeeding_keys`).
- Everything else, such as a count, has to be equal on all workers, and stays.
- The state of an exchange or memory follows these rules if its type is declared by
  `averaged_on_resize`. Otherwise all of it has to be equal on all workers.
- `Exchange.resize` and `Mixer.resize` say which fields are built anew instead, such as
  what a worker knows of its neighbours in the new graph.

What is not marked is the same on all workers, and stays. What no rule covers is refused
with its name.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxcomp.base import (
    Exchange,
    Mixer,
    Resize,
    Tree,
    is_per_worker,
    is_report,
)
from jaxcomp.errors import UserError
from jaxcomp.leaves import is_array
from jaxcomp.rebuilding import built_anew, has_rebuilt
from jaxcomp.resizing_rules import Place, Walk
from jaxcomp.sharded.data_parallel import Comm
from jaxcomp.trees import name_of

__all__ = ["resized", "workers_of"]


def resized(
    state: Tree,
    workers: int,
    method: Exchange | Mixer | None = None,
    params: Callable[[Tree], Tree] | None = None,
) -> Tree:
    """The state for another number of workers, with the same mean over the workers.

    What is not yet sent is owed to the mean, and the mean of it over the workers stays
    the same; so does the mean of the workers' own models. New worker i of M takes what
    the old workers from i N / M to (i + 1) N / M had. Any number follows any other.

    Args:
      state: params, optimiser state and all else, of all workers. What differs between
        workers is marked `PerWorker` and has an axis of workers in front.
      workers: their new number.
      method: the exchange or mixer for this number. Mixers need it, and so do
        exchanges whose state depends on the place of a worker.
      params: from the state to the parameters; needed with these methods too.

    Returns:
      The state with NumPy arrays for what is marked; everything else is as it was.

    Raises:
      UserError: names the part that has no rule.

    Example:
      >>> import numpy as np
      >>> from jaxcomp.base import PerWorker
      >>> state = {"step": 3, "residual": PerWorker(np.float32([1, 3, 5, 7]))}
      >>> resized(state, 2)
      {'residual': PerWorker(value=array([2., 6.], dtype=float32)), 'step': 3}
    """
    if workers < 1:
        raise UserError(f"workers is at least 1, not {workers}")
    if isinstance(method, Mixer) and method.workers not in (None, workers):
        raise UserError(
            f"{method.name}: the graph has {method.workers} nodes, and there are to be "
            f"{workers} workers: give the mixer of the new graph"
        )
    old = workers_of(state)
    if old is None or old == workers:
        return state
    rules = {rule.of: rule for rule in (method.resize if method else ())}
    merged = Walk(old, workers, rules).node(state, (), Place())
    needed = [rule for rule in rules.values() if rule.rebuild]
    return _rebuilt(merged, workers, needed, params) if needed else merged


def workers_of(state: Tree) -> int | None:
    """How many workers a state is of; None if nothing in it is marked.

    Example:
      >>> import numpy as np
      >>> from jaxcomp.base import PerWorker
      >>> workers_of({"step": 3, "residual": PerWorker(np.zeros((4, 2)))})
      4
    """
    marked = [
        ((*path, *inner), leaf)
        for path, node in _nodes(state, is_per_worker)
        if is_per_worker(node)
        for inner, leaf in _nodes(node, is_report)
    ]
    # A restored state has reports of the new number of workers.
    own = [(path, leaf) for path, leaf in marked if not is_report(leaf)]
    counts: dict[int, str] = {}
    for path, leaf in own or [pair for path, x in marked for pair in _nodes(x)]:
        name = name_of(path)
        if not is_array(leaf) or not leaf.ndim:
            raise UserError(f"{name} is marked and has no axis of workers")
        counts.setdefault(leaf.shape[0], name)
    if len(counts) > 1:
        found = ", ".join(f"{name} of {count}" for count, name in counts.items())
        message = f"the marked parts are of different numbers of workers: {found}"
        raise UserError(message)
    return next(iter(counts), None)


def _nodes(tree: Tree, is_leaf: Any = None) -> list[tuple[Any, Any]]:
    """Pairs of path and node."""
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf)[0]


def _rebuilt(
    state: Tree,
    workers: int,
    rules: list[Resize],
    params: Callable[[Tree], Tree] | None,
) -> Tree:
    """The state with the fields that are built anew."""
    names = has_rebuilt(state, rules)
    if not names:
        return state
    if params is None:
        raise UserError(
            f"{', '.join(names)}: this state is built anew from the parameters: give "
            "params=, a function from the state to them, such as lambda state: "
            "state.params"
        )
    given = params(state)
    given = given.value if is_per_worker(given) else given
    _check_placed(state, given)
    with jax.default_device(_host()):
        return built_anew(state, rules, given, workers)


def _check_placed(state: Tree, params: Tree) -> None:
    """Refuse params that do not tell how they are cut, if the state says they are."""
    found = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Comm))
    specs = [spec for x in found if isinstance(x, Comm) for spec in x.specs]
    cut = [spec for spec in specs if any(spec)]
    kinds = {type(getattr(x, "sharding", None)) for x in jax.tree.leaves(params)}
    if cut and NamedSharding not in kinds:
        raise UserError(
            f"params are cut by {cut[0]}, and params= gives arrays that are on no "
            "mesh: give those on the mesh of the new workers"
        )


def _host() -> Any:
    """A CPU, because the parts of all workers need not fit on a device."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        return None
