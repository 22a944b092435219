"""LIBSVM text, `label index:value index:value ...`, read block by block.

Indices count from 1 and ascend. A '#' begins a comment; blank lines are skipped. Files
that end in .gz or .bz2 are unpacked on the way. The text is never in memory as a whole.
"""

import bz2
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from jaxcomp.convex.libsvm_lines import (
    LARGEST_INDEX,
    Block,
    LibsvmError,
    contents,
    fail,
    parse,
)
from jaxcomp.convex.problem import Features, Rows
from jaxcomp.errors import UserError

__all__ = ["LibsvmError", "LibsvmSet", "read"]

# Beyond this part a matrix is smaller and faster when it is dense.
_DENSE_PART = 0.25
_LONGEST_LINE = 1 << 28  # bytes; more is no text


class LibsvmSet(NamedTuple):
    """What a file holds."""

    features: Features  # float32 [examples, features], or Rows
    labels: np.ndarray  # float32 [examples], -1 or +1


def read(
    path: str | os.PathLike[str],
    n_features: int | None = None,
    *,
    block_bytes: int = 1 << 22,
    progress: Callable[[int, int], None] | None = None,
) -> LibsvmSet:
    """Read a file with two kinds of labels.

    Args:
      path: text, or .gz or .bz2 of it.
      n_features: of the set, where a file may not show the last ones; by default the
        largest index.
      block_bytes: text that is looked at in one go.
      progress: called with the examples and the bytes of text so far.

    Returns:
      Features, dense if more than a quarter of their elements are given, and labels;
      the smaller of the two kinds becomes -1, the larger +1.

    Raises:
      LibsvmError: "file:line: what is wrong", also for files that are cut off.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     file = Path(folder) / "small"
      ...     _ = file.write_text("1 1:0.5 3:2 # first\\n2 2:1\\n")
      ...     features, labels = read(file)
      >>> features.tolist(), labels.tolist()
      ([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]], [-1.0, 1.0])

    Reference:
      Chang and Lin, LIBSVM: A Library for Support Vector Machines,
      https://www.csie.ntu.edu.tw/~cjlin/libsvm/, 2011.
    """
    limit = LARGEST_INDEX if n_features is None else n_features
    if not isinstance(limit, int) or limit < 1:
        raise UserError(f"n_features is 1 or more, not {n_features!r}")
    if block_bytes < 1:
        raise UserError(f"block_bytes is 1 or more, not {block_bytes!r}")
    blocks: list[Block] = []
    kinds: set[float] = set()
    line, examples, size = 1, 0, 0
    for text in _whole_lines(path, block_bytes):
        block = parse(text, limit, path, line)
        new = set(np.unique(block.labels).tolist()) - kinds
        if len(kinds | new) > 2:
            _refuse_labels(kinds, block, text, path, line)
        kinds |= new
        blocks.append(block)
        line += text.count(b"\n")
        examples, size = examples + len(block.labels), size + len(text)
        if progress is not None:
            progress(examples, size)
    if not examples:
        fail(path, line, "no examples in the file")
    if len(kinds) < 2:
        fail(path, line, f"all labels are {kinds.pop():g}; there must be two kinds")
    labels = np.concatenate([block.labels for block in blocks])
    signs = np.where(labels == max(kinds), 1, -1).astype(np.float32)
    return LibsvmSet(_matrix(blocks, n_features), signs)


def _whole_lines(path: str | os.PathLike[str], size: int) -> Iterator[bytes]:
    """The text in pieces that end with a newline, about `size` bytes each."""
    openers = {".gz": gzip.open, ".bz2": bz2.open}
    opener = openers.get(Path(path).suffix, open)
    line, kept, held = 1, [], 0
    with opener(path, "rb") as file:
        while True:
            try:
                # One read at a time: of a file that is cut off, all before it arrives.
                piece = file.read1(size)
            except (EOFError, zlib.error, OSError) as error:
                line += b"".join(kept).count(b"\n")
                reason = "is cut off" if isinstance(error, EOFError) else "is damaged"
                fail(path, line, f"the compressed file {reason} here: {error}")
            if not piece:
                break
            kept.append(piece)
            held += len(piece)
            end = piece.rfind(b"\n") + 1
            if end and held >= size:
                kept[-1], rest = piece[:end], piece[end:]
                text = b"".join(kept)
                line += text.count(b"\n")
                yield text
                kept, held = [rest], len(rest)
            elif held > max(size, _LONGEST_LINE) + size:
                fail(path, line, f"no end of line within {held:,} bytes")
    last = b"".join(kept)
    if last:
        yield last if last.endswith(b"\n") else last + b"\n"


def _matrix(blocks: list[Block], n_features: int | None) -> Features:
    """All pairs in their places, block by block: nothing is twice in memory."""
    count = sum(len(block.lengths) for block in blocks)
    pairs = sum(len(block.values) for block in blocks)
    longest = max(1, *(int(block.lengths.max(initial=0)) for block in blocks))
    largest = max(int(block.indices.max(initial=0)) for block in blocks)
    width = n_features or largest + 1
    is_dense = pairs > _DENSE_PART * count * width
    values = np.zeros((count, width if is_dense else longest), np.float32)
    indices = np.zeros((0, 0) if is_dense else values.shape, np.int32)
    first = 0
    for block in blocks:
        rows = np.repeat(np.arange(len(block.lengths)), block.lengths)
        begins = np.cumsum(block.lengths) - block.lengths
        places = np.arange(len(rows)) - begins[rows]
        values[first + rows, block.indices if is_dense else places] = block.values
        if not is_dense:
            indices[first + rows, places] = block.indices
        first += len(block.lengths)
    return values if is_dense else Rows(indices, values, width)


def _refuse_labels(
    kinds: set[float],
    block: Block,
    text: bytes,
    path: str | os.PathLike[str],
    first: int,
) -> NoReturn:
    """The error for the first label that is of neither of two kinds."""
    kinds, row = set(kinds), -1
    while len(kinds) < 3:
        row += 1
        kinds.add(block.labels[row])
    third = float(block.labels[row])
    one, other = sorted(kinds - {third})
    line, _ = contents(text, first)[row]
    fail(path, line, f"label {third:g} is a third kind, after {one:g} and {other:g}")
