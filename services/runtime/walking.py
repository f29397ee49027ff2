"""Walking folders as their ignore files say, for the services that take what is below a user's folder.

No symbolic link is followed, nothing that the roots hide is seen, and the entries of a folder come by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from linckia.services.runtime.ignore_files import IGNORE_FILES, IgnoreRules, rules_in
from linckia.services.runtime.roots import Roots


class Folder(NamedTuple):
    """A folder that a walk comes to.

    `below` is its path as the rules count it, ending in `/`, or empty where they begin; `rules` are those of the
    folders above, and in a listing its own as well.
    """

    path: str
    below: str = ""
    rules: IgnoreRules | None = None


class Listing(NamedTuple):
    """What is in a folder. The walk goes on in those of `folders` that its caller leaves there."""

    folder: Folder
    folders: list[os.DirEntry[str]]
    others: list[os.DirEntry[str]]


def walk(
    roots: Roots, top: Folder, failed: Callable[[str, OSError], None],
    *, honour_ignores: bool = True, not_used: Callable[[str, Exception], None] | None = None,
) -> Iterator[Listing]:  # fmt: skip
    """A folder and those below it, each before what is in it; blocks.

    Args:
        failed: told of each folder that cannot be listed, by its path.
        not_used: told of each ignore file that cannot be read.
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
        # Among the others it fails in the same way, where that is told.
        return False
