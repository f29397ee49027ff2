"""The files of a directory as an `add` takes them: ignore files honoured, version control and links left out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from services.documents.store import globs
from services.runtime.ignore_files import IGNORE_FILES, IgnoreRules, rules_from
from services.runtime.roots import is_below, is_text_name, printable

VERSION_CONTROL = frozenset({".git", ".hg", ".svn", ".jj", ".bzr"})
MAX_IGNORE_BYTES = 1024 * 1024


@dataclass(slots=True)
class Walk:
    """The conditions of one walk, and what it left out."""

    directory: str
    roots: Sequence[str]
    recursive: bool = True
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    honour_ignores: bool = True
    avoid: Sequence[str] = ()
    """Absolute folders that are never looked into (the store's own)."""
    skipped: int = 0
    failed: list[str] = field(default_factory=list)

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Each file's path below the directory, and its status; in order."""
        included = globs.matcher(self.include) if self.include else None
        excluded = globs.matcher(self.exclude) if self.exclude else None
        pending: list[tuple[str, IgnoreRules | None]] = [("", self._above() if self.honour_ignores else None)]
        while pending:
            prefix, rules = pending.pop()
            folder = os.path.join(self.directory, prefix)
            try:
                with os.scandir(folder) as scan:
                    entries = sorted(scan, key=lambda entry: entry.name)
            except OSError as error:
                self.failed.append(f"{printable(folder)}: {error.strerror}")
                continue
            if self.honour_ignores:
                rules = self._rules(folder, prefix, rules, entries)
            folders: list[tuple[str, IgnoreRules | None]] = []
            for entry in entries:
                path = prefix + entry.name
                try:
                    if entry.is_symlink():
                        self.skipped += 1
                    elif entry.is_dir(follow_symlinks=False):
                        if (
                            self.recursive
                            and entry.name not in VERSION_CONTROL
                            and entry.path not in self.avoid
                            and not (rules and rules.ignores(path, is_folder=True))
                            and not (excluded and excluded("/" + path))
                        ):
                            folders.append((path + "/", rules))
                    elif not entry.is_file(follow_symlinks=False):
                        self.skipped += 1
                    elif (
                        (rules and rules.ignores(path, is_folder=False))
                        or (included and not included("/" + path))
                        or (excluded and excluded("/" + path))
                    ):
                        continue
                    elif not is_text_name(path):
                        self.failed.append(f"{printable(entry.path)}: its name is not valid UTF-8")
                    else:
                        yield path, entry.stat(follow_symlinks=False)
                except OSError as error:
                    self.failed.append(f"{printable(entry.path)}: {error.strerror}")
            pending += reversed(folders)

    def _rules(
        self, folder: str, prefix: str, above: IgnoreRules | None, entries: Sequence[os.DirEntry[str]]
    ) -> IgnoreRules | None:
        there = {entry.name for entry in entries if entry.name in IGNORE_FILES}
        return _read(folder, len(prefix), above, there) if there else above

    def _above(self) -> IgnoreRules | None:
        """The rules of the folders above, up to where the repository begins; git ignores by those too."""
        chain: list[str] = []
        folder = self.directory
        while not os.path.isdir(os.path.join(folder, ".git")):
            folder = os.path.dirname(folder)
            if not is_below(folder, self.roots):
                return None
            chain.append(folder)
        rules: IgnoreRules | None = None
        for folder in reversed(chain):
            there = {name for name in IGNORE_FILES if os.path.isfile(os.path.join(folder, name))}
            if there:
                rules = _read(folder, 0, rules, there, os.path.relpath(self.directory, folder) + "/")
        return rules


def _read(folder: str, prefix: int, above: IgnoreRules | None, names: set[str], lead: str = "") -> IgnoreRules:
    texts: list[str] = []
    for name in IGNORE_FILES:
        if name in names:
            # An ignore file that cannot be read ignores nothing; the walk says nothing of files it takes.
            with contextlib.suppress(OSError), open(os.path.join(folder, name), "rb") as file:
                texts.append(file.read(MAX_IGNORE_BYTES).decode("utf-8", "replace"))
    return rules_from(texts, above, prefix, lead)
