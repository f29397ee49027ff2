"""The links to notes in `.canvas` files (JSON Canvas): the file of a card, and the links in its text.

A canvas is no note and is not indexed, so that a renaming looks for canvases in its root. Only the strings that change
are written anew.

https://jsoncanvas.org/spec/1.0/
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping

from services.knowledge.ingest.note_walk import enters
from services.knowledge.notes import links
from services.knowledge.notes.files import Place
from services.knowledge.writing import relinking
from services.knowledge.writing.relinking import Changed, Move
from services.runtime.roots import Roots
from services.shared.walking import Folder, walk

SUFFIX = ".canvas"

PATIENCE_S = 5.0
"""Time limit of the search for canvases."""

FILE, TEXT = "file", "text"

_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?', re.DOTALL)


def is_canvas(path: str) -> bool:
    """Return whether a path is that of a canvas."""
    return path.lower().endswith(SUFFIX)


def find(root: str, roots: Roots) -> tuple[list[Place], bool]:
    """Return the canvases below a root, and whether all folders were seen in time.  Blocks on the disk."""
    until = time.monotonic() + PATIENCE_S
    found: list[Place] = []
    for folder, folders, others in walk(roots, Folder(root), lambda path, error: None, honour_ignores=False):
        if time.monotonic() > until:
            return found, False
        folders[:] = [each for each in folders if enters(each.name) and each.path not in roots]
        found += [Place(root, folder.below + entry.name) for entry in others if is_canvas(entry.name)]
    return found, True


def references(text: str, place: Place) -> Iterator[tuple[str, str]]:
    """Yield the keys of the names by which the texts of a canvas refer to notes."""
    for _, _, key, value in _strings(text):
        for token in relinking.tokens(value) if key == TEXT else ():
            if not token.is_path:
                yield from ((one.key, one.other_key) for one in links.named("", token.written, place))


def changed(text: str, place: Place, move: Move) -> Changed:
    """Return what has to be rewritten in the canvas at `place` after the move."""
    found = Changed()
    for _, _, key, value in _strings(text):
        if key == FILE and (new := _moved(value, place, move)) is not None:
            found.files[value] = new
        elif key == TEXT:
            inside = relinking.changed(value, place, move)
            found.names |= inside.names
            found.paths |= inside.paths
            found.stuck |= inside.stuck
    return found


def relinked(
    text: str, names: Mapping[str, str], paths: Mapping[str, str], files: Mapping[str, str]
) -> tuple[str, int]:
    """Rewrite links in a canvas.  Returns the new text and the number of changes."""
    parts: list[str] = []
    position = count = 0
    for start, end, key, value in _strings(text):
        if key == FILE:
            new, changes = files.get(value, value), int(files.get(value, value) != value)
        else:
            new, changes = relinking.relinked(value, names, paths)
        if changes:
            # As the rest of the file, which may have letters as they are or as escapes.
            parts += (text[position:start], json.dumps(new, ensure_ascii=text.isascii() and "\\u" in text))
            position = end
            count += changes
    return "".join((*parts, text[position:])), count


def _moved(file: str, place: Place, move: Move) -> str | None:
    """Return the new path of a card's file, which begins at the vault: some folder around the canvas."""
    folder = os.path.dirname(place.absolute)
    while True:
        if links.path_key(os.path.join(folder, file)) == links.path_key(move.old.absolute):
            new = os.path.relpath(move.new.absolute, folder)
            return None if new.startswith("../") else new
        if folder in (place.root, os.path.dirname(folder)):
            return None
        folder = os.path.dirname(folder)


def _strings(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield the values of `file` and `text`: start and end of the string, its key, and its value."""
    key = ""
    for match in _STRING.finditer(text):
        if match[2]:
            key = match[1]
            continue
        if key in (FILE, TEXT):
            with contextlib.suppress(ValueError):
                yield match.start(), match.end(1) + 1, key, json.loads(match[0], strict=False)
        key = ""
