"""Questions about methods, answered with small experiments: what the notebooks use.

    points = study.sweep(gradient, "top_k(keep={})", (0.01, 0.1))
    print(study.table(points))

Everything runs on one device, where workers are simulated by vmap. A gradient is any
tree of arrays: that of the small run in `study.digits`, or one's own by `study.load`.
"""

import io
import json
import math
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax

from jaxcomp import exchanges, wire
from jaxcomp.compressors import make as make_compressor
from jaxcomp.compressors._kit.matrices import fold
from jaxcomp.core.coding.payloads import nbits
from jaxcomp.core.errors import UserError
from jaxcomp.core.files import write_atomically
from jaxcomp.core.trees import name_of, norms, spec_of
from jaxcomp.core.types import (
    Array,
    Compressor,
    Exchange,
    Mixer,
    PerWorker,
    State,
    Tree,
)
from jaxcomp.mixers.gossip._step_size import consensus_errors
from jaxcomp.mixers.gossip.topology import Topology
from jaxcomp.parallel import AXIS, axes, map_step, setup, spread
from jaxcomp.scope import Plan, lift
from jaxcomp.transforms.distributed import pmean
from jaxcomp.wire.compatibility import traffic_of


class Digits(NamedTuple):
    """A model, its loss and its data, for `train` and `gradients`."""

    params: Tree  # at the start
    loss: Callable[[Tree, Any], Array]
    # (steps, workers, examples of each) -> batches
    batches: Callable[[int, int, int], list[Any]]
    accuracy: Callable[[Tree], float]  # params -> part of the test set that is right


def digits(model: str = "resnet8", seed: int = 0) -> Digits:
    """Build a model for the digits. Needs the extra `train`.

    BatchNorm uses the statistics of the batch at hand, in the test as well, so that
    params are the whole model.

    Args:
      model: a name in `jaxcomp.models.REGISTRY`.
      seed: of the params and of the order of the examples.

    Example:
      >>> task = digits("tiny")
      >>> images, labels = task.batches(3, 4, 16)[0]
      >>> images.shape, labels.shape
      ((4, 16, 16, 16, 1), (4, 16))
    """
    from jaxcomp import data, models

    dataset = data.load("digits")
    module = models.make(model, num_classes=dataset.num_classes)

    def normalised(images: np.ndarray) -> np.ndarray:
        pixels = jnp.asarray(images)
        return np.asarray(data.normalize(pixels, dataset.mean, dataset.std))

    images, labels = normalised(dataset.train_images), dataset.train_labels
    tests, answers = normalised(dataset.test_images), dataset.test_labels
    init = jax.jit(lambda key: module.init(key, images[:2], train=False))
    variables = init(jax.random.key(seed))
    stats = variables["batch_stats"]

    def logits(params: Tree, images: Array) -> Array:
        given = {"params": params, "batch_stats": stats}
        return module.apply(given, images, train=True, mutable=["batch_stats"])[0]

    def loss(params: Tree, batch: Any) -> Array:
        images, labels = batch
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits(params, images), labels
        )
        return jnp.mean(losses)

    def batches(steps: int, workers: int, each: int) -> list[Any]:
        size = workers * each
        if size > len(labels):
            raise UserError(f"{size} examples a step are more than {len(labels)}")
        epochs = range(-(-steps // (len(labels) // size)))
        orders = (data.epoch_order(len(labels), seed=seed, epoch=e) for e in epochs)
        shares = [
            share
            for order in orders
            for share in data.batches(order, global_batch=size, workers=workers)
        ]
        return [(images[share], labels[share]) for share in shares[:steps]]

    @jax.jit
    def right(params: Tree) -> Array:
        return jnp.mean(
            jnp.argmax(logits(params, jnp.asarray(tests)), axis=-1) == answers
        )

    return Digits(
        variables["params"], loss, batches, lambda params: float(right(params))
    )


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

    def of_phase(phase: int) -> jax.stages.Wrapped:
        each = lambda x, state, key: mixed(x, state, key, phase)  # noqa: E731
        return jax.jit(jax.vmap(each, in_axes=(0, 0, None), axis_name=AXIS))

    start = jax.jit(jax.vmap(mixer.init, axis_name=AXIS))(x)
    steps = {phase: of_phase(phase) for phase in set(mixer.schedule)}
    state, distances = start, [_distance(x)]
    for number in range(rounds):
        key = jax.random.fold_in(jax.random.key(seed), number)
        x, state = steps[mixer.phase(number)](x, state, key)
        distances.append(_distance(x))
    relative = np.array(distances) / (distances[0] or 1.0)
    return Consensus(relative, _bytes_of(mixer, x, start, mixed), np.asarray(x))


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
    """|x - mean|^2, in the precision of the host."""
    wide = np.asarray(x, np.float64)
    return float(np.sum((wide - wide.mean(axis=0)) ** 2))


def _bytes_of(mixer: Mixer, x: Array, state: State, mixed: Any) -> int:
    """Bytes of one worker in a round, mean of a cycle."""
    one = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), (x, state))
    total = 0
    for phase in mixer.schedule:
        found = wire.traced_collectives(
            lambda x, state, phase=phase: mixed(x, state, jax.random.key(0), phase)[0],
            *one,
            axis=AXIS,
            workers=len(x),
        )
        total += sum(wire.collective_bytes(found).values())
    return round(total / len(mixer.schedule))


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
    if "{}" not in spec:
        raise UserError(f"{spec!r} has no {{}} where the values of the sweep stand")
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


_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
}
# What readers raise for a file that is not what its name says.
_DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError),
    zipfile.BadZipFile,
)


def load(path: str | Path) -> Tree:
    """Read a tree, such as a gradient of a run of one's own.

    Names such as "block/conv/kernel" or "block.conv.weight" become nested dicts.

    Args:
      path: a file that ends in .npz, .npy or .safetensors.

    Raises:
      UserError: another ending, a damaged file, or arrays that are not floats.
    """
    path = Path(path)
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise UserError(
            f"{path} ends in {path.suffix or 'nothing'!r}. Valid: {', '.join(_READERS)}"
        )
    try:
        arrays = read(path)
    except _DAMAGE as error:
        raise UserError(f"cannot read {path}: {error}") from error
    for name, array in arrays.items():
        if not jax.numpy.issubdtype(array.dtype, jax.numpy.floating):
            what = f"{name!r} has" if name else "the array has"
            raise UserError(
                f"{path}: {what} the dtype {array.dtype}, which is no float"
            )
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
    if "" in names or len(set(names)) != len(names):
        raise UserError("save needs a tree whose leaves have names, each one once")
    # NumPy would write bfloat16 as bytes without a type.
    wide = {
        name: np.asarray(leaf).astype(np.promote_types(leaf.dtype, np.float32))
        for name, (_, leaf) in zip(names, flat, strict=True)
    }
    whole = io.BytesIO()
    # What `np.savez` does, which has no room for a leaf of the name "file".
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in wide.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    write_atomically(path, whole.getvalue())


def _npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _npy(path: Path) -> dict[str, np.ndarray]:
    return {"": np.load(path, allow_pickle=False)}


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    if len(whole) < 8 + length:
        raise ValueError("it is cut off")
    header, body = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise ValueError(f"{name!r} is of dtype {entry['dtype']}, not of {known}")
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        first, last = entry["data_offsets"]
        needed = math.prod(entry["shape"]) * dtype.itemsize
        if not 0 <= first <= last <= len(body) or last - first != needed:
            raise ValueError(f"{name!r} has not the bytes of its shape; is it cut off?")
        found[name] = np.frombuffer(body[first:last], dtype).reshape(entry["shape"])
    return found


_READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".safetensors": _safetensors,
}


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


class Regression(NamedTuple):
    """Least squares with a known optimum; `batch` is the whole data of each worker."""

    batch: tuple[np.ndarray, np.ndarray]  # [workers, examples, size] and targets
    start: Array  # [size] zeros
    optimum: float  # the least mean loss over all workers

    @staticmethod
    def loss(params: Array, batch: tuple[Array, Array]) -> Array:
        """Half the mean squared error of one worker."""
        features, targets = batch
        return jnp.mean((features @ params - targets) ** 2) / 2


def regression(
    workers: int = 4,
    size: int = 256,
    examples: int = 512,
    apart: float = 1.0,
    seed: int = 0,
) -> Regression:
    """Draw the data of all workers.

    Worker i has Gaussian features and targets x (w + apart u_i) + noise, so each worker
    has an optimum of its own, and the gradients at the common one are not zero.

    Args:
      workers: their number.
      size: of the params.
      examples: of each worker, at least `size`.
      apart: how far the workers' own optima lie from the common one.
      seed: of the data.

    Example:
      >>> problem = regression(workers=2, size=4, examples=8)
      >>> problem.batch[0].shape, problem.start.shape
      ((2, 8, 4), (4,))
    """
    if min(workers, size) < 1 or examples < size:
        raise UserError(
            "regression needs a worker, a parameter, and as many examples as "
            f"parameters: workers={workers}, size={size}, examples={examples}"
        )
    rng = np.random.default_rng(seed)
    common = rng.normal(size=size)
    own = common + apart * rng.normal(size=(workers, size))
    features = rng.normal(size=(workers, examples, size))
    noise = 0.1 * rng.normal(size=(workers, examples))
    targets = np.einsum("wes,ws->we", features, own) + noise
    joined = features.reshape(-1, size), targets.reshape(-1)
    best = np.linalg.lstsq(*joined, rcond=None)[0]
    optimum = float(np.mean((joined[0] @ best - joined[1]) ** 2) / 2)
    batch = features.astype(np.float32), targets.astype(np.float32)
    return Regression(batch, jnp.zeros(size), optimum)


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


def power_sgd_errors(
    trees: Sequence[Tree], rank: int = 2, warm: bool = True
) -> list[float]:
    """The error of PowerSGD on each of the gradients of a run, one after the other.

    No memory is between the steps, so that only the start of the power iteration is
    compared: with `warm`, it is the result of the step before.

    Args:
      trees: gradients of consecutive steps.
      rank: of the approximation.
      warm: whether the factor of the last step is kept; otherwise each step starts from
        the same random one.

    Example:
      >>> tree = np.float32(np.random.default_rng(0).normal(size=(20, 20)))
      >>> warm = power_sgd_errors([tree] * 9, rank=1)
      >>> cold = power_sgd_errors([tree] * 9, rank=1, warm=False)
      >>> warm[0] == cold[0], warm[8] < cold[8]
      (True, True)
    """
    if not trees:
        raise UserError("there are no gradients")
    exchange = exchanges.make(f"power_sgd(rank={rank})", "none")
    fresh = exchange.init(trees[0])

    def step(tree: Tree, state: State, key: Array) -> tuple[State, Array]:
        result = exchange.average(tree, state, key)
        return result.state, result.info.gradient_error

    run = jax.jit(
        jax.vmap(step, in_axes=(None, None, None), axis_name=AXIS, axis_size=1)
    )
    state, errors = fresh, []
    for tree in trees:
        kept, error = run(tree, state if warm else fresh, jax.random.key(0))
        state = jax.tree.map(lambda x: x[0], kept)
        errors.append(float(error[0]))
    return errors


def table(rows: Sequence[Any], columns: Sequence[str] | None = None) -> str:
    """Rows as lines of text, numbers with three digits.

    Args:
      rows: NamedTuples of one type.
      columns: the fields to show, by default all.

    Example:
      >>> from typing import NamedTuple
      >>> class Row(NamedTuple):
      ...     name: str
      ...     error: float | None
      >>> print(table([Row("sign", 0.36338), Row("none", None)]))
      name  error
      sign  0.363
      none      -
    """
    if not rows:
        raise UserError("a table needs at least one row")
    fields = rows[0]._fields
    shown = list(columns or fields)
    for name in shown:
        if name not in fields:
            raise UserError(f"unknown column {name!r}. Valid: {', '.join(fields)}")
    cells = [shown, *([_text(getattr(row, name)) for name in shown] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(shown))]
    is_text = [isinstance(getattr(rows[0], name), str) for name in shown]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, is_text, strict=True)
        ).rstrip()
        for line in cells
    )


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


Loss = Callable[[Tree, Any], Array]  # (params, batch of a worker) -> number


class History(NamedTuple):
    """What was recorded of a run; one entry for each step, before its update."""

    losses: np.ndarray  # mean over the workers
    errors: np.ndarray  # |given - sent|^2 / |given|^2, mean over the workers
    residuals: np.ndarray  # norm of what the memory keeps, largest of the workers
    step_bytes: int  # the message of one worker in a step
    params: Tree  # after the last step
    watched: np.ndarray  # what `watch` returned, after each step; empty without it

    def smoothed(self, over: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """The steps in the middle of so many neighbours, and the means of their losses.

        Example:
          >>> losses = np.array([4.0, 2.0, 3.0, 1.0])
          >>> none = np.zeros(0)
          >>> steps, means = History(losses, none, none, 0, (), none).smoothed(3)
          >>> steps.tolist(), means.round(6).tolist()
          ([1.0, 2.0], [3.0, 2.0])
        """
        means = np.convolve(self.losses, np.full(over, 1 / over), "valid")
        return np.arange(len(means)) + (over - 1) / 2, means


class _Step(NamedTuple):
    """What a step reports."""

    loss: PerWorker
    error: PerWorker
    residual: PerWorker


def train(
    loss: Loss,
    params: Tree,
    batches: Iterable[Any],
    exchange: Exchange,
    optimizer: optax.GradientTransformation,
    seed: int = 0,
    watch: Callable[[Tree], Array] | None = None,
) -> History:
    """Train with an exchange, on workers that vmap simulates.

    A run that diverges goes on to its end, so that one sees how.

    Args:
      loss: of one worker; it is given params and this worker's batch.
      params: at the start, the same on all workers.
      batches: one for each step: trees of arrays with an axis of workers in front.
      exchange: over the axis "workers".
      optimizer: sees the mean that the exchange returns.
      seed: of the exchange.
      watch: params -> an array that is recorded after each step.

    Example:
      >>> from jaxcomp import make_exchange
      >>> loss = lambda w, target: jnp.sum((w - target) ** 2)
      >>> batches = [np.float32([[1, 0], [3, 0]])] * 20  # two workers
      >>> exchange = make_exchange(compressor="top_k(keep=0.5)")
      >>> run = train(loss, jnp.zeros(2), batches, exchange, optax.sgd(0.25))
      >>> run.params.round(2).tolist(), run.step_bytes
      ([2.0, 0.0], 8)
    """
    batches = list(batches)
    if not batches:
        raise UserError("a run needs the batch of at least one step")
    count = {np.shape(leaf)[0] for leaf in jax.tree.leaves(batches[0])}
    if len(count) != 1:
        raise UserError(
            "the arrays of a batch differ in their first axis, that of the workers: "
            f"{sorted(count)}"
        )
    workers = setup(count.pop(), mapper="vmap")
    mean = pmean(exchange, seed=seed)

    def step(state: Any, batch: Any) -> Any:
        params, opt_state, comm = state
        value, gradient = jax.value_and_grad(loss)(params, batch)
        average, comm = mean(gradient, comm)
        updates, opt_state = optimizer.update(average, opt_state, params)
        params = optax.apply_updates(params, updates)
        info = comm.info.value
        seen = _Step(*map(PerWorker, (value, info.gradient_error, info.residual_norm)))
        return (params, opt_state, comm), seen

    comm = mean.init(params)
    own = (None, None, axes(comm))
    step_bytes = round(traffic_of(exchange, spec_of(params), workers.size)[0])
    run = map_step(
        step, workers, in_axes=(own, 0), out_axes=(own, _Step(*[PerWorker(0)] * 3))
    )
    state = (params, optimizer.init(params), spread(comm, workers))
    seen, watched = [], []
    see = jax.jit(watch) if watch else None
    for batch in batches:
        state, report = run(state, batch)
        seen.append(report)
        if see is not None:
            watched.append(np.asarray(see(state[0])))
    return History(
        losses=np.array([np.mean(s.loss.value) for s in seen]),
        errors=np.array([np.mean(s.error.value) for s in seen]),
        residuals=np.array([np.max(s.residual.value) for s in seen]),
        step_bytes=step_bytes,
        params=state[0],
        watched=np.array(watched),
    )


def gradients(
    loss: Loss,
    params: Tree,
    batches: Iterable[Any],
    optimizer: optax.GradientTransformation,
) -> list[Tree]:
    """The workers' gradients in each step of a run without compression.

    Args:
      loss: as in `train`, and so are the other arguments.

    Returns:
      For each step a tree whose arrays have an axis of workers in front.
    """

    @jax.jit
    def step(params: Tree, opt_state: Any, batch: Any) -> Any:
        each = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, batch)
        mean = jax.tree.map(lambda g: jnp.mean(g, axis=0), each)
        updates, opt_state = optimizer.update(mean, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, each

    found, opt_state = [], optimizer.init(params)
    for batch in batches:
        params, opt_state, each = step(params, opt_state, batch)
        found.append(each)
    return found
