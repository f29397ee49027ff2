"""Recognizes names in a task by their form (`config.ini`, `https://…`, `3 pm`), and the kind of thing they name.

Descriptions of operations speak of "a file", "a URL" and "a time"; tasks name one. `generalized` puts the kind in its
place, so that words and vectors compare like with like. A form that can be read in two ways gets the likelier kind;
nothing is lost, because the task itself is searched for too.
"""

from __future__ import annotations

import re
from typing import Final

_DOMAINS: Final = "com|org|net|io|dev|app|ai|edu|gov|de|fr|uk|eu|ch|info|wiki"
_PICTURES: Final = "png|jpe?g|gif|webp|svg|bmp|tiff?|heic"
_SOUNDS: Final = "mp3|wav|ogg|flac|m4a"

_KINDS: Final = tuple(
    (re.compile(form, re.IGNORECASE), kind)
    for form, kind in (
        (r"\"[^\"]{1,200}\"|“[^”]{1,200}”|(?<!\w)'[^']{1,200}'(?!\w)", "a text"),
        (r"\bhttps?://\S+", "a web page URL"),
        (rf"\b(?:[a-z0-9-]+\.)+(?:{_DOMAINS})\b(?:/\S*)?", "a web page URL"),
        (r"\S*\*\S*\.\w+|\*\*?/\S+|\S+/\*\S*", "files matching a pattern"),
        (rf"[\w./~-]*\w\.(?:{_PICTURES})\b", "an image file"),
        (rf"[\w./~-]*\w\.(?:{_SOUNDS})\b", "an audio file"),
        (r"[\w./~-]*\w\.(?:sqlite3?|db)\b", "a database"),
        (r"[\w./~-]*\w\.ya?ml\b", "a YAML file"),
        (r"(?<![\w.])[\w./~-]*[a-z_]\w*\.(?!g\b|e\b)[a-z][a-z0-9]{0,4}\b", "a file"),
        (r"(?<!\w)~?/[\w.-]+(?:/[\w.-]+)*/?|\b\w+/\w+/\w+\b", "a directory path"),
        (r"\b\d{1,2}(?::\d\d)? ?(?:am|pm)\b|\b\d{1,2}:\d\d\b", "a time"),
        (r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b", "a commit hash"),
        (r"\b\d+(?:\.\d+)? ?(?:[-+*/]|plus|minus|times|divided by) ?\d+(?:\.\d+)?\b", "numbers"),
        (r"[\w.+-]+@[\w-]+\.\w+", "an email address"),
    )
)


def generalized(task: str) -> str:
    """Return the task with kinds in place of names; a task without names is returned unchanged."""
    for form, kind in _KINDS:
        task = form.sub(kind, task)
    return task
