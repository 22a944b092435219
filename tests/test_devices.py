"""Which devices a run gets: none of another kind, and equally many of each host."""

import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import jax
import pytest

from jaxcomp import parallel
from jaxcomp.core.errors import UserError
from jaxcomp.parallel import workers as devices


def of_processes(*counts):
    return [
        SimpleNamespace(process_index=index, number=number)
        for index, count in enumerate(counts)
        for number in range(count)
    ]


def test_equally_many_devices_of_each_process_are_taken_in_its_order():
    taken = devices.pick(of_processes(4, 4, 4), 6, 3)
    assert [(d.process_index, d.number) for d in taken] == [
        (process, number) for process in range(3) for number in range(2)
    ]


@pytest.mark.parametrize(
    ("counts", "workers", "says"),
    [
        ((4, 2), 6, "process 1 has 2 devices, and 6 workers on 2 processes need 3 of"),
        ((4, 4, 0), 12, "process 2 has 0 devices"),
        ((1, 4), 5, "process 0 has 1 devices, and 5 workers"),
    ],
)
def test_unequal_hosts_are_named(counts, workers, says):
    with pytest.raises(UserError) as error:
        devices.pick(of_processes(*counts), workers, len(counts))
    message = str(error.value)
    assert says in message
    for index, count in enumerate(counts):
        assert f"{index} has {count}" in message
    assert os.uname().nodename in message
    assert "CUDA_VISIBLE_DEVICES" in message


def test_another_platform_is_refused_and_the_right_one_is_not(monkeypatch):
    assert parallel.setup(4, platform="cpu").size == 4
    for mapper in parallel.MAPPERS:
        with pytest.raises(UserError, match="'gpu' is asked for, and jax found cpu"):
            parallel.setup(4, mapper, platform="gpu")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    devices.check_platform("gpu")
    with pytest.raises(UserError, match="'cpu' is asked for, and jax found gpu"):
        devices.check_platform("cpu")

    def fails():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(jax, "default_backend", fails)
    with pytest.raises(UserError, match="could not start: Unable to initialize"):
        devices.check_platform("gpu")


def test_deterministic_sets_the_flags_in_time_or_says_that_it_is_late(monkeypatch):
    flags = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    devices.use_deterministic_kernels()  # on a CPU nothing is needed
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=x"

    monkeypatch.setattr(devices, "has_started", lambda: False)
    for _ in range(2):
        devices.use_deterministic_kernels()
        assert os.environ["XLA_FLAGS"] == f"--xla_dump_to=x {flags}"

    monkeypatch.setattr(devices, "has_started", lambda: True)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    devices.use_deterministic_kernels()
    monkeypatch.setenv("XLA_FLAGS", "")
    with pytest.raises(UserError, match=rf"too late.*XLA_FLAGS='{flags}'"):
        devices.use_deterministic_kernels()
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4")
    with pytest.raises(UserError, match="XLA_FLAGS has --xla_gpu_autotune_level=4"):
        devices.use_deterministic_kernels()


def test_setup_gives_a_fresh_process_devices_threads_flags_and_platform():
    """XLA ends the process at a flag that it does not know."""
    program = """
        import os
        from jaxcomp import parallel
        from jaxcomp.parallel.workers import has_started
        assert not has_started()
        crew = parallel.setup(6, platform="cpu", deterministic=True)
        import jax
        assert has_started()
        assert int(os.environ["NPROC"]) >= 12, os.environ["NPROC"]
        assert "xla_gpu_deterministic_ops=true" in os.environ["XLA_FLAGS"]
        assert crew.size == jax.device_count() == 6
        step = parallel.map_step(
            lambda x: jax.lax.psum(x, "workers"), crew, in_axes=0, out_axes=0
        )
        x = parallel.place(jax.numpy.arange(6.0), crew, 0)
        for _ in range(200):  # queued, not waited for: this is what used to hang
            x = step(x) / 6
        print(float(parallel.to_host(x)[0]))
    """
    environment = {
        k: v for k, v in os.environ.items() if k not in ("NPROC", "XLA_FLAGS")
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(2.5)
