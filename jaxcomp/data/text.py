"""A text in memory: numbers of words, and the vocabulary that they index."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxcomp.files import write_atomically

from .dataset import DataError

__all__ = [
    "END",
    "PARTS",
    "Text",
    "is_complete",
    "read_folder",
    "vocabulary_of",
    "words_of",
    "write_folder",
]

PARTS = ("train", "valid", "test")
END, UNKNOWN = "<eos>", "<unk>"  # the end of a line; a word that is not in training
_VOCABULARY = "vocabulary.txt"


class Text(NamedTuple):
    """A text for training and others for evaluation."""

    name: str
    parts: Mapping[str, np.ndarray]  # of `PARTS`: int32 [tokens]
    vocabulary: tuple[str, ...]  # the word of each number
    # Mean loss in nats of who knows how the text was made, by part; {}: nobody does.
    source_loss: Mapping[str, float] = {}


def vocabulary_of(text: str) -> tuple[str, ...]:
    """All words of a training text, in the order in which they first occur.

    Lines end in the word `<eos>`; `<unk>` is last, unless the text has it already.

    Example:
      >>> vocabulary_of("a b a\\nc\\n")
      ('a', 'b', '<eos>', 'c', '<unk>')
    """
    return tuple(dict.fromkeys([*words_of(text), UNKNOWN]))


def read_folder(folder: Path, name: str) -> Text:
    """The text of a folder with train.txt, test.txt and perhaps valid.txt.

    The vocabulary is that of vocabulary.txt. Where there is no such file, it is that of
    train.txt, and it is kept, so that the numbers of words stay the same if train.txt
    grows.

    Args:
      folder: with the files.
      name: of the text.

    Raises:
      DataError: a file is missing, or is no text in UTF-8.
    """
    needed = [part for part in PARTS if part != "valid" or _file(folder, part).exists()]
    texts = {part: _read(_file(folder, part)) for part in needed}
    if (folder / _VOCABULARY).exists():
        vocabulary = tuple(_read(folder / _VOCABULARY).splitlines())
    else:
        vocabulary = vocabulary_of(texts["train"])
        with contextlib.suppress(OSError):  # a folder that one may only read
            _keep(vocabulary, folder)
    number = {word: place for place, word in enumerate(vocabulary)}
    if len(number) != len(vocabulary) or not {END, UNKNOWN} <= number.keys():
        message = f"has to name {END}, {UNKNOWN} and every other word once; remove it"
        raise DataError(f"{folder / _VOCABULARY} {message}")
    parts = {part: _numbers(text, number) for part, text in texts.items()}
    return Text(name, parts, vocabulary)


def is_complete(folder: Path) -> bool:
    """Whether `write_folder` came to its end; it writes the vocabulary last."""
    return (folder / _VOCABULARY).is_file()


def write_folder(folder: Path, texts: Mapping[str, str]) -> None:
    """Keep texts as plain files, and last the vocabulary of the training text.

    Args:
      folder: made if it is missing.
      texts: the text of each part.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _VOCABULARY).unlink(missing_ok=True)
    for part, text in texts.items():
        write_atomically(_file(folder, part), text)
    _keep(vocabulary_of(texts["train"]), folder)


def _keep(vocabulary: Sequence[str], folder: Path) -> None:
    write_atomically(folder / _VOCABULARY, "".join(f"{w}\n" for w in vocabulary))


def _file(folder: Path, part: str) -> Path:
    return folder / f"{part}.txt"


def words_of(text: str) -> Sequence[str]:
    """The words of a text, which are divided by spaces, and `<eos>` after each line."""
    return [word for line in text.splitlines() for word in (*line.split(), END)]


def _numbers(text: str, number: Mapping[str, int]) -> np.ndarray:
    unknown = number[UNKNOWN]
    return np.array([number.get(word, unknown) for word in words_of(text)], np.int32)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
