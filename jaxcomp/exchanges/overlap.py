"""Overlap with the backward pass: a gradient in parts, with a message for each.

The gradients of a network's last layers are ready first. A message of these can travel
while the others are computed. `ready_order` says which are ready when, a `Cut` makes
parts of a tree in that order, `overlapped` exchanges one part after the other, and
`compiler_options` lets XLA order the program accordingly.
"""

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Count, check
from jaxcomp.core.trees import label_of, name_of, norm
from jaxcomp.core.types import Array, Averaged, Exchange, Info, Spec, State, Tree

# By default XLA orders a program such that it needs little memory, and waits for each
# message where it starts it. Its other scheduler starts a message as late as its guess
# of the message's time allows: all guesses are of a few kernels, so that most messages
# would start behind the backward pass. A profile takes the place of the guesses; this
# one says that every message takes a second, and so each starts once it is there.
_PROFILE = Path(__file__).with_name("long_messages.pbtxt")
_GPU = {
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_pgle_profile_file_or_directory_path": str(_PROFILE),
    # Or it would print the name of every kernel that the profile does not have.
    "xla_gpu_pgle_accuracy_checker": "PGLE_STRICTNESS_LEVEL_OFF",
}


def compiler_options(platform: str, parts: int) -> dict[str, Any]:
    """Options of `jitted.lower(...).compile(options)` for a step with `overlap=parts`.

    Args:
      platform: of the devices, such as `jax.devices()[0].platform`.
      parts: messages of a step.

    Example:
      >>> compiler_options("cpu", 4), compiler_options("gpu", 1)
      ({}, {})
      >>> compiler_options("gpu", 4)["xla_gpu_enable_latency_hiding_scheduler"]
      True
    """
    return dict(_GPU) if parts > 1 and platform in ("gpu", "cuda") else {}


def ready_order(
    gradient: Callable[..., Tree], *args: Any, axes: Mapping[str, int] | None = None
) -> Tree:
    """For each array that a function returns, how early it can be computed.

    The number of an array is the length of the longest chain of operations that leads
    to it. Calls of jitted and checkpointed functions are looked into. The results of a
    loop are there when all of its rounds have ended.

    Args:
      gradient: such as `jax.grad(loss)`. It is traced and does not run.
      *args: its arguments, as arrays or specs.
      axes: mapped axes with their sizes, if the function has collectives over them.

    Returns:
      A tree of the structure of the gradient: small numbers are ready first.

    Example:
      >>> import jax.numpy as jnp
      >>> def loss(params, x):
      ...     return jnp.sum(params["out"] * jnp.tanh(params["in"] * x))
      >>> params = {"in": jnp.ones(3), "out": jnp.ones(3)}
      >>> order = ready_order(jax.grad(loss), params, jnp.ones(3))
      >>> order["out"] < order["in"]
      True
    """
    trace = jax.make_jaxpr(
        gradient, axis_env=[*(axes or {}).items()], return_shape=True
    )
    program, shapes = trace(*args)
    depths = _depths(program.jaxpr, [0] * len(program.jaxpr.invars))
    return jax.tree.unflatten(jax.tree.structure(shapes), depths)


def _depths(jaxpr: Any, given: list[int]) -> list[int]:
    """The longest chain up to each result of a jaxpr.

    Args:
      jaxpr: without constants of its own, or with constants that cost nothing.
      given: the longest chain up to each of its arguments.
    """
    known = dict(zip(jaxpr.invars, given, strict=True))

    def of(atom: Any) -> int:
        return 0 if hasattr(atom, "val") else known.get(atom, 0)  # a literal has `val`

    for equation in jaxpr.eqns:
        before = [of(atom) for atom in equation.invars]
        inner = _called(equation)
        if inner is None:
            chain = max(before, default=0) + _rounds(equation)
            after = [chain] * len(equation.outvars)
        else:
            after = _depths(inner, before)
        known.update(zip(equation.outvars, after, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _rounds(equation: Any) -> int:
    """The longest chain inside an operation: that of a loop, times its rounds."""
    if equation.primitive.name != "scan":
        return 1
    body = equation.params["jaxpr"].jaxpr
    each = max(_depths(body, [0] * len(body.invars)), default=0)
    return max(each, 1) * equation.params["length"]


def _called(equation: Any) -> Any | None:
    """The jaxpr that an equation calls once; None for operations and loops."""
    if equation.primitive.name == "scan":
        return None
    for name in ("jaxpr", "call_jaxpr"):
        found = equation.params.get(name)
        inner = getattr(found, "jaxpr", found)  # of a closed one
        if not hasattr(inner, "eqns"):
            continue
        arguments, results = len(inner.invars), len(inner.outvars)
        if (arguments, results) == (len(equation.invars), len(equation.outvars)):
            return inner
    return None


class Cut(NamedTuple):
    """A rule by which trees are cut into parts of about equal bytes.

    Trees of the same shapes are always cut in the same way.
    """

    parts: int = 1
    # From `ready_order`. None: the leaves from the last name to the first one, because
    # frameworks number layers from the input on.
    order: Tree | None = None

    def places(self, tree: Spec) -> list[list[int]]:
        """For each part, the places of its leaves in the tree, in ascending order.

        A tree with few leaves, or with one very large one, has fewer parts.

        Example:
          >>> import jax.numpy as jnp
          >>> tree = {"layer_1": jnp.ones(5), "layer_10": jnp.ones(4)}
          >>> Cut(2).places({**tree, "layer_2": jnp.ones(2)})
          [[1, 2], [0]]
        """
        paths, _ = jax.tree_util.tree_flatten_with_path(tree)
        if self.parts == 1:
            return [list(range(len(paths)))]
        early = sorted(range(len(paths)), key=self._ranks([p for p, _ in paths]))
        sizes = [paths[i][1].size * paths[i][1].dtype.itemsize for i in early]
        whole, before = max(sum(sizes), 1), 0
        found: list[list[int]] = [[] for _ in range(self.parts)]
        for place, size in zip(early, sizes, strict=True):
            # The part in which the middle of the leaf lies.
            middle = min(
                (2 * before + size) * self.parts // (2 * whole), self.parts - 1
            )
            found[middle].append(place)
            before += size
        return [sorted(part) for part in found if part] or [[]]

    def trees(self, tree: Tree) -> list[Tree]:
        """The tree of each part: the same one, with None in place of other leaves.

        Example:
          >>> import jax.numpy as jnp
          >>> Cut(2).trees({"a": jnp.zeros(1), "b": jnp.ones(1)})
          [{'a': None, 'b': Array([1.], dtype=float32)}, \
{'a': Array([0.], dtype=float32), 'b': None}]
        """
        leaves, structure = jax.tree.flatten(tree)

        def only(part: list[int]) -> Tree:
            kept: list[Any] = [None] * len(leaves)
            for place in part:
                kept[place] = leaves[place]
            return jax.tree.unflatten(structure, kept)

        return [only(part) for part in self.places(tree)]

    def map(self, function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
        """A function of the leaves of each part, applied to all parts.

        Args:
          function: (leaves of a part, ...) -> what stands in place of each leaf.
          tree: tells how it is cut.
          *rest: further trees of its structure.
        """
        structure = jax.tree.structure(tree)
        columns = [jax.tree.leaves(tree), *map(structure.flatten_up_to, rest)]
        result: list[Any] = [None] * structure.num_leaves
        for part in self.places(tree):
            made = function(*([column[i] for i in part] for column in columns))
            for place, leaf in zip(part, made, strict=True):
                result[place] = leaf
        return jax.tree.unflatten(structure, result)

    def facts(self, of: Callable[[Spec], list[Any]], spec: Spec) -> list[Any]:
        """For each leaf what `of` says of it, given the part that it is in."""
        result: list[Any] = [None] * len(jax.tree.leaves(spec))
        for places, part in zip(self.places(spec), self.trees(spec), strict=True):
            for place, fact in zip(places, of(part), strict=True):
                result[place] = fact
        return result

    def _ranks(self, paths: list[Any]) -> Callable[[int], Any]:
        """The key that sorts leaves by their turn."""
        if self.order is None:
            names = [_natural(name_of(path)) for path in paths]
            turns = sorted(range(len(names)), key=names.__getitem__, reverse=True)
            return turns.index
        numbers = dict(jax.tree_util.tree_flatten_with_path(self.order)[0])
        for path in paths:
            if path not in numbers:
                raise UserError(
                    f"the order of overlap has no number for {label_of(path)}: trace "
                    "the gradient of these params, ready_order(jax.grad(loss), params)"
                )
        return lambda place: (numbers[paths[place]], place)


WHOLE = Cut()


def _natural(name: str) -> list[Any]:
    """What sorts "Conv_10" behind "Conv_2".

    Example:
      >>> _natural("Conv_10")
      ['Conv_', 10, '']
    """
    pieces = re.split(r"(\d+)", name)
    return [int(p) if i % 2 else p for i, p in enumerate(pieces)]


class PartStates(NamedTuple):
    """State of `overlapped`: that of the exchange, for each part."""

    parts: tuple[State, ...]


def overlapped(exchange: Exchange, parts: int, order: Tree | None = None) -> Exchange:
    """Exchange a tree in parts, each as soon as its gradients are computed.

    The tree is cut into parts of about equal bytes, in the order in which gradients
    become ready. Each part is averaged by the exchange, with a message and a state of
    its own, so that the first messages travel beside the rest of the backward pass. A
    message waits for the one before it: they share the network, and the compiler would
    otherwise put them together again.

    What is compressed tensor by tensor gets the same numbers as in one message, to the
    bit where a method adds nothing up, and up to the last bits of its norms and means
    otherwise: another program may add them differently. A scope that joins tensors
    (`whole_tree`, `bucketed`) joins those of one part, so it selects and scales within
    the part. What an exchange or a memory does to the tree as a whole it does to each
    part: `dgc(clip=...)` clips the norm of each part, and `budget` has its number of
    bits for each.

    Args:
      exchange: any exchange, with its memories.
      parts: their number; 1 returns the exchange as it is.
      order: a tree of numbers from `ready_order`. Without it the leaves are taken from
        the last name to the first one. A wrong order costs overlap and changes no
        result, except in scopes that join tensors.

    Example:
      >>> from jaxcomp import make_exchange
      >>> exchange = overlapped(make_exchange(compressor="sign"), 2)
      >>> tree = {"a": jnp.ones((2, 64)), "b": jnp.ones((2, 64))}  # two workers
      >>> one = {"a": jnp.ones(64), "b": jnp.ones(64)}
      >>> step = lambda x: exchange.average(x, exchange.init(one), jax.random.key(0))
      >>> mean = jax.vmap(lambda x: step(x).mean, axis_name="workers")(tree)
      >>> float(mean["a"][0, 0])
      1.0
    """
    check(Count, "overlap", parts)
    cut = Cut(parts, order)
    if parts == 1:
        return exchange

    def init(tree: Tree) -> PartStates:
        return PartStates(tuple(exchange.init(part) for part in cut.trees(tree)))

    def average(tree: Tree, state: PartStates, key: Array) -> Averaged:
        results: list[Averaged] = []
        for part, inner in zip(cut.trees(tree), state.parts, strict=True):
            given = _after(results[-1].mean, part) if results else part
            results.append(exchange.average(given, inner, key))
        own = [r.sent if r.own_sent is None else r.own_sent for r in results]
        is_own = any(r.own_sent is not None for r in results)
        return Averaged(
            _joined([r.mean for r in results]),
            _joined([r.sent for r in results]),
            PartStates(tuple(r.state for r in results)),
            _info_of([r.info for r in results]),
            _joined(own) if is_own else None,
        )

    def held(state: PartStates) -> Tree:
        assert exchange.held is not None
        return _joined([exchange.held(inner) for inner in state.parts])

    return exchange._replace(
        name=f"overlapped(parts={parts}): {exchange.name}",
        init=init,
        average=average,
        held=held if exchange.held else None,
        contraction=functools.partial(cut.facts, exchange.contraction),
        chooses=functools.partial(cut.facts, exchange.chooses),
        clear=None,  # there is no payload of the whole tree
        cut=cut,
    )


def _after(mean: Tree, part: Tree) -> Tree:
    """A part whose message cannot start before the message of `mean` has arrived."""
    arrived = [leaf for leaf in jax.tree.leaves(mean) if leaf.size]
    if not arrived:
        return part
    smallest = min(arrived, key=lambda leaf: leaf.size)
    return jax.lax.optimization_barrier((part, smallest))[0]


def _joined(parts: list[Tree]) -> Tree:
    """The tree that was cut: each leaf is None in all parts but one."""

    def one_of(*leaves: Any) -> Any:
        return next((leaf for leaf in leaves if leaf is not None), None)

    return jax.tree.map(one_of, *parts, is_leaf=lambda x: x is None)


def _info_of(infos: list[Info]) -> Info:
    """What the parts report, as one: norms as of all, figures added."""
    given = norm([info.given_norm for info in infos])
    lost = norm([info.unsent_norm for info in infos])
    return Info(
        gradient_error=jnp.square(lost / jnp.where(given == 0, 1.0, given)),
        unsent_norm=lost,
        residual_norm=norm([info.residual_norm for info in infos]),
        extra={
            name: functools.reduce(jnp.add, [info.extra[name] for info in infos])
            for name in infos[0].extra
        },
        sends=functools.reduce(jnp.logical_or, [info.sends for info in infos]),
        given_norm=given,
    )
