"""Read files in LIBSVM format, `label index:value index:value ...`.

Indices count from 1 and ascend. A '#' begins a comment; blank lines are skipped. Files
that end in .gz or .bz2 are decompressed while they are read. scikit-learn's reader does
the parsing. It does not say in which line a mistake is, and accepts some mistakes, such
as nan or 1_000. So it is given a file object that counts lines and checks characters.
"""

import bz2
import gzip
import io
import os
import re
import zlib
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from jaxcomp.errors import UserError
from jaxcomp.problems.problem import Features, Rows
from jaxcomp.specs import Count, check

__all__ = ["LibsvmError", "LibsvmSet", "read"]

# With more than this fraction of nonzero elements a dense matrix is smaller and faster.
_DENSE_PART = 0.25
_LONGEST_LINE = 1 << 28  # bytes; a longer line means that the file is not text
_LARGEST_INDEX = 2**31 - 1
_LARGEST_VALUE = float(np.finfo(np.float32).max)
_CHARACTERS = b"0123456789+-.eE: \t\r\n\v\f"


class LibsvmError(UserError):
    """A file that is not in LIBSVM format; the message says which line, and why."""


class LibsvmSet(NamedTuple):
    """The features and labels of a file."""

    features: Features  # float32 [examples, features], or Rows
    labels: np.ndarray  # float32 [examples], -1 or +1


def read(path: str | os.PathLike[str], n_features: int | None = None) -> LibsvmSet:
    """Read a file with two different labels.

    Args:
      path: of a text file, which may be compressed as .gz or .bz2.
      n_features: number of features, if the last ones may be absent from the file; by
        default the largest index.

    Returns:
      The features, dense if more than a quarter of the elements are nonzero, and the
      labels: the smaller of the two values in the file becomes -1, the larger +1.

    Raises:
      LibsvmError: "file:line: what is wrong", also if the file is cut off.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     file = Path(folder) / "small"
      ...     _ = file.write_text("1 1:0.5 3:2 # first\\n2 2:1\\n")
      ...     features, labels = read(file)
      >>> features.tolist(), labels.tolist()
      ([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]], [-1.0, 1.0])

    References:
      Chang and Lin, LIBSVM: A Library for Support Vector Machines,
      https://www.csie.ntu.edu.tw/~cjlin/libsvm/, 2011.
    """
    # Imported here, because it takes a second and only readers of such files need it.
    from sklearn.datasets import load_svmlight_file

    check(Count | None, "n_features", n_features)
    limit = n_features or _LARGEST_INDEX
    with _Lines(_opened(path), path, limit) as lines:
        try:
            load: Any = load_svmlight_file
            matrix, labels = load(lines, dtype=np.float32, zero_based=False)
        except LibsvmError:
            raise
        except (ValueError, OverflowError) as error:
            lines.fail(_mistake(lines.text, limit) or str(error))
        if not lines.of_examples:
            lines.fail("no examples in the file")
        _check_numbers(matrix, labels, lines)
        kinds, firsts = np.unique(labels, return_index=True)
        if len(kinds) == 1:
            lines.fail(f"all labels are {kinds[0]:g}; there must be two kinds")
        if len(kinds) > 2:
            row = np.sort(firsts)[2]
            one, other = sorted(labels[np.sort(firsts)[:2]])
            lines.number = lines.of_examples[row]
            third = f"label {labels[row]:g} is a third kind"
            lines.fail(f"{third}, after {one:g} and {other:g}")
    signs = np.where(labels == kinds[1], 1, -1).astype(np.float32)
    return LibsvmSet(_features(matrix, n_features), signs)


def _opened(path: str | os.PathLike[str]) -> Any:
    return {".gz": gzip.open, ".bz2": bz2.open}.get(Path(path).suffix, open)(path, "rb")


class _Lines(io.BufferedIOBase):
    """A file object that counts its lines, checks them and removes comments.

    It is a class because scikit-learn expects a file object.
    """

    def __init__(self, file: Any, path: str | os.PathLike[str], limit: int) -> None:
        self.file, self.path, self.limit = file, path, limit
        self.number, self.text = 0, b""  # of the last line that was read
        self.of_examples: list[int] = []  # numbers of the lines that are not blank

    def readline(self, size: int | None = -1, /) -> bytes:
        self.number += 1
        try:
            line = self.file.readline(_LONGEST_LINE + 1)
        except (EOFError, zlib.error, OSError) as error:
            reason = "is cut off" if isinstance(error, EOFError) else "is damaged"
            self.fail(f"the compressed file {reason} here: {error}")
        if len(line) > _LONGEST_LINE:
            self.fail(f"no end of line within {len(line):,} bytes")
        self.text, comment, _ = line.partition(b"#")
        if self.text.translate(None, _CHARACTERS) or re.search(rb"\+\d*:", self.text):
            self.fail(_mistake(self.text, self.limit) or "is not LIBSVM text")
        if self.text.strip():
            self.of_examples.append(self.number)
        return self.text + b"\n" if comment else self.text

    def close(self) -> None:
        self.file.close()
        super().close()

    def fail(self, reason: str) -> NoReturn:
        raise LibsvmError(f"{os.fspath(self.path)}:{self.number}: {reason}") from None


def _check_numbers(matrix: Any, labels: np.ndarray, lines: _Lines) -> None:
    """Refuse numbers that float32 cannot hold, and indices beyond the limit."""
    is_bad = ~np.isfinite(matrix.data) | (matrix.indices >= lines.limit)
    rows = np.searchsorted(matrix.indptr, np.flatnonzero(is_bad)[:1], "right") - 1
    rows = np.append(rows, np.flatnonzero(~(np.abs(labels) <= _LARGEST_VALUE))[:1])
    if rows.size:
        lines.number = lines.of_examples[rows.min()]
        with _Lines(_opened(lines.path), lines.path, lines.limit) as again:
            [text] = islice(again, lines.number - 1, lines.number)
        lines.fail(_mistake(text, lines.limit) or "holds a number that is too large")


def _features(matrix: Any, n_features: int | None) -> Features:
    """The features of a SciPy matrix, as a dense array or as `Rows`."""
    count, width = matrix.shape[0], n_features or max(1, matrix.shape[1])
    lengths = np.diff(matrix.indptr)
    rows = np.repeat(np.arange(count), lengths)
    if matrix.data.size > _DENSE_PART * count * width:
        values = np.zeros((count, width), np.float32)
        values[rows, matrix.indices] = matrix.data
        return values
    values = np.zeros((count, max(1, lengths.max())), np.float32)
    indices = np.zeros(values.shape, np.int32)
    places = np.arange(len(rows)) - matrix.indptr[rows]
    values[rows, places], indices[rows, places] = matrix.data, matrix.indices
    return Rows(indices, values, width)


def _mistake(text: bytes, limit: int) -> str | None:
    """The first mistake in a line, or None."""
    tokens = [token.decode("latin-1") for token in text.split()]
    if tokens and not _is_number(tokens[0]):
        return f"{_short(tokens[0])} is not a label; write -1 or 1"
    before = 0
    for token in tokens[1:]:
        index, _, number = token.partition(":")
        if not re.fullmatch("[0-9]+", index) or not _is_number(number):
            wanted = "index:value with finite float32 values, such as 3:0.5"
            return f"{_short(token)} is not {wanted}"
        if len(index) > 20 or not before < int(index) <= limit:
            reason = f"indices count from 1 and ascend to at most {limit}"
            after = f" after {before}" if before else ""
            return f"{_short(token)}{after}: {reason}"
        before = int(index)
    return None


def _is_number(text: str) -> bool:
    """Whether a text is a decimal number that float32 can hold."""
    decimal = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
    return bool(re.fullmatch(decimal, text)) and abs(float(text)) <= _LARGEST_VALUE


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
