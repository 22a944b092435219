"""What a page needs to draw a graph, as plain values that a run keeps in its folder."""

from typing import Any

from jaxcomp.core.specs import Call, parse
from jaxcomp.mixers.gossip.topology import Topology, topology, torus_sides

_MOST_EDGES = 2000  # of more, nobody could follow one


def picture(graph: Topology, spec: str) -> dict[str, Any]:
    """The nodes, edges and facts of a graph.

    Args:
      graph: that the spec names.
      spec: says how its workers stand: a grid for a torus, a hub for a star.

    Returns:
      `rounds` holds lists of (from, to, weight).

    Example:
      >>> from jaxcomp.mixers.gossip import topology
      >>> shown = picture(topology("ring", 3), "ring")
      >>> shown["degree"], shown["layout"], shown["rounds"][0][0][:2]
      (2, ['circle', 3], [0, 1])
    """
    rounds = [
        [
            [int(j), int(i), float(step.matrix[i, j])]
            for slot in step.slots
            for j, i in slot.pairs
        ]
        for step in graph.rounds
    ]
    return {
        "name": graph.name,
        "workers": graph.size,
        "degree": graph.degree,
        "spectral_gap": graph.spectral_gap,
        "layout": _layout(graph, spec),
        "rounds": rounds,
    }


def graph_facts(spec: str, workers: int) -> dict[str, Any]:
    """What environment.json says of the graph of a run, from which its report draws it.

    Args:
      spec: of the topology, "" for none.
      workers: of the run.

    Example:
      >>> graph_facts("", 4), graph_facts("star", 4)["graph"]["layout"]
      ({}, ['hub', 4])
    """
    if not spec:
        return {}
    shown = picture(topology(spec, workers), spec)
    is_clear = sum(map(len, shown["rounds"])) <= _MOST_EDGES
    return {"graph": shown} if is_clear else {}


def _layout(graph: Topology, spec: str) -> list[Any]:
    """The name of a layout, and the sizes that it needs."""
    call = parse(spec)
    assert isinstance(call, Call)  # the graph was built from it
    if call.name == "social":
        return ["two_columns", 18, 14]
    if call.name == "torus":
        return ["grid", *torus_sides(graph.size, *call.args, **call.kwargs)]
    return ["hub" if call.name == "star" else "circle", graph.size]
