"""Data sets that are prepared once: download, check and keep, whole or not at all."""

import contextlib
import http.client
import os
import shlex
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from jaxcomp.core.files import expanded
from jaxcomp.data.archives import checksum
from jaxcomp.data.dataset import DataError

DataDir = str | os.PathLike[str] | None
Progress = Callable[[str, int, int], None]  # (task, done, total)

_BLOCK = 2**18  # bytes that are read at a time
_TIMEOUT = 12.0  # seconds without data from the host


class Preparable(NamedTuple):
    """A data set, how it is made of what its publisher gives, and where it is kept."""

    name: str
    what: str  # is prepared, in words
    place: str  # of the file, or the folder, below that of all prepared data
    # (archive, new file or folder, progress) -> how the content was checked
    write: Callable[[Path, Path, Progress], str]
    complete: str = ""  # a file that a folder has once it is whole
    urls: tuple[str, ...] = ()  # of all files of the archive
    md5: Mapping[str, str] = {}  # of these, by name
    by_hand: str = ""  # why it is not downloaded, and what to fetch


def data_root(data_dir: DataDir = None) -> Path:
    """The folder of all prepared data.

    Args:
      data_dir: the folder; if it is not given, the environment variable
        JAXCOMP_DATA_DIR, else ~/.cache/jaxcomp.

    Returns:
      The folder, which need not exist.

    Example:
      >>> data_root("data").as_posix()
      'data'
    """
    chosen = data_dir or os.environ.get("JAXCOMP_DATA_DIR") or "~/.cache/jaxcomp"
    return expanded(chosen)


def find(it: Preparable, data_dir: DataDir = None) -> Path | None:
    """Where a data set is prepared, or None."""
    place = data_root(data_dir) / it.place
    return place if (place / it.complete).is_file() else None


def prepared(it: Preparable, data_dir: DataDir, more: str = "") -> Path:
    """Where a data set is prepared.

    Args:
      it: the data set.
      data_dir: as in `data_root`.
      more: what else one may do where it is not.

    Raises:
      DataError: it is not prepared; the message gives the command.
    """
    found = find(it, data_dir)
    if found is not None:
        return found
    root = data_root(data_dir)
    message = f"{it.name} is not prepared: looked for {root / it.place}. Prepare it"
    more += "\nor leave --archive out to download it" if it.urls else ""
    if not it.complete and (root / it.name).is_dir():
        more += (
            f"\nThe folder {root / it.name} is of TFDS or of an older version, which "
            f"kept TFDS's records: dataset=\"tfds(name='{it.name}')\" reads it"
        )
    raise DataError(f"{message} with\n  {command(it, data_dir)}{more}")


def command(it: Preparable, data_dir: DataDir = None, options: str = "") -> str:
    """The shell command that prepares a data set, for messages.

    Example:
      >>> it = Preparable("mnist", "images", "mnist.npz", lambda *_: "")
      >>> command(it, "my data", "--force")
      "jaxcomp data prepare mnist --force --archive FOLDER --data-dir 'my data'"
    """
    archive = f"--archive {'FILE' if len(it.urls) == 1 else 'FOLDER'}"
    words = ["jaxcomp data prepare", it.name, options, archive]
    if data_dir is not None:
        words.append(f"--data-dir {shlex.quote(os.fspath(data_dir))}")
    return " ".join(filter(None, words))


def prepare(
    it: Preparable,
    *,
    archive: str | os.PathLike[str] | None = None,
    data_dir: DataDir = None,
    force: bool = False,
    progress: Progress = lambda task, done, total: None,
) -> str:
    """Prepare a data set. If this fails, the data folder is unchanged.

    Args:
      it: the data set.
      archive: the original archive or an unpacked folder; None: it is downloaded.
      data_dir: as in `data_root`.
      force: prepare it again even if it was prepared before.
      progress: called with (task, done, total).

    Returns:
      What was done, and how the content was checked; "" if it was prepared before.

    Raises:
      DataError: the archive is damaged or of another data set, or the download failed.
    """
    if find(it, data_dir) is not None and not force:
        return ""
    if archive is None and not it.urls:
        again = f"and run\n  {command(it, data_dir)}"
        raise DataError(f"{it.name} is not downloaded here, {it.by_hand} {again}")
    root = data_root(data_dir)
    place = root / it.place
    with _scratch_folder(root) as scratch:
        if archive is None:
            path = _download(it, scratch, data_dir, progress)
        else:
            path = expanded(archive)
        evidence = it.write(path, scratch / "new", progress)
        _install(scratch / "new", place, scratch / "old")
    return f"{it.what} prepared in {place}\nchecked by: {evidence}"


@contextlib.contextmanager
def _scratch_folder(root: Path) -> Iterator[Path]:
    """A temporary folder on the same disk as the target, so that renaming is atomic.

    Its name begins with a dot, so that nobody takes it for prepared data.
    """
    existed = root.exists()
    root.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".incomplete-", dir=root) as folder:
            yield Path(folder)
    finally:
        if not existed and not any(root.iterdir()):
            root.rmdir()


def _install(written: Path, place: Path, old: Path) -> None:
    """Rename into place. What was there goes to `old`, and back if this fails."""
    if place.exists():
        place.rename(old)
    try:
        written.rename(place)
    finally:
        if old.exists() and not place.exists():
            old.rename(place)


def _download(
    it: Preparable, scratch: Path, data_dir: DataDir, progress: Progress
) -> Path:
    """Download all files of a data set; returns the file, or the folder of several."""
    files = [scratch / PurePosixPath(url).name for url in it.urls]
    try:
        for url, file in zip(it.urls, files, strict=True):
            fetch(url, file, md5=it.md5[file.name], progress=progress)
    except DataError as error:
        by_hand = "\n".join(f"  {url}" for url in it.urls)
        raise DataError(
            f"{error}\nWithout this network, fetch by hand\n{by_hand}\n"
            f"and run\n  {command(it, data_dir)}"
        ) from error
    return files[0] if len(files) == 1 else scratch


def fetch(
    url: str,
    target: Path,
    *,
    md5: str,
    progress: Progress,
    timeout: float = _TIMEOUT,
) -> None:
    """Download a file and check its MD5.

    Args:
      url: http or https address.
      target: file to write.
      md5: the published checksum.
      progress: called with bytes done and total, which is 0 if it is not known.
      timeout: seconds without data from the host, at the start or later.

    Raises:
      DataError: the host cannot be reached, the transfer stops, or the content has
        another checksum.
    """
    done = total = 0
    try:
        with (
            urllib.request.urlopen(url, timeout=timeout) as response,
            target.open("wb") as stream,
        ):
            total = int(response.headers.get("Content-Length") or 0)
            while block := response.read(_BLOCK):
                stream.write(block)
                done += len(block)
                progress(f"downloading {target.name}", done, total)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # an HTTP error such as 404 holds an open response
        reason = getattr(error, "reason", None) or error
        arrived = f" after {done:,} bytes" if done else ""
        raise DataError(f"could not download {url}{arrived}: {reason}") from error
    if (actual := checksum(target)) != md5:
        raise DataError(
            f"{url} sent {done:,} of {max(total, done):,} bytes with MD5 {actual}, "
            f"expected {md5}"
        )
