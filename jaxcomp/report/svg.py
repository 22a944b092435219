"""Turn figures into files, and into SVG elements of a page."""

import io
import re
from pathlib import Path

from matplotlib.figure import Figure

from jaxcomp.report.style import look

__all__ = ["inline_svg", "write"]

# What stands before the element in an SVG file, and parts of it that a page must not
# have: a style element would apply to the whole page, which has its own rule instead.
_FILE_PARTS = re.compile(
    r"\A.*?(?=<svg)|<metadata>.*?</metadata>|<style\b.*?</style>", re.DOTALL
)
# Where an id is given, and the two ways in which it is referred to.
_ID = re.compile(r'(\bid="|\bhref="#|url\(#)')


def inline_svg(figure: Figure, name: str) -> str:
    """Draw a figure as an SVG element of an HTML page, which scales with the page.

    Args:
      figure: to draw.
      name: prefix of all ids in the element. Matplotlib calls the first axes of every
        figure `axes_1`, and without prefixes a plot would take its clip path from the
        first plot of the page.

    Returns:
      The element.
    """
    buffer = io.StringIO()
    # Without a date the same run gives the same page.
    with look():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    element = _FILE_PARTS.sub("", buffer.getvalue())
    head, end, body = element.partition(">")
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    return _ID.sub(rf"\g<1>{name}-", head + end + body).strip()


def write(figure: Figure, path: Path) -> None:
    """Draw a figure into a file: SVG, PNG, or what else the file's name says."""
    with look():
        figure.savefig(path, dpi=200, metadata={"Date": None})
