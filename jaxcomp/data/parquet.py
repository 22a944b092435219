"""Read images from the parquet files of Hugging Face, where they are encoded."""

import io
from collections.abc import Sequence

import numpy as np

from .dataset import DataError

__all__ = ["FILES", "read"]

FILES = ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet")
_IMAGES = ("img", "image")  # columns that hold a struct of bytes and path


def read(
    content: bytes, labels: Sequence[str], where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Decode all images of a file, which have one size.

    Args:
      content: of the file.
      labels: names of the columns of labels.
      where: file name for messages.

    Returns:
      Images uint8 [N, H, W, C], and labels uint8 [N, columns].

    Raises:
      DataError: pyarrow or Pillow is missing, a column is, or an image is damaged.
    """
    try:
        import pyarrow
        from PIL import Image
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        message = f"{where}: reading it needs {error.name}"
        raise DataError(f"{message}: pip install pyarrow pillow") from None
    try:
        table = ParquetFile(io.BytesIO(content)).read()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{where}: damaged parquet file: {error}") from error
    column = next((name for name in _IMAGES if name in table.column_names), _IMAGES[0])
    wanted = [column, *labels]
    if missing := [name for name in wanted if name not in table.column_names]:
        have = ", ".join(table.column_names)
        raise DataError(f"{where}: no column {', '.join(missing)}; it has {have}")
    images = []
    for row, cell in enumerate(table.column(column).to_pylist()):
        try:
            with Image.open(io.BytesIO(cell["bytes"])) as image:
                images.append(np.asarray(image.convert("RGB")))
        except (OSError, SyntaxError, TypeError, KeyError) as error:
            raise DataError(f"{where}: row {row} holds no image: {error}") from error
    if len({image.shape for image in images}) != 1:
        raise DataError(f"{where}: its images have several sizes, or there are none")
    columns = [np.asarray(table.column(name).to_pylist()) for name in labels]
    if any(c.dtype.kind not in "iu" or c.min() < 0 or c.max() > 255 for c in columns):
        raise DataError(f"{where}: a label is not a number from 0 to 255")
    return np.stack(images), np.stack(columns, axis=1).astype(np.uint8)
