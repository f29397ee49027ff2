"""The files of a directory as an `add` takes them: ignore files honoured, version control and links left out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pathspec import GitIgnoreSpec

from services.documents.add.places import is_below, is_text_name, printable
from services.documents.store import globs

IGNORE_FILES = (".gitignore", ".ignore", ".linckiaignore")
"""In rising order of precedence."""
VERSION_CONTROL = frozenset({".git", ".hg", ".svn", ".jj", ".bzr"})
MAX_IGNORE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Rules:
    """The patterns of one folder's ignore files, over those of the folders above it."""

    above: _Rules | None
    prefix: int
    lead: str
    """Where the walk begins, as seen from the patterns' folder."""
    spec: GitIgnoreSpec

    def ignores(self, path: str, is_folder: bool) -> bool:
        rules: _Rules | None = self
        while rules is not None:
            verdict = rules.spec.check_file(rules.lead + path[rules.prefix :] + ("/" if is_folder else "")).include
            if verdict is not None:
                return verdict
            rules = rules.above
        return False


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
        pending: list[tuple[str, _Rules | None]] = [("", self._above() if self.honour_ignores else None)]
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
            folders: list[tuple[str, _Rules | None]] = []
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
                            and not (rules and rules.ignores(path, True))
                            and not (excluded and excluded("/" + path))
                        ):
                            folders.append((path + "/", rules))
                    elif not entry.is_file(follow_symlinks=False):
                        self.skipped += 1
                    elif (
                        (rules and rules.ignores(path, False))
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
        self, folder: str, prefix: str, above: _Rules | None, entries: Sequence[os.DirEntry[str]]
    ) -> _Rules | None:
        there = {entry.name for entry in entries if entry.name in IGNORE_FILES}
        return _read(folder, len(prefix), above, there) if there else above

    def _above(self) -> _Rules | None:
        """The rules of the folders above, up to where the repository begins; git ignores by those too."""
        chain: list[str] = []
        folder = self.directory
        while not os.path.isdir(os.path.join(folder, ".git")):
            folder = os.path.dirname(folder)
            if not is_below(folder, self.roots):
                return None
            chain.append(folder)
        rules: _Rules | None = None
        for folder in reversed(chain):
            there = {name for name in IGNORE_FILES if os.path.isfile(os.path.join(folder, name))}
            if there:
                rules = _read(folder, 0, rules, there, os.path.relpath(self.directory, folder) + "/")
        return rules


def _read(folder: str, prefix: int, above: _Rules | None, names: set[str], lead: str = "") -> _Rules:
    lines: list[str] = []
    for name in IGNORE_FILES:
        if name in names:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    text = file.read(MAX_IGNORE_BYTES).decode("utf-8", "replace")
            except OSError:
                # An ignore file that cannot be read ignores nothing; the walk says nothing of files it takes.
                continue
            lines += (line.rstrip("\r") for line in text.split("\n"))
    good: list[str] = []
    for line in lines:
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:
            # Git passes over a pattern that it cannot understand, and keeps the rest.
            continue
        good.append(line)
    return _Rules(above, prefix, lead, GitIgnoreSpec.from_lines(good))
