"""The reader of compiled programs, against programs whose traffic is known."""

import jax
import jax.numpy as jnp
import pytest

from jaxcomp import parallel, wire

WORKERS = 4


def compiled(step, *args, workers=WORKERS):
    crew = parallel.setup(workers, "shard_map")
    mapped = parallel.map_step(step, crew, in_axes=0, out_axes=0)
    stacked = jax.tree.map(lambda x: jnp.stack([x] * workers), args)
    return mapped.lower(*stacked).compile()


def gather(x):
    return jax.lax.all_gather(x, "workers")


STEPS = {
    "all-gather": (gather, 4 * 10),
    "all-reduce": (lambda x: jax.lax.psum(x, "workers"), 4 * 10),
    "reduce-scatter": (
        lambda x: jax.lax.psum_scatter(jnp.tile(x, 4), "workers", tiled=True),
        4 * 40,
    ),
    "all-to-all": (
        lambda x: jax.lax.all_to_all(jnp.tile(x, 4).reshape(4, 10), "workers", 0, 0),
        4 * 40,
    ),
    "collective-permute": (
        lambda x: jax.lax.ppermute(x, "workers", [(i, (i + 1) % 4) for i in range(4)]),
        4 * 10,
    ),
}


@pytest.mark.parametrize("kind", STEPS)
def test_each_kind_is_counted_by_its_operand(kind):
    step, nbytes = STEPS[kind]
    program = compiled(step, jnp.arange(10.0))
    assert wire.collective_bytes(program) == {kind: nbytes}
    assert wire.collective_bytes(program.as_text()) == {kind: nbytes}


@pytest.mark.parametrize("kind", STEPS)
def test_the_traced_figure_is_the_compiled_one(kind):
    step, nbytes = STEPS[kind]
    found = wire.traced_collectives(
        step, jnp.arange(10.0), axis="workers", workers=WORKERS
    )
    assert wire.collective_bytes(found) == {kind: nbytes}


@pytest.mark.parametrize("leaves", [1, 3, 12, 40])
def test_a_reduction_of_many_arrays_is_read_whole(leaves):
    # Long tuples carry /*index=5*/ comments in the program's text.
    tree = [jnp.arange(float(i + 1)) for i in range(leaves)]
    program = compiled(lambda t: jax.lax.psum(t, "workers"), tree)
    assert sum(wire.collective_bytes(program).values()) == wire.dense_bytes(tree)


def test_bytes_are_those_of_the_program_not_of_the_source():
    """On CPU a bf16 all-reduce travels as float32: the reader must say so."""
    program = compiled(lambda x: jax.lax.psum(x, "workers"), jnp.ones(10, jnp.bfloat16))
    [found] = wire.collectives(program)
    expected = {"f32": 40, "bf16": 20}
    line = next(
        text for text in program.as_text().splitlines() if " all-reduce(" in text
    )
    assert found.nbytes == expected[line.split(" = ")[1].split("[")[0].strip("(")]


def test_one_worker_sends_nothing():
    program = compiled(gather, jnp.ones(10), workers=1)
    assert wire.collective_bytes(program) == {}
    assert wire.traced_collectives(gather, jnp.ones(3), axis="workers", workers=1) == []


def test_a_loop_counts_each_round():
    def step(x):
        def body(carry, _):
            return jax.lax.psum(carry, "workers"), None

        return jax.lax.scan(body, x, None, length=7)[0]

    x = jnp.ones(10)
    program = compiled(step, x)
    assert wire.collective_bytes(program) == {"all-reduce": 7 * 40}
    found = wire.traced_collectives(step, x, axis="workers", workers=WORKERS)
    assert wire.collective_bytes(found) == {"all-reduce": 7 * 40}


def test_a_loop_of_unknown_length_is_an_error():
    def step(x):
        return jax.lax.while_loop(
            lambda y: jnp.max(y) < 100, lambda y: jax.lax.psum(y, "workers"), x
        )

    with pytest.raises(wire.WireError, match="unknown length"):
        wire.collective_bytes(compiled(step, jnp.ones(10)))
    with pytest.raises(wire.WireError, match="unknown length"):
        wire.traced_collectives(step, jnp.ones(10), axis="workers", workers=WORKERS)


def test_groups_are_read_in_both_notations():
    def step(x):
        return jax.lax.psum(x, "workers", axis_index_groups=[[0, 1], [2, 3]])

    [found] = wire.collectives(compiled(step, jnp.ones(10)))
    assert (found.workers, found.nbytes) == (2, 40)
    iota = (
        "ENTRY %main {\n"
        "  %x = f32[10]{0} parameter(0)\n"
        "  ROOT %r = f32[10]{0} all-reduce(%x), replica_groups=[2,4]<=[8]\n"
        "}"
    )
    assert wire.collectives(iota) == [wire.Collective("all-reduce", 40, 4)]


def test_asynchronous_collectives_count_once():
    text = (
        "ENTRY %main {\n"
        "  %x = u8[16]{0} parameter(0)\n"
        "  %s = (u8[16]{0}, u8[32]{0}) all-gather-start(%x), replica_groups={{0,1}}\n"
        "  ROOT %d = u8[32]{0} all-gather-done(%s)\n"
        "}"
    )
    assert wire.collective_bytes(text) == {"all-gather": 16}


def test_ring_figures_by_hand():
    found = [
        wire.Collective("all-reduce", 100, 4),
        wire.Collective("all-gather", 100, 4),
        wire.Collective("reduce-scatter", 100, 4),
        wire.Collective("collective-permute", 100, 4, times=2),
    ]
    assert wire.link_bytes(found) == pytest.approx(150 + 300 + 75 + 200)
