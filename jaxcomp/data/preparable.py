"""What `jaxcomp data prepare` can prepare, and stand-ins for what is not prepared."""

import numpy as np

from jaxcomp.core.specs import calls
from jaxcomp.data import sources
from jaxcomp.data.dataset import Dataset
from jaxcomp.data.imagenet import DOWNSAMPLED, Downsampled, arrays, folder_of
from jaxcomp.data.prepare import DataDir, Preparable, find
from jaxcomp.data.sources import SOURCES
from jaxcomp.data.text import PARTS, Text, prepared_text
from jaxcomp.data.text import SOURCES as TEXTS


def preparable() -> dict[str, Preparable]:
    """All of them by name.

    Example:
      >>> preparable()["mnist"].place
      'mnist.npz'
    """
    rows = [*map(sources.arrays, SOURCES.values()), *map(arrays, DOWNSAMPLED.values())]
    rows += map(prepared_text, TEXTS.values())
    return {row.name: row for row in rows}


def stand_in_for(dataset: str, data_dir: DataDir) -> str:
    """The spec of what stands in for a data set; "" if it is here, or not known.

    Args:
      dataset: spec string.
      data_dir: as in `prepare.data_root`.

    Example:
      >>> stand_in_for("mnist", "nowhere")
      "jaxcomp.data.preparable:images(of='mnist')"
    """
    [call], known = calls(dataset), preparable()
    if call.name == "imagenet":
        is_here = "path" in call.kwargs or folder_of(data_dir).is_dir()
    else:
        is_here = call.name not in known or find(known[call.name], data_dir)
    kind = "text" if call.name in TEXTS else "images"
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
