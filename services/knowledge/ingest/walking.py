"""Which files below the roots are notes.

`Walker.walk` finds every `.md` file below the roots with the stamp that tells one version from the next. It follows no
symbolic link (the target is found by itself where it is below a root), prunes hidden folders and those of package
installers, and honours ignore files with git's rules. An entry that cannot be read is reported and skipped; an
unreadable folder is never taken for a deleted one. `Walker.look` finds the same of some files and folders only, at a
cost that does not grow with the roots.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from services.knowledge.notes.files import Place, Stamp, TooLarge, read
from services.runtime.ignore_files import IGNORE_FILES, IgnoreRules, rules_from
from services.runtime.roots import OutsideRoots, is_below, is_text_name, printable

SKIPPED_FOLDERS = frozenset({"node_modules", "bower_components", "__pycache__", "site-packages", "lost+found"})

MARKER = "pyvenv.cfg"
"""A folder with this file holds packages, not notes."""

_GONE = (errno.ENOENT, errno.ENOTDIR)


@dataclass(slots=True)
class Walk:
    """What one walk found.

    `unreadable` are folders and files (absolute) of which the walk cannot say whether they are there; `problems` says
    in words which of them were left out, and why.
    """

    notes: dict[Place, Stamp] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)

    def is_hidden_from_view(self, place: Place) -> bool:
        """Whether the walk could not have seen this file even if it is there."""
        return is_below(place.absolute, self.unreadable)

    def fail(self, path: str, problem: str) -> None:
        """Note a folder or file that cannot be read."""
        self.unreadable.append(path)
        self.problems[printable(path)] = problem


class Walker:
    """Walks the roots; a root inside another one is a root of its own."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self.roots = tuple(dict.fromkeys(str(root) for root in roots))

    def walk(self) -> Walk:
        """Every note below the roots."""
        return self.look((), self.roots)

    def look(self, files: Iterable[str], folders: Iterable[str]) -> Walk:
        """What `walk` finds at `files` and anywhere below `folders` (real, absolute paths)."""
        looking = _Looking(self.roots)
        seats = [(path, False) for path in files] + [(path, True) for path in folders]
        seats += [(root, True) for path, deep in seats if deep for root in self.roots if is_below(root, (path,))]
        for path, deep in dict.fromkeys(seats):
            root = self.root_of(path)
            if root is not None:
                looking.look_at(root, path, deep=deep)
        return looking.found

    def root_of(self, path: str) -> str | None:
        """The root that a path belongs to: of two inside each other, the inner one."""
        return max((root for root in self.roots if is_below(path, (root,))), key=len, default=None)

    def place_of(self, path: str) -> Place | None:
        """The place of a file with that path."""
        root = self.root_of(path)
        return None if root is None or path == root else Place(root, path[len(root.rstrip(os.sep)) + 1 :])


class _Folder(NamedTuple):
    """A folder that a walk comes to; `prefix` is its path below the root, ending in `/` unless it is the root."""

    root: str
    path: str
    prefix: str
    rules: IgnoreRules | None


class _Entry:
    """As `os.DirEntry`, of a path. Raises OSError where nothing is there."""

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


class _Looking:
    """One walk, and what it found so far."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        self.found = Walk()
        self._roots = roots
        self._root_set = frozenset(roots)
        self._reached: dict[str, _Folder | None] = {}

    def look_at(self, root: str, path: str, *, deep: bool) -> None:
        """Take in the note at `path`, or all below it."""
        folder: _Folder | None
        if path == root:
            folder = _Folder(root, root, "", None)
        elif (above := self._folder(root, os.path.dirname(path))) is None:
            return
        else:
            try:
                folder = self._take(_Entry(path), above)
            except OSError as error:
                if error.errno not in _GONE:
                    self.found.fail(path, f"cannot be examined: {error.strerror}")
                return
        pending = [folder] if deep and folder is not None else []
        while pending:
            pending += self._listed(pending.pop())

    def _listed(self, folder: _Folder) -> Iterable[_Folder]:
        """Take in the notes of a folder; the folders in it that the walk goes on to."""
        try:
            with os.scandir(folder.path) as scan:
                entries = list(scan)
        except OSError as error:
            # A root that vanished may be a disk that is not mounted: its notes are out of sight, not deleted.
            if not folder.prefix or error.errno not in _GONE:
                self.found.fail(folder.path, f"folder cannot be read: {error.strerror}")
            return ()
        names = {entry.name for entry in entries}
        if folder.prefix and MARKER in names:
            return ()
        inside = self._with_rules(folder, names)
        return [below for entry in entries if (below := self._take(entry, inside)) is not None]

    def _take(self, entry: os.DirEntry[str] | _Entry, folder: _Folder) -> _Folder | None:
        """Take in an entry that is a note; answers one that is a folder to walk."""
        name = entry.name
        if name.startswith("."):
            return None
        path = folder.prefix + name
        try:
            if entry.is_dir(follow_symlinks=False):
                if name in SKIPPED_FOLDERS or entry.path in self._root_set:
                    return None
                if folder.rules is not None and folder.rules.ignores(path, is_folder=True):
                    return None
                return _Folder(folder.root, entry.path, path + "/", folder.rules)
            if name[-3:].lower() != ".md" or not entry.is_file(follow_symlinks=False):
                return None
            if folder.rules is not None and folder.rules.ignores(path, is_folder=False):
                return None
            if is_text_name(path):
                self.found.notes[Place(folder.root, path)] = Stamp.of(entry.stat(follow_symlinks=False))
            else:
                self.found.problems[printable(entry.path)] = "name is not valid UTF-8"
        except FileNotFoundError:
            pass
        except OSError as error:
            self.found.fail(entry.path, f"cannot be examined: {error.strerror}")
        return None

    def _folder(self, root: str, path: str) -> _Folder | None:
        """A folder as a walk from the root comes to it, with its rules; None where no walk does."""
        if path not in self._reached:
            self._reached[path] = self._reach(root, path)
        return self._reached[path]

    def _reach(self, root: str, path: str) -> _Folder | None:
        folder: _Folder | None
        try:
            if path == root:
                os.lstat(root)
                folder = _Folder(root, root, "", None)
            else:
                above = self._folder(root, os.path.dirname(path))
                folder = None if above is None else self._take(_Entry(path), above)
                if folder is None or os.path.lexists(os.path.join(path, MARKER)):
                    return None
        except OSError as error:
            if path == root or error.errno not in _GONE:
                self.found.fail(path, f"folder cannot be read: {error.strerror}")
            return None
        return self._with_rules(folder, {name for name in IGNORE_FILES if os.path.lexists(os.path.join(path, name))})

    def _with_rules(self, folder: _Folder, names: Set[str]) -> _Folder:
        """The folder with the rules of its own ignore files."""
        texts: list[str] = []
        for path in (os.path.join(folder.path, name) for name in IGNORE_FILES if name in names):
            try:
                texts.append(read(path, self._roots).text)
            except OSError as error:
                self.found.problems[printable(path)] = f"ignore file cannot be read: {error.strerror}"
            except (OutsideRoots, TooLarge) as error:
                self.found.problems[printable(path)] = f"ignore file is not used: {error}"
        return folder._replace(rules=rules_from(texts, folder.rules, len(folder.prefix))) if texts else folder
