"""`jaxcomp explain`: what a method does, costs and promises, and what goes with it.

Nothing is computed: shapes go through the method as they would in a step, and what does
not fit is refused by the same rules as in a run.
"""

import argparse
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp import compressors, exchanges, memory, models
from jaxcomp.cli.lists import registry_of
from jaxcomp.cli.run_command import add_command, aligned
from jaxcomp.core.coding.payloads import nbits
from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Call, calls, error_at, suggest
from jaxcomp.core.trees import zeros_like_spec
from jaxcomp.core.types import worst
from jaxcomp.core.units import bytes_text, number_text, times_fewer
from jaxcomp.mixers import local
from jaxcomp.parallel.placing import specs_of
from jaxcomp.scope import lift, make_plan
from jaxcomp.scope.contraction import leaf_contractions
from jaxcomp.transforms.make import make_exchange
from jaxcomp.transforms.make_mixer import make_mixer
from jaxcomp.wire import bytes as wire
from jaxcomp.wire.traced import traced_collectives

_ELEMENTS = 25_000_000
_WORKERS = 8

# What is known of a method, and by the kind of another part why its members do not go
# together with this one: "" for those that do.
Explained = tuple[dict[str, str], dict[str, dict[str, str]]]


def add_parser(subparsers: Any) -> None:
    """Add the command `explain`; as `run_command.add_command`."""
    add = add_command(subparsers, "explain", _run).add_argument
    add("spec", metavar="SPEC", help="as in a config: top_k(keep=0.01), gather, ...")
    size = f"of one vector, {_ELEMENTS:_} by default"
    add("--elements", type=int, metavar="N", help=size)
    add("--model", help="take the tensors of this model instead, for 32x32 images")


def _run(args: argparse.Namespace) -> int:
    """Say what a compressor, exchange, memory or mixer does, what it costs, what it
    promises and what goes together with it.

    examples:
      jaxcomp explain 'top_k(keep=0.01) | qsgd(levels=7, damped=True)'
      jaxcomp explain sign --model=resnet20
      jaxcomp explain 'power_sgd(rank=2)' --elements=1_000_000
      jaxcomp explain error_feedback

    Nothing is trained: the method is built for a tree of that size, as a run would
    build it, and what does not go together is refused by the rules of a run.
    """
    parts = calls(args.spec)
    found = [_found(call) for call in parts]
    tree, size = _tree(args.elements, args.model)
    facts, others = _EXPLAIN[found[0][0]](args.spec, tree)
    for call, (_, factory) in zip(parts, found, strict=True):
        text, papers = _parts(factory)
        print("\n\n".join(filter(None, [f"{call.name}: {text}", papers])), end="\n\n")
    print(aligned([("for", size), *facts.items()]))
    for kind, members in others.items():
        fitting = [name for name, why_not in members.items() if not why_not]
        refused = [(f"  not {name}", why) for name, why in members.items() if why]
        print(f"\n{kind}: {', '.join(fitting)}")
        if refused:
            print(aligned(refused))
    return 0


def _found(call: Call) -> tuple[str, Callable[..., Any]]:
    """The kind of a method, and its factory."""
    for kind in _EXPLAIN:
        registry = registry_of(kind)
        if call.name in registry and (call.name != "none" or kind == "compressors"):
            return kind, registry[call.name]
    names = [name for kind in _EXPLAIN for name in registry_of(kind)]
    raise error_at(call, f"unknown method {call.name!r}. {suggest(call.name, names)}")


def _tree(elements: int | None, model: str | None) -> tuple[Any, str]:
    """The spec of a gradient, and what to call it."""
    if model is None:
        count = _ELEMENTS if elements is None else elements
        if count < 1:
            raise UserError(f"--elements is at least 1, not {count}")
        return jax.ShapeDtypeStruct((count,), jnp.float32), f"a vector of {count:,}"
    if elements is not None:
        raise UserError("give one of --elements and --model, not both")
    params = params_of(model)
    leaves = jax.tree.leaves(params)
    count = sum(leaf.size for leaf in leaves)
    return params, f"{model}, {count:,} elements in {len(leaves)} tensors"


def params_of(model: str) -> Any:
    """The specs of the parameters of a model, by its name."""
    built = models.make(model)
    images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    init = jax.eval_shape(lambda x: built.init(jax.random.key(0), x, False), images)
    return init["params"]


def _why_not(exchange: str, compressor: str | None, memory: str, tree: Any) -> str:
    """Why these do not go together; "" if they do."""
    try:
        built = make_exchange(exchange, compressor, memory)
        jax.eval_shape(built.init, tree)
    except UserError as error:
        return str(error).splitlines()[0]
    return ""


def _of_compressor(spec: str, tree: Any) -> Explained:
    plan = make_plan("per_leaf", spec)
    codec = lift(plan)

    def payload(key: jax.Array) -> object:
        zeros = zeros_like_spec(tree)
        return codec.compress(zeros, codec.init(zeros), key)[0]

    sent = nbits(jax.eval_shape(payload, jax.eval_shape(lambda: jax.random.key(0))))
    elements = sum(leaf.size for leaf in jax.tree.leaves(tree))
    bits, ideal = (x / elements for x in (sent, codec.ideal_bits(tree)))
    bound = worst(leaf_contractions(plan, tree))
    facts = {
        "a message": f"{bytes_text(sent / 8)} instead of {bytes_text(4.0 * elements)}",
        "bits an element": f"{bits:.4g}; {ideal:.4g} with the best code",
        "unbiased": "yes: the mean of what it sends is what it is given"
        if compressors.make(spec).unbiased
        else "no: use it with a memory",
        "contraction": "none: it may lose more than there is, which no memory may keep"
        if bound is None
        else f"{number_text(bound)}: of |x|^2 at most 1 - {number_text(bound)} is lost",
    }
    memories = {m: _why_not("gather", spec, m, tree) for m in memory.REGISTRY}
    ways = {
        e: _why_not(_with_room(e, elements), spec, "none", tree)
        for e in exchanges.REGISTRY
    }
    return facts, {"memories": memories, "exchanges": ways}


def _of_exchange(spec: str, tree: Any) -> Explained:
    others, codec = {}, None
    if not make_exchange(spec, "none", "none").ignores_compressor:
        fits = {c: _why_not(spec, c, "none", tree) for c in compressors.REGISTRY}
        others["compressors"] = fits
        names = [name for name, why_not in fits.items() if not why_not]
        codec = next((n for n in ("top_k", *names) if n in names and n != "none"), None)
    built = make_exchange(spec, codec, "none")

    def step(tree: Any, key: jax.Array) -> object:
        return built.average(tree, built.init(tree), key).mean

    key = jax.eval_shape(lambda: jax.random.key(0))
    found = traced_collectives(step, tree, key, axis="workers", workers=_WORKERS)
    sent, left = sum(wire.collective_bytes(found).values()), wire.link_bytes(found)
    fewer = times_fewer(wire.exact_bytes(tree, _WORKERS), left)
    bound = worst(built.contraction(tree))
    facts = {
        "a message": f"{bytes_text(sent)} instead of "
        f"{bytes_text(wire.dense_bytes(tree))}{f', with {codec}' if codec else ''}",
        "leaves as rings": f"{bytes_text(left)} each of {_WORKERS} workers, "
        f"{fewer:.3g} times fewer than exact",
        "what is sent": "has the mean that all workers use"
        if built.lawful
        else "has another mean than the one that workers use: no memory keeps the rest",
        "contraction": "none" if bound is None else f"{bound:.4g}",
    }
    kept = {m: _why_not(spec, codec, m, tree) for m in memory.REGISTRY}
    return facts, {**others, "memories": kept}


def _of_memory(spec: str, tree: Any) -> Explained:
    built = make_exchange("exact", None, spec)
    facts = {
        "keeps what is not sent": "yes" if built.keeper else "no",
        "gives a momentum": "yes: the optimiser has none then"
        if built.momentum
        else "no",
    }
    codecs = {c: _why_not("gather", c, spec, tree) for c in compressors.REGISTRY}
    ways = {e: _any_fits(e, spec, tree) for e in exchanges.REGISTRY}
    return facts, {"compressors": codecs, "exchanges": ways}


def _of_mixer(spec: str, tree: Any) -> Explained:
    if calls(spec)[0].name in local.REGISTRY:
        ways = {e: _any_fits(e, "none", tree) for e in exchanges.REGISTRY}
        facts = {"sends": "what a worker has learnt alone, by an exchange"}
        return facts, {"exchanges": ways}

    def why_not(compressor: str) -> str:
        try:
            built = make_mixer(spec, "ring", _WORKERS, compressor=compressor)
            stacked = specs_of(tree, 0, _WORKERS)
            jax.eval_shape(jax.vmap(built.init, axis_name=built.axis), stacked)
        except UserError as error:
            return str(error).splitlines()[0]
        return ""

    facts = {"sends": "to the neighbours of a graph: jaxcomp list topologies"}
    return facts, {"compressors": {c: why_not(c) for c in compressors.REGISTRY}}


def _any_fits(exchange: str, memory: str, tree: Any) -> str:
    """Why a memory takes an exchange with no compressor that is tried."""
    way = _with_room(exchange, _ELEMENTS)
    tried = [
        _why_not(way, codec, memory, tree) for codec in (None, "random_k", "top_k")
    ]
    return "" if "" in tried else tried[0]


_EXPLAIN: dict[str, Callable[..., Explained]] = {
    "compressors": _of_compressor,
    "exchanges": _of_exchange,
    "memories": _of_memory,
    "mixers": _of_mixer,
}


def _with_room(exchange: str, elements: int) -> str:
    """An exchange with what it needs: for a budget, four bits of each element."""
    return f"budget(bits_per_step={4 * elements})" if exchange == "budget" else exchange


def _parts(factory: Callable[..., Any]) -> tuple[str, str]:
    """What a factory's docstring says of the method, and its References."""
    text = inspect.getdoc(factory) or ""
    before, _, papers = text.partition("\nReferences:\n")
    said = before
    for section in ("Args", "Returns", "Raises", "Example"):
        said = said.partition(f"\n{section}:\n")[0]
    return said.strip(), inspect.cleandoc("\n" + papers) if papers else ""
