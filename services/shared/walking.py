"""Walks folders under their ignore files, for services that process a user's folders.

Symbolic links are not followed, entries that the roots hide are skipped, and each folder's entries are sorted by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from services.runtime.roots import Roots
from services.shared.ignore_files import IGNORE_FILES, IgnoreRules, rules_in


class Folder(NamedTuple):
    """A folder that a walk visits.

    `below` is its path relative to the top of the walk, ending in `/`, or empty for the top itself. `rules` are those
    of the folders above; in a listing they include the folder's own.
    """

    path: str
    below: str = ""
    rules: IgnoreRules | None = None


class Listing(NamedTuple):
    """The content of a folder. A caller may remove entries from `folders` to keep the walk out of them."""

    folder: Folder
    folders: list[os.DirEntry[str]]
    others: list[os.DirEntry[str]]


def walk(
    roots: Roots, top: Folder, failed: Callable[[str, OSError], None],
    *, honour_ignores: bool = True, not_used: Callable[[str, Exception], None] | None = None,
) -> Iterator[Listing]:  # fmt: skip
    """Yield a folder and those below it, each before its content; blocks.

    Args:
        failed: called with the path of each folder that cannot be listed.
        not_used: called for each ignore file that cannot be read.
    """
    pending = [top]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder.path) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            failed(folder.path, error)
            continue
        if hidden := roots.hidden_in(folder.path):
            entries = [entry for entry in entries if not hidden(entry.name)]
        if honour_ignores:
            names = {entry.name for entry in entries}.intersection(IGNORE_FILES)
            rules = rules_in(roots, folder.path, names, folder.rules, len(folder.below), failed=not_used)
            folder = folder._replace(rules=rules)
        folders = [entry for entry in entries if _is_folder(entry)]
        others = [entry for entry in entries if not _is_folder(entry)]
        yield Listing(folder, folders, others)
        pending += [Folder(each.path, f"{folder.below}{each.name}/", folder.rules) for each in reversed(folders)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        # As a non-folder, it fails again later and is reported there.
        return False
