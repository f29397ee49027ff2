"""Find the notes below the roots, and which of them are new, changed or gone.

A `Walk` has every `.md` file with its version stamp. It skips hidden folders and those of package installers, and
honours ignore files. Unreadable entries are reported and skipped, and an unreadable folder is never mistaken for a
deleted one. Calling `look` for some files and folders finds the same notes there as a walk of all roots, at a cost that
does not depend on the size of the roots.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.knowledge.nodes import Known
from services.knowledge.notes.files import Place, Stamp
from services.runtime.roots import Roots, is_below, is_text_name, printable
from services.shared.ignore_files import IGNORE_FILES, rules_in
from services.shared.walking import Folder, walk

SKIPPED_FOLDERS = frozenset({"node_modules", "bower_components", "__pycache__", "site-packages", "lost+found"})

MARKER = "pyvenv.cfg"
"""A folder with this file holds packages, not notes."""

_GONE = (errno.ENOENT, errno.ENOTDIR)


class Walk:
    """One walk, and the notes found so far.

    `unreadable` has the absolute paths of folders and files that may or may not exist; `problems` says what was skipped
    and why.
    """

    def __init__(self, roots: Roots) -> None:
        self.notes: dict[Place, Stamp] = {}
        self.unreadable: list[str] = []
        self.problems: dict[str, str] = {}
        self._roots = roots
        self._reached: dict[str, Folder | None] = {}

    def is_hidden_from_view(self, place: Place) -> bool:
        """Return whether the walk could not see this file even if it exists."""
        return is_below(place.absolute, self.unreadable)

    def look_at(self, root: str, path: str, *, deep: bool) -> None:
        """Add the note at `path`, or all notes below it if `deep`."""
        top = self._at(root, path)
        if not deep or top is None:
            return
        for folder, folders, others in walk(self._roots, top, self._unlisted, not_used=self._not_used):
            if folder.below and any(entry.name == MARKER for entry in (*folders, *others)):
                folders.clear()
                continue
            folders[:] = [entry for entry in folders if self._enters(folder, entry.name)]
            for entry in others:
                try:
                    if self._is_note(folder, entry.name) and entry.is_file(follow_symlinks=False):
                        self._take(root, folder, entry.name, entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    pass
                except OSError as error:
                    self._fail(entry.path, f"cannot be examined: {error.strerror}")

    def _enters(self, folder: Folder, name: str) -> bool:
        if not enters(name) or os.path.join(folder.path, name) in self._roots:
            return False
        return folder.rules is None or not folder.rules.ignores(folder.below + name, is_folder=True)

    def _is_note(self, folder: Folder, name: str) -> bool:
        if name.startswith(".") or name[-3:].lower() != ".md":
            return False
        return folder.rules is None or not folder.rules.ignores(folder.below + name, is_folder=False)

    def _take(self, root: str, folder: Folder, name: str, status: os.stat_result) -> None:
        if is_text_name(folder.below + name):
            self.notes[Place(root, folder.below + name)] = Stamp.of(status)
        else:
            self.problems[printable(os.path.join(folder.path, name))] = "name is not valid UTF-8"

    def _at(self, root: str, path: str) -> Folder | None:
        """Return the folder at a path if a walk from the root would enter it.  If the path is a note, add it."""
        try:
            if path == root:
                os.lstat(root)
                return Folder(root)
            above = None if self._roots.hides(path) else self._with_rules_at(root, os.path.dirname(path))
            if above is None:
                return None
            status, name = os.lstat(path), os.path.basename(path)
            if stat.S_ISDIR(status.st_mode) and self._enters(above, name):
                return Folder(path, f"{above.below}{name}/", above.rules)
            if stat.S_ISREG(status.st_mode) and self._is_note(above, name):
                self._take(root, above, name, status)
        except OSError as error:
            # A missing root may be an unmounted disk, so its notes count as unreadable, not deleted.
            if path == root:
                self._unlisted(path, error)
            elif error.errno not in _GONE:
                self._fail(path, f"cannot be examined: {error.strerror}")
        return None

    def _with_rules_at(self, root: str, path: str) -> Folder | None:
        """Like `_at`, but with the folder's own rules; None if the walk does not enter it."""
        if path not in self._reached:
            folder = self._at(root, path)
            if folder is not None and folder.below and os.path.lexists(os.path.join(path, MARKER)):
                folder = None
            if folder is not None:
                names = [name for name in IGNORE_FILES if os.path.lexists(os.path.join(path, name))]
                rules = rules_in(self._roots, path, names, folder.rules, len(folder.below), failed=self._not_used)
                folder = folder._replace(rules=rules)
            self._reached[path] = folder
        return self._reached[path]

    def _unlisted(self, path: str, error: OSError) -> None:
        if path in self._roots or error.errno not in _GONE:
            self._fail(path, f"folder cannot be read: {error.strerror}")

    def _not_used(self, path: str, error: Exception) -> None:
        why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else f"is not used: {error}"
        self.problems[printable(path)] = f"ignore file {why}"

    def _fail(self, path: str, problem: str) -> None:
        self.unreadable.append(path)
        self.problems[printable(path)] = problem


def enters(name: str) -> bool:
    """Return whether folders with this name may hold notes."""
    return not name.startswith(".") and name not in SKIPPED_FOLDERS


def look(roots: Roots, files: Iterable[str], folders: Iterable[str]) -> Walk:
    """Find the notes at `files` and anywhere below `folders` (real, absolute paths).  Blocks.

    A root inside another one is treated as a separate root.
    """
    walk = Walk(roots)
    seats = [(path, False) for path in files] + [(path, True) for path in folders]
    seats += [(root, True) for path, deep in seats if deep for root in roots if is_below(root, (path,))]
    for path, deep in dict.fromkeys(seats):
        if (root := roots.root_of(path)) is not None:
            walk.look_at(root, path, deep=deep)
    return walk


def place_of(path: str, roots: Roots) -> Place | None:
    """Return the place of a file; None if it is not below a root."""
    root = roots.root_of(path)
    return None if root is None or path == root else Place(root, path[len(root.rstrip(os.sep)) + 1 :])


@dataclass(frozen=True, slots=True)
class Changes:
    """The difference between a walk and the known notes."""

    arrived: tuple[Place, ...]
    changed: tuple[Place, ...]
    gone: tuple[Place, ...]


def compare(known: Mapping[Place, Known], walk: Walk) -> Changes:
    """Compute the difference.  A file that the walk could not see is neither changed nor gone."""
    arrived = tuple(place for place in walk.notes if place not in known)
    changed = tuple(place for place, stamp in walk.notes.items() if place in known and known[place].stamp != stamp)
    gone = tuple(place for place in known if place not in walk.notes and not walk.is_hidden_from_view(place))
    return Changes(arrived, changed, gone)


def within(
    known: Mapping[Place, Known], roots: Roots, files: Iterable[str], folders: Iterable[str]
) -> dict[Place, Known]:
    """Return the known notes at `files` or anywhere below `folders`."""
    places = [place for path in files if (place := place_of(path, roots)) is not None]
    below = tuple(folder.rstrip(os.sep) + os.sep for folder in folders)
    if below:
        places += (place for place in known if place.absolute.startswith(below))
    return {place: known[place] for place in places if place in known}
