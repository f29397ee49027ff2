"""Finds the files to search, by ripgrep's rules.

It skips hidden names and whatever ignore files match: `.gitignore` and `.git/info/exclude` within a repository, and
`.ignore`, `.rgignore` and `.linckiaignore` anywhere, which take precedence. For each kind, the deepest file with a
matching pattern decides; ignore files in folders above the search count too. A glob overrides all of them. Links are
not followed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from proto.errors import InvalidParams
from services.files import paths
from services.files.index.listing import without_files
from services.files.operations.text import Piece
from services.runtime.roots import OutsideRoots, Roots
from services.shared.ignore_files import IgnoreRules, Patterns, rules_in

OWN_FILES = (".ignore", ".rgignore", ".linckiaignore")
"""In ascending order of precedence."""
GIT_FILES = (".git/info/exclude", ".gitignore")
FIRST_FILES, MAX_FILES = 32, 1024
"""Number of files in a piece; the first piece is small so that results arrive soon."""
MAX_GLOBS = 100
_BRACES = re.compile(r"\{([^{}]*)\}")


class _Rules(NamedTuple):
    """Ignore rules of a folder and those above it; `git` is None outside a repository."""

    own: IgnoreRules | None = None
    git: IgnoreRules | None = None
    in_repository: bool = False


class Globs:
    """Decides by a client's globs: `.gitignore` patterns with inverted meaning."""

    def __init__(self, globs: Sequence[str]) -> None:
        """Raises InvalidParams."""
        each_of_them = (each for glob in globs if glob for each in _expanded(glob))
        given = list(itertools.islice(each_of_them, MAX_GLOBS + 1))
        if len(given) > MAX_GLOBS:
            raise InvalidParams(f"`glob`: more than {MAX_GLOBS} patterns", field="glob")
        try:
            self._patterns = Patterns(given) if given else None
        except ValueError as error:
            raise InvalidParams(f"`glob`: {error}", field="glob") from None
        self.says = bool(given)
        self._takes_only = any(not glob.startswith("!") for glob in given)

    def verdict(self, below: str, name: str) -> bool | None:
        """Return whether to skip a name in a folder, or None if no glob decides. Folder names end in a slash."""
        if self._patterns is None:
            return None
        matched = self._patterns.verdict(below, name)
        if matched is None:
            return True if self._takes_only and name[-1] != "/" else None
        return not matched


def _expanded(glob: str) -> Iterator[str]:
    """Expand `*.{a,b}` to `*.a` and `*.b`. Yields one at a time, so that a caller can stop at its limit."""
    waiting = [glob]
    while waiting:
        one = waiting.pop()
        match = _BRACES.search(one)
        if match is None:
            yield one
        else:
            waiting += [one[: match.start()] + each + one[match.end() :] for each in reversed(match[1].split(","))]


class Walk:
    """A walk over folders; `unreadable` lists those that could not be read."""

    def __init__(
        self, roots: Roots, globs: Globs, *, hidden: bool, no_ignore: bool, go_on: Callable[[], None] | None = None
    ) -> None:
        """`go_on` is called at each folder and may raise."""
        self._go_on = go_on
        self._roots = roots
        self._globs = globs
        self._hidden = hidden
        self._ignores = not no_ignore
        self.unreadable: list[str] = []

    def pieces(self, top: str, after: str) -> Iterator[Piece]:
        """Yield the files at or below a clean real path, as pieces. With `after`, a path that an earlier walk has
        reached, begin at that path."""
        piece: Piece = []
        count, most = 0, FIRST_FILES
        for folder, names in self._folders(top, after):
            at = 0
            while at < len(names):
                now = names[at : at + most - count]
                piece.append((folder, now))
                at += len(now)
                count += len(now)
                if count >= most:
                    yield piece
                    piece, count, most = [], 0, min(2 * most, MAX_FILES)
        if piece:
            yield piece

    def _folders(self, top: str, after: str) -> Iterator[tuple[str, list[str]]]:
        if not os.path.isdir(paths.to_os(top)):
            # A file named explicitly is searched whatever the rules.
            folder, name = paths.split(top)
            yield folder, [name]
            return
        lead = paths.as_folder(top)
        skipped_devices = without_files(top)
        stack = [(lead, self._above(top) if self._ignores else _Rules(), after)]
        while stack:
            folder, rules, until = stack.pop()
            if self._go_on is not None:
                self._go_on()
            try:
                descriptor = self._roots.open_folder(paths.to_os(paths.of_folder(folder)))
            except (OSError, OutsideRoots) as error:
                self._failed(folder, error)
                continue
            try:
                if skipped_devices and os.fstat(descriptor).st_dev in skipped_devices:
                    continue
                with os.scandir(descriptor) as scan:
                    entries = list(scan)
            except OSError as error:
                self._failed(folder, error)
                continue
            finally:
                os.close(descriptor)
            if self._ignores:
                dotted = {entry.name for entry in entries if entry.name[0] == "."}
                rules = self._rules(dotted, folder, rules, len(folder) - len(lead))
            names, folders = self._listed(entries, folder, len(lead), rules)
            # Skip what precedes the path where an earlier answer ended.
            first, deeper, rest = until.partition("/")
            if until:
                names = [] if deeper else [name for name in names if name >= first]
                folders = [name for name in folders if name >= first] if deeper else folders
            if names:
                yield folder, names
            stack += [
                (f"{folder}{name}/", rules, rest if deeper and name == first else "") for name in reversed(folders)
            ]

    def _failed(self, folder: str, error: Exception) -> None:
        self.unreadable.append(f"{folder[:1000]}: {error.strerror if isinstance(error, OSError) else error}")

    def _listed(
        self, entries: Sequence[os.DirEntry[str]], folder: str, lead: int, rules: _Rules
    ) -> tuple[list[str], list[str]]:
        """Return the names of the files and of the folders to search, each in order."""
        hidden_in = self._roots.hidden_in(paths.to_os(folder))
        below = paths.to_os(folder[lead:])
        names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        folders = [f"{entry.name}/" for entry in entries if entry.is_dir(follow_symlinks=False)]
        marked = names + folders
        chain = [each for each in (rules.own, rules.git) if each is not None and marked and each.touches(below, marked)]
        if chain or self._globs.says:
            marked = [name for name in marked if not self._leaves_out(below, name, chain)]
        elif not self._hidden:
            marked = [name for name in marked if name[0] != "."]
        if hidden_in is not None:
            marked = [name for name in marked if not hidden_in(name.rstrip("/"))]
        texts = list(map(paths.to_text, marked))
        # Sorted without their slash, since positions in the walk are compared without it.
        return sorted(name for name in texts if name[-1] != "/"), sorted(name[:-1] for name in texts if name[-1] == "/")

    def _leaves_out(self, below: str, name: str, chain: Sequence[IgnoreRules]) -> bool:
        verdict = self._globs.verdict(below, name)
        for each in chain:
            if verdict is None:
                verdict = each.verdict(below + name.rstrip("/"), is_folder=name[-1] == "/")
        return name[0] == "." and not self._hidden if verdict is None else verdict

    # Ignore files

    def _above(self, top: str) -> _Rules:
        """Return the rules of the folders above, as far up as the roots reach."""
        chain = [folder for folder in paths.ancestors(top) if self._roots.holds(paths.to_os(folder))]
        rules = _Rules()
        for folder in reversed(chain):
            lead = os.path.relpath(paths.to_os(top), paths.to_os(folder)) + "/"
            with contextlib.suppress(OSError, OutsideRoots):
                descriptor = self._roots.open_folder(paths.to_os(folder))
                try:
                    names = set(os.listdir(descriptor))
                finally:
                    os.close(descriptor)
                rules = self._rules(names, folder, rules, 0, lead)
        return rules

    def _rules(self, names: set[str], folder: str, above: _Rules, prefix: int, lead: str = "") -> _Rules:
        """Combine the rules above with those of the ignore files among a folder's names."""
        if not names:
            return above
        own, git, in_repository = above
        if ".git" in names:
            # A repository's rules end where another repository begins.
            git, in_repository = None, True
        own = rules_in(self._roots, paths.to_os(folder), names, own, prefix, lead, files=OWN_FILES)
        if in_repository:
            there = [name for name in GIT_FILES if name.partition("/")[0] in names]
            git = rules_in(self._roots, paths.to_os(folder), there, git, prefix, lead, files=GIT_FILES)
        return _Rules(own, git, in_repository)
