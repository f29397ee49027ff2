"""Which files below the roots are notes, and which of them came, changed and went since.

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
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from services.knowledge.nodes import Known
from services.knowledge.notes.files import Place, Stamp, TooLarge, read
from services.runtime.ignore_files import IGNORE_FILES, IgnoreRules, rules_from
from services.runtime.roots import OutsideRoots, Roots, is_below, is_text_name, printable

SKIPPED_FOLDERS = frozenset({"node_modules", "bower_components", "__pycache__", "site-packages", "lost+found"})

MARKER = "pyvenv.cfg"
"""A folder with this file holds packages, not notes."""

_GONE = (errno.ENOENT, errno.ENOTDIR)


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


class Walk:
    """One walk, and the notes that it found so far.

    `unreadable` are folders and files (absolute) that may be there or not; `problems` says in words what was left out,
    and why.
    """

    def __init__(self, roots: Roots) -> None:
        self.notes: dict[Place, Stamp] = {}
        self.unreadable: list[str] = []
        self.problems: dict[str, str] = {}
        self._roots = roots
        self._reached: dict[str, _Folder | None] = {}

    def is_hidden_from_view(self, place: Place) -> bool:
        """Whether the walk could not have seen this file even if it is there."""
        return is_below(place.absolute, self.unreadable)

    def look_at(self, root: str, path: str, *, deep: bool) -> None:
        """Take in the note at `path`, or all below it."""
        folder = self._at(root, path)
        pending = [folder] if deep and folder is not None else []
        while pending:
            pending += self._listed(pending.pop())

    def _listed(self, folder: _Folder) -> Iterable[_Folder]:
        """Take in the notes of a folder; the folders in it that the walk goes on to."""
        try:
            with os.scandir(folder.path) as scan:
                entries = list(scan)
        except OSError as error:
            if not folder.prefix or error.errno not in _GONE:
                self._fail(folder.path, f"folder cannot be read: {error.strerror}")
            return ()
        if hidden := self._roots.hidden_in(folder.path):
            entries = [entry for entry in entries if not hidden(entry.name)]
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
                if name in SKIPPED_FOLDERS or entry.path in self._roots:
                    return None
                if folder.rules is not None and folder.rules.ignores(path, is_folder=True):
                    return None
                return _Folder(folder.root, entry.path, path + "/", folder.rules)
            if name[-3:].lower() != ".md" or not entry.is_file(follow_symlinks=False):
                return None
            if folder.rules is not None and folder.rules.ignores(path, is_folder=False):
                return None
            if is_text_name(path):
                self.notes[Place(folder.root, path)] = Stamp.of(entry.stat(follow_symlinks=False))
            else:
                self.problems[printable(entry.path)] = "name is not valid UTF-8"
        except FileNotFoundError:
            pass
        except OSError as error:
            self._fail(entry.path, f"cannot be examined: {error.strerror}")
        return None

    def _at(self, root: str, path: str) -> _Folder | None:
        """The folder at a path, if a walk from the root comes to it; a note that is there is taken in."""
        try:
            if path == root:
                os.lstat(root)
                return _Folder(root, root, "", None)
            above = None if self._roots.hides(path) else self._with_rules_at(root, os.path.dirname(path))
            return None if above is None else self._take(_Entry(path), above)
        except OSError as error:
            # A root that vanished may be a disk that is not mounted: its notes are out of sight, not deleted.
            if path == root:
                self._fail(path, f"folder cannot be read: {error.strerror}")
            elif error.errno not in _GONE:
                self._fail(path, f"cannot be examined: {error.strerror}")
            return None

    def _with_rules_at(self, root: str, path: str) -> _Folder | None:
        """The same, with the folder's rules; None where the walk does not go on."""
        if path not in self._reached:
            folder = self._at(root, path)
            if folder is not None and not (folder.prefix and os.path.lexists(os.path.join(path, MARKER))):
                names = {name for name in IGNORE_FILES if os.path.lexists(os.path.join(path, name))}
                folder = self._with_rules(folder, names)
            else:
                folder = None
            self._reached[path] = folder
        return self._reached[path]

    def _with_rules(self, folder: _Folder, names: Set[str]) -> _Folder:
        """The folder with the rules of its own ignore files."""
        texts: list[str] = []
        for path in (os.path.join(folder.path, name) for name in IGNORE_FILES if name in names):
            try:
                texts.append(read(path, self._roots).text)
            except OSError as error:
                self.problems[printable(path)] = f"ignore file cannot be read: {error.strerror}"
            except (OutsideRoots, TooLarge) as error:
                self.problems[printable(path)] = f"ignore file is not used: {error}"
        return folder._replace(rules=rules_from(texts, folder.rules, len(folder.prefix))) if texts else folder

    def _fail(self, path: str, problem: str) -> None:
        self.unreadable.append(path)
        self.problems[printable(path)] = problem


class Walker:
    """Walks the roots; a root inside another one is a root of its own."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots

    def walk(self) -> Walk:
        """Every note below the roots."""
        return self.look((), self.roots)

    def look(self, files: Iterable[str], folders: Iterable[str]) -> Walk:
        """What `walk` finds at `files` and anywhere below `folders` (real, absolute paths)."""
        walk = Walk(self.roots)
        seats = [(path, False) for path in files] + [(path, True) for path in folders]
        seats += [(root, True) for path, deep in seats if deep for root in self.roots if is_below(root, (path,))]
        for path, deep in dict.fromkeys(seats):
            if (root := self.root_of(path)) is not None:
                walk.look_at(root, path, deep=deep)
        return walk

    def root_of(self, path: str) -> str | None:
        """The root that a path belongs to: of two inside each other, the inner one."""
        return self.roots.root_of(path)

    def place_of(self, path: str) -> Place | None:
        """The place of a file with that path."""
        root = self.root_of(path)
        return None if root is None or path == root else Place(root, path[len(root.rstrip(os.sep)) + 1 :])


@dataclass(frozen=True, slots=True)
class Changes:
    """The difference between a walk and the known notes."""

    arrived: tuple[Place, ...]
    changed: tuple[Place, ...]
    gone: tuple[Place, ...]


def compare(known: Mapping[Place, Known], walk: Walk) -> Changes:
    """The difference; a file that the walk could not see is neither changed nor gone."""
    arrived = tuple(place for place in walk.notes if place not in known)
    changed = tuple(place for place, stamp in walk.notes.items() if place in known and known[place].stamp != stamp)
    gone = tuple(place for place in known if place not in walk.notes and not walk.is_hidden_from_view(place))
    return Changes(arrived, changed, gone)


def within(
    known: Mapping[Place, Known], walker: Walker, files: Iterable[str], folders: Iterable[str]
) -> dict[Place, Known]:
    """Those of the known notes that are at `files`, or anywhere below `folders`."""
    places = [place for path in files if (place := walker.place_of(path)) is not None]
    below = tuple(folder.rstrip(os.sep) + os.sep for folder in folders)
    if below:
        places += (place for place in known if place.absolute.startswith(below))
    return {place: known[place] for place in places if place in known}
