"""The frame of a report page, and the parts that all pages have."""

import shlex
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from jaxcomp.report.page_style import CSS


class Card(NamedTuple):
    """One headline number, as HTML."""

    name: str
    value: str
    note: str


def frame(title: str, subtitle: str, body: str) -> str:
    """Writes a page around its content.

    Args:
        title: Title of the page.
        subtitle: A line below it.
        body: Content as HTML.

    Returns:
        The page.

    >>> "<h1>a &lt; b</h1>" in frame("a < b", "run 1", "")
    True
    """
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{CSS}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="soft">{escape(subtitle)}</p>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def banner(text: str) -> str:
    """Writes what nobody may overlook.

    Args:
        text: What it says.

    Returns:
        HTML.

    >>> banner("a < b")
    '<p class="banner" role="alert">a &lt; b</p>'
    """
    return f'<p class="banner" role="alert">{escape(text)}</p>'


def headline(cards: Sequence[Card]) -> str:
    """Writes headline numbers side by side.

    Args:
        cards: The numbers.

    Returns:
        HTML.

    >>> print(headline([Card("steps", "88", "epochs: 4")]))
    <dl class="headline">
    <div><dt>steps</dt><dd class="value">88</dd><dd class="note">epochs: 4</dd></div>
    </dl>
    """
    divs = "\n".join(
        f'<div><dt>{name}</dt><dd class="value">{value}</dd>'
        f'<dd class="note">{note}</dd></div>'
        for name, value, note in cards
    )
    return f'<dl class="headline">\n{divs}\n</dl>'


def figure(svg: str, caption: str) -> str:
    """Writes a plot with its caption.

    Args:
        svg: The plot as an SVG element.
        caption: What it shows.

    Returns:
        HTML.

    >>> print(figure("<svg></svg>", "Loss & accuracy."))
    <figure>
    <svg></svg>
    <figcaption>Loss &amp; accuracy.</figcaption>
    </figure>
    """
    return f"<figure>\n{svg}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def command_line(command: Any) -> str:
    """Writes the command that started a run.

    Args:
        command: Its words, or whatever stands in their place.

    Returns:
        HTML.

    >>> command_line(["train.py", "--note=a b"])
    '<pre><code>train.py &#x27;--note=a b&#x27;</code></pre>'
    """
    if not isinstance(command, list) or not command:
        return '<p class="soft">not recorded in environment.json</p>'
    return f"<pre><code>{escape(shlex.join(map(str, command)))}</code></pre>"


def started(environment: dict[str, Any]) -> str:
    """Says when a run started, to follow its name.

    Args:
        environment: Content of `environment.json`.

    Returns:
        Text, empty if it was not recorded.

    >>> started({"started": "2025-11-18"}), started({})
    (', started 2025-11-18', '')
    """
    time = environment.get("started")
    return f", started {time}" if time else ""
