"""Write a data set in the format of TensorFlow Datasets (TFDS), without TensorFlow."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .dataset import Splits
from .sources import Source

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

__all__ = ["Progress", "write"]

Progress = Callable[[str, int, int], None]  # (task, done, total)

# Progress is reported once per so many images.
REPORT_EVERY = 500


def write(source: Source, splits: Splits, root: Path, progress: Progress) -> Path:
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
