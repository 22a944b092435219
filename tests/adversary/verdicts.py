"""What a check says of which laws, and what the workers of a program are given."""

import collections
import contextlib
import functools
import linecache
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxcomp
from jaxcomp.core.errors import UserError
from tests.adversary.draw import Program

# A limit that the documents state, and not a promise.
STATED = "goes on with another number of workers only if"
PACKAGE = str(Path(jaxcomp.__file__).parent)


class Verdict(NamedTuple):
    """Of a program."""

    outcome: str  # "accepted", "refused" or "wrong"
    broken: tuple[tuple[str, str], ...] = ()  # (law, what was found)
    checked: tuple[str, ...] = ()
    why: str = ""  # it was refused


class Laws:
    """Collects what was checked and what is broken."""

    def __init__(self) -> None:
        self.checked: list[str] = []
        self.broken: list[tuple[str, str]] = []

    def check(self, law: str, holds: Any, found: str = "") -> None:
        self.checked.append(law)
        if not holds and law not in dict(self.broken):
            self.broken.append((law, found))

    @contextlib.contextmanager
    def promised(self, law: str) -> Iterator[None]:
        """What has run for some steps is not refused any more."""
        try:
            yield
        except Exception as error:
            said = " ".join(str(error).split())
            self.check(law, not is_refusal(error) or STATED in said, said)
            raise

    def same(
        self, law: str, a: Any, b: Any, tolerance: float, scale: float = 0
    ) -> None:
        """Whether two trees are the same up to a part of their largest element."""
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            worst = apart(x, y, scale)
            self.check(law, worst <= tolerance, f"{worst:.3g} > {tolerance:.3g}")


def apart(a: Any, b: Any, scale: float = 0) -> float:
    """The largest difference, as a part of the largest element."""
    x, y = flat(a), flat(b)
    if x.shape != y.shape:
        return np.inf
    bad = ~np.isfinite(y)
    if not np.array_equal(bad, ~np.isfinite(x)):
        return np.inf
    x, y = x[~bad], y[~bad]
    size = max(np.abs(y).max(initial=0), scale)
    return float(np.abs(x - y).max(initial=0) / (size or 1))


def flat(tree: Any, lead: int = 0) -> np.ndarray:
    """All elements side by side behind leading axes, in float64; a complex is two."""

    def row(x: Any) -> np.ndarray:
        x = np.asarray(numbers(x))
        if np.iscomplexobj(x):
            x = np.stack([x.real, x.imag], axis=-1)
        x = x.astype(np.float64)
        return x.reshape(*x.shape[:lead], -1)

    rows = [row(x) for x in jax.tree.leaves(tree)]
    return np.concatenate(rows, axis=-1) if rows else np.zeros((0,))


def numbers(x: Any) -> Any:
    """The array, or the numbers of a typed key."""
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def bits(x: Any) -> bytes:
    return np.asarray(numbers(x)).tobytes()


def is_refusal(error: BaseException) -> bool:
    """Whether the library raised it on purpose: its own class, or a `raise` of its."""
    if isinstance(error, UserError):
        return True
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    file = frame.f_code.co_filename
    is_ours = file.startswith(PACKAGE) and isinstance(error, ValueError | TypeError)
    return is_ours and linecache.getline(file, line).strip().startswith("raise ")


def tried(check: Callable[[Laws], None]) -> Verdict:
    """Run a check; what it raises is a refusal, or wrong."""
    laws = Laws()
    try:
        check(laws)
    except Exception as error:
        first = " ".join((str(error) or type(error).__name__).split())
        if is_refusal(error) and not laws.broken:
            return Verdict("refused", why=first)
        if not is_refusal(error):
            where = list(traceback.walk_tb(error.__traceback__))
            ours = [f for f, _ in where if f.f_code.co_filename.startswith(PACKAGE)]
            place = ours[-1].f_code.co_qualname if ours else "the tool"
            found = f"{type(error).__name__} in {place}: {first}"
            laws.check("refusals are messages", False, found)
    laws.check("refusals are messages", True)
    counts = tuple(collections.Counter(laws.checked))
    return Verdict("wrong" if laws.broken else "accepted", tuple(laws.broken), counts)


# --- What workers are given ---------------------------------------------------------

STEPS = 50
ZERO, BAD = 2, 3  # steps in which all gradients are 0, and in which one is not finite
QUIET = 25  # from here on gradients are 0


def nested(values: dict[str, Any]) -> Any:
    """A tree from names with slashes; a tensor without a name is the whole tree."""
    if "" in values:
        return values[""]
    result: dict[str, Any] = {}
    for name, x in values.items():
        *folders, last = name.split("/")
        node = functools.reduce(lambda n, f: n.setdefault(f, {}), folders, result)
        node[last] = x
    return result


def gradients(program: Program, workers: int, steps: int, seed: int = 0) -> Any:
    """[steps, workers, ...], heavy-tailed, with the dead rows of the program."""
    rng = np.random.default_rng(seed)

    def of(shape: tuple[int, ...], dtype: str) -> jax.Array:
        def draw() -> np.ndarray:
            return rng.standard_t(4, size=(steps, workers, *shape)) + 0.5

        x = draw() + 1j * draw() if "complex" in dtype else draw()
        if shape and program.dead:
            axis, size = (-1, shape[-1]) if program.dead == "columns" else (2, shape[0])
            first = {"first": 0, "middle": 1}.get(program.dead, size - 2)
            places = range(max(first, 0), min(first + 2, size - 1))
            np.moveaxis(x, axis, 0)[list(places)] = 0
        return jnp.asarray(program.scale * x, dtype)

    return nested({x.name: of(x.shape, x.dtype) for x in program.tree})


def with_events(program: Program, workers: int) -> Any:
    """Random gradients: zero in one step, not finite in one, and zero at the end."""
    rng = np.random.default_rng(program.seed)
    trees = gradients(program, workers, STEPS, program.seed)
    arrays, structure = jax.tree.flatten(trees)
    arrays = [np.array(x) for x in arrays]
    for x in arrays:
        x[[ZERO, *range(QUIET, STEPS)]] = 0
    full = [x for x in arrays if x.size]
    if full:
        x = full[rng.integers(len(full))]
        place = (BAD, *(rng.integers(n) for n in x.shape[1:]))
        x[place] = [np.nan, np.inf][rng.integers(2)]
    return jax.tree.unflatten(structure, arrays)


def one_of(trees: Any) -> Any:
    """Zeros like the tree of a worker, without the axes of steps and workers."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), trees)


def told_nan(program: Program) -> bool:
    """Whether a compressor is told to make a NaN of an overflow."""
    return "nan" in program.compressor + program.method + str(program.policy)


def precision(program: Program) -> float:
    """What rounding may do, as a part of the largest element: some ulps."""
    return max(8 * float(jnp.finfo(leaf.dtype).eps) for leaf in program.tree) + 2e-5
