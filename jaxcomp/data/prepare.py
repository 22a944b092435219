"""Download, check and convert a data set once, completely or not at all."""

import contextlib
import functools
import http.client
import io
import os
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from jaxcomp.core.files import expanded, write_atomically
from jaxcomp.data import dataset
from jaxcomp.data.archives import checksum
from jaxcomp.data.dataset import DataDir, DataError, Dataset, Splits
from jaxcomp.data.sources import Source

if TYPE_CHECKING:
    import tensorflow_datasets as tfds


@contextlib.contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """A temporary folder on the same disk as the target, so that renaming is atomic.

    Its name begins with a dot, so that nobody takes it for prepared data.

    Args:
      root: of all prepared data.
    """
    existed = root.exists()
    root.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".incomplete-", dir=root) as folder:
            yield Path(folder)
    finally:
        if not existed and not any(root.iterdir()):
            root.rmdir()


def install(written: Path, folder: Path, old: Path) -> None:
    """Rename into place. An older folder goes to `old`, and back if this fails.

    Args:
      written: the new folder, complete.
      folder: its place.
      old: a path in the same scratch folder.
    """
    folder.parent.mkdir(exist_ok=True, parents=True)
    if folder.exists():
        folder.rename(old)
    try:
        written.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)


def check(splits: Splits, source: Source, archive: Path) -> None:
    """Refuse arrays with wrong counts, image shape, labels or class balance.

    Args:
      splits: arrays as read.
      source: of which data set.
      archive: from which they were read, for the message.

    Raises:
      DataError: names the archive, what was found and what was expected.
    """
    train_count, test_count = source.counts
    halves = {
        "training": (splits.train_images, splits.train_labels, train_count),
        "test": (splits.test_images, splits.test_labels, test_count),
    }
    for half, (images, labels, count) in halves.items():
        where = f"{archive}: {source.name}, {half} part:"
        expected = (count, *source.shape)
        if images.shape != expected or labels.shape != (count,):
            raise DataError(
                f"{where} found images {images.shape} and labels {labels.shape}, "
                f"expected {expected} and {(count,)}"
            )
        if labels.min() < 0 or labels.max() >= source.num_classes:
            raise DataError(
                f"{where} found labels {labels.min()}..{labels.max()}, "
                f"expected 0..{source.num_classes - 1}"
            )
        sizes = np.bincount(labels, minlength=source.num_classes)
        if source.balanced and sizes.min() != sizes.max():
            raise DataError(
                f"{where} found classes of {sizes.min()} to {sizes.max()} examples, "
                f"expected {count // source.num_classes} in each"
            )


# Inside the prepared folder, so that preparing anew removes it too.
FILE = "jaxcomp-arrays.npz"


def read(folder: Path) -> Splits | None:
    """The arrays that `write` kept, or None if there are none or they are damaged.

    Args:
      folder: a prepared data set.

    Returns:
      The arrays or None. Damage is found by the CRC of each array in the .npz file.
    """
    try:
        # Opened here, because `np.load` leaves a damaged file open.
        with (folder / FILE).open("rb") as stream, np.load(stream) as arrays:
            return Splits(**{field: arrays[field] for field in Splits._fields})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        # The records hold the same images and will be decoded again.
        return None


def write_cache(folder: Path, splits: Splits) -> None:
    """Keep the arrays for the next load, in one atomic step.

    Args:
      folder: a prepared data set. If it cannot be written to, because the disk is full
        or read-only, nothing is kept and the next load decodes again.
      splits: the arrays.
    """
    whole = io.BytesIO()
    np.savez(whole, **splits._asdict())
    with contextlib.suppress(OSError):
        write_atomically(folder / FILE, whole.getvalue())


Progress = Callable[[str, int, int], None]  # (task, done, total)

# Progress is reported once per so many images.
REPORT_EVERY = 500


def write_builder(
    source: Source, splits: Splits, root: Path, progress: Progress
) -> Path:
    """Write a data set into a folder, as array_record files.

    Names, versions and features are those of TFDS, so that its own tools can read the
    result. TFDS's own builders read files and encode PNGs with TensorFlow; this one
    passes PIL images, which TFDS encodes with Pillow.

    Args:
      source: name, version and shape.
      splits: the arrays.
      root: data folder; the result is `root / name / version`.
      progress: called from time to time.

    Returns:
      The prepared folder.

    References:
      https://www.tensorflow.org/datasets/add_dataset
    """
    import tensorflow_datasets as tfds

    builder = _builder(source, splits, root, progress)
    # TFDS prints messages with unknown sizes and a temporary folder, and progress bars.
    # `progress` is more informative.
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare(
            file_format="array_record",
            # TFDS would look for the data set on the network first.
            download_config=tfds.download.DownloadConfig(try_download_gcs=False),
        )
    return Path(os.fspath(builder.data_path))


def _builder(
    source: Source, splits: Splits, root: Path, progress: Progress
) -> "tfds.core.GeneratorBasedBuilder":
    import tensorflow_datasets as tfds
    from PIL import Image

    halves = {
        "train": (splits.train_images, splits.train_labels),
        "test": (splits.test_images, splits.test_labels),
    }

    # Not registered, because TFDS has builders of the same names.
    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        name = source.name
        VERSION = tfds.core.Version(source.version)
        # There are no downloads, so no checksums of them. Without this line TFDS 4.9.10
        # looks for a file of checksums with importlib_resources, which it does not
        # install.
        url_infos = None

        def _info(self) -> tfds.core.DatasetInfo:
            features = {
                "id": tfds.features.Text(),
                "image": tfds.features.Image(shape=source.shape),
                "label": tfds.features.ClassLabel(num_classes=source.num_classes),
            }
            return tfds.core.DatasetInfo(
                builder=self,
                description=f"{source.name}, prepared by jaxcomp from the original.",
                features=tfds.features.FeaturesDict(features),
                supervised_keys=("image", "label"),
                homepage=source.urls[0] if source.urls else None,
                # Records stay in the order of the archive.
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            del dl_manager  # nothing to download
            return {half: self._generate_examples(half) for half in halves}

        def _generate_examples(self, half: str) -> Iterator[tuple[int, dict[str, Any]]]:
            images, labels = halves[half]
            for index, (image, label) in enumerate(zip(images, labels, strict=True)):
                if index % REPORT_EVERY == 0:
                    progress(f"writing {half}", index, len(images))
                name = f"{half}_{index:05d}"
                picture = Image.fromarray(np.squeeze(image))
                yield index, {"id": name, "image": picture, "label": int(label)}
            progress(f"writing {half}", len(images), len(images))

    return Builder(data_dir=os.fspath(root))


BLOCK = 2**18
TIMEOUT = 12.0  # seconds without data from the host


def fetch(
    url: str,
    target: Path,
    *,
    md5: str,
    progress: Progress,
    timeout: float = TIMEOUT,
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
            while block := response.read(BLOCK):
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


# Records that are read at a time: more need more memory, fewer need more calls.
CHUNK = 1000


class _Records(Protocol):
    """The part of the data sources of TFDS that is used here."""

    def __len__(self) -> int: ...

    def __getitems__(self, keys: Sequence[int]) -> Sequence[Mapping[str, Any]]: ...


def find_prepared(source: Source, data_dir: DataDir = None) -> Path | None:
    """The prepared folder, or None. TFDS is not imported for this.

    Args:
      source: which data set.
      data_dir: as in `paths.data_root`.

    Returns:
      `data_dir / name / version`, if the two files that describe it are there.
    """
    folder = dataset.data_root(data_dir) / source.name / source.version
    written = (folder / "dataset_info.json", folder / "features.json")
    return folder if all(file.is_file() for file in written) else None


def load(source: Source, data_dir: DataDir = None) -> Dataset:
    """Load a prepared data set into memory, in the order of the original archive.

    `prepare` keeps the arrays beside the records. If they are missing, because TFDS's
    own tools prepared the data, every PNG is decoded (about 5 s for 60,000 images) and
    the arrays are kept for the next load.

    Args:
      source: which data set.
      data_dir: as in `paths.data_root`.

    Returns:
      The data set.

    Raises:
      DataError: it is not prepared, or cannot be read.
    """
    folder = find_prepared(source, data_dir)
    if folder is None:
        more = "\nor leave --archive out to download it"
        raise dataset.not_prepared(source.name, data_dir, source.version, "FILE", more)
    splits = read(folder)
    if splits is None:
        splits = _decode(source, folder, data_dir)
        write_cache(folder, splits)
    return Dataset(
        name=source.name,
        **splits._asdict(),
        num_classes=source.num_classes,
        mean=source.mean,
        std=source.std,
    )


def _decode(source: Source, folder: Path, data_dir: DataDir) -> Splits:
    # Imported here, because it takes time and is not needed once the arrays are kept.
    import tensorflow_datasets as tfds

    try:
        open_split = functools.partial(
            tfds.data_source,
            f"{source.name}:{source.version}",
            data_dir=os.fspath(dataset.data_root(data_dir)),
            # Pillow is faster when it is called directly, and TFDS warns if OpenCV is
            # not installed.
            decoders={"image": tfds.decode.SkipDecoding()},
        )
        # The declared type of these data sources lacks the method for batched reads.
        train = cast(_Records, open_split(split="train"))
        test = cast(_Records, open_split(split="test"))
        return Splits(*read_records(train, source), *read_records(test, source))
    except (OSError, ValueError, RuntimeError, NotImplementedError, KeyError) as error:
        # TFDS and array_record raise these for damaged records or another format.
        again = dataset.command(source.name, data_dir, options="--force --archive FILE")
        raise DataError(
            f"the prepared {source.name} in {folder} cannot be read as array_record: "
            f"{error}. Prepare it anew with\n  {again}"
        ) from error


def read_records(records: _Records, source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [N, H, W, C] and labels int32 [N], sorted by id where there is one.

    TFDS's own builders shuffle the records and `builders` does not. Sorting restores
    the order of the archive, so that runs with a seed give the same results with both.

    Args:
      records: a data source of TFDS whose images are still encoded.
      source: gives the shape of the images.

    Returns:
      Images and labels.
    """
    from PIL import Image

    images = np.empty((len(records), *source.shape), np.uint8)
    labels = np.empty(len(records), np.int32)
    ids: list[bytes] = []
    for start in range(0, len(records), CHUNK):
        chunk = range(start, min(start + CHUNK, len(records)))
        for index, record in zip(chunk, records.__getitems__(list(chunk)), strict=True):
            with Image.open(io.BytesIO(record["image"])) as image:
                images[index] = np.asarray(image).reshape(source.shape)
            labels[index] = record["label"]
            if "id" in record:
                ids.append(record["id"])
    if len(ids) < len(records) or ids == sorted(ids):
        return images, labels
    order = np.argsort(ids)
    return images[order], labels[order]


class Prepared(NamedTuple):
    """The folder of a data set, and how its content was checked."""

    folder: Path
    evidence: str | None  # None if it was prepared before


def prepare(
    source: Source,
    *,
    archive: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress = lambda task, done, total: None,
) -> Prepared:
    """Prepare a data set for `load`. If this fails, the data folder is unchanged.

    Args:
      source: which data set, an entry of `sources.SOURCES`.
      archive: the original archive or an unpacked folder; None: it is downloaded.
      data_dir: as in `paths.data_root`.
      force: prepare it again even if it was prepared before.
      progress: called with (task, done, total).

    Returns:
      The prepared folder and how the content was checked.

    Raises:
      DataError: the archive is damaged or of another data set, or the download failed.
    """
    present = find_prepared(source, data_dir)
    if present is not None and not force:
        return Prepared(present, None)
    root = dataset.data_root(data_dir)
    with scratch_folder(root) as scratch:
        if archive is not None:
            path = expanded(archive)
        else:
            path = _download(source, scratch, data_dir, progress)
        splits, evidence = source.read(path, source.md5)
        check(splits, source, path)
        written = write_builder(source, splits, scratch / "tfds", progress)
        write_cache(written, splits)  # `load` need not decode what was just encoded
        folder = root / source.name / source.version
        install(written, folder, scratch / "old")
    return Prepared(folder, evidence)


def _download(
    source: Source,
    scratch: Path,
    data_dir: str | os.PathLike[str] | None,
    progress: Progress,
) -> Path:
    """Download all files of a source; returns the file, or the folder of several."""
    files = [scratch / PurePosixPath(url).name for url in source.urls]
    try:
        for url, file in zip(source.urls, files, strict=True):
            fetch(url, file, md5=source.md5[file.name], progress=progress)
    except DataError as error:
        by_hand = "\n".join(f"  {url}" for url in source.urls)
        what = "FILE" if len(files) == 1 else "FOLDER"
        again = dataset.command(source.name, data_dir, options=f"--archive {what}")
        raise DataError(
            f"{error}\nWithout this network, fetch by hand\n{by_hand}\n"
            f"and run\n  {again}"
        ) from error
    return files[0] if len(files) == 1 else scratch
