"""A name says the whole method: what it builds is the same, whatever the arguments.

Arguments that are not the default are made from the annotations, so that an argument
that comes tomorrow is in these tests the same day.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import compressors, data, exchanges, memory, scope
from jaxcomp.convex import problems
from jaxcomp.core.specs import Call, SpecError, check, kinds_of, parse
from jaxcomp.mixers import gossip, local
from jaxcomp.mixers.gossip.topology import REGISTRY as GRAPHS
from jaxcomp.scope import Leaf

# What no annotation tells: specs, edges, rules.
OTHERS = {
    "inner": "exact",  # no other exchange sends everything as it is
    "ladder": ("sign", "cast(float16)"),
    "list": ((0, 1), (1, 2), (2, 0)),
    "outer": "two_phase",
    "rules": (("*/bias", "top_k(keep=0.5)"),),
    "scope": "bucketed(bytes=64)",
    "values": "cast(float16)",
    "bits_per_step": 1 << 14,
}
NUMBERS = (2, 3, 1, 0, 0.5, 0.25, 1.5, 0.001)
WORKERS = {"expander": 7, "margulis": 9, "social": 32, "edges": 3}
METHOD = "random_k(keep=0.3, unbiased=False)"  # every exchange takes it
TREE = {"b": jnp.ones(5), "w": jnp.ones((12, 10))}


class Family(NamedTuple):
    """The methods of a registry."""

    registry: Mapping[str, Callable[..., Any]]
    given: int  # arguments that no spec names
    make: Callable[[str], Any]
    own: Callable[[Any], str]  # the part of the name that is a spec of this registry
    program: Callable[[Any], Any]  # what the method does, to compare


def _traced(function: Callable[..., Any], *args: Any) -> str:
    """The traced program, without addresses of functions."""
    return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(function)(*args)))


def _round_trip(codec: Any) -> str:
    def run(x: jax.Array) -> jax.Array:
        payload, _ = codec.compress(x, codec.init(x), jax.random.key(0))
        return codec.decompress(payload, x)

    return _traced(run, TREE["w"])


def _averaged(exchange: Any) -> str:
    def run(tree: Any) -> Any:
        return exchange.average(tree, exchange.init(tree), jax.random.key(0)).mean

    stacked = jax.tree.map(lambda x: jnp.stack([x] * 4), TREE)
    return _traced(jax.vmap(run, axis_name="workers"), stacked)


def _mixed(mixer: Any) -> tuple[str, Any]:
    def run(tree: Any) -> Any:
        state, last = mixer.init(tree), max(mixer.schedule)
        return mixer.mix(tree, tree, state, jax.random.key(0), last).updates

    stacked = jax.tree.map(lambda x: jnp.stack([x] * 4), TREE)
    return _traced(jax.vmap(run, axis_name="workers"), stacked), mixer.schedule


def _groups(plan: Any) -> list[Any]:
    flat, _ = jax.tree_util.tree_flatten_with_path(TREE)
    leaves = [
        Leaf(path[0].key, jax.ShapeDtypeStruct(x.shape, x.dtype), i, i)
        for i, (path, x) in enumerate(flat)
    ]
    return [(g.leaves, g.compressor.name) for g in plan.groups(leaves)]


def _without_method(exchange: Any) -> str:
    shown = METHOD.replace("'", "")
    return exchange.name.replace(f"({shown})", "").replace(f"; {shown}", "")


def _make_graph(spec: str) -> Any:
    return gossip.topology(spec, WORKERS.get(spec.partition("(")[0], 8))


@functools.cache
def _gather() -> Any:
    return exchanges.make("gather", "top_k(keep=0.3)")


@functools.cache
def _ring() -> Any:
    return gossip.topology("ring", 4)


FAMILIES = {
    "compressor": Family(
        compressors.REGISTRY, 0, compressors.make, lambda c: c.name, _round_trip
    ),
    "exchange": Family(
        exchanges.REGISTRY,
        2,
        lambda spec: exchanges.make(spec, METHOD),
        _without_method,
        _averaged,
    ),
    "memory": Family(
        memory.REGISTRY,
        1,
        lambda spec: memory.make(spec, _gather()),
        lambda m: m.name.removesuffix(f": {_gather().name}"),
        _averaged,
    ),
    "gossip": Family(
        gossip.REGISTRY,
        3,
        lambda spec: gossip.make(spec, _ring(), "top_k(keep=0.3)"),
        lambda m: m.name.split(" on ")[0],
        _mixed,
    ),
    "local": Family(
        local.REGISTRY,
        1,
        lambda spec: local.make(spec, _gather()),
        lambda m: m.name.removesuffix(f", {_gather().name}").split(", error_")[0],
        _mixed,
    ),
    "topology": Family(
        GRAPHS,
        1,
        _make_graph,
        lambda graph: graph.name,
        lambda graph: [r.matrix.tolist() for r in graph.rounds],
    ),
    "scope": Family(
        scope.REGISTRY,
        1,
        lambda spec: scope.make_plan(spec, "sign"),
        lambda plan: plan.title.removesuffix(": sign"),
        _groups,
    ),
    "problem": Family(
        {k: v for k, v in problems.REGISTRY.items() if k != "libsvm"},  # it is a file
        0,
        problems.load,
        lambda problem: problem.name,
        lambda problem: (np.shape(problem.features), problem.regulariser),
    ),
}
LABELS = np.arange(60) % 5
FAMILIES["partition"] = Family(
    data.PARTITIONS,
    3,
    lambda spec: data.make_partition(spec, LABELS, workers=4, seed=0),
    lambda partition: partition.name,
    lambda partition: [partition.shares(epoch).tolist() for epoch in (0, 1)],
)
FAMILIES["data set"] = Family(
    {"digits": data.REGISTRY["digits"]},  # the others are on no disk here
    1,
    data.load,
    lambda dataset: dataset.name,
    lambda dataset: (dataset.train_images.shape, dataset.mean),
)
CASES = [
    (family, name)
    for family, (registry, given, *_) in FAMILIES.items()
    for name, factory in registry.items()
    if len(inspect.signature(factory).parameters) > given and name != "file"
]


def _fits(annotation: Any, value: Any) -> bool:
    try:
        check(annotation, "it", value)
    except SpecError:
        return False
    return True


def other(p: inspect.Parameter) -> Any:
    """A valid value that is not the default."""
    if p.name in OTHERS:
        return OTHERS[p.name]
    kinds = kinds_of(p.annotation)
    named = [v for k in kinds if get_origin(k) is Literal for v in get_args(k)]
    values = [*named, True, False, *NUMBERS]
    found = [v for v in values if v != p.default and _fits(p.annotation, v)]
    assert found, f"give {p.name} a value in OTHERS"
    return found[0]


def settings(family: Family, name: str) -> Iterator[dict[str, Any]]:
    """Arguments that are not the default: all of them, or as many as go together."""
    parameters = inspect.signature(family.registry[name]).parameters.values()
    own = list(parameters)[family.given :]
    every = {p.name: other(p) for p in own}
    needed = {p.name for p in own if p.default is p.empty}
    smaller = [{k: v for k, v in every.items() if k != left} for left in every]
    alone = [{k: v for k, v in every.items() if k in needed | {one}} for one in every]
    covered: set[str] = set()
    for setting in [every, *smaller, *alone]:
        if set(setting) <= covered or not needed <= set(setting):
            continue
        try:
            family.make(text(name, setting))
        except SpecError:
            continue
        covered |= set(setting)
        yield setting
    assert covered == set(every), f"{name}: only {covered} could be built"


def text(name: str, setting: dict[str, Any]) -> str:
    return str(Call(name, (), setting, "", 0))


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_name_builds_the_same_method(kind: str, name: str) -> None:
    family = FAMILIES[kind]
    for setting in settings(family, name):
        first = family.make(text(name, setting))
        shown = family.own(first)
        again = family.make(shown)
        assert family.own(again) == shown
        said = parse(shown)
        assert isinstance(said, Call)
        hidden = {k for k, v in setting.items() if v == OTHERS.get(k) == "exact"}
        assert set(setting) - hidden <= set(said.kwargs)
        assert family.program(again) == family.program(first)


def test_an_argument_without_an_annotation_is_no_argument() -> None:
    from jaxcomp.core.specs import method

    with pytest.raises(TypeError, match="keep has no annotation"):

        @method()
        def half(name: str, keep=0.5) -> str:
            return name

    with pytest.raises(TypeError, match="has no arguments"):

        @method("keep")
        def whole(name: str) -> str:
            return name
