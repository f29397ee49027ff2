"""Resolve paths below the roots, and walk the files of a directory for an `add`.

The walk honours ignore files and skips version control folders, links and generated folders.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proto.errors import InvalidParams, OperationError
from services.documents.store import globs
from services.runtime.roots import Roots, is_text_name, printable
from services.shared.ignore_files import GENERATED, IGNORE_FILES, VERSION_CONTROL, IgnoreRules, rules_in
from services.shared.walking import Folder, walk


@dataclass(slots=True)
class Walk:
    """The conditions of one walk, and a record of skipped files."""

    directory: str
    roots: Roots
    recursive: bool = True
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    honour_ignores: bool = True
    takes_generated: bool = False
    skipped: int = 0
    ignored: Counter[str] = field(default_factory=Counter)
    """Skipped version control and generated folders, counted by name."""
    failed: list[str] = field(default_factory=list)

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield each file's path relative to the directory, and its status, in order."""
        included = globs.matcher(self.include) if self.include else None
        excluded = globs.matcher(self.exclude) if self.exclude else None
        top = Folder(self.directory, "", self._above() if self.honour_ignores else None)
        for folder, folders, others in walk(self.roots, top, self._fail, honour_ignores=self.honour_ignores):
            folders[:] = [
                entry for entry in folders
                if self.recursive and self._enters(folder.below + entry.name, entry.name, folder.rules, excluded)
            ]  # fmt: skip
            for entry in others:
                path = folder.below + entry.name
                try:
                    if not entry.is_file(follow_symlinks=False):
                        self.skipped += 1
                    elif (
                        (folder.rules and folder.rules.ignores(path, is_folder=False))
                        or (included and not included("/" + path))
                        or (excluded and excluded("/" + path))
                    ):
                        continue
                    elif not is_text_name(path):
                        self.failed.append(f"{printable(entry.path)}: the name is not valid UTF-8")
                    else:
                        yield path, entry.stat(follow_symlinks=False)
                except OSError as error:
                    self._fail(entry.path, error)

    def _fail(self, path: str, error: OSError) -> None:
        self.failed.append(f"{printable(path)}: {error.strerror}")

    def _enters(self, path: str, name: str, rules: IgnoreRules | None, excluded: Callable[[str], bool] | None) -> bool:
        if excluded and excluded("/" + path):
            return False
        is_ignored = rules.verdict(path, is_folder=True) if rules else None
        is_generated = name in GENERATED and self.honour_ignores and not self.takes_generated
        if name in VERSION_CONTROL or (is_generated and is_ignored is None):
            self.ignored[name] += 1
            return False
        return not is_ignored

    def _above(self) -> IgnoreRules | None:
        """Return the rules of the folders above, up to the root of the repository, which git applies too."""
        chain: list[str] = []
        folder = self.directory
        while not os.path.isdir(os.path.join(folder, ".git")):
            folder = os.path.dirname(folder)
            if not self.roots.holds(folder):
                return None
            chain.append(folder)
        rules: IgnoreRules | None = None
        for folder in reversed(chain):
            rules = rules_in(self.roots, folder, IGNORE_FILES, rules, 0, os.path.relpath(self.directory, folder) + "/")
        return rules


def existing(path: str, field: str, roots: Roots) -> tuple[str, bool]:
    """Return the real path of an existing file or directory, and whether it is a directory.

    Raises InvalidParams if the path is not below a root, Denied, or OperationError if nothing exists there.
    """
    real = _real(path, field, roots)
    if not roots.holds(real):
        raise _outside(path, field, roots)
    if not os.path.lexists(real):
        raise OperationError(f"File not found: {path}{roots.similar(real, path)}", field=field)
    roots.check(real, field=field)
    return real, os.path.isdir(real)


def to_be_written(path: str, field: str, roots: Roots) -> Path:
    """Return the real path of a file or directory that may not exist yet.  Raises InvalidParams, Denied."""
    real = _real(path, field, roots)
    if not roots.holds(real):
        raise _outside(path, field, roots)
    roots.check(real, write=True, field=field)
    return Path(real)


def _real(path: str, field: str, roots: Roots) -> str:
    """Return the real path. Raises InvalidParams."""
    if not path or "\0" in path:
        raise InvalidParams(f"parameter `{field}` is empty or contains a NUL character", field=field)
    if not roots:
        raise _outside(path, field, roots)
    return os.path.realpath(roots.absolute(path, field))


def _outside(path: str, field: str, roots: Roots) -> InvalidParams:
    return InvalidParams(
        f"parameter `{field}`: {path[:200]} is not below a root ({', '.join(roots) or 'no roots are configured'}); "
        "pass roots when starting the kernel: linckia serve PATH…",
        field=field,
    )
