"""Texts by name, and how those that are not embedded are prepared from their files."""

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from jaxcomp.files import expanded
from jaxcomp.specs import build

from . import paths
from .archives import read_members
from .dataset import DataError
from .grammar import grammar
from .paths import DataDir
from .text import (
    PARTS,
    Text,
    is_complete,
    read_folder,
    vocabulary_of,
    words_of,
    write_folder,
)

__all__ = ["REGISTRY", "SOURCES", "TextSource", "find_prepared", "load", "prepare"]


class TextSource(NamedTuple):
    """The files of a known text, one for each part."""

    name: str
    members: tuple[str, str, str]  # train, valid and test, in an archive or a folder
    tokens: tuple[int, int, int]  # of them, with the ends of lines
    words: int  # of the vocabulary

    @property
    def about(self) -> str:
        """What it holds, in one line."""
        train, valid, test = self.tokens
        return f"{train} words for training, {valid} and {test} to look and to test."


SOURCES = {
    source.name: source
    for source in (
        TextSource(
            "ptb",
            ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"),
            (929_589, 73_760, 82_430),
            10_000,
        ),
        TextSource(
            "wikitext2",
            ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
            (2_088_628, 217_646, 245_569),
            33_278,
        ),
    )
}


def load(spec: str, *, data_dir: DataDir = None) -> Text:
    """The text that a spec string names.

    Args:
      spec: a name in `REGISTRY`, with or without arguments.
      data_dir: where prepared texts lie, as in `paths.data_root`.

    Example:
      >>> load("grammar(tokens=500)").parts["train"].shape
      (500,)
    """
    return build(spec, REGISTRY, "text", data_dir)


def from_folder(data_dir: DataDir, path: str) -> Text:
    """A text of your own: a folder with train.txt, test.txt and perhaps valid.txt.

    Args:
      data_dir: not used.
      path: of the folder; see `text.read_folder`.
    """
    del data_dir
    folder = expanded(path)
    return read_folder(folder, folder.name)


def prepare(
    source: TextSource,
    *,
    archive: str | os.PathLike[str] | None,
    data_dir: DataDir = None,
    force: bool = False,
) -> tuple[Path, bool]:
    """Check the files of a text and keep them with their vocabulary.

    Args:
      source: which text, an entry of `SOURCES`.
      archive: a tar, a zip or a folder that holds its three files.
      data_dir: as in `paths.data_root`.
      force: prepare it again even if it was prepared before.

    Returns:
      The prepared folder, and whether it is new.

    Raises:
      DataError: there is no archive, or it holds another text.
    """
    folder = paths.data_root(data_dir) / source.name
    if find_prepared(source, data_dir) and not force:
        return folder, False
    if archive is None:
        again = paths.command(source.name, data_dir, options="--archive FOLDER")
        raise DataError(
            f"{source.name} is not downloaded here, because no publisher offers its "
            f"plain text with a checksum. Fetch {', '.join(source.members)} and run\n"
            f"  {again}"
        )
    path = expanded(archive)
    found = read_members(path, [source.members], {})
    write_folder(folder, _checked(found, source, path))
    return folder, True


def find_prepared(source: TextSource, data_dir: DataDir = None) -> Path | None:
    """The prepared folder, or None."""
    folder = paths.data_root(data_dir) / source.name
    return folder if is_complete(folder) else None


def _prepared(source: TextSource, data_dir: DataDir = None) -> Text:
    folder = find_prepared(source, data_dir)
    if folder is None:
        raise paths.not_prepared(source.name, data_dir)
    return read_folder(folder, source.name)


def _checked(
    found: Mapping[str, bytes], source: TextSource, archive: Path
) -> dict[str, str]:
    """The texts of all parts, if they are as long as they have to be."""
    texts = {}
    for part, member, tokens in zip(PARTS, source.members, source.tokens, strict=True):
        where = f"{archive}: {member}"
        try:
            texts[part] = found[member].decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{where} is no text in UTF-8: {error}") from error
        if (count := len(words_of(texts[part]))) != tokens:
            message = f"has {count:,} words and ends of lines, expected {tokens:,}"
            raise DataError(f"{where} {message}")
    if (words := len(vocabulary_of(texts["train"]))) != source.words:
        message = f"has {words:,} different words, expected {source.words:,}"
        raise DataError(f"{archive}: {source.members[0]} {message}")
    return texts


REGISTRY: dict[str, Callable[..., Text]] = {
    "grammar": grammar,
    "folder": from_folder,
    **{name: functools.partial(_prepared, source) for name, source in SOURCES.items()},
}
