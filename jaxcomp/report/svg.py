"""Turn figures into files and into SVG elements for one page."""

import io
import re
from pathlib import Path

from matplotlib.figure import Figure

from jaxcomp.report.style import look

# What makes an SVG file out of the element, and what belongs to the file only. The
# style element would count for the whole page; the page has its own rule instead.
_FILE_PARTS = re.compile(
    r"\A.*?(?=<svg)|<metadata>.*?</metadata>|<style\b.*?</style>", re.DOTALL
)
# Where an id is given, and the two ways in which it is referred to.
_ID = re.compile(r'(\bid="|\bhref="#|url\(#)')


def inline_svg(figure: Figure, name: str) -> str:
    """Draws a figure as an SVG element for an HTML page.

    Args:
        figure: The figure.
        name: Prefix of all ids in the element. Matplotlib calls the first axes of
            every figure `axes_1`; in one page a clip path would else be taken from
            whichever plot comes first.

    Returns:
        The element, which scales with the page.
    """
    buffer = io.StringIO()
    # Without a date the same run gives the same page.
    with look():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    element = _FILE_PARTS.sub("", buffer.getvalue())
    head, end, body = element.partition(">")
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    return _ID.sub(rf"\g<1>{name}-", head + end + body).strip()


def write_png(figure: Figure, path: Path) -> None:
    """Draws a figure into a PNG file.

    Args:
        figure: The figure.
        path: The file.
    """
    with look():
        figure.savefig(path, format="png", dpi=200)
