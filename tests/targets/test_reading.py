"""The reader of programs for accelerators, on short programs in the forms they have."""

import importlib.util

import pytest

from jaxcomp import UserError, wire
from jaxcomp.wire import targets
from jaxcomp.wire import targets as devices
from jaxcomp.wire.targets import GPUS

# A step on two GPUs: two kernels, a loop of three rounds, a loop of unknown length, a
# conditional, and a backward product that stands behind the start of the message.
GPU = """\
HloModule jit_step, is_scheduled=true, num_partitions=2, frontend_attributes={a="b"}

FileNames
1 "step.py"

%fused_sign (p: f32[1,8]) -> s8[8] {
  %p = f32[1,8]{1,0} parameter(0)
  ROOT %c = s8[8]{0} convert(%p)
}

%round (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %v = f32[8]{0} get-tuple-element(%s), index=1
  %next = s32[] fusion(%i), kind=kLoop, calls=%fused_sign
  %w = f32[8]{0} fusion(%v), kind=kLoop, calls=%fused_sign
  ROOT %t = (s32[], f32[8]{0}) tuple(%next, %w)
}

%goes_on (s: (s32[], f32[8])) -> pred[] {
  %s.1 = (s32[], f32[8]{0}) parameter(0)
  ROOT %less = pred[] fusion(%s.1), kind=kLoop, calls=%fused_sign
}

%little (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %one = f32[8]{0} copy(%a)
}

%much (b: f32[8]) -> f32[8] {
  %b = f32[8]{0} parameter(0)
  %first = f32[8]{0} copy(%b)
  ROOT %second = f32[8]{0} copy(%first)
}

ENTRY %main.0_spmd (x: f32[1,8]) -> f32[2,8] {
  %x = f32[1,8]{1,0} parameter(0), sharding={devices=[2,1]<=[2]}
  %z = s32[] constant(0)
  %sign = s8[8]{0} fusion(%x), kind=kLoop, calls=%fused_sign
  %row = s8[1,8]{1,0} bitcast(%sign)
  %start = (s8[1,8]{1,0}, s8[2,8]{1,0}) all-gather-start(%row), channel_id=1, \
replica_groups={}, dimensions={0}, use_global_device_ids=true, \
backend_config={"collective_backend_config":{"is_sync":false}}
  %conv = (f32[8]{0}, u8[0]{0}) custom-call(%x), \
custom_call_target="__cudnn$convBackwardFilter", \
metadata={op_name="jit(step)/shard_map/transpose(jvp(f))/conv_general_dilated"}
  %done = s8[2,8]{1,0} all-gather-done(%start)
  %begin = (s32[], f32[8]{0}) tuple(%z, %x)
  %three = (s32[], f32[8]{0}) while(%begin), condition=%goes_on, body=%round, \
backend_config={"known_trip_count":{"n":"3"}}
  %some = (s32[], f32[8]{0}) while(%three), condition=%goes_on, body=%round
  %v.1 = f32[8]{0} get-tuple-element(%some), index=1
  %either = f32[8]{0} conditional(%z, %v.1, %v.1), branch_computations={%little, %much}
  ROOT %sum = f32[2,8]{1,0} fusion(%done, %either), kind=kLoop, calls=%fused_sign
}
"""


def test_a_program_of_gpus_is_read():
    program = targets.read(GPU)
    # sign, conv, sum; three rounds of two; one of unknown length and what it asks;
    # the longer branch.
    assert program.launches == 3 + 3 * 2 + (2 + 1) + 2
    assert program.open_loops == ("some",)
    assert wire.collective_bytes(program.collectives) == {"all-gather": 8}
    assert program.collectives[0].groups == ((0, 1),)
    assert program.memory is None
    kinds = [event.kind for event in program.order]
    message = ["all-gather-start", "convolution", "all-gather-done"]
    assert kinds == ["other", *message, *["loop"] * 2, *["other"] * 4]
    assert targets.overlap(program.order) == targets.Overlap(behind=1, products=1)


TPU = """\
HloModule jit_step, is_scheduled=true, num_partitions=4

%fused_dot (a: f32[8,16], b: f32[16,128]) -> f32[8,128] {
  %a = f32[8,16]{1,0:T(8,128)} parameter(0)
  %b = f32[16,128]{1,0:T(8,128)} parameter(1)
  ROOT %d = f32[8,128]{1,0:T(8,128)S(1)} convolution(%a, %b), dim_labels=bf_io->bf, \
metadata={op_name="jit(step)/transpose(jvp(f))/dot_general"}
}

%wrapped (p: u32[1,100]) -> u32[4,100] {
  %p = u32[1,100]{1,0:T(1,128)} parameter(0)
  ROOT %g = u32[4,100]{1,0:T(4,128)} all-gather(u32[1,100]{1,0:T(1,128)} %p), \
channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
}

ENTRY %main (x: u32[1,100], y: f32[8,16], w: f32[16,128]) -> f32[8,128] {
  %x = u32[1,100]{1,0:T(1,128)} parameter(0)
  %y = f32[8,16]{1,0:T(8,128)(2,1)} parameter(1)
  %w = f32[16,128]{1,0:T(8,128)} parameter(2)
  %s = ((u32[1,100]{1,0:T(1,128)}), u32[4,100]{1,0:T(4,128)S(1)}, u32[]{:S(2)}) \
async-start(%x), calls=%wrapped
  %dot = f32[8,128]{1,0:T(8,128)S(1)} fusion(%y, %w), kind=kOutput, calls=%fused_dot, \
metadata={op_name="jit(step)/transpose(jvp(f))/dot_general"}
  %e = u32[4,100]{1,0:T(4,128)S(1)} async-done(%s), calls=%wrapped
  ROOT %r = f32[8,128]{1,0:T(8,128)} all-reduce(f32[8,128]{1,0:T(8,128)S(1)} %dot), \
channel_id=2, replica_groups=[1,4]<=[4], use_global_device_ids=true, to_apply=%add
}
"""


def test_a_program_of_tpus_is_read():
    program = targets.read(TPU)
    found = wire.collective_bytes(program.collectives)
    assert found == {"all-gather": 400, "all-reduce": 8 * 128 * 4}
    kinds = [event.kind for event in program.order]
    assert kinds == ["all-gather-start", "convolution", "all-gather-done", "all-reduce"]
    assert targets.overlap(program.order) == targets.Overlap(1, 1)
    assert (program.launches, program.open_loops) == (1, ())


def test_what_is_no_program_is_refused():
    with pytest.raises(wire.WireError, match="not the text of a compiled program"):
        targets.read("HloModule alone")


# --- Names and numbers --------------------------------------------------------------


@pytest.mark.parametrize("name", targets.NAMES)
def test_without_its_compiler_a_target_says_what_to_install(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda plugin: None)
    extra = "cuda12" if name in GPUS else "tpu"
    with pytest.raises(UserError, match=rf'pip install "jax\[{extra}\]==') as error:
        targets.make(name)
    assert repr(name) in str(error.value)


@pytest.mark.parametrize(("hosts", "chips"), [(1, 2), (3, 4), (64, 8)])
def test_chips_that_are_no_plane_are_refused(hosts, chips, monkeypatch):
    monkeypatch.setattr(devices, "missing", lambda name: "")
    with pytest.raises(UserError, match=f"{hosts} hosts of {chips} chips"):
        targets.make("v5e", hosts, chips)
