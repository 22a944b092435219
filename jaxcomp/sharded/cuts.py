"""How arrays are cut over a mesh, which they tell outside jit alone."""

from typing import Any

from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomp.collectives import entry
from jaxcomp.trees import label_of

__all__ = ["axes_of", "entry", "spec_of_model", "spec_of_param"]

REMEMBERED = (
    "A worker remembers what it has not sent of the whole tensor, and so would hold "
    "what cutting it saves"
)
OWN = "Each worker trains a model of its own, and has to hold all of it"


def spec_of_param(
    path: Any, leaf: Any, mesh: Mesh, data: tuple[str, ...], why: str = REMEMBERED
) -> P:
    """How a param is cut; refuses what no device holds a whole shard of.

    Args:
      path: of the leaf, for messages.
      leaf: an array; one that is on no mesh counts as replicated.
      mesh: on which params live.
      data: the axes of the workers.
      why: params may not be cut over the data; a part of the message.
    """
    spec = spec_of_leaf(path, leaf, mesh)
    over = tuple(name for name in axes_of(spec, mesh) if name in data)
    if over:
        message = (
            f"{label_of(path)} is cut over {entry(over)!r}, an axis of the data, by "
            f"{spec}. {why}. Replicate it over the axes of the data; cut it over others"
        )
        raise ValueError(message)
    return spec


def spec_of_model(path: Any, leaf: Any, mesh: Mesh, data: tuple[str, ...]) -> P:
    """How each worker's tensor is cut, from all of them with an axis in front.

    Args:
      path: of the leaf, for messages.
      leaf: an array; one that is on no mesh counts as not cut.
      mesh: on which models live.
      data: the axes of the workers.
    """
    first, *rest = spec_of_leaf(path, leaf, mesh) or P(None)
    wrong = [name for name in axes_of(P(first), mesh) if name not in data]
    wrong += [name for name in axes_of(P(*rest), mesh) if name in data]
    if wrong:
        message = (
            f"{label_of(path)} is cut by {P(first, *rest)}. The first axis is that of "
            f"the workers, and cut over {entry(data)!r} or not at all. {OWN}: cut it "
            "over other axes"
        )
        raise ValueError(message)
    return P(*rest)


def spec_of_leaf(path: Any, leaf: Any, mesh: Mesh) -> P:
    """How an array is cut over a mesh, as the array itself says."""
    if isinstance(leaf, Tracer):
        message = (
            "arrays are asked how they are cut, which those under jit do not tell: "
            "call it outside"
        )
        raise TypeError(message)
    if not hasattr(leaf, "shape"):
        message = (
            f"{label_of(path)} is a {type(leaf).__name__}, and no array: leave it out, "
            "as by eqx.filter(model, eqx.is_inexact_array)"
        )
        raise TypeError(message)
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or sharding.is_fully_replicated:  # as on a single device
        return P()
    if not isinstance(sharding, NamedSharding) or sharding.mesh.shape != mesh.shape:
        raise ValueError(f"{label_of(path)} is not on {mesh}, but on {sharding}")
    return sharding.spec


def axes_of(spec: P, mesh: Mesh) -> tuple[str, ...]:
    """The axes that a spec names, in the order of the mesh."""
    entries = [(e,) if isinstance(e, str) else e or () for e in spec]
    named = {name for names in entries for name in names}
    return tuple(name for name in mesh.axis_names if name in named)
