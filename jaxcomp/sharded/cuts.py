"""How arrays are cut over a mesh, which only arrays outside jit can tell."""

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomp.base import Tree
from jaxcomp.collectives import entry
from jaxcomp.trees import label_of

__all__ = ["axes_of", "entry", "on_devices", "put", "spec_of_model", "spec_of_param"]

REMEMBERED = (
    "A worker remembers what it has not sent of the whole tensor, and so would hold "
    "what cutting it saves"
)
OWN = "Each worker trains a model of its own, and has to hold all of it"


def spec_of_param(
    path: Any, leaf: Any, mesh: Mesh, data: tuple[str, ...], why: str = REMEMBERED
) -> P:
    """How a param is cut; refuses one that is cut over the axes of the data.

    Args:
      path: of the leaf, for messages.
      leaf: an array; one that is on no mesh counts as replicated.
      mesh: of the params.
      data: the axes of the workers.
      why: the reason to refuse it; a part of the message.
    """
    spec = spec_of_leaf(path, leaf, mesh)
    over = tuple(name for name in axes_of(spec, mesh) if name in data)
    if over:
        raise ValueError(
            f"{label_of(path)} is cut over {entry(over)!r}, an axis of the data, by "
            f"{spec}. {why}. Replicate it over the axes of the data; cut it over others"
        )
    return spec


def spec_of_model(path: Any, leaf: Any, mesh: Mesh, data: tuple[str, ...]) -> P:
    """How each worker's tensor is cut, read from an array with a leading worker axis.

    Args:
      path: of the leaf, for messages.
      leaf: an array; one that is on no mesh counts as not cut.
      mesh: of the models.
      data: the axes of the workers.
    """
    first, *rest = spec_of_leaf(path, leaf, mesh) or P(None)
    wrong = [name for name in axes_of(P(first), mesh) if name not in data]
    wrong += [name for name in axes_of(P(*rest), mesh) if name in data]
    if wrong:
        raise ValueError(
            f"{label_of(path)} is cut by {P(first, *rest)}. The first axis is that of "
            f"the workers, and cut over {entry(data)!r} or not at all. {OWN}: cut it "
            "over other axes"
        )
    return P(*rest)


def spec_of_leaf(path: Any, leaf: Any, mesh: Mesh) -> P:
    """How an array is cut over a mesh, read from its sharding."""
    if isinstance(leaf, Tracer):
        raise TypeError(
            "arrays are asked how they are cut, which those under jit do not tell: "
            "call it outside"
        )
    if not hasattr(leaf, "shape"):
        raise TypeError(
            f"{label_of(path)} is a {type(leaf).__name__}, and no array: leave it out, "
            "as by eqx.filter(model, eqx.is_inexact_array)"
        )
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or sharding.is_fully_replicated:  # as on a single device
        return P()
    if not isinstance(sharding, NamedSharding) or sharding.mesh.shape != mesh.shape:
        raise ValueError(f"{label_of(path)} is not on {mesh}, but on {sharding}")
    return sharding.spec


def put(tree: Tree, specs: Tree, mesh: Mesh) -> Tree:
    """The arrays on the devices of a mesh, cut as the specs say."""
    return jax.device_put(tree, jax.tree.map(lambda s: NamedSharding(mesh, s), specs))


def on_devices(
    function: Callable[..., Any], mesh: Mesh, in_specs: tuple[Tree, ...], out_specs: Any
) -> Callable[..., Any]:
    """A function of what each device holds, as a function of global arrays.

    It is manual over all axes of the mesh. Types are not checked, because they know
    nothing of parts of an axis (`collectives.Part`).

    Args:
      function: runs on each device.
      mesh: of the devices.
      in_specs: how each argument is cut.
      out_specs: how the results are.
    """
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def axes_of(spec: P, mesh: Mesh) -> tuple[str, ...]:
    """The axes that a spec names, in the order of the mesh."""
    entries = [(e,) if isinstance(e, str) else e or () for e in spec]
    named = {name for names in entries for name in names}
    return tuple(name for name in mesh.axis_names if name in named)
