"""`jaxcomp list` and `jaxcomp explain`: the names of configs, and what a method is."""

import argparse
import ast
import functools
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxcomp.cli.config import standard_configs
from jaxcomp.cli.run_command import add_command, aligned
from jaxcomp.core.errors import UserError

if TYPE_CHECKING:
    from jaxcomp.core.specs import Call
    from jaxcomp.wire.compatibility import Verdict


class Kind(NamedTuple):
    """A registry, found without importing it."""

    key: str  # of a config; "" where no key names a member
    module: str
    what: str  # it decides
    registry: str = "REGISTRY"


KINDS = {
    "augmentations": Kind(
        "augment", "jaxcomp.data", "random changes of images", "AUGMENTATIONS"
    ),
    "compressors": Kind("compressor", "jaxcomp.compressors", "what is lost"),
    "datasets": Kind("dataset", "jaxcomp.data", "examples to learn from"),
    "eval_views": Kind("eval_view", "jaxcomp.data", "what a test sees", "VIEWS"),
    "exchanges": Kind("exchange", "jaxcomp.exchanges", "how gradients become one mean"),
    "loggers": Kind("", "jaxcomp.runs.loggers", "where figures go"),
    "memories": Kind("memory", "jaxcomp.memory", "what happens to what is not sent"),
    "mixers": Kind(
        "mixer",
        "jaxcomp.transforms.make_mixer",
        "how workers' own models mix",
        "MIXERS",
    ),
    "language_models": Kind("model", "jaxcomp.models", "of texts", "LANGUAGE"),
    "models": Kind("model", "jaxcomp.models", "what is trained"),
    "optimizers": Kind("optimizer", "jaxcomp.training.optimizers", "how it learns"),
    "partitions": Kind(
        "partition", "jaxcomp.data", "who sees which examples", "PARTITIONS"
    ),
    "problems": Kind("", "jaxcomp.convex.problems", "logistic regressions"),
    "schedules": Kind("schedule", "jaxcomp.training.schedules", "rates over a run"),
    "scopes": Kind("scope", "jaxcomp.scope", "what is compressed as one vector"),
    "tasks": Kind("task", "jaxcomp.training.tasks", "data, model and loss"),
    "texts": Kind("dataset", "jaxcomp.data.text", "texts to learn from"),
    "topologies": Kind(
        "topology", "jaxcomp.mixers.gossip.topology", "graphs of gossip"
    ),
}


def registry_of(kind: str) -> Mapping[str, Callable[..., Any]]:
    """The registry of a kind in `KINDS`."""
    found = KINDS[kind]
    return getattr(importlib.import_module(found.module), found.registry)


def about(factory: Callable[..., Any]) -> str:
    """The first line of a factory's docstring; of a data set, what it holds.

    Example:
      >>> from jaxcomp.compressors import top_k
      >>> about(top_k)
      'Keep the k = round(keep * n) elements of largest magnitude, at least one.'
    """
    if isinstance(factory, functools.partial):  # a data set of an archive
        return factory.args[0].about
    text = inspect.getdoc(factory) or ""
    return " ".join(text.partition("\n\n")[0].split())


def add_list(subparsers: Any) -> None:
    """Add the command `list`; as `run_command.add_command`."""
    parser = add_command(subparsers, "list", _list)
    parser.add_argument("kind", metavar="KIND", nargs="?", help=", ".join(_kinds()))
    parser.add_argument("--json", action="store_true", help="for machines")


def _kinds() -> list[str]:
    return sorted([*KINDS, "configs"])


def _list(args: argparse.Namespace) -> int:
    """List the names of a kind, each with a line about it.

    examples:
      jaxcomp list
      jaxcomp list compressors
      jaxcomp list configs --json
    """
    rows = _rows(args.kind)
    if args.json:
        pairs = [dict(zip(("name", "about"), row, strict=True)) for row in rows]
        print(json.dumps(pairs, indent=1))
        return 0
    print(aligned(rows))
    return 0


def _rows(kind: str | None) -> list[tuple[str, str]]:
    """Names and lines; of the kinds themselves without one."""
    if kind is None:
        texts = {name: found.what for name, found in KINDS.items()}
        return sorted(
            {**texts, "configs": "whole runs, with their figures, and parts"}.items()
        )
    if kind == "configs":
        return [(name, _title(path)) for name, path in standard_configs().items()]
    if kind not in KINDS:
        from jaxcomp.core.specs import suggest

        raise UserError(f"there is no list of {kind!r}. {suggest(kind, _kinds())}")
    return [(name, about(it)) for name, it in sorted(registry_of(kind).items())]


def _title(path: Any) -> str:
    """The first line of a config file, which is not run."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


_KINDS = ("compressors", "exchanges", "memories", "mixers")
_ELEMENTS = 25_000_000


class Explained(NamedTuple):
    """What is known of a method."""

    facts: dict[str, str]
    figures: dict[str, Any]  # the same for machines
    verdicts: "dict[str, list[Verdict]]"  # by the kind of the other part


def add_parser(subparsers: Any) -> None:
    """Add the command `explain`; as `run_command.add_command`."""
    parser = add_command(subparsers, "explain", _run)
    add = parser.add_argument
    add("spec", metavar="SPEC", help="as in a config: top_k(keep=0.01), gather, ...")
    size = f"of one vector, {_ELEMENTS:_} by default"
    add("--elements", type=int, metavar="N", help=size)
    add("--model", help="take the tensors of this model instead, for 32x32 images")
    add("--json", action="store_true", help="for machines")


def _run(args: argparse.Namespace) -> int:
    """Say what a compressor, exchange, memory or mixer does, what it costs, what it
    promises and what goes together with it.

    examples:
      jaxcomp explain 'top_k(keep=0.01) | qsgd(levels=7, damped=True)'
      jaxcomp explain sign --model=resnet20
      jaxcomp explain 'power_sgd(rank=2)' --elements=1_000_000
      jaxcomp explain error_feedback
      jaxcomp explain 'choco(gamma=0.5)' --json

    Nothing is trained: the method is built for a tree of that size, as a run would
    build it, and what does not go together is refused by the rules of a run.
    """
    from jaxcomp.core.specs import calls

    found = [_found(call) for call in calls(args.spec)]
    tree, size = _tree(args.elements, args.model)
    kind = found[0][0]
    explained = _EXPLAIN[kind](args.spec, tree)
    texts = [
        (call.name, *_parts(it))
        for call, (_, it) in zip(calls(args.spec), found, strict=True)
    ]
    verdicts = explained.verdicts.items()
    if args.json:
        keys = ("name", "about", "references")
        parts = [dict(zip(keys, text, strict=True)) for text in texts]
        facts = {"spec": args.spec, "kind": kind, "for": size, "parts": parts}
        others = {key: [v._asdict() for v in found] for key, found in verdicts}
        print(json.dumps({**facts, **explained.figures, **others}, indent=1))
        return 0
    for name, text, papers in texts:
        print("\n\n".join(filter(None, [f"{name}: {text}", papers])), end="\n\n")
    print(aligned([("for", size), *explained.facts.items()]))
    for other, found in verdicts:
        print(f"\n{other}", _lines(found), sep="\n")
    return 0


def _found(call: "Call") -> tuple[str, Callable[..., Any]]:
    """The kind of a method, and its factory."""
    from jaxcomp.core.specs import error_at, suggest

    for kind in _KINDS:
        registry = registry_of(kind)
        if call.name in registry and (call.name != "none" or kind == "compressors"):
            return kind, registry[call.name]
    names = [name for kind in _KINDS for name in registry_of(kind)]
    raise error_at(call, f"unknown method {call.name!r}. {suggest(call.name, names)}")


def _tree(elements: int | None, model: str | None) -> tuple[Any, str]:
    """The spec of a gradient, and what to call it."""
    import jax
    import jax.numpy as jnp

    if model is None:
        count = _ELEMENTS if elements is None else elements
        if count < 1:
            raise UserError(f"--elements is at least 1, not {count}")
        return jax.ShapeDtypeStruct((count,), jnp.float32), f"a vector of {count:,}"
    if elements is not None:
        raise UserError("give one of --elements and --model, not both")
    params = params_of(model)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    tensors = len(jax.tree.leaves(params))
    return params, f"{model}, {count:,} elements in {tensors} tensors"


def params_of(model: str) -> Any:
    """The specs of the parameters of a model, by its name."""
    import jax
    import jax.numpy as jnp

    from jaxcomp import models

    built = models.make(model)
    images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    init = jax.eval_shape(lambda x: built.init(jax.random.key(0), x, False), images)
    return init["params"]


def _of_compressor(spec: str, tree: Any) -> Explained:
    from jaxcomp import exchanges, memory
    from jaxcomp.core.units import bytes_text, number_text
    from jaxcomp.wire.compatibility import cost_of, of_exchange

    cost = cost_of(spec, tree)
    bits, ideal = (x / cost.elements for x in (cost.message_bits, cost.ideal_bits))
    bound = cost.contraction
    facts = {
        "a message": f"{bytes_text(cost.message_bits / 8)} instead of "
        f"{bytes_text(4.0 * cost.elements)}",
        "bits an element": f"{bits:.4g}; {ideal:.4g} with the best code",
        "unbiased": "yes: the mean of what it sends is what it is given"
        if cost.unbiased
        else "no: use it with a memory",
        "contraction": "none: it may lose more than there is, which no memory may keep"
        if bound is None
        else f"{number_text(bound)}: of |x|^2 at most 1 - {number_text(bound)} is lost",
    }
    memories = [of_exchange(m, "gather", spec, m, tree) for m in memory.REGISTRY]
    ways = [
        of_exchange(e, _with_room(e, cost.elements), spec, "none", tree, count=True)
        for e in exchanges.REGISTRY
    ]
    return Explained(facts, cost._asdict(), {"memories": memories, "exchanges": ways})


def _of_exchange(spec: str, tree: Any) -> Explained:
    from jaxcomp import compressors, memory
    from jaxcomp.core.types import worst
    from jaxcomp.core.units import bytes_text, times_fewer
    from jaxcomp.transforms.make import make_exchange
    from jaxcomp.wire import dense_bytes, exact_bytes
    from jaxcomp.wire.compatibility import WORKERS, of_exchange, traffic_of

    verdicts = {}
    codec = None
    if not make_exchange(spec, "none", "none").ignores_compressor:
        fits = [of_exchange(c, spec, c, "none", tree) for c in compressors.REGISTRY]
        codec = _preferred(fits)
        verdicts["compressors"] = fits
    built = make_exchange(spec, codec, "none")
    sent, links = traffic_of(built, tree)
    bound = worst(built.contraction(tree))
    facts = {
        "a message": f"{bytes_text(sent)} instead of "
        f"{bytes_text(dense_bytes(tree))}{f', with {codec}' if codec else ''}",
        "leaves as rings": f"{bytes_text(links)} each of {WORKERS} workers, "
        f"{times_fewer(exact_bytes(tree, WORKERS), links):.3g} times fewer than exact",
        "what is sent": "has the mean that all workers use"
        if built.lawful
        else "has another mean than the one that workers use: no memory keeps the rest",
        "contraction": "none" if bound is None else f"{bound:.4g}",
    }
    figures = {"sent_bytes": sent, "link_bytes": links, "contraction": bound}
    figures |= {"lawful": built.lawful, "compressor": codec}
    kept = [of_exchange(m, spec, codec, m, tree) for m in memory.REGISTRY]
    return Explained(facts, figures, {**verdicts, "memories": kept})


def _preferred(fits: "Sequence[Verdict]") -> str:
    """A compressor to show an exchange with: top-k, or the first that it takes."""
    names = [verdict.name for verdict in fits if not verdict.why_not]
    lossy = [name for name in names if name != "none"]
    return "top_k" if "top_k" in lossy else (lossy or names)[0]


def _of_memory(spec: str, tree: Any) -> Explained:
    from jaxcomp import compressors, exchanges
    from jaxcomp.transforms.make import make_exchange
    from jaxcomp.wire.compatibility import of_exchange

    built = make_exchange("exact", None, spec)
    keeps, momentum = bool(built.keeper), bool(built.momentum)
    facts = {
        "keeps what is not sent": "yes" if keeps else "no",
        "gives a momentum": "yes: the optimiser has none then" if momentum else "no",
    }
    codecs = [of_exchange(c, "gather", c, spec, tree) for c in compressors.REGISTRY]
    ways = [_some_fit(e, spec, tree) for e in exchanges.REGISTRY]
    figures = {"keeps": keeps, "momentum": momentum}
    return Explained(facts, figures, {"compressors": codecs, "exchanges": ways})


def _of_mixer(spec: str, tree: Any) -> Explained:
    from jaxcomp import compressors, exchanges
    from jaxcomp.core.specs import calls
    from jaxcomp.mixers import local
    from jaxcomp.wire.compatibility import of_mixer

    if calls(spec)[0].name in local.REGISTRY:
        ways = [_some_fit(e, "none", tree) for e in exchanges.REGISTRY]
        facts = {"sends": "what a worker has learnt alone, by an exchange"}
        return Explained(facts, {"gossip": False}, {"exchanges": ways})
    codecs = [of_mixer(c, spec, c, tree) for c in compressors.REGISTRY]
    facts = {"sends": "to the neighbours of a graph: jaxcomp list topologies"}
    return Explained(facts, {"gossip": True}, {"compressors": codecs})


def _some_fit(exchange: str, memory: str, tree: Any) -> "Verdict":
    """Whether a memory takes an exchange, with a compressor that this one takes."""
    from jaxcomp.wire.compatibility import of_exchange

    way = _with_room(exchange, _ELEMENTS)
    codecs = (None, "random_k", "top_k")
    tried = [of_exchange(exchange, way, codec, memory, tree) for codec in codecs]
    return next((verdict for verdict in tried if not verdict.why_not), tried[0])


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


def _lines(verdicts: "Sequence[Verdict]") -> str:
    from jaxcomp.core.units import bytes_text

    def says(verdict: "Verdict") -> str:
        cost = f"{bytes_text(verdict.sent)} a step" if verdict.sent else ""
        return f"no: {verdict.why_not}" if verdict.why_not else f"yes  {cost}"

    fitting_first = sorted(verdicts, key=lambda v: bool(v.why_not))
    return aligned((f"  {verdict.name}", says(verdict)) for verdict in fitting_first)
