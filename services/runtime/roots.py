"""The roots: which real paths a service may read, write and list. All services with roots use this module.

A path is admitted if it lies below a root and is not *denied*, either by the kernel (the data directory, the settings
files, the installation) or by the user's `deny`. The innermost root that contains a path decides whether it may be
written.

A path is checked with every link resolved, and a file again by its open descriptor, so that no link, `..` or concurrent
rename bypasses the check. A denied folder below a root is recognised by its path, ignoring case, and by its identity
(device and inode), so neither a bind mount nor a rename of a parent folder exposes it. A hard link that others made to
a file *inside* a denied folder is not recognised. Landlock, the second barrier, admits a whole root: rules for the
root's children instead would deny every file created next to them later.

A call from a client whose grant is limited to some roots (`proto.grants`) reaches only those: each check uses the grant
of the task or thread that makes it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

from proto import grants
from proto.errors import Forbidden, InvalidParams
from proto.suggestions import close
from proto.wire.launch import LaunchConfig

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

Identity = tuple[int, int]
"""Device and inode."""

_LOOKED_AT = 2000
_SIMILAR = 3
"""Most names of a folder that are compared with a missing one, and most that are suggested."""


class OutsideRoots(Exception):
    """The path is not a regular file, or a link leads out of the roots; the message names it."""


class Denied(OutsideRoots, Forbidden):
    """The path lies below a root but may not be accessed or written; the message names it and gives the reason."""


def is_below(real: str, roots: Sequence[str]) -> bool:
    """Return True if a real path is a root or lies below one."""
    return any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots)


class Roots(tuple[str, ...]):
    """The real paths of the roots, and the exclusions below them.

    Args:
        paths: the roots.
        read_only: the roots that may not be written.
        denied: real paths that are not read, written or listed, including everything below them.
        patterns: denied paths as .gitignore patterns, matched against absolute paths, ignoring case.
    """

    def __new__(cls, paths: Iterable[str | os.PathLike[str]] = (), **limits: Iterable[str]) -> Self:
        return super().__new__(cls, dict.fromkeys(os.fspath(path) for path in paths))

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]] = (),
        *,
        read_only: Iterable[str] = (),
        denied: Iterable[str] = (),
        patterns: Iterable[str] = (),
    ) -> None:
        self.read_only = frozenset(read_only)
        self.denied = tuple(denied)
        self.patterns = tuple(patterns)
        folded = [_folded(root) for root in self]
        self._denied_inside = tuple(path for path in map(_folded, self.denied) if is_below(path, folded))
        self._above = {os.path.dirname(path) for path in self._denied_inside}
        self._spec = _spec(tuple(printable(_folded(each)) for each in self.patterns)) if self.patterns else None
        self._held = tuple(_opened(self.denied)) if self else ()
        self._identities = frozenset(_identity(os.fstat(descriptor)) for descriptor in self._held)

    def __del__(self) -> None:
        for descriptor in self.__dict__.get("_held", ()):
            os.close(descriptor)

    @classmethod
    def of(cls, launch: LaunchConfig) -> Self:
        """Return the roots named by a launch configuration."""
        return cls(launch.roots, read_only=launch.read_only, denied=launch.denied, patterns=launch.denied_patterns)

    # Checks of real paths

    def holds(self, real: str) -> bool:
        """Return True if a real path is a root that the client may reach, or lies below one."""
        return is_below(real, self) and not _is_beyond(real)

    @property
    def reachable(self) -> tuple[str, ...]:
        """The roots that the current client may reach: all of them, or those that its grant is limited to."""
        limited = grants.roots()
        return tuple(root for root in limited if is_below(root, self)) if limited else tuple(self)

    def absolute(self, path: str, field: str) -> str:
        """Return an absolute path as it is, and a relative one below the only root, or below the only one that has it.
        Raises InvalidParams, which names the roots."""
        if os.path.isabs(path) or "\0" in path:
            return path
        reachable = self.reachable
        apart = [root for root in reachable if not is_below(root, [other for other in reachable if other != root])]
        candidates = [os.path.join(root, path) for root in apart]
        if not candidates:
            return path
        found = candidates if len(candidates) == 1 else list(filter(os.path.lexists, candidates))
        if len(found) == 1:
            return found[0]
        how = "is below several of them" if found else "is below none of them"
        raise InvalidParams(
            f"`{field}`: {path[:200]!r} is relative; there are the roots {', '.join(reachable)}, and it {how}. Give the"
            " absolute path",
            field=field,
        )

    def root_of(self, real: str) -> str | None:
        """Return the root that a path belongs to; of nested roots, the inner one."""
        return max((root for root in self if is_below(real, (root,))), key=len, default=None)

    @property
    def hides_some(self) -> bool:
        """True if anything below the roots may be denied by name."""
        return bool(self._denied_inside) or self._spec is not None

    def hides(self, real: str) -> bool:
        """Return True if a path is denied by name; for walks, which arrive from above."""
        if not self.hides_some:
            return False
        folded = _folded(real)
        return is_below(folded, self._denied_inside) or (
            self._spec is not None and self._spec.match_file(printable(folded) + os.sep)
        )

    def hidden_in(self, folder: str) -> Callable[[str], bool] | None:
        """Return a test for hidden names in a visible folder; None if it hides none, which is the usual case."""
        if self._spec is None and _folded(folder.rstrip(os.sep) or os.sep) not in self._above:
            return None
        return lambda name: self.hides(os.path.join(folder, name))

    def refusal(self, real: str, *, write: bool = False, status: os.stat_result | None = None) -> str:
        """Return why a path below a root may not be read (or written); empty if it may. `status` is the open file's."""
        if _is_beyond(real):
            return f"{printable(real)} may not be reached: it is outside the roots of this token"
        if self.hides(real) or (self._identities and self._is_identified(real, status)):
            return f"{printable(real)} may not be reached: it belongs to Linckia itself, or the setting `deny` names it"
        if write and (root := self.root_of(real)) in self.read_only:
            return f"{printable(real)} may not be changed: the root {root} is read-only"
        return ""

    def check(self, real: str, *, write: bool = False, field: str | None = None) -> None:
        """Raise Denied if a path below a root may not be read or written."""
        if refusal := self.refusal(real, write=write):
            raise Denied(refusal, field=field)

    def refusal_of_all(self, real: str, *, write: bool = True) -> str:
        """Return why an entry may not be moved or removed with its content, or without `write` copied; empty if it
        may."""
        if refusal := self.refusal(real, write=write):
            return refusal
        folded = _folded(real)
        inside = next((path for path in self.denied if is_below(_folded(path), (folded,))), None)
        if inside is None and self._spec is not None:
            inside = next(filter(self.hides, _all_in(real)), None)
        return f"{printable(real)} contains {printable(inside)}, which may not be reached" if inside else ""

    def similar(self, path: str, given: str = "") -> str:
        """Return `; did you mean A?` with the names in a missing file's folder that are most like its own, or "".

        Names that the client may not reach are never among them. Blocks; reads at most `_LOOKED_AT` names.

        Args:
            given: the path as the client wrote it; the names are given in its folder.
        """
        folder, name = os.path.split(path)
        try:
            folder = os.path.realpath(folder)
            if not name or not self.holds(folder) or self.refusal(folder):
                return ""
            with os.scandir(folder) as entries:
                names = [each.name for each in itertools.islice(entries, _LOOKED_AT) if is_text_name(each.name)]
        except (OSError, ValueError):
            # A path with a NUL character is a ValueError.
            return ""
        if (hidden := self.hidden_in(folder)) is not None:
            names = [each for each in names if not hidden(each)]
        near = (os.path.join(folder, each) for each in close(name, names, _SIMILAR))
        shown = [each for each in near if self.holds(os.path.realpath(each)) and not self._hides_any(each)]
        beside = os.path.dirname(given or path)
        said = ", ".join(printable(os.path.join(beside, os.path.basename(each))) for each in shown)
        return f"; did you mean {said}?" if said else ""

    def _hides_any(self, path: str) -> bool:
        """Return True if an entry, or what it leads to, may not be reached."""
        return any(self.refusal(each) for each in {path, os.path.realpath(path)})

    def _is_identified(self, real: str, status: os.stat_result | None) -> bool:
        """Return True if a path or a folder above it is denied by its identity, whatever its name."""
        if status is not None and _identity(status) in self._identities:
            return True
        path = real
        # If nothing denied lies below a root, nothing can be exposed, and no file pays for the check.
        while self._denied_inside:
            try:
                found = os.lstat(path)
            except OSError:
                pass
            else:
                if (found.st_dev, found.st_ino) in self._identities:
                    return True
            if path in self or path == "/":
                break
            path = path.rpartition("/")[0] or "/"
        return False

    # Opening

    def open(self, path: str) -> tuple[int, os.stat_result]:
        """Return an open descriptor of a regular file, and its status.

        Never blocks on a pipe and never follows a link out of the roots. Raises OSError, OutsideRoots, Denied.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OutsideRoots(f"{printable(path)} is not a regular file")
            self._check_open(descriptor, path, status)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, status

    def open_folder(self, path: str, above: int | None = None, *, write: bool = False) -> int:
        """Return an open descriptor of a folder, given by its path or by its name in the open folder `above`.

        The last component is not followed if it is a link. Raises OSError, OutsideRoots, Denied.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, dir_fd=above)
        try:
            self._check_open(descriptor, path, None, write=write)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _check_open(self, descriptor: int, path: str, status: os.stat_result | None, *, write: bool = False) -> None:
        real = real_path_of(descriptor, path)
        if not self.holds(real):
            raise OutsideRoots(f"{printable(path)} leads out of the roots")
        if refusal := self.refusal(real, write=write, status=status):
            raise Denied(refusal)


def _is_beyond(real: str) -> bool:
    """Return True if the current client's grant is limited to roots that do not contain a real path."""
    limited = grants.roots()
    return bool(limited) and not is_below(real, limited)


def _opened(paths: Iterable[str]) -> Iterator[int]:
    """Hold descriptors open, so that the inode of a denied path is not reused for another file."""
    for path in paths:
        with contextlib.suppress(OSError):
            yield os.open(path, os.O_PATH | os.O_CLOEXEC)


def _folded(path: str) -> str:
    # On a case-insensitive file system, another spelling is the same file. On a case-sensitive one, a name that differs
    # from a denied one only in case is denied too.
    return path.casefold()


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _all_in(real: str) -> Iterator[str]:
    for folder, folders, files in os.walk(real):
        yield from (os.path.join(folder, name) for name in (*folders, *files))


@functools.lru_cache(maxsize=8)
def _spec(patterns: tuple[str, ...]) -> GitIgnoreSpec:
    # Imported late: few configurations have patterns, and every service would pay for the import.
    from services.runtime.gitignore import gitignore

    return gitignore(patterns)


def real_path_of(descriptor: int, path: str) -> str:
    """Return the real path of an open file; from `/proc` if available, so no rename can intervene."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return os.path.realpath(path)


def is_text_name(path: str) -> bool:
    """Return True if a path is valid UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(path: str) -> str:
    """Return a path in a form that can be displayed whatever its bytes are."""
    return os.fsencode(path).decode("utf-8", "replace")
