"""What a check says: which laws were looked at, which are broken, what was refused."""

import collections
import contextlib
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

__all__ = ["Laws", "Verdict", "bits", "flat", "is_refusal", "numbers", "tried"]

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
