"""The method of a run: an exchange of gradients, or a mixer of models."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxcomp import gossip
from jaxcomp.base import Axis, Exchange, Mixer, Tree
from jaxcomp.compressors import make as make_compressor
from jaxcomp.errors import UserError
from jaxcomp.make import make_exchange, make_mixer, plan_for
from jaxcomp.memory import make as make_memory
from jaxcomp.overlap import WHOLE, Cut, overlapped, ready_order
from jaxcomp.parallel import Workers
from jaxcomp.scope import leaves_of
from jaxcomp.specs import Call, parse
from jaxcomp.tasks import Task
from jaxcomp.tasks.statistics import make as make_statistics
from jaxcomp.training.nodes import node_count, nodes_of
from jaxcomp.training.stages import Stage

__all__ = ["check_layers", "check_warmup", "cut_for", "make_graph", "make_method"]


def make_graph(config: Any) -> gossip.Topology | None:
    """The graph that a config's gossip runs on; None where there is none."""
    if not config.topology:
        return None
    if not config.mixer:
        message = (
            f"topology {config.topology!r} is of no use to an exchange of gradients: "
            "set mixer, for example to 'choco(gamma=0.5)', or topology to ''"
        )
        raise UserError(message)
    return gossip.topology(config.topology, node_count(config))


def cut_for(config: Any, task: Task, workers: Workers) -> Cut:
    """How the gradient of a run is cut into messages: as its task computes it."""
    if config.overlap == 1:
        return Cut()
    if config.mixer:
        raise UserError(
            f"overlap={config.overlap} cuts gradients into messages, and "
            f"{config.mixer!r} sends models, which are there before the step: set "
            "overlap to 1. The mixer 'choco_overlapped' exchanges models beside the "
            "gradient's computation"
        )
    examples = config.batch_size // config.workers // config.accumulate
    key = jax.eval_shape(lambda: jax.random.key(0))
    params, stats = jax.eval_shape(task.init, key)
    carry = jax.eval_shape(lambda: task.carry(examples))
    batch = tuple(
        jax.ShapeDtypeStruct((examples, *x.shape[1:]), x.dtype) for x in task.train
    )
    gradient = jax.grad(lambda *args: task.loss(*args)[0])
    given = params, stats, carry, batch, key
    order = ready_order(gradient, *given, axes=workers.lengths)
    return Cut(config.overlap, order)


def make_method(
    config: Any,
    stage: Stage,
    graph: gossip.Topology | None,
    axis: Axis,
    cut: Cut = WHOLE,
    wrap: Callable[[Exchange], Exchange] = lambda exchange: exchange,
) -> Exchange | Mixer:
    """The method of a config at a stage of its run.

    Args:
      config: names the method.
      stage: what is sent.
      graph: from `make_graph`.
      axis: the mapped axis.
      cut: from `cut_for`.
      wrap: what is put around an exchange of gradients, inside of its memories.
    """
    # An exchange with a way of its own switches compressors off, however chosen.
    policy = config.policy if stage.compressor else ()
    usual = {"scope": config.scope, "policy": policy, "axis": axis}
    statistics = make_statistics(config.batch_norm, axis)
    if not config.mixer:
        given = config.exchange, stage.compressor, "none"
        inner = make_exchange(*given, dense=stage.dense, **usual)
        exchange = make_memory(config.memory, wrap(inner))
        return overlapped(exchange, cut.parts, cut.order)
    if statistics.axis is not None:
        message = (
            f"batch_norm {config.batch_norm!r} sends statistics at every step, to "
            f"everybody, which {config.mixer!r} is meant to avoid: set it to 'local'"
        )
        raise UserError(message)
    call = parse(config.mixer)
    if isinstance(call, Call) and call.name in gossip.REGISTRY:
        _check_of_no_use(config)
    else:
        usual |= {"exchange": config.exchange, "memory": config.memory}
        usual |= {"dense": stage.dense}
    usual |= {"axis": nodes_of(config, axis)}
    mixer = make_mixer(config.mixer, graph, compressor=stage.compressor, **usual)
    return mixer._replace(axis=axis)  # what links look at: that of all devices


def check_layers(config: Any) -> None:
    """Refuse `layers_every` where no exchange is given the whole gradient."""
    if not config.layers_every:
        return
    if config.mixer:
        raise UserError(
            "layers_every shows what an exchange loses of each layer's gradient, and "
            f"{config.mixer!r} sends models: set layers_every to ''"
        )
    if config.overlap != 1:
        raise UserError(
            "layers_every looks at one message with all layers: set overlap to 1, not "
            f"{config.overlap}, or layers_every to ''"
        )


def check_warmup(
    config: Any,
    warmup: Sequence[Exchange | Mixer],
    usual: Exchange | Mixer,
    params: Tree,
) -> None:
    """Refuse a warm-up of `keep` that changes nothing, or more than what is sent.

    Args:
      config: of the run.
      warmup: the methods of its first epochs.
      usual: the method of the rest.
      params: of a worker, or their shapes and dtypes.
    """
    if not warmup:
        return
    compressor = make_compressor(config.compressor)
    plan = plan_for(compressor, config.scope, config.policy)
    reason = ""
    if all(g.compressor is not compressor for g in plan.groups(leaves_of(params))):
        reason = f"no tensor is compressed by {config.compressor!r}, whose keep it is"
    of_usual = jax.eval_shape(usual.init, params)
    if any(jax.eval_shape(method.init, params) != of_usual for method in warmup):
        reason = f"the state of {usual.name!r} is as large as a message"
    if reason:
        raise UserError(
            f"keep_warmup={config.keep_warmup!r} cannot be: {reason}. Set it to ''"
        )


def _check_of_no_use(config: Any) -> None:
    """Refuse settings of an exchange, where workers send to neighbours."""
    unused = [
        key
        for key in ("exchange", "memory", "dense_for", "flush_every")
        if config[key] not in ("", "none")
    ]
    if unused:
        settings = " and ".join(f"{key}={config[key]!r}" for key in unused)
        empty = " ".join(f"--config.{key}=" for key in unused)
        message = (
            f"{config.mixer!r} sends to neighbours: there is no use for {settings}. "
            f"Set them to nothing: {empty}"
        )
        raise UserError(message)
