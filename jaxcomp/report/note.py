"""A person's note on a page, which is kept when the page is written again."""

from html.parser import HTMLParser
from pathlib import Path

__all__ = ["kept_note"]

_ID = "note"  # of the element that holds it


class _Reader(HTMLParser):
    """Collects the text of one element, which holds no others."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.is_inside = ("id", _ID) in attrs

    def handle_endtag(self, tag: str) -> None:
        self.is_inside = False

    def handle_data(self, data: str) -> None:
        if self.is_inside:
            self.text.append(data)


def kept_note(page: Path) -> str:
    """The note on a page that was written before; "" without a page or a note.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     page = Path(folder, "comparison.html")
      ...     _ = page.write_text('<p id="note">a &lt; b</p><p>other</p>')
      ...     kept_note(page), kept_note(page.with_name("none.html"))
      ('a < b', '')
    """
    if not page.is_file():
        return ""
    reader = _Reader()
    reader.feed(page.read_text(encoding="utf-8", errors="replace"))
    return "".join(reader.text)
