"""Links to files other than notes below the roots, such as pictures, PDFs and canvases."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import trio

from services.knowledge.ingest.note_walk import enters
from services.knowledge.notes.links import name_key
from services.knowledge.notes.spelling import as_on_disk
from services.runtime.roots import Roots
from services.shared.walking import Folder, walk

PATIENCE_S = 5.0
"""Time limit of the walk through all roots, since people wait for a status."""


def there(keys: Iterable[str], roots: Roots) -> frozenset[str]:
    """Return the keys of references that match a file: by its path, its name, or the end of its path below any root.

    Blocks on the disk; runs in a trio worker thread. After `PATIENCE_S` the remaining keys that have an extension count
    as found.
    """
    until = time.monotonic() + PATIENCE_S
    found = {key for key in keys if key.startswith("/") and _is_file(key, roots)}
    wanted: dict[str, list[str]] = {}
    for key in keys:
        if not key.startswith("/"):
            wanted.setdefault(key.rpartition("/")[2], []).append(key)
    for root in roots if wanted else ():
        for folder, folders, others in walk(roots, Folder(root), lambda path, error: None, honour_ignores=False):
            trio.from_thread.check_cancelled()
            if time.monotonic() > until:
                return frozenset(found.union(*(each for name, each in wanted.items() if "." in name)))
            folders[:] = [each for each in folders if enters(each.name) and each.path not in roots]
            for name in (name_key(entry.name) for entry in others):
                if (sought := wanted.get(name)) is not None:
                    path = name_key(folder.below + name)
                    found.update(key for key in sought if key == path or path.endswith(f"/{key}"))
    return frozenset(found)


def _is_file(key: str, roots: Roots) -> bool:
    """Return whether a path exists, with or without the `.md` that was appended to a wikilink's."""
    return any(os.path.exists(as_on_disk(path, roots)) for path in (key, key.removesuffix(".md")))
