"""Questions about methods, answered with small experiments: what the notebooks use.

    points = study.sweep(gradient, "top_k(keep={})", (0.01, 0.1))
    run = study.train(config, compressor="top_k(keep=0.01)")

Everything runs on one device, where workers are simulated by vmap. A gradient is any
tree of arrays: that of a run of the trainer, or one's own by `study.load`.
"""

import contextlib
import functools
import io
import itertools
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import data, exchanges, parallel, training, wire
from jaxcomp.compressors import make as make_compressor
from jaxcomp.compressors._kit.matrices import fold
from jaxcomp.core.coding.payloads import nbits
from jaxcomp.core.errors import UserError
from jaxcomp.core.files import write_atomically
from jaxcomp.core.trees import name_of, norms, spec_of
from jaxcomp.core.types import Array, Compressor, Exchange, Mixer, State, Tree
from jaxcomp.mixers.gossip._step_size import consensus_errors
from jaxcomp.mixers.gossip.topology import Topology
from jaxcomp.parallel import AXIS
from jaxcomp.runs.table import Schema, Table, read_header, read_table
from jaxcomp.scope import Plan, lift
from jaxcomp.training import tasks


class Recorded(NamedTuple):
    """What a run of the trainer recorded."""

    steps: Table  # columns of steps.csv, a row for each step
    epochs: Table  # columns of metrics.csv


def train(config: Any, **settings: Any) -> Recorded:
    """Train as `train.py` does, quietly and in a folder that is gone afterwards.

    Args:
      config: of the trainer, such as that of configs/default.py; it stays as it is.
      **settings: keys of it that this run changes.
    """
    config = config.copy_and_resolve_references()
    config.update(log_every=1, loggers=("csv",), mapper="vmap", **settings)
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            training.train_and_evaluate(config.lock(), folder)
        paths = [Path(folder) / f"{name}.csv" for name in ("steps", "metrics")]
        schemas = [Schema(tuple(read_header(path)), ("step",)) for path in paths]
        return Recorded(*map(read_table, paths, schemas))


def gradients(config: Any, steps: int, rate: float = 0.1) -> list[Tree]:
    """The workers' gradients in the first steps of plain SGD without compression.

    Args:
      config: of the trainer, of which the task, the workers and their batch are taken.
      steps: their number.
      rate: of SGD.

    Returns:
      For each step a tree whose arrays have an axis of workers in front.
    """
    task = tasks.make(config.task, config, parallel.setup(config.workers, "vmap"))
    params, stats = task.init(jax.random.key(config.seed))
    carry, key = task.carry(config.batch_size // config.workers), jax.random.key(0)

    @jax.jit
    def step(params: Tree, batch: Any) -> tuple[Tree, Tree]:
        def loss(params: Tree, batch: Any) -> Array:
            return task.loss(params, stats, carry, batch, key)[0]

        each = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, batch)
        moved = jax.tree.map(lambda x, g: x - rate * jnp.mean(g, axis=0), params, each)
        return moved, each

    found: list[Tree] = []
    places = ((e, at) for e in itertools.count() for at in task.shares(e))
    for epoch, at in itertools.islice(places, steps):
        params, each = step(params, data.take(task.train, at, epoch))
        found.append(each)
    return found


def exchanged(exchange: Exchange, trees: Tree, warm: bool = True) -> tuple[Tree, Array]:
    """What workers get of gradients that are given, step after step.

    Args:
      exchange: with its memory.
      trees: arrays [workers, steps, ...].
      warm: whether a step goes on from the state of the one before, or from the first.

    Returns:
      For each worker and step the mean that it gets, and the error of what it sent.

    Example:
      >>> from jaxcomp import make_exchange
      >>> twice = np.float32([[[3, 0], [3, 0]], [[1, 2], [1, 2]]])
      >>> exchanged(make_exchange(compressor="top_k(keep=0.5)"), twice)[0][0].tolist()
      [[1.5, 1.0], [2.5, 0.0]]
    """

    def worker(own: Tree) -> tuple[Tree, Array]:
        start = exchange.init(jax.tree.map(lambda x: x[0], own))

        def step(state: State, tree: Tree) -> tuple[State, tuple[Tree, Array]]:
            result = exchange.average(tree, state, jax.random.key(0))
            seen = (result.mean, result.info.gradient_error)
            return result.state if warm else start, seen

        return jax.lax.scan(step, start, own)[1]

    return jax.jit(jax.vmap(worker, axis_name=AXIS))(trees)


class Consensus(NamedTuple):
    """A run of gossip."""

    # |x - mean|^2 / |x - mean|^2 at the start, before each round and after the last
    distances: np.ndarray
    round_bytes: int  # the messages of one worker in a round, mean of a cycle
    models: np.ndarray  # [workers, size] after the last round


def consensus(
    mixer: Mixer, models: np.ndarray, rounds: int, seed: int = 0
) -> Consensus:
    """Let workers gossip that learn nothing.

    Args:
      mixer: over the axis "workers".
      models: [workers, size], a vector for each worker.
      rounds: of gossip.
      seed: of the mixer's keys.

    Example:
      >>> from jaxcomp import make_mixer
      >>> mixer = make_mixer("d_psgd", "complete", workers=4)
      >>> run = consensus(mixer, np.float32([[0], [1], [2], [5]]), rounds=1)
      >>> run.distances.round(6).tolist(), run.models.ravel().tolist()
      ([1.0, 0.0], [2.0, 2.0, 2.0, 2.0])
    """
    if np.ndim(models) != 2 or mixer.workers not in (None, len(models)):
        raise UserError(
            f"{mixer.name!r} needs a vector for each of its workers, not an array of "
            f"shape {np.shape(models)}"
        )
    x = jnp.asarray(models, jnp.float32)

    def mixed(x: Array, state: State, key: Array, phase: int) -> tuple[Array, State]:
        step = mixer.mix(x, jnp.zeros_like(x), state, key, phase)
        return x + step.updates, step.state

    start = jax.jit(jax.vmap(mixer.init, axis_name=AXIS))(x)

    @functools.partial(jax.jit, static_argnums=3)
    def step(x: Array, state: State, key: Array, phase: int) -> tuple[Array, State]:
        each = functools.partial(mixed, phase=phase)
        return jax.vmap(each, in_axes=(0, 0, None), axis_name=AXIS)(x, state, key)

    state, distances = start, [_distance(x)]
    for number in range(rounds):
        key = jax.random.fold_in(jax.random.key(seed), number)
        x, state = step(x, state, key, mixer.phase(number))
        distances.append(_distance(x))
    relative = np.array(distances) / (distances[0] or 1.0)
    one = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), (x, start))
    where = {"axis": AXIS, "workers": len(x)}
    sent = [
        wire.traced_collectives(
            functools.partial(mixed, key=jax.random.key(0), phase=phase), *one, **where
        )
        for phase in mixer.schedule
    ]
    total = sum(sum(wire.collective_bytes(found).values()) for found in sent)
    return Consensus(relative, round(total / len(sent)), np.asarray(x))


def step_sizes(
    compressor: str,
    graph: Topology,
    gammas: Sequence[float],
    size: int = 1000,
    rounds: int = 150,
) -> np.ndarray:
    """For each step size of CHOCO, by what factor gossip shrinks the distance.

    Args:
      compressor: spec string.
      graph: symmetric.
      gammas: step sizes.
      size: of the vectors.
      rounds: of gossip.

    Returns:
      |x - mean|^2 after all rounds by that before; above 1, the workers drift apart.

    Example:
      >>> from jaxcomp import topology
      >>> few, many = step_sizes("sign", topology("ring", 4), (0.01, 0.5), size=50)
      >>> bool(many < few < 1)
      True
    """
    codec = lift("per_leaf", make_compressor(compressor))
    return np.asarray(consensus_errors(codec, graph, size, tuple(gammas), rounds))


def _distance(x: Array) -> float:
    """A multiple of |x - mean|^2, in the precision of the host."""
    return float(np.var(np.asarray(x, np.float64), axis=0).sum())


class Point(NamedTuple):
    """What a method costs and what it loses, on one tree."""

    method: str
    bits: float  # sent for each element; 32 without compression
    ideal_bits: float  # of a perfect coder, for the same messages
    error: float  # |x - C(x)|^2 / |x|^2, mean over keys
    # delta in E|x - C(x)|^2 <= (1 - delta) |x|^2 for every x; None: there is none.
    contraction: float | None
    unbiased: bool


def measure(
    tree: Tree,
    compressor: str | Compressor,
    scope: str | Plan = "per_leaf",
    draws: int = 3,
    seed: int = 0,
) -> Point:
    """Measure one method on a tree.

    Args:
      tree: such as a gradient.
      compressor: of arrays, or its spec string.
      scope: which tensors are compressed as one vector.
      draws: keys over which the error is averaged.
      seed: of the keys.

    Example:
      >>> point = measure({"w": np.float32([3, -4])}, "top_k(keep=0.5)")
      >>> point.method, round(point.error, 2)
      ('top_k(keep=0.5)', 0.36)
    """
    if draws < 1:
        raise UserError(f"draws is the number of keys, at least 1, not {draws}")
    method = make_compressor(compressor)
    codec, spec = lift(scope, method), spec_of(tree)
    elements = sum(leaf.size for leaf in jax.tree.leaves(spec))
    if not elements:
        raise UserError("the tree has no elements, so no method has an error on it")

    @jax.jit
    def once(tree: Tree, key: jax.Array) -> Any:
        payload, _ = codec.compress(tree, codec.init(spec), key)
        return payload, exchanges.measure(tree, codec.decompress(payload, spec))

    keys = jax.random.split(jax.random.key(seed), draws)
    results = [once(tree, key) for key in keys]
    return Point(
        method=method.name,
        bits=nbits(results[0][0]) / elements,
        ideal_bits=codec.ideal_bits(spec) / elements,
        error=float(np.mean([info.gradient_error for _, info in results])),
        contraction=codec.contraction(spec),
        unbiased=codec.unbiased,
    )


def sweep(
    tree: Tree,
    spec: str,
    values: Iterable[Any],
    scope: str | Plan = "per_leaf",
    draws: int = 3,
    seed: int = 0,
) -> list[Point]:
    """Measure a method over a range of one argument.

    Args:
      tree: such as a gradient.
      spec: spec string with {} where the argument stands.
      values: of the argument.
      scope: as in `measure`, and so are `draws` and `seed`.

    Example:
      >>> points = sweep({"w": np.float32([1, 2, 2])}, "top_k(keep={})", (0.3, 1.0))
      >>> [round(point.error, 3) for point in points]
      [0.556, 0.0]
    """
    specs = [spec.replace("{}", str(value)) for value in values]
    return [measure(tree, each, scope, draws, seed) for each in specs]


def round_trip(
    tree: Tree,
    compressor: str | Compressor,
    scope: str | Plan = "per_leaf",
    seed: int = 0,
) -> Tree:
    """What arrives of a tree: C(x).

    Args:
      tree: such as a gradient.
      compressor: of arrays, or its spec string.
      scope: which tensors are compressed as one vector.
      seed: of the key.

    Example:
      >>> round_trip(np.float32([3, -4, 1]), "top_k(keep=0.3)")
      Array([ 0., -4.,  0.], dtype=float32)
    """
    codec, spec = lift(scope, compressor), spec_of(tree)

    @jax.jit
    def once(tree: Tree, key: jax.Array) -> Tree:
        payload, _ = codec.compress(tree, codec.init(spec), key)
        return codec.decompress(payload, spec)

    return once(tree, jax.random.key(seed))


def shannon_bound(bits: Any) -> Any:
    """4^-R, the least error of any code of R bits for each element of Gaussian noise.

    Args:
      bits: R, a number or an array.

    Example:
      >>> shannon_bound(1.0)
      0.25

    References:
      Shannon, Coding Theorems for a Discrete Source with a Fidelity Criterion, IRE
      National Convention Record, 1959.
    """
    return 0.25**bits


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other one beats in both bits and error, by bits.

    Args:
      points: of any methods, on the same tree.

    Example:
      >>> x = np.float32([5, 4, -1, 2, 1, 1])
      >>> points = [measure(x, m) for m in ("none", "sign", "random_k(keep=0.5)")]
      >>> [point.method for point in frontier(points)]
      ['sign', 'none']
    """
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.bits, p.error)):
        if not best or point.error < best[-1].error:
            best.append(point)
    return best


def load(path: str | Path) -> Tree:
    """Read a tree, such as a gradient of a run of one's own.

    Names such as "block/conv/kernel" or "block.conv.weight" become nested dicts.

    Args:
      path: a file that ends in .npz or .npy.

    Raises:
      UserError: another ending, a damaged file, or arrays that are not floats.
    """
    path = Path(path)
    if path.suffix.lower() not in (".npz", ".npy"):
        ending = path.suffix or "nothing"
        raise UserError(f"{path} ends in {ending!r}. Valid: .npz, .npy")
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            is_one = isinstance(stored, np.ndarray)
            arrays = {"": stored} if is_one else dict(stored.items())
    except Exception as error:  # NumPy raises whatever it meets
        raise UserError(f"cannot read {path}: {error}") from error
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.floating):
            what = f"{name or 'the array'} has the dtype {array.dtype}"
            raise UserError(f"{path}: {what}, which is no float")
    if not arrays:
        raise UserError(f"{path} holds no arrays")
    return arrays[""] if set(arrays) == {""} else _nested(arrays, path)


def save(path: str | Path, tree: Tree) -> None:
    """Write a tree of arrays as .npz, by the names of its leaves.

    Args:
      path: a file that ends in .npz.
      tree: nested dicts of arrays. Others are written too, and read as nested dicts.

    Example:
      >>> import tempfile
      >>> file = Path(tempfile.mkdtemp()) / "gradient.npz"
      >>> save(file, {"dense": {"kernel": np.ones((2, 2), np.float32)}})
      >>> load(file)["dense"]["kernel"].shape
      (2, 2)
    """
    path = Path(path)
    if path.suffix.lower() != ".npz":
        raise UserError(f"{path} has to end in .npz")
    flat = jax.tree_util.tree_leaves_with_path(tree)
    names = [name_of(leaf_path) for leaf_path, _ in flat]
    if {"", "file"} & {*names} or len(set(names)) != len(names):
        message = "each one once, and none is 'file', which NumPy takes for its own"
        raise UserError(f"save needs a tree whose leaves have names, {message}")
    # NumPy would write bfloat16 as bytes without a type.
    wide: dict[str, Any] = {
        name: np.asarray(leaf).astype(np.promote_types(leaf.dtype, np.float32))
        for name, (_, leaf) in zip(names, flat, strict=True)
    }
    whole = io.BytesIO()
    np.savez_compressed(whole, **wide)
    write_atomically(path, whole.getvalue())


def _nested(arrays: dict[str, np.ndarray], path: Path) -> Tree:
    """Dicts in dicts, one for each part of a name."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *folders, last = name.replace(".", "/").split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        if not isinstance(node, dict) or last in node:
            raise UserError(f"{path}: {name!r} is both an array and a group of arrays")
        node[last] = array
    return tree


class Layer(NamedTuple):
    """One tensor of a tree."""

    name: str
    size: int
    energy: float  # its part of |x|^2
    arrived: float  # the part of its elements that are not zero after decoding
    error: float  # |x - C(x)|^2 / |x|^2 of this tensor; 0 where x is zero


def layers(
    tree: Tree,
    compressor: str | Compressor,
    scope: str | Plan = "per_leaf",
    seed: int = 0,
) -> list[Layer]:
    """Compress a tree once and look at each of its tensors.

    Args:
      tree: such as a gradient.
      compressor: of arrays, or its spec string.
      scope: which tensors are compressed as one vector.
      seed: of the key.

    Example:
      >>> tree = {"large": np.float32([8, 6]), "small": np.float32([0.8, 0.6])}
      >>> for layer in layers(tree, "top_k(keep=0.5)", "whole_tree"):
      ...     print(layer.name, f"{layer.energy:.2f} {layer.error:.2f}")
      large 0.99 0.00
      small 0.01 1.00
    """
    decoded = round_trip(tree, compressor, scope, seed)
    lost = _squares(jax.tree.map(lambda x, y: x - y, tree, decoded))
    whole = _squares(tree)
    total = sum(whole)
    flat = jax.tree_util.tree_leaves_with_path(tree)
    arrived = jax.tree.leaves(decoded)
    return [
        Layer(
            name=name_of(path),
            size=int(np.size(x)),
            energy=whole[i] / total if total else 0.0,
            arrived=float(np.mean(np.asarray(arrived[i]) != 0)),
            error=lost[i] / whole[i] if whole[i] else 0.0,
        )
        for i, (path, x) in enumerate(flat)
    ]


def _squares(tree: Tree) -> list[float]:
    """|x|^2 of each tensor."""
    return [float(length) ** 2 for length in norms(tree)]


class Spectrum(NamedTuple):
    """The singular values of a tensor as a matrix, the largest first."""

    name: str
    rows: int
    columns: int
    values: np.ndarray

    def error(self, rank: int) -> float:
        """|A - A_r|^2 / |A|^2 of the best matrix of a rank; 0 for a zero tensor."""
        squares = self.values**2
        total = float(np.sum(squares))
        return float(np.sum(squares[rank:])) / total if total else 0.0


def spectra(tree: Tree) -> list[Spectrum]:
    """The spectrum of each tensor of two axes or more.

    A convolution of shape (height, width, in, out) is a matrix of height x width x in
    rows and out columns, as in `svd` and `power_sgd`.

    Args:
      tree: such as a gradient.

    Example:
      >>> [found] = spectra({"w": np.diag(np.float32([2, 1])), "b": np.ones(3)})
      >>> found.name, found.values.tolist(), found.error(rank=1)
      ('w', [2.0, 1.0], 0.2)
    """
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if sum(length > 1 for length in np.shape(leaf)) < 2:
            continue
        matrix = np.asarray(fold(jax.numpy.asarray(leaf)))
        values = np.linalg.svd(matrix, compute_uv=False)
        rows, columns = matrix.shape
        found.append(Spectrum(name_of(path), rows, columns, values))
    return found
