"""Graphs: doubly stochastic, connected, cut into permutations, or refused by name."""

import re

import numpy as np
import pytest

from jaxcomp.core.specs import SpecError
from jaxcomp.mixers.gossip.topology import REGISTRY, decompose, topology

SIZES = (1, 2, 3, 4, 5, 8, 9, 11, 16, 19, 32)
ANY = ("complete", "exponential", "exponential(one_peer=True)", "ring")
POWERS = (1, 2, 4, 8, 16, 32)
PRIMES = (1, 2, 3, 5, 11, 19)
FITTING = {
    **dict.fromkeys((*ANY, "ring_antipode", "star", "torus(rows=1)"), SIZES),
    **dict.fromkeys(("hypercube", "hypercube(one_peer=True)"), POWERS),
    **dict.fromkeys(("expander", "expander(weights='uniform')"), PRIMES),
    **dict.fromkeys(("margulis", "margulis(weights='uniform')"), (1, 4, 9, 16)),
    **dict.fromkeys(("social", "social(weights='uniform')"), (32,)),
    "torus": (1, 2, 3, 4, 8, 9, 16, 32),
}
CASES = [(spec, n) for spec, sizes in FITTING.items() for n in sizes]
GIVEN = ("edges", "file")


def refusal(spec: str, n: int) -> str:
    with pytest.raises(SpecError) as caught:
        topology(spec, n)
    return str(caught.value)


def test_every_graph_fits_or_is_refused_with_other_sizes():
    """No name is missing above, and no size passes unseen."""
    assert {spec.partition("(")[0] for spec in FITTING} == set(REGISTRY) - set(GIVEN)
    for spec, sizes in FITTING.items():
        for n in set(SIZES) - set(sizes):
            # The message names other sizes; that of `social` its two halves as well.
            named = set(map(int, re.findall(r"\d+", refusal(spec, n).splitlines()[0])))
            assert n in named
            topology(spec, min(named - {n, 14, 18}, key=lambda other: abs(other - n)))


@pytest.mark.parametrize(("spec", "n"), CASES)
def test_weights_are_doubly_stochastic_and_mix(spec: str, n: int):
    graph = topology(spec, n)
    assert (graph.name, graph.size) == (spec, n)
    for step in graph.rounds:
        assert step.matrix.dtype == np.float64
        assert step.matrix.min() >= 0
        assert (np.diag(step.matrix) > 0).all()
        np.testing.assert_allclose(step.matrix.sum(axis=0), 1, rtol=0, atol=1e-12)
        np.testing.assert_allclose(step.matrix.sum(axis=1), 1, rtol=0, atol=1e-12)
        check_slots(step.matrix, step.slots)
    assert 0 < graph.spectral_gap <= 1
    assert graph.symmetric or spec.startswith("exponential")


@pytest.mark.parametrize("seed", range(8))
def test_slots_of_any_graph(seed: int):
    """Random edges make the colouring swap along chains, as few named graphs do."""
    random = np.random.Generator(np.random.Philox(seed))
    matrix = random.random((17, 17)) * (random.random((17, 17)) < 0.1 + 0.1 * seed)
    check_slots(matrix, decompose(matrix))


def check_slots(matrix: np.ndarray, slots: tuple) -> None:
    """They are as few permutations as possible."""
    linked = (matrix != 0) & ~np.eye(len(matrix), dtype=bool)
    assert len(slots) == max(linked.sum(axis=0).max(), linked.sum(axis=1).max())
    whole = np.diag(np.diag(matrix))
    for slot in slots:
        assert slot.pairs
        sources, destinations = zip(*slot.pairs, strict=True)
        assert len(set(sources)) == len(set(destinations)) == len(slot.pairs)
        assert not any(i == j for i, j in slot.pairs)
        for source, destination in slot.pairs:
            assert whole[destination, source] == 0
            whole[destination, source] = slot.weights[destination]
        silent = np.setdiff1d(np.arange(len(matrix)), destinations)
        assert not slot.weights[silent].any()
    np.testing.assert_array_equal(whole, matrix)


@pytest.mark.parametrize("spec", ["ring", "complete", "exponential", "ring_antipode"])
def test_slots_of_circulant_graphs_are_whole_shifts(spec: str):
    for slot in topology(spec, 11).rounds[0].slots:
        assert len({(i - j) % 11 for j, i in slot.pairs}) == 1
        assert len(slot.pairs) == 11


@pytest.mark.parametrize(
    ("spec", "n", "degrees"),
    [
        # A side of 2 and a chord on the ring have one edge, not two.
        ("torus", 4, {2}),
        ("torus", 8, {3}),
        ("expander", 5, {2}),
        ("expander", 11, {2, 3}),
        ("expander", 19, {2, 3}),
        ("ring", 2, {1}),
        ("ring_antipode", 8, {3}),
        ("ring_antipode", 9, {4}),
        ("hypercube", 16, {4}),
        ("exponential", 9, {4}),
        ("star", 8, {1, 7}),
    ],
)
def test_neighbours_are_counted_once(spec: str, n: int, degrees: set[int]):
    graph = topology(spec, n)
    assert set((graph.matrix != 0).sum(axis=1) - 1) == degrees
    assert graph.degree == max(degrees)


def test_social_is_the_attendance_of_1941():
    heard = topology("social", 32).matrix != 0
    attended = heard[:18, 18:]
    assert not (heard[:18, :18] ^ np.eye(18, dtype=bool)).any()
    assert not (heard[18:, 18:] ^ np.eye(14, dtype=bool)).any()
    assert attended.sum() == 89
    women = [8, 7, 8, 7, 4, 4, 4, 3, 4, 4, 4, 6, 7, 8, 5, 2, 2, 2]
    assert attended.sum(axis=1).tolist() == women
    events = [3, 3, 6, 4, 8, 8, 10, 14, 12, 5, 4, 6, 3, 3]
    assert attended.sum(axis=0).tolist() == events


def test_weights_of_unequal_degrees():
    path = "edges(list=[[0, 1], [1, 2], [1, 3], [3, 4]]{})"
    metropolis = topology(path.format(""), 5).matrix
    assert metropolis[0, 1] == metropolis[1, 3] == 1 / 4
    assert metropolis[3, 4] == 1 / 3
    uniform = topology(path.format(", weights='uniform'"), 5).matrix
    assert uniform[3, 4] == 1 / 4


@pytest.mark.parametrize("n", [3, 4, 5, 8, 16, 32])
def test_gap_of_a_ring_is_the_known_one(n: int):
    known = 1 - max(abs(1 / 3 + 2 / 3 * np.cos(2 * np.pi * k / n)) for k in range(1, n))
    assert topology("ring", n).spectral_gap == pytest.approx(known, abs=1e-12)


def test_gap_of_a_directed_graph_is_that_of_its_singular_values():
    """The static exponential graph of even size: 2 / (1 + ceil(log2 n))."""
    for n in (4, 8, 16, 32):
        gap = topology("exponential", n).spectral_gap
        assert gap == pytest.approx(2 / (1 + np.ceil(np.log2(n))))


@pytest.mark.parametrize("spec", ["exponential", "hypercube"])
@pytest.mark.parametrize("n", POWERS)
def test_one_peer_cycles_are_the_exact_mean(spec: str, n: int):
    graph = topology(f"{spec}(one_peer=True)", n)
    assert len(graph.rounds) == max(1, int(np.log2(n)))
    assert (graph.matrix == 1 / n).all()
    assert graph.spectral_gap == 1
    assert graph.degree == min(1, n - 1)


def test_one_peer_hears_the_worker_behind():
    for t, step in enumerate(topology("exponential(one_peer=True)", 11).rounds):
        assert all((j + 2**t) % 11 == i for slot in step.slots for j, i in slot.pairs)
    assert topology("exponential(one_peer=True)", 11).spectral_gap < 1


def test_files_and_lists_give_the_graph_they_name(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text("# a ring\n0 1\n\n1 2  # one more\n2 3\n3 0\n0 3\n")
    ring = topology("ring", 4).matrix
    spec = f"file(path={str(path)!r})"
    np.testing.assert_array_equal(topology(spec, 4).matrix, ring)
    assert topology(topology(spec, 4).name, 4).name == spec
    path.write_text("0 1 0.25\n1 2 0.5\n0 0 0.75\n")
    expected = [[0.75, 0.25, 0], [0.25, 0.25, 0.5], [0, 0.5, 0.5]]
    assert topology(spec, 3).matrix.tolist() == expected
    directed = topology("edges(list=[[0,1],[1,2],[2,0]], directed=True)", 3)
    assert directed.matrix.tolist() == [[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]]
    assert not directed.symmetric
    assert topology("edges(list=[])", 1).degree == 0


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0 x", "'x' is not the number of a worker"),
        ("0 1.5", "1.5 is not the number of a worker"),
        ("0 4", "there is no worker 4, only 0 to 3"),
        ("0 -1", "there is no worker -1"),
        ("2 2", "an edge joins two different workers"),
        ("0", "an edge is two workers"),
        ("0 1 2 3", "an edge is two workers"),
        ("2 3 0.5", "either all edges have a weight or none has"),
    ],
)
def test_bad_lines_are_shown_with_their_number(tmp_path, line: str, reason: str):
    path = tmp_path / "graph.txt"
    path.write_text(f"0 1\n# next\n{line}\n2 3\n")
    message = refusal(f"file(path={str(path)!r})", 4)
    assert f"line 3 of {path}, {line!r}: {reason}" in message


@pytest.mark.parametrize(
    ("spec", "n", "reason"),
    [
        ("rign", 4, "unknown topology 'rign'. Did you mean 'ring'?"),
        ("ring(weights='uniform')", 4, "no argument 'weights'"),
        ("social(weights='unifrom')", 32, "'unifrom'. Did you mean 'uniform'?"),
        ("hypercube(one_peer=1)", 4, "True or False, not 1"),
        ("torus(rows=3)", 8, "rows divide the 8 workers, 3 does not"),
        ("torus", 7, "7 is prime, its torus would be a ring: give 6 or 8"),
        ("margulis", 10, "needs a perfect square: 9 or 16 workers, not 10"),
        ("edges(list=[[0,1],[2,3]])", 4, "worker 2 cannot be reached from worker 0"),
        ("edges(list=[])", 2, "worker 1 cannot be reached from worker 0"),
        ("edges(list=[[0,1,0.5],[1,1,0.4]])", 2, "(row 1) sum to 0.9, not to 1"),
        ("edges(list=[[0,1,0.5],[1,2,0.6]])", 3, "worker 1 keeps of its own value is"),
        ("edges(list=[[0,1,-0.5]])", 2, "edge 1, [0, 1, -0.5]: -0.5 is not a weight"),
        ("edges(list=[[0,1,0.5],[1,0,0.4]])", 2, "the same edge has weight 0.5"),
        ("edges(list=[[0,1,1]])", 2, "spectral gap 0"),
        (
            "edges(list=[[0,1],[1,0],[1,2]],directed=True)",
            3,
            "(column 1) sum to 1.33333",
        ),
        ("edges(list='01')", 2, "list holds edges such as [0, 1], not '01'"),
        ("file(path='/no/such')", 2, "cannot read /no/such: No such file"),
        ("ring | ring", 2, "a topology cannot be composed"),
    ],
)
def test_refusals_show_value_and_reason(spec: str, n: int, reason: str):
    message = refusal(spec, n)
    assert reason in message
    assert spec in message  # with the caret below


@pytest.mark.parametrize("n", [0, -3, 2.5, True, None])
def test_workers_are_a_whole_number_above_zero(n):
    with pytest.raises(ValueError, match=f"of 1 to 4096, not {n}"):
        topology("ring", n)
