"""Lines of LIBSVM text as arrays, and errors that show the place."""

import os
import re
import warnings
from typing import NamedTuple, NoReturn

import numpy as np

from jaxcomp.errors import UserError

__all__ = ["LARGEST_INDEX", "Block", "LibsvmError", "contents", "fail", "parse"]

LARGEST_INDEX = 2**31 - 1
_LARGEST_VALUE = float(np.finfo(np.float32).max)
# Spellings that are common in files and cost little to undo.
_PLAIN = (
    (b"\r", b" "),
    (b"\t", b" "),
    (b"  ", b" "),
    (b" \n", b"\n"),
    (b"\n\n", b"\n"),
)
_SPACE, _COLON, _NEWLINE, _DIGIT, _SIGN = 1, 2, 3, 4, 5  # 0: anything else
_KINDS = bytearray(256)
for _characters, _kind in (
    (b" ", _SPACE),
    (b":", _COLON),
    (b"\n", _NEWLINE),
    (b"0123456789", _DIGIT),
    (b"+-.eE", _SIGN),
):
    for _character in _characters:
        _KINDS[_character] = _kind


class LibsvmError(UserError):
    """A file that is not LIBSVM text; says the line and what stands there."""


class Block(NamedTuple):
    """Some lines: their labels, the lengths of their rows, and all pairs."""

    labels: np.ndarray  # float64 [rows]
    lengths: np.ndarray  # int64 [rows]
    indices: np.ndarray  # int32 [pairs], from 0
    values: np.ndarray  # float32 [pairs]


def parse(text: bytes, limit: int, path: str | os.PathLike[str], first: int) -> Block:
    """Whole lines as arrays.

    Args:
      text: ends with a newline.
      limit: the largest index that is allowed.
      path: for errors.
      first: the number of the first line, for errors.

    Raises:
      LibsvmError: at the first mistake.
    """
    # A mistake sends the block to the careful reader, which knows where it stands.
    plain = _fast(text, limit)
    return _careful(text, limit, path, first) if plain is None else plain


def contents(text: bytes, first: int) -> list[tuple[int, list[str]]]:
    """The tokens of each line that has any, with its number."""
    lines = enumerate(text.split(b"\n"), first)
    tokens = ((line, content.split(b"#")[0].split()) for line, content in lines)
    return [
        (line, [t.decode("latin-1") for t in some]) for line, some in tokens if some
    ]


def _fast(text: bytes, limit: int) -> Block | None:
    """A block in array operations; None if it is not plain, or not correct."""
    if b"#" in text:
        text = re.sub(rb"#[^\n]*", b"", text)
    for found, plain in _PLAIN:
        if found in text:
            text = text.replace(found, plain)
    text = text.lstrip(b"\n")
    if not text:
        return None
    kinds = np.frombuffer(text.translate(_KINDS), np.uint8)
    if not kinds.all():
        return None
    places = np.flatnonzero(kinds < _DIGIT)
    ends = kinds[places]  # what ends each token
    begins = np.concatenate([[_NEWLINE], ends[:-1]])
    lengths = np.diff(places, prepend=-1) - 1
    # label (space index colon value)* newline, and no token is empty
    if lengths.min() < 1 or ((begins == _SPACE) != (ends == _COLON)).any():
        return None
    digits = np.cumsum(kinds == _DIGIT, dtype=np.int32)[places]
    is_index = ends == _COLON
    if (np.diff(digits, prepend=0) != lengths)[is_index].any():
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # NumPy's reader of text ends a number at any whitespace.
            numbers = np.fromstring(text.replace(b":", b" "), np.float64, sep=" ")
    except (ValueError, DeprecationWarning):
        return None
    if len(numbers) != len(ends) or not (np.abs(numbers) <= _LARGEST_VALUE).all():
        return None
    is_label = begins == _NEWLINE
    indices = numbers[is_index]
    rows = np.cumsum(is_label)[is_index]
    ascending = (np.diff(indices) > 0) | (np.diff(rows) > 0)
    if not ascending.all() or (indices < 1).any() or (indices > limit).any():
        return None
    return Block(
        numbers[is_label],
        np.bincount(rows - 1, minlength=int(is_label.sum())),
        (indices - 1).astype(np.int32),
        numbers[begins == _COLON].astype(np.float32),
    )


def _careful(
    text: bytes, limit: int, path: str | os.PathLike[str], first: int
) -> Block:
    """A block line by line: any spacing, and an error that shows the place."""
    labels, lengths, indices, values = [], [], [], []
    for line, tokens in contents(text, first):
        label = _number(tokens[0])
        if label is None:
            fail(path, line, f"{_short(tokens[0])} is not a label; write -1 or 1")
        labels.append(label)
        lengths.append(len(tokens) - 1)
        before = 0
        for token in tokens[1:]:
            index, _, number = token.partition(":")
            value = _number(number)
            if not re.fullmatch("[0-9]+", index) or value is None:
                wanted = "index:value with finite float32 values, such as 3:0.5"
                fail(path, line, f"{_short(token)} is not {wanted}")
            if len(index) > 20 or not before < int(index) <= limit:
                reason = f"indices count from 1 and ascend to at most {limit}"
                after = f" after {before}" if before else ""
                fail(path, line, f"{_short(token)}{after}: {reason}")
            before = int(index)
            indices.append(before - 1)
            values.append(value)
    return Block(
        np.array(labels, np.float64),
        np.array(lengths, np.int64),
        np.array(indices, np.int32),
        np.array(values, np.float32),
    )


def _number(text: str) -> float | None:
    """A decimal number that float32 can hold. Python's own float allows 1_000 too."""
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        return None
    value = float(text)
    return value if abs(value) <= _LARGEST_VALUE else None


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")


def fail(path: str | os.PathLike[str], line: int, reason: str) -> NoReturn:
    raise LibsvmError(f"{os.fspath(path)}:{line}: {reason}") from None
