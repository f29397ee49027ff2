"""Unicode forms of names: `é` as one character (NFC) or as two (NFD) is the same name."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence

from services.runtime.roots import is_below


def nfc(text: str) -> str:
    """Normalise a text to NFC."""
    return unicodedata.normalize("NFC", text)


def as_on_disk(path: str, roots: Sequence[str]) -> str:
    """Return an absolute path in the Unicode form used on disk below the roots; missing parts keep the given form.

    Blocks on the disk. The exact spelling is preferred.
    """
    if path.isascii() or os.path.lexists(path) or not is_below(path, roots):
        return path
    root = max((root for root in roots if is_below(path, (root,))), key=len)
    found = root
    parts = [part for part in path[len(root) :].split(os.sep) if part]
    for number, part in enumerate(parts):
        if (there := _entry(found, part)) is None:
            return os.path.join(found, *parts[number:])
        found = os.path.join(found, there)
    return found


def _entry(folder: str, name: str) -> str | None:
    if os.path.lexists(os.path.join(folder, name)):
        return name
    if name.isascii():
        return None
    try:
        same = [each for each in os.listdir(folder) if nfc(each) == nfc(name)]
    except OSError:
        return None
    # Of several other forms, none is meant more than another.
    return same[0] if len(same) == 1 else None
