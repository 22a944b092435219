"""Arrays with the published shapes of data sets that are not prepared."""

import numpy as np

from jaxcomp.specs import calls

from .dataset import Dataset
from .downsampled import DOWNSAMPLED, Downsampled
from .paths import DataDir
from .preparable import preparable
from .sources import SOURCES
from .text import PARTS, Text
from .texts import SOURCES as TEXTS

__all__ = ["images", "stand_in_for", "text"]


def stand_in_for(dataset: str, data_dir: DataDir) -> str:
    """The spec of what stands in for a data set; "" if it is here, or not known.

    Args:
      dataset: spec string.
      data_dir: as in `paths.data_root`.

    Example:
      >>> stand_in_for("mnist", "nowhere")
      "jaxcomp.data.stand_ins:images(of='mnist')"
    """
    [call], known = calls(dataset), preparable()
    if call.name not in known or "path" in call.kwargs:
        return ""
    kind = "text" if call.name in TEXTS else "images"
    is_here = known[call.name].find(data_dir)
    return "" if is_here else f"{__name__}:{kind}(of={call.name!r})"


def images(of: str) -> Dataset:
    """Black images, equally many of each class."""
    source = SOURCES.get(of) or DOWNSAMPLED.get(of) or Downsampled(of, side=224)
    classes, colours = source.num_classes, (0.5,) * source.shape[-1]
    black = [np.broadcast_to(np.uint8(0), (n, *source.shape)) for n in source.counts]
    labels = [np.arange(n, dtype=np.int32) % classes for n in source.counts]
    train, test = zip(black, labels, strict=True)
    return Dataset(of, *train, *test, classes, colours, colours)


def text(of: str) -> Text:
    """One word again and again, of a vocabulary as large as that of the text."""
    source = TEXTS[of]
    parts = [np.zeros(size, np.int32) for size in source.tokens]
    words = tuple(map(str, range(source.words)))
    return Text(of, dict(zip(PARTS, parts, strict=True)), words)
