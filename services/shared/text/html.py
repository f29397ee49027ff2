"""Extracts the visible text of an HTML page in linear time, which the standard library's parser does not guarantee."""

from __future__ import annotations

import html
import re

from services.shared.text.invisible import without_breaks

MAX_TEXT_CHARS = 1_000_000

_RAW = frozenset({"script", "style"})
_SKIPPED = frozenset({"template", "noscript", "svg"})
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "p div br li tr section article header footer pre table ul ol blockquote address aside caption center dd"
        " details dialog dir dl dt fieldset figcaption figure form hgroup hr legend main menu nav optgroup option"
        " search select summary tbody tfoot thead textarea",
    )
)
_ROWS = frozenset({"tr", "table", "tbody", "tfoot", "thead"})
_APART = frozenset({"button", "label", "output"})
"""Elements within a line, but with space around them."""
_HEADINGS = {"title": "# "} | {f"h{level}": "#" * level + " " for level in range(1, 7)}
_CELLS = frozenset({"td", "th"})

_MARKUP = re.compile(r"<(?:(?P<comment>!--)|(?P<other>[!?])|(?P<end>/?)(?P<name>[A-Za-z][^\s/>]*+))")
_TAG_REST = re.compile(r"""(?:[^=>]|=\s*+(?:"[^"]*+"|'[^']*+')?)*+>""")
_TOO_LARGE = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9A-Fa-f]{8,});?")


def plain(text: str, most: int = MAX_TEXT_CHARS) -> str:
    """Return the text of a page's first `most` characters, with headings as in Markdown and each table row on one
    line."""
    text = text[:most]
    found: list[str] = []
    position = skipping = 0
    # The end tags of cells may be left out.
    is_in_cell = False
    while match := _MARKUP.search(text, position):
        if not skipping:
            found.append(text[position : match.start()])
        position, name = match.start(), (match["name"] or "").lower()
        if match["comment"]:
            end = text.find("-->", match.end()) + 3
        elif name:
            end = rest.end() if (rest := _TAG_REST.match(text, match.end())) else 0
        else:
            end = text.find(">", match.end()) + 1
        if end <= match.end():
            # It is never closed, so it is not markup.
            break
        position = end
        if name in _RAW and not match["end"]:
            closing = re.compile(rf"</{name}\b", re.IGNORECASE).search(text, position)
            position = len(text) if closing is None else closing.start()
        elif name in _SKIPPED and not match["end"]:
            skipping += text[end - 2] != "/"
        elif name in _SKIPPED:
            skipping = max(0, skipping - 1)
        elif skipping:
            continue
        elif name in _CELLS:
            found.append(" | " if match["end"] or is_in_cell else "")
            is_in_cell = not match["end"]
        elif name in _HEADINGS:
            found.append("\n" if match["end"] else f"\n{_HEADINGS[name]}")
        elif name in _BLOCKS:
            found.append(" | \n" if is_in_cell and name in _ROWS else "\n")
            is_in_cell = is_in_cell and name not in _ROWS
        elif name in _APART:
            found.append(" ")
    if not skipping:
        found.append(text[position:])
    seen = html.unescape(_TOO_LARGE.sub("\N{REPLACEMENT CHARACTER}", "".join(found)))
    seen = re.sub(r"^(#{1,6} )\s+", r"\1", seen, flags=re.MULTILINE)
    return re.sub(r"\n[ \t]*(\n[ \t]*)+", "\n\n", without_breaks(seen)).strip()
