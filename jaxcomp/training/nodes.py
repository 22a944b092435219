"""Nodes of gossip that consist of several devices: dense inside, gossip between them.

Every device is a worker with a share of the batch. Those of a node average their
gradients before the optimiser, so that they hold the same model to the bit, and the
mixer sees each node as one.
"""

from typing import Any

import optax

from jaxcomp import collectives, gossip
from jaxcomp.base import Axis
from jaxcomp.collectives import Nodes
from jaxcomp.errors import UserError
from jaxcomp.specs import Call, parse

__all__ = ["check_nodes", "mean_of_node", "node_count", "nodes_of"]


def node_count(config: Any) -> int:
    """How many models a run has: those of nodes, which are workers by default."""
    return config.workers // config.get("devices_per_node", 1)


def nodes_of(config: Any, axis: Axis) -> Axis:
    """The axis on which a mixer sees the nodes."""
    return (
        axis if config.devices_per_node == 1 else Nodes(axis, config.devices_per_node)
    )


def mean_of_node(nodes: Axis) -> optax.GradientTransformation:
    """The first link of a device: the mean of the gradients of its node.

    Args:
      nodes: from `nodes_of`. Where each device is a node, nothing changes.
    """
    if not isinstance(nodes, Nodes):
        return optax.identity()
    return optax.stateless(
        lambda updates, params: collectives.mean(updates, nodes.inside)
    )


def check_nodes(config: Any) -> None:
    """Refuse nodes of several devices where there is no gossip between them."""
    count = config.devices_per_node
    if count == 1:
        return
    call = parse(config.mixer) if config.mixer else None
    if not isinstance(call, Call) or call.name not in gossip.REGISTRY:
        raise UserError(
            f"devices_per_node={count} needs a mixer that gossips, such as "
            f"'choco(gamma=0.5)', and mixer is {config.mixer!r}. An exchange that is "
            "dense inside a host and compressed between hosts is "
            f"exchange='hierarchical(per_host={count})'"
        )
    if config.workers_per_device > 1:
        raise UserError(
            f"devices_per_node={count} and workers_per_device="
            f"{config.workers_per_device}: a node has several devices, or a device "
            "several workers; set one of them to 1"
        )
    if config.workers % count:
        nearest = count * max(1, round(config.workers / count))
        raise UserError(
            f"{config.workers} workers are no whole number of nodes of {count}: take "
            f"a multiple of {count}, such as {nearest}"
        )
    if config.elastic:
        raise UserError(
            f"elastic does not know nodes of {count} devices: set elastic to False"
        )
