"""The reader of compiled programs, against programs whose traffic is known."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomp import parallel, wire
from jaxcomp.wire import traced

WORKERS = 4


def compiled(step, *args, workers=WORKERS, mapper="shard_map"):
    crew = parallel.setup(workers, mapper)
    mapped = parallel.map_step(step, crew, in_axes=0, out_axes=0)
    stacked = jax.tree.map(lambda x: jnp.stack([x] * workers), args)
    return mapped.lower(*stacked).compile()


def text(*lines, header=""):
    """A program whose entry holds the lines, and `%x` of 40 bytes."""
    body = "\n".join(f"  {line}" for line in ("%x = f32[10]{0} parameter(0)", *lines))
    return f"HloModule main, is_scheduled=true{header}\n\nENTRY %main {{\n{body}\n}}\n"


def reduction(groups, devices=8):
    """An all-reduce of 40 bytes between groups of devices."""
    return text(
        f"%r = f32[10]{{0}} all-reduce(%x), channel_id=1, replica_groups={groups}, "
        "use_global_device_ids=true, to_apply=%add",
        header=f", num_partitions={devices}",
    )


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


@pytest.mark.parametrize("mapper", ["shard_map", "pmap"])
@pytest.mark.parametrize("kind", STEPS)
def test_each_kind_is_counted_by_its_operand(kind, mapper):
    step, nbytes = STEPS[kind]
    program = compiled(step, jnp.arange(10.0), mapper=mapper)
    assert wire.collective_bytes(program) == {kind: nbytes}
    assert wire.collective_bytes(program.as_text()) == {kind: nbytes}
    x = jnp.arange(10.0)
    traced = wire.traced_collectives(step, x, axis="workers", workers=WORKERS)
    assert traced == wire.collectives(program)


def test_a_reduction_of_many_arrays_is_read_whole():
    # Long tuples carry /*index=5*/ comments in the program's text.
    tree = [jnp.arange(float(i + 1)) for i in range(12)]
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


# --- Who talks with whom ----------------------------------------------------------

NOTATIONS = {
    "{{0,2},{1,3}}": ((0, 2), (1, 3)),
    "{{0,1,2},{3}}": ((0, 1, 2), (3,)),
    "[2,4]<=[8]": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "[2,2]<=[2,2]T(1,0)": ((0, 2), (1, 3)),
    "[2,4]<=[2,2,2]T(1,0,2)": ((0, 1, 4, 5), (2, 3, 6, 7)),
    "mesh['axis_0'=4] {'axis_0'}": ((0, 1, 2, 3),),
    "mesh['axis_0'=4,'axis_1'=1] {'axis_0'}": ((0, 1, 2, 3),),
    "mesh['axis_0'=4,'axis_1'=1] {'axis_0','axis_1'}": ((0, 1, 2, 3),),
    "mesh['axis_0'=2,'axis_1'=2] {'axis_0'}": ((0, 2), (1, 3)),
    "mesh['a'=2,'b'=2,'c'=2] {'c','a'}": ((0, 4, 1, 5), (2, 6, 3, 7)),
    "mesh['a'=8] {'a':(2)2}": ((0, 2), (1, 3), (4, 6), (5, 7)),
    "mesh['a'=8] {'a':(1)2,'a':(4)2}": ((0, 1, 4, 5), (2, 3, 6, 7)),
    "mesh['x y'=2,'b'=2], device_ids=([2,2]T(1,0)) {'x y'}": ((0, 1), (2, 3)),
    "mesh['a'=4], device_ids=(3,0,2,1) {'a':(1)2}": ((3, 2), (0, 1)),
}


@pytest.mark.parametrize("notation", NOTATIONS)
def test_groups_are_read_in_every_notation(notation):
    groups = NOTATIONS[notation]
    [found] = wire.collectives(reduction(notation))
    assert found.groups == groups
    assert (found.nbytes, found.workers) == (40, max(map(len, groups)))


@pytest.mark.parametrize(
    ("line", "header", "groups"),
    [
        # Empty groups are all replicas, or all partitions where there is a channel.
        ("all-reduce(%x), replica_groups={}", ", replica_count=4", [(0, 1, 2, 3)]),
        (
            "all-to-all(%x), channel_id=1, replica_groups={}",
            ", num_partitions=4",
            [(0, 1, 2, 3)],
        ),
        # Replicas in every partition, and replicas with all of their partitions.
        (
            "all-reduce(%x), replica_groups={{0,1}}",
            ", replica_count=2, num_partitions=2",
            [(0, 2), (1, 3)],
        ),
        (
            "all-reduce(%x), channel_id=1, replica_groups={{0},{1}}",
            ", replica_count=2, num_partitions=2",
            [(0, 1), (2, 3)],
        ),
        (
            "collective-permute(%x), channel_id=1, source_target_pairs={{0,1},{1,0}}",
            ", replica_count=2, num_partitions=2",
            [(0, 1), (2, 3), (1, 0), (3, 2)],
        ),
        (
            "collective-permute(%x), source_target_pairs={{0,0},{1,2}}",
            ", replica_count=4",
            [(0, 0), (1, 2)],
        ),
        # Groups of one send nothing, and empty pairs are nobody.
        ("collective-permute(%x), source_target_pairs={}", ", replica_count=4", None),
        *(
            (f"all-reduce(%x), replica_groups={alone}", ", replica_count=2", None)
            for alone in ("{{0},{1}}", "[2,1]<=[2]", "mesh['a'=1] {'a'}")
        ),
    ],
)
def test_groups_are_of_replicas_or_of_partitions(line, header, groups):
    found = wire.collectives(text(f"ROOT %r = f32[10]{{0}} {line}", header=header))
    expected = [(tuple(groups), 40)] if groups else []
    assert [(one.groups, one.nbytes) for one in found] == expected


@pytest.mark.parametrize("lonely_first", [True, False])
@pytest.mark.parametrize("mapper", ["shard_map", "pmap"])
def test_groups_of_a_part_of_the_workers(mapper, lonely_first):
    """The figure is that of the busiest, wherever its group stands."""
    groups = [[3], [0, 1, 2]] if lonely_first else [[0, 1, 2], [3]]

    def step(x):
        return jax.lax.psum(x, "workers", axis_index_groups=groups)

    program = compiled(step, jnp.arange(10.0), mapper=mapper)
    assert wire.collective_bytes(program) == {"all-reduce": 40}
    [found] = wire.collectives(program)
    assert (found.workers, set(found.groups)) == (3, {(3,), (0, 1, 2)})


# --- Programs of jit, and the axes of a mesh --------------------------------------


@functools.cache
def mesh_of(**sizes):
    shape = tuple(sizes.values())
    devices = np.array(jax.devices()[: np.prod(shape)])
    return Mesh(devices.reshape(shape), tuple(sizes))


def jitted_gradient(mesh, param_spec, batch_spec):
    """A layer's gradient, as jit and NamedSharding make it: nobody names a collective.

    The gradient of the (16, 8) weights is 512 bytes.
    """

    def loss(weights, inputs):
        return jnp.mean(jnp.tanh(inputs @ weights) ** 2)

    weights = jax.device_put(jnp.ones((16, 8)), NamedSharding(mesh, param_spec))
    inputs = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, batch_spec))
    step = jax.jit(jax.grad(loss), out_shardings=weights.sharding)
    return step.lower(weights, inputs).compile()


@pytest.mark.parametrize(
    ("mesh", "param_spec", "batch_spec", "expected"),
    [
        ({"data": 4}, P(), P("data"), {"data": {"all-reduce": 512}}),
        (
            {"data": 2, "model": 2},
            P(None, "model"),
            P("data"),
            {"data": {"all-reduce": 256}},
        ),
        (
            {"data": 2, "model": 2, "fsdp": 2},
            P(None, "model"),
            P(("data", "fsdp")),
            {("data", "fsdp"): {"all-reduce": 256}},
        ),
    ],
)
def test_programs_of_jit_by_axis(mesh, param_spec, batch_spec, expected):
    built = mesh_of(**mesh)
    program = jitted_gradient(built, param_spec, batch_spec)
    assert wire.collective_bytes(program, by_axis=built) == expected
    [of_axes] = expected.values()
    assert wire.collective_bytes(program) == of_axes


def both_axes(x):
    """One exchange of each kind, along one axis or both; x has 16 bytes."""
    parts = [
        jax.lax.psum(x, "data"),
        jax.lax.psum(x, ("data", "model")),
        jax.lax.all_gather(x, "model", tiled=True)[:4],
        jax.lax.all_to_all(x, "model", 0, 0, tiled=True),
        jax.lax.ppermute(x, "data", [(0, 1)]),
        jax.lax.psum(jnp.tile(x, 2), "model", axis_index_groups=[[0, 1], [2, 3]])[:4],
    ]
    return sum(parts)


def test_explicit_collectives_by_axis():
    mesh = mesh_of(data=2, model=4)
    specs = {"in_specs": P(("data", "model")), "out_specs": P(), "check_vma": False}
    mapped = jax.jit(jax.shard_map(both_axes, mesh=mesh, **specs))
    program = mapped.lower(jnp.arange(32.0)).compile()
    assert wire.collective_bytes(program, by_axis=mesh) == {
        "data": {"all-reduce": 16, "collective-permute": 16},
        ("data", "model"): {"all-reduce": 16},
        "model": {"all-gather": 16, "all-to-all": 16, "all-reduce": 32},
    }


@pytest.mark.parametrize("sizes", [(2, 2), (4, 4)])
def test_another_mesh_is_refused(sizes):
    mesh = AbstractMesh(sizes, ("data", "model"))
    with pytest.raises(ValueError, match="compiled for") as error:
        wire.collective_bytes(reduction("[2,4]<=[8]"), by_axis=mesh)
    assert str(dict(mesh.shape)) in str(error.value)


# --- Asynchronous forms -----------------------------------------------------------

WRAPPED = """
%wrapped (p: f32[10]) -> f32[20] {
  %p = f32[10]{0} parameter(0)
  ROOT %g = f32[20]{0} all-gather(%p), channel_id=1, replica_groups={{0,1}}, \
use_global_device_ids=true
}
"""
ASYNCHRONOUS = {
    "a start of its own": [
        "%s = (f32[10]{0}, f32[20]{0}) all-gather-start(%x), replica_groups={{0,1}}",
        "ROOT %d = f32[20]{0} all-gather-done(%s)",
    ],
    "any operation with -start": [
        "%s = ((f32[10]{0}), f32[20]{0}, u32[]{:S(2)}) all-gather-start(%x), "
        "replica_groups={{0,1}}",
        "%u = ((f32[10]{0}), f32[20]{0}, u32[]{:S(2)}) all-gather-update(%s)",
        "ROOT %d = f32[20]{0} all-gather-done(%u)",
    ],
    "a wrapped computation": [
        "%s = ((f32[10]{0}), f32[20]{0}, u32[]) async-start(%x), calls=%wrapped",
        "ROOT %d = f32[20]{0} async-done(%s)",
    ],
    "a wrapped computation that is named at both ends": [
        "%s = ((f32[10]{0}), f32[20]{0}, u32[]) async-start(%x), calls=%wrapped",
        "ROOT %d = f32[20]{0} async-done(%s), calls=%wrapped",
    ],
}


@pytest.mark.parametrize("form", ASYNCHRONOUS)
def test_asynchronous_collectives_count_once(form):
    program = text(*ASYNCHRONOUS[form], header=", num_partitions=2") + WRAPPED
    if "wrapped" not in form:
        program = text(*ASYNCHRONOUS[form], header=", replica_count=2")
    assert wire.collective_bytes(program) == {"all-gather": 40}


TWO = "replica_groups={{0,1}}"
OPERANDS = {
    # Tensors of a reduction are counted, which Gloo takes one by one; the operands of
    # others are parts of one message.
    f"(f32[10]{{0}}, f32[10]{{0}}) all-reduce(%x, %x), {TWO}": (80, 2),
    f"(f32[10]{{0}}, f32[10]{{0}}) all-to-all(%x, %x), {TWO}": (80, 1),
    # With their shapes, which then need no line of their own.
    f"(f32[10]{{0}}, s4[3]{{0}}) all-reduce(f32[10]{{0:T(128)S(1)}} %x, s4[3]{{0}} %y)"
    f", {TWO}": (42, 2),
    # Of a ragged exchange where the rows go to and how many there are do not count.
    f"f32[10]{{0}} ragged-all-to-all(%x, s32[2] %n, s32[2] %n), {TWO}": (40, 1),
}


@pytest.mark.parametrize("line", OPERANDS)
def test_operands_that_are_counted(line):
    [found] = wire.collectives(text(f"ROOT %r = {line}", header=", replica_count=2"))
    assert (found.nbytes, found.tensors) == OPERANDS[line]


# --- What cannot be read ----------------------------------------------------------

UNREADABLE = {
    "a new notation": "all-reduce(%x), replica_groups=torus<4>",
    "a mesh without the axis": "all-reduce(%x), replica_groups=mesh['a'=4] {'b'}",
    "groups that do not divide": "all-reduce(%x), replica_groups=[3,2]<=[4]",
    "no groups": "all-reduce(%x), channel_id=1",
    "a dynamic shape": "all-reduce(f32[<=10] %y), replica_groups={{0,1}}",
    "a type without a width": "all-reduce(float[10] %y), replica_groups={{0,1}}",
    "an operand from nowhere": "all-reduce(%y), replica_groups={{0,1}}",
    "no operand": "all-reduce(), replica_groups={{0,1}}",
    "a new kind": "all-shuffle(%x), replica_groups={{0,1}}",
    "a message by hand": "send(%x, %t), frontend_attributes="
    "{_xla_send_recv_source_target_pairs={{0,1}}}",
}


@pytest.mark.parametrize("why", UNREADABLE)
def test_what_cannot_be_read_is_an_error_with_its_line(why):
    line = f"%r = f32[10]{{0}} {UNREADABLE[why]}"
    with pytest.raises(wire.WireError, match="cannot read") as error:
        wire.collective_bytes(text(f'{line}, metadata={{op_name="psum"}}'))
    assert line in str(error.value)


def test_what_is_no_whole_program_is_refused():
    with pytest.raises(wire.WireError, match="nothing that is known runs wrapped"):
        wire.collectives(text("ROOT %c = f32[20]{0} call(%x), runs=%wrapped") + WRAPPED)
    with pytest.raises(wire.WireError, match=r"lower\(\.\.\.\)\.compile\(\)"):
        wire.collective_bytes(jax.jit(jnp.sin).lower(jnp.ones(3)))


def test_an_unknown_exchange_is_not_left_out_of_a_trace(monkeypatch):
    monkeypatch.delitem(traced._PRIMITIVES, "all_gather")
    with pytest.raises(wire.WireError, match="cannot read") as error:
        wire.traced_collectives(gather, jnp.ones(3), axis="workers", workers=4)
    assert "all_gather[" in str(error.value)


@pytest.mark.parametrize(
    ("axes", "expected"),
    [("members", {}), (("workers", "members"), {"all-reduce": 8})],
)
def test_members_of_an_ensemble_are_no_workers(axes, expected):
    """A sum over them is taken before anything is sent."""

    def step(x):
        return jax.vmap(lambda y: jax.lax.psum(y, axes), axis_name="members")(x)

    x = jnp.ones((3, 2))
    found = wire.traced_collectives(step, x, axis="workers", workers=WORKERS)
    assert wire.collective_bytes(found) == expected
    assert wire.collective_bytes(compiled(step, x)) == expected


# --- Rings ------------------------------------------------------------------------


def test_ring_figures_by_hand():
    found = [
        wire.Collective("all-reduce", 100, 4),
        wire.Collective("all-gather", 100, 4),
        wire.Collective("reduce-scatter", 100, 4),
        wire.Collective("all-to-all", 100, 4),
        wire.Collective("collective-permute", 100, 4, times=2),
        wire.Collective("collective-broadcast", 100, 4),
    ]
    assert wire.link_bytes(found) == pytest.approx(150 + 300 + 75 + 75 + 200 + 100)


def test_programs_of_equinox_are_read_and_functions_are_not_taken_for_programs():
    def total(x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, "workers")

    mesh = jax.sharding.Mesh(jax.devices()[:2], "workers")
    mapped = jax.shard_map(total, mesh=mesh, in_specs=P("workers"), out_specs=P())
    jitted: Any = eqx.filter_jit(mapped)
    program = jitted.lower(jnp.ones(2)).compile()
    assert wire.collective_bytes(program) == {"all-reduce": 4}
    with pytest.raises(wire.WireError, match=r"lower\(\*args\)\.compile\(\)"):
        wire.collective_bytes(jax.jit(total))
