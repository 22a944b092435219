"""`save` and `restore` in anybody's loop: every worker's part, to the bit."""

import functools
import json
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

import flax.jax_utils
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax.training.train_state import TrainState
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomp
from jaxcomp import parallel
from jaxcomp.core import files
from jaxcomp.core.files import CheckpointError
from jaxcomp.core.types import Info, PerWorker
from tests.tiers import tiers
from tests.training.small import assert_same_state, unreported
from tests.training.test_processes import free_port

WORKERS = 4
DEVICES = np.array(jax.devices()[:WORKERS])
RNG = np.random.default_rng(0)
INPUTS = jnp.asarray(RNG.normal(size=(WORKERS, 8, 6)), jnp.float32)
EXCHANGE = jaxcomp.make_exchange(compressor="top_k(keep=0.3)")


def loss_of(params, x):
    return jnp.mean(jnp.square(x @ params["w"] - params["b"]))


def fresh_params():
    return {"w": jnp.ones((6, 2)), "b": jnp.zeros((1, 2))}


def sgd():
    """With a counter and a momentum."""
    return optax.sgd(optax.constant_schedule(0.1), momentum=0.9)


def same(a, b):
    """Bits, kinds and places."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert type(x) is type(y)
        if isinstance(x, jax.Array):
            assert (x.sharding, x.committed) == (y.sharding, y.committed)
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                assert x.dtype == y.dtype
                x, y = jax.random.key_data(x), jax.random.key_data(y)
            assert x.weak_type == y.weak_type
        assert np.asarray(x).dtype == np.asarray(y).dtype
        assert np.asarray(x).shape == np.asarray(y).shape
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


# --- Loops ----------------------------------------------------------------------------


class Loop(NamedTuple):
    """A style of training: how a state is made, and a step of it."""

    fresh: Any
    step: Any


class State(TrainState):
    """Flax's, with one more field."""

    comm: jaxcomp.DistributedState


@functools.cache
def flax_state():
    mean = jaxcomp.pmean(EXCHANGE, seed=0)
    params, tx = fresh_params(), sgd()
    return State.create(apply_fn=None, params=params, tx=tx, comm=mean.init(params))


def flax_step(state, x):
    grads = jax.grad(loss_of)(state.params, x)
    grads, comm = jaxcomp.pmean(EXCHANGE, seed=0)(grads, state.comm)
    return state.apply_gradients(grads=grads, comm=comm)


def marked(mapper):
    """State crosses the border by its marks."""
    crew = parallel.setup(WORKERS, mapper)
    state = flax_state()
    axes = parallel.axes(state)
    step = parallel.map_step(flax_step, crew, in_axes=(axes, 0), out_axes=axes)
    return Loop(
        lambda: parallel.spread(state, crew),
        lambda state: step(state, parallel.place(INPUTS, crew, 0)),
    )


def replicated():
    """As in flax's examples: all of it has a leading axis."""
    step = jax.pmap(flax_step, "workers", devices=list(DEVICES))
    return Loop(
        lambda: flax.jax_utils.replicate(flax_state(), list(DEVICES)),
        lambda state: step(state, INPUTS),
    )


def under_jit():
    """Global arrays and a model that is cut; counters are where jax put them."""
    mesh = Mesh(DEVICES.reshape(2, 2), ("data", "model"))
    exchange = jaxcomp.make_exchange(compressor="top_k(keep=0.3)", axis="data")
    dp, tx = jaxcomp.data_parallel(exchange, mesh), sgd()
    cut = {"w": NamedSharding(mesh, P("model")), "b": NamedSharding(mesh, P())}
    batch = jax.device_put(INPUTS.reshape(-1, 6), NamedSharding(mesh, P("data")))

    def fresh():
        params = jax.device_put(fresh_params(), cut)
        return params, tx.init(params), dp.init(params)

    @jax.jit
    def step(state):
        params, opt_state, comm = state
        _, grads, comm = dp.value_and_grad(loss_of)(comm, params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, comm

    return Loop(fresh, step)


LOOPS = {
    "pmap": functools.partial(marked, "pmap"),
    "shard_map": functools.partial(marked, "shard_map"),
    "vmap": functools.partial(marked, "vmap"),
    "replicated": replicated,
    "jit": under_jit,
}


@pytest.mark.parametrize(
    "style", tiers(LOOPS, ("pmap", "replicated", "jit").__contains__)
)
def test_a_run_goes_on_as_if_nothing_had_happened(style, tmp_path):
    """In a new process there is nothing but the freshly built state."""
    loop = LOOPS[style]()
    state = loop.step(loop.step(loop.fresh()))
    jaxcomp.save(tmp_path / "run", state)
    again = jaxcomp.restore(tmp_path / "run", loop.fresh())
    assert_same_state(state, again)
    assert [x.sharding for x in jax.tree.leaves(again)] == [
        x.sharding for x in jax.tree.leaves(loop.fresh())
    ]
    same(loop.step(again), loop.step(state))
    for link in jaxcomp.find_states(again):
        for kept in jax.tree.leaves(link.exchange.residual):
            assert len(np.unique(kept, axis=0)) > 1, "each worker has its own"


def test_what_would_lose_a_residual_is_refused(tmp_path):
    loop = LOOPS["replicated"]()
    state = loop.step(loop.fresh())
    one = flax.jax_utils.unreplicate(state)
    with pytest.raises(ValueError, match=r"comm holds one worker's part.*unreplicate"):
        jaxcomp.save(tmp_path, one)
    assert not list(tmp_path.iterdir())
    jaxcomp.save(tmp_path, one, allow=True)
    same(*map(unreported, (jaxcomp.restore(tmp_path, one), one)))


# --- Leaves ---------------------------------------------------------------------------

MESH = Mesh(DEVICES, ("w",))
ON_ALL, CUT = NamedSharding(MESH, P()), NamedSharding(MESH, P("w"))
EXPLICIT = Mesh(DEVICES, ("w",), axis_types=(AxisType.Explicit,))


def every_kind(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(WORKERS, 3)).astype(np.float32)
    keys = jax.random.split(jax.random.key(seed), WORKERS)
    return {
        "bare": jnp.asarray(numbers),
        "pinned": jax.device_put(numbers, DEVICES[1]),
        "cut": jax.device_put(numbers, CUT),
        "explicit": jax.device_put(numbers, NamedSharding(EXPLICIT, P("w"))),
        "own": PerWorker({"x": jax.device_put(numbers, CUT), "none": None}),
        "odd values": jnp.array([seed, -0.0, jnp.nan, jnp.inf, 1e-45]),
        "weak": jnp.asarray(float(seed)),
        "weak and placed": jax.device_put(jnp.asarray(seed), ON_ALL),
        "none": None,
        "masked": optax.MaskedNode(),
        "nothing": (),
        "empty": jnp.zeros((0, 3), jnp.bfloat16),
        "empty, cut": jax.device_put(jnp.zeros((WORKERS, 0)), CUT),
        "empty of numpy": np.zeros((2, 0)),
        "int4": jax.device_put(jnp.arange(-8, 8, dtype=jnp.int4), CUT),
        "float8": jnp.asarray(numbers).astype(jnp.float8_e4m3fn),
        "float8 of numpy": np.asarray(jnp.asarray(numbers).astype(jnp.float8_e4m3fn)),
        "key": jax.random.key(seed),
        "other key": jax.random.key(seed, impl="rbg"),
        "keys": keys,
        "keys, cut": jax.device_put(keys, CUT),
        "no keys": keys[:0],
        "old key": jax.random.PRNGKey(seed),
        "numpy": rng.normal(size=5),
        "numpy, turned": np.asfortranarray(numbers),
        "numpy, big-endian": numbers.astype(">f4"),
        "numpy, bfloat16": numbers.astype(ml_dtypes.bfloat16),
        "numpy without axes": np.array(seed, np.int64),
        "numpy's number": np.float32(seed / 3),
        "numpy's double": np.float64(seed / 3),
        "numpy's bool": np.bool_(seed),
        "int": 2**40 + seed,
        "float": seed / 3,
        "bool": bool(seed),
        "complex": complex(seed, 1),
        "mlp/~/linear_0": {"w": jnp.ones(2) * seed},  # haiku's names
        "a": {"b": jnp.ones(2) * seed},
        "a/b": jnp.zeros(2) + seed,
        "../ü\n": [jnp.ones(2) * seed],
        "by number": {7: jnp.ones(2) * seed},
    }


def test_every_kind_of_leaf_comes_back_as_what_it_was(tmp_path):
    state, other = every_kind(3), every_kind(0)
    jaxcomp.save(tmp_path, state)
    same(jaxcomp.restore(tmp_path, other), state)
    specs = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
        if name in ("cut", "keys, cut", "empty, cut")
        else x
        for name, x in other.items()
    }
    same(jaxcomp.restore(tmp_path, specs), state)


@pytest.mark.parametrize(
    "leaf",
    [
        *(jnp.ones(2, jnp.uint4), np.array("word"), np.array([None]), 2**70),
        *("a word", print, jnp.float32, jax.ShapeDtypeStruct((2,), jnp.int8)),
    ],
    ids=repr,
)
def test_what_cannot_be_written_is_named(leaf, tmp_path):
    with pytest.raises(CheckpointError, match="layers.0.odd is"):
        jaxcomp.save(tmp_path / "new", {"layers": [{"odd": leaf, "w": jnp.ones(2)}]})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "before", [0, 7, 1.5, True, jnp.uint32(3 * 10**9), jnp.int32(3), jnp.bfloat16(0.5)]
)
def test_a_number_and_an_array_of_its_kind_stand_for_each_other(before, tmp_path):
    """Flax counts steps from Python's 0, and has an array after the first."""
    array = jax.device_put(np.asarray(before).astype(jnp.asarray(before).dtype), ON_ALL)
    number = type(array.item())()
    for saved, like in [(before, jnp.zeros_like(array)), (array, number)]:
        jaxcomp.save(tmp_path, {"x": saved})
        got = jaxcomp.restore(tmp_path, {"x": like})["x"]
        assert type(got) is type(like)
        np.testing.assert_array_equal(got, before)
        assert getattr(got, "sharding", None) == getattr(like, "sharding", None)


@pytest.mark.parametrize(
    ("saved", "like", "message"),
    [
        (0.1, jnp.float32(0), "x: checkpoint float64 0.1, which float32"),
        (2**40, np.int32(0), "x: checkpoint int64 1099511627776, which int32"),
        (3 * 10**9, jnp.int32(0), "x: checkpoint int64 3000000000, which int32"),
        (1.0, 0, r"x: checkpoint float64\[\], this run int64\[\]"),
        (1, jnp.zeros(1), r"x: checkpoint int64\[\], this run float32\[1\]"),
        (jnp.ones(2), jnp.ones(3), r"float32\[2\], this run float32\[3\]"),
        (jnp.ones(2), jnp.ones(2, jnp.int32), r"float32\[2\], this run int32\[2\]"),
        (jnp.ones(2), None, "only in the checkpoint: x$"),
        (None, jnp.ones(2), "only in this run: x$"),
        (jnp.ones((0, 2)), jnp.ones((0, 3)), r"only in this run: x: float32\[0, 3\]"),
        (jax.random.key(0), jax.random.PRNGKey(0), r"only in the .*: x: key<fry>"),
        (jax.random.key(0), jax.random.key(0, impl="rbg"), "this run: x: key<rbg>"),
        (jnp.ones(2), jax.ShapeDtypeStruct((2,), "float32"), "where x is to live"),
    ],
)
def test_another_state_is_named_leaf_by_leaf(saved, like, message, tmp_path):
    jaxcomp.save(tmp_path, {"x": saved, "y": jnp.ones(2)})
    with pytest.raises(CheckpointError, match=message):
        jaxcomp.restore(tmp_path, {"x": like, "y": jnp.ones(2)})


def test_an_array_goes_where_the_new_one_is(tmp_path):
    """Devices may be others than they were, as long as the shape is the same."""
    x = jnp.arange(8.0)
    jaxcomp.save(tmp_path, jax.device_put(x, CUT))
    for sharding in (ON_ALL, NamedSharding(Mesh(DEVICES[2:], "m"), P("m"))):
        got = jaxcomp.restore(tmp_path, jax.device_put(x * 0, sharding))
        same(got, jax.device_put(x, sharding))


# --- What is reported, and formats ----------------------------------------------------


def reporting(value, **figures):
    """A state with a report in it."""
    x = jnp.full(2, value, jnp.float32)
    report = Info(x, x, x, figures, np.bool_(value), given_norm=x)
    return {"kept": jnp.arange(3.0) * value, "info": PerWorker(report)}


def test_a_new_figure_makes_no_state_another(tmp_path):
    """What is reported is 0 again."""
    jaxcomp.save(tmp_path, reporting(2, overflow=3.0))
    like = reporting(1, late=jnp.ones((2, 3)), again=7, other=np.float32(1))
    got = jaxcomp.restore(tmp_path, like)
    np.testing.assert_array_equal(got["kept"], [0, 2, 4])
    zero = reporting(0, late=jnp.zeros((2, 3)), again=0, other=np.float32(0))
    same(got["info"], zero["info"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": None}, r"manifest\.json is cut off, or not one"),
        ({"files": None}, r"manifest\.json is cut off, or not one"),
        ({"format": 3}, r"format 3; .* up to 2. Update jaxcomp"),
    ],
)
def test_manifests_of_others_are_refused(change, message, tmp_path):
    jaxcomp.save(tmp_path, of(1))
    manifest = json.loads((tmp_path / files.MANIFEST).read_text()) | change
    kept = {name: x for name, x in manifest.items() if x is not None}
    (tmp_path / files.MANIFEST).write_text(json.dumps(kept))
    with pytest.raises(CheckpointError, match=message):
        jaxcomp.restore(tmp_path, of(0))


# --- Whole, or not at all -------------------------------------------------------------


class Killed(BaseException):
    """As if the process ended here."""


def kill(*args: Any, **options: Any) -> None:
    raise Killed


def begin_to_write(self, folder, *args, **options):
    (folder.parent / f"{folder.name}.orbax-checkpoint-tmp" / "d").mkdir(parents=True)
    raise Killed


def begin_to_remove(folder):
    (folder / "_METADATA").unlink()
    raise Killed


WRITE = files.write_manifest
BEFORE = {
    "while orbax writes": (ocp.StandardCheckpointer, "save", begin_to_write),
    "before the manifest": (files, "write_atomically", kill),
    "in the manifest": ("os.replace", kill),
}
AFTER = {
    "after the manifest": (files, "write_manifest", lambda *x: (WRITE(*x), kill())),
    "while the old one is removed": (shutil, "rmtree", begin_to_remove),
}


def save_and_die(at, folder, state):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*(BEFORE | AFTER)[at])
        with pytest.raises(Killed):
            jaxcomp.save(folder, state)


def of(seed):
    return {"x": jax.device_put(jnp.arange(8.0) + seed, CUT), "step": seed}


@pytest.mark.parametrize("at", [*BEFORE, *AFTER])
def test_a_kill_leaves_the_old_checkpoint_or_the_new_one(at, tmp_path):
    for seed in (1, 2, 3):
        jaxcomp.save(tmp_path, of(seed))
    save_and_die(at, tmp_path, of(4))
    newest = 4 if at in AFTER else 3
    same(jaxcomp.restore(tmp_path, of(0)), of(newest))
    jaxcomp.save(tmp_path, of(5))
    same(jaxcomp.restore(tmp_path, of(0)), of(5))
    assert len(list(tmp_path.iterdir())) == 2, "arrays and a manifest, nothing else"


@pytest.mark.parametrize("at", BEFORE)
def test_a_first_save_that_is_killed_leaves_nothing(at, tmp_path):
    """A loop that begins anew where there is nothing goes on by itself."""
    save_and_die(at, tmp_path / "run", of(1))
    with pytest.raises(FileNotFoundError, match="none that was finished"):
        jaxcomp.restore(tmp_path / "run", of(0))
    jaxcomp.save(tmp_path / "run", of(2))
    same(jaxcomp.restore(tmp_path / "run", of(0)), of(2))


def data_file(folder):
    """The largest file of the arrays."""
    found = [p for p in folder.rglob("*") if p.is_file() and p.name != files.MANIFEST]
    return max(found, key=lambda p: p.stat().st_size)


def flip(folder):
    path = data_file(folder)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut(folder):
    path = data_file(folder)
    path.write_bytes(path.read_bytes()[:-1])


DAMAGE = {
    "has changed": flip,
    "has changed since": cut,
    "is missing": lambda folder: data_file(folder).unlink(),
    "arrays.* is missing": lambda folder: shutil.rmtree(folder / "arrays"),
    "is cut off": lambda folder: (folder / files.MANIFEST).write_text('{"a'),
    "not one of jaxcomp's": lambda folder: (folder / files.MANIFEST).write_text("[]"),
    "did not write it": lambda folder: files.write_manifest(folder, [], 2),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_named(message, tmp_path):
    jaxcomp.save(tmp_path, of(1))
    DAMAGE[message](tmp_path)
    with pytest.raises(CheckpointError, match=f"{tmp_path} .*{message}"):
        jaxcomp.restore(tmp_path, of(0))


@pytest.mark.parametrize("name", ["results.csv", "arrays", "arrays_2", files.MANIFEST])
def test_other_peoples_folders_are_left_alone(name, tmp_path):
    """Whatever it is called."""
    if name.startswith("arrays"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "_METADATA").write_text("of orbax, and mine")
    else:
        (tmp_path / name).write_text('{"name": "mine"}')
    before = sorted(p.name for p in tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=f"holds other things.*{name!r}"):
        jaxcomp.save(tmp_path, of(1))
    with pytest.raises(CheckpointError):
        jaxcomp.restore(tmp_path, of(1))
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_folders_that_are_none_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for use in (jaxcomp.save, jaxcomp.restore):
        with pytest.raises(CheckpointError, match="file is a file"):
            use(tmp_path / "file", of(1))
        with pytest.raises(CheckpointError, match="no folder of a file system"):
            use("gs://bucket/run", of(1))
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        jaxcomp.restore(tmp_path / "none", of(1))


def test_relative_folders_are_taken_and_states_of_nothing_are_not(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    jaxcomp.save("runs/1", of(1))
    same(jaxcomp.restore("runs/1", of(0)), of(1))
    with pytest.raises(CheckpointError, match="holds nothing"):
        jaxcomp.save(tmp_path / "none", {"none": None})


@pytest.mark.parametrize("use", [jaxcomp.save, jaxcomp.restore])
def test_without_orbax_it_says_what_to_install(use, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxcomp\[train\]'"):
        use(tmp_path, of(1))


# --- Several processes ----------------------------------------------------------------

OF_TWO = """
import sys
from pathlib import Path
import flax.jax_utils, jax, jax.numpy as jnp, numpy as np, optax
import jaxcomp
from jaxcomp.core import files
from jaxcomp import parallel

folder, process = Path(sys.argv[1]), int(sys.argv[2])
join = {"coordinator": sys.argv[3], "processes": 2, "process": process}
crew = parallel.setup(4, "shard_map", **join)
exchange = jaxcomp.make_exchange(compressor="top_k(keep=0.3)")
tx = optax.chain(jaxcomp.distributed(exchange, seed=0), optax.sgd(0.1, momentum=0.9))
params = {"w": jnp.zeros((6, 2))}
state = (params, tx.init(params))
axes = parallel.axes(state)


def step(state, grads):
    updates, opt_state = tx.update(grads, state[1], state[0])
    return optax.apply_updates(state[0], updates), opt_state


def fresh():
    # What no device shares is on each process: numbers, and counters of its own.
    return {"run": parallel.spread(state, crew), "epoch": 0, "count": jnp.int32(0)}


def kept(state):
    # Without what a step reports, which no checkpoint holds.
    is_report, host = jaxcomp.core.types.is_report, parallel.to_host(state)
    return jax.tree.map(lambda x: None if is_report(x) else x, host, is_leaf=is_report)


def refused(use, *args):
    try:
        use(*args)
    except (ValueError, jaxcomp.CheckpointError) as error:
        return str(error)
    raise AssertionError("it was taken")


mapped = parallel.map_step(step, crew, in_axes=(axes, 0), out_axes=axes)
rows = np.random.default_rng(0).normal(size=(4, 6, 2)).astype(np.float32)
grads = parallel.place({"w": rows[crew.local]}, crew, 0)
after = {**fresh(), "run": mapped(fresh()["run"], grads), "epoch": 7}
after["count"] = jnp.int32(3)
for _ in range(2):
    jaxcomp.save(folder, after)
got = jaxcomp.restore(folder, fresh())
jax.tree.map(np.testing.assert_array_equal, *map(kept, (got, after)))
assert got["epoch"] == 7 and not got["count"].committed
assert got["run"][0]["w"].sharding == after["run"][0]["w"].sharding

# Under pmap arrays are each process's own; as in flax's examples all of it is stacked.
own = flax.jax_utils.replicate({"run": state, "key": jax.random.key(0)})
grads = {"w": jnp.asarray(rows[crew.local])}
own["run"] = jax.pmap(step, "workers")(own["run"], grads)
sum_of = jax.pmap(lambda x: jax.lax.psum(x, "workers"), "workers", out_axes=None)
own["once"] = sum_of(grads["w"])
jaxcomp.save(folder.parent / "stacked", own)
like = flax.jax_utils.replicate({"run": state, "key": jax.random.key(9)})
like["once"] = own["once"] * 0
got = jaxcomp.restore(folder.parent / "stacked", like)
assert jax.tree.all(jax.tree.map(lambda a, b: a.sharding == b.sharding, got, like))
keys = [jax.random.key_data(x.pop("key")) for x in (got, own)]
jax.tree.map(np.testing.assert_array_equal, *map(kept, (got, own)))
np.testing.assert_array_equal(*keys)

said = refused(jaxcomp.save, folder, {**after, "mine": np.ones(2) * process})
assert "mine differs between processes" in said, said
said = refused(jaxcomp.save, folder, {**after, "mine": "word" if process else 1})
assert ("is a str" if process else "another process failed") in said, said
if process == 0:
    (folder.parent / "half").mkdir()
    (folder.parent / "half" / files.MANIFEST).write_text('{"')
jaxcomp.parallel.placing.sum_over_processes(np.zeros(1))
assert "is damaged" in refused(jaxcomp.restore, folder.parent / "half", fresh())
"""


@pytest.mark.slow
def test_two_processes_write_what_one_reads(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    arguments = [str(tmp_path / "run")]
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", OF_TWO, *arguments, str(process), address],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=200)[0] for process in pair]
    finally:
        for process in pair:
            process.kill()
    assert [process.returncode for process in pair] == [0, 0], "\n".join(outputs)

    tx = optax.chain(
        jaxcomp.distributed(EXCHANGE, seed=0), optax.sgd(0.1, momentum=0.9)
    )
    params = {"w": jnp.zeros((6, 2))}
    run = parallel.spread((params, tx.init(params)), parallel.setup(WORKERS))
    like = {"run": run, "epoch": 0, "count": jnp.int32(0)}
    got = jaxcomp.restore(tmp_path / "run", like)
    assert (got["epoch"], int(got["count"])) == (7, 3)
    kept = jaxcomp.find_state(got["run"]).exchange.residual.value["w"]
    assert len(np.unique(kept, axis=0)) == WORKERS
    like = {
        "run": flax.jax_utils.replicate((params, tx.init(params)), list(DEVICES)),
        "key": jax.random.split(jax.random.key(1), WORKERS),
        "once": jnp.zeros((6, 2)),
    }
    stacked = jaxcomp.restore(tmp_path / "stacked", like)["run"]
    same_kept = jaxcomp.find_state(stacked).exchange.residual.value["w"]
    np.testing.assert_array_equal(kept, same_kept)
