"""Which files below the roots are notes.

`Walker.walk` finds every `.md` file below the roots and states of each what tells one version from the next.  It
follows no symbolic link (what a link points to below a root is found there by itself), prunes hidden folders and
those of package installers, and honours `.gitignore`, `.ignore` and `.linckiaignore` with git's rules.  What cannot
be read is reported and skipped, and told from what is gone: an unreadable folder never looks like a deleted one.
`Walker.look` finds the same of some files and folders only, at a cost that does not grow with the roots.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from pathspec import GitIgnoreSpec

from services.knowledge.notes.files import OutsideRoots, Place, Stamp, TooLarge, is_below, printable, read

IGNORE_FILES = (".gitignore", ".ignore", ".linckiaignore")
"""In rising order of precedence."""

SKIPPED_FOLDERS = frozenset({"node_modules", "bower_components", "__pycache__", "site-packages", "lost+found"})


@dataclass(slots=True)
class Walk:
    """What one walk found.

    `unreadable` are folders and files (absolute) that are neither there nor gone; `problems` says in words what was
    left out.
    """

    notes: dict[Place, Stamp] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)

    def is_hidden_from_view(self, place: Place) -> bool:
        """Whether the walk could not have seen this file even if it is there."""
        path = place.absolute
        return any(path == seat or path.startswith(seat.rstrip(os.sep) + os.sep) for seat in self.unreadable)


@dataclass(frozen=True, slots=True)
class _Rules:
    """The patterns of one folder's ignore files, with those of the folders above it."""

    above: _Rules | None
    prefix_length: int
    spec: GitIgnoreSpec

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Whether `path` (relative to the root) is ignored; the deepest rule that matches decides."""
        rules: _Rules | None = self
        while rules is not None:
            below = path[rules.prefix_length :] + ("/" if is_folder else "")
            verdict = rules.spec.check_file(below).include
            if verdict is not None:
                return verdict
            rules = rules.above
        return False


class _Entry:
    """One entry of a folder that is not listed as a whole.  Raises OSError where it is not there."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = os.path.basename(path)
        self._status = os.lstat(path)

    def is_dir(self, *, follow_symlinks: bool) -> bool:
        return stat.S_ISDIR(self._status.st_mode)

    def is_file(self, *, follow_symlinks: bool) -> bool:
        return stat.S_ISREG(self._status.st_mode)

    def stat(self, *, follow_symlinks: bool) -> os.stat_result:
        return self._status


class Walker:
    """Walks the roots again and again, cheaply: what the ignore rules said is kept while their files stay the same."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self.roots = tuple(dict.fromkeys(str(root) for root in roots))
        self._root_set = frozenset(self.roots)
        self._verdicts: dict[str, tuple[_Rules, bool]] = {}
        self._rules: dict[str, tuple[_Identity, _Rules]] = {}

    def walk(self) -> Walk:
        """Every note below the roots; a root inside another belongs to itself alone."""
        found = Walk()
        seen_verdicts: dict[str, tuple[_Rules, bool]] = {}
        seen_rules: dict[str, tuple[_Identity, _Rules]] = {}
        for root in self.roots:
            pending: list[tuple[str, str, _Rules | None]] = [(root, "", None)]
            while pending:
                folder, prefix, rules = pending.pop()
                self._folder(root, folder, prefix, rules, found, pending, seen_verdicts, seen_rules)
        self._verdicts, self._rules = seen_verdicts, seen_rules
        return found

    def _folder(
        self,
        root: str,
        folder: str,
        prefix: str,
        above: _Rules | None,
        found: Walk,
        pending: list[tuple[str, str, _Rules | None]],
        seen_verdicts: dict[str, tuple[_Rules, bool]],
        seen_rules: dict[str, tuple[_Identity, _Rules]],
    ) -> None:
        try:
            with os.scandir(folder) as scan:
                entries = list(scan)
        except OSError as error:
            # A root that vanished may be a disk that is not mounted: its notes are out of sight, not deleted.
            if prefix and error.errno in (errno.ENOENT, errno.ENOTDIR):
                return
            found.unreadable.append(folder)
            found.problems[printable(folder)] = f"folder cannot be read: {error.strerror}"
            return
        names = {entry.name for entry in entries}
        if prefix and "pyvenv.cfg" in names:
            return
        rules = self._rules_of(folder, prefix, above, names, found, seen_rules)

        for entry in entries:
            self._entry(root, entry, prefix, rules, found, pending, seen_verdicts)

    def _entry(
        self,
        root: str,
        entry: os.DirEntry[str] | _Entry,
        prefix: str,
        rules: _Rules | None,
        found: Walk,
        pending: list[tuple[str, str, _Rules | None]],
        seen_verdicts: dict[str, tuple[_Rules, bool]],
    ) -> None:
        """Take in a note, or put a folder among the `pending`."""
        name = entry.name
        if name.startswith("."):
            return
        path = prefix + name
        try:
            if entry.is_dir(follow_symlinks=False):
                if (
                    name not in SKIPPED_FOLDERS
                    and entry.path not in self._root_set
                    and not self._ignored(root, path, rules, seen_verdicts, is_folder=True)
                ):
                    pending.append((entry.path, path + "/", rules))
            elif (
                name[-3:].lower() == ".md"
                and entry.is_file(follow_symlinks=False)
                and not self._ignored(root, path, rules, seen_verdicts, is_folder=False)
            ):
                if not _is_text(path):
                    found.problems[printable(entry.path)] = "name is not valid UTF-8"
                    return
                found.notes[Place(root, path)] = Stamp.of(entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            return
        except OSError as error:
            found.problems[printable(entry.path)] = f"cannot be examined: {error.strerror}"
            found.unreadable.append(entry.path)

    def _ignored(
        self,
        root: str,
        path: str,
        rules: _Rules | None,
        seen: dict[str, tuple[_Rules, bool]],
        *,
        is_folder: bool,
    ) -> bool:
        if rules is None:
            return False
        key = os.path.join(root, path)
        known = self._verdicts.get(key)
        verdict = known[1] if known is not None and known[0] is rules else rules.ignores(path, is_folder)
        seen[key] = (rules, verdict)
        return verdict

    def look(self, files: Iterable[str], folders: Iterable[str]) -> Walk:
        """What `walk` would find at `files` and anywhere below `folders` (real, absolute paths)."""
        found = Walk()
        above: dict[str, tuple[str, _Rules | None] | None] = {}
        seats = [(path, False) for path in files] + [(path, True) for path in folders]
        # A root inside a folder is its own.
        seats += [(root, True) for path, deep in seats if deep for root in self.roots if is_below(root, (path,))]
        for path, deep in dict.fromkeys(seats):
            root = self.root_of(path)
            if root is None:
                continue
            pending: list[tuple[str, str, _Rules | None]] = []
            if path == root:
                pending.append((root, "", None))
            elif (chain := self._chain(root, os.path.dirname(path), found, above)) is not None:
                try:
                    entry = _Entry(path)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except OSError as error:
                    found.problems[printable(path)] = f"cannot be examined: {error.strerror}"
                    found.unreadable.append(path)
                    continue
                self._entry(root, entry, chain[0], chain[1], found, pending, self._verdicts)
            while deep and pending:
                folder, prefix, rules = pending.pop()
                self._folder(root, folder, prefix, rules, found, pending, self._verdicts, self._rules)
        return found

    def root_of(self, path: str) -> str | None:
        """The root that a path belongs to: of two inside each other, the inner one."""
        return max((root for root in self.roots if path == root or is_below(path, (root,))), key=len, default=None)

    def place_of(self, path: str) -> Place | None:
        """Where a file of that path would be."""
        root = self.root_of(path)
        return None if root is None or path == root else Place(root, path[len(root.rstrip(os.sep)) + 1 :])

    def _chain(
        self, root: str, folder: str, found: Walk, known: dict[str, tuple[str, _Rules | None] | None]
    ) -> tuple[str, _Rules | None] | None:
        """How `walk` comes to a folder: its path below the root and the rules in it; None where it does not."""
        if folder not in known:
            known[folder] = self._link(root, folder, found, known)
        return known[folder]

    def _link(
        self, root: str, folder: str, found: Walk, known: dict[str, tuple[str, _Rules | None] | None]
    ) -> tuple[str, _Rules | None] | None:
        prefix, rules = "", None
        try:
            if folder != root:
                above = self._chain(root, os.path.dirname(folder), found, known)
                if above is None:
                    return None
                entry = _Entry(folder)
                pending: list[tuple[str, str, _Rules | None]] = []
                self._entry(root, entry, above[0], above[1], found, pending, self._verdicts)
                if not pending or os.path.lexists(os.path.join(folder, "pyvenv.cfg")):
                    return None
                (_, prefix, rules) = pending[0]
            else:
                os.lstat(root)
        except OSError as error:
            if folder == root or error.errno not in (errno.ENOENT, errno.ENOTDIR):
                found.unreadable.append(folder)
                found.problems[printable(folder)] = f"folder cannot be read: {error.strerror}"
            return None
        names = {name for name in IGNORE_FILES if os.path.lexists(os.path.join(folder, name))}
        return prefix, self._rules_of(folder, prefix, rules, names, found, self._rules)

    def _rules_of(
        self,
        folder: str,
        prefix: str,
        above: _Rules | None,
        names: Set[str],
        found: Walk,
        seen: dict[str, tuple[_Identity, _Rules]],
    ) -> _Rules | None:
        present = [os.path.join(folder, name) for name in IGNORE_FILES if name in names]
        if not present:
            return above
        identity = tuple((path, _stamp_or_error(path)) for path in present)
        known = self._rules.get(folder)
        if known is not None and known[0] == identity and known[1].above is above:
            seen[folder] = known
            return known[1]
        lines: list[str] = []
        for path in present:
            try:
                lines += (line.rstrip("\r") for line in read(path, self.roots, 0).text.split("\n"))
            except OSError as error:
                found.problems[printable(path)] = f"ignore file cannot be read: {error.strerror}"
            except (OutsideRoots, TooLarge) as error:
                found.problems[printable(path)] = f"ignore file is not used: {error}"
        rules = _Rules(above, len(prefix), GitIgnoreSpec.from_lines(_understood(lines)))
        seen[folder] = (identity, rules)
        return rules


_Identity: TypeAlias = tuple[tuple[str, Stamp | int | None], ...]


def _stamp_or_error(path: str) -> Stamp | int | None:
    try:
        return Stamp.of(os.stat(path))
    except OSError as error:
        return error.errno


def _understood(lines: Iterable[str]) -> list[str]:
    # Git passes over a pattern that it cannot understand, and keeps the rest.
    good = []
    for line in lines:
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:
            continue
        good.append(line)
    return good


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
