"""Paths as text, lossless for any bytes in a file name, and checks of where they may lead.

A name that is valid UTF-8 is its own text. Any other byte becomes one character of the private use area U+10FE80 to
U+10FEFF (0x10FE00 plus the byte); a real character of that area is escaped byte by byte in the same way. So every name
has exactly one text, every text belongs to exactly one name, and all of it passes through JSON, SQLite and tool
arguments.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator

from proto.errors import InvalidParams
from services.runtime.roots import Roots

_BASE = 0x10FE00
_FROM_OS = re.compile("[\udc80-\udcff\U0010fe80-\U0010feff]")
_FROM_TEXT = re.compile("[\U0010fe80-\U0010feff]+")
_MAX_CHARS = 32_768
"""Longest path that a request may contain."""


def to_text(name: str) -> str:
    """Convert a name or path from `os` (surrogateescape) to text."""
    if name.isascii() or not _FROM_OS.search(name):
        return name
    return _FROM_OS.sub(_escape, name)


def _escape(match: re.Match[str]) -> str:
    return "".join(chr(_BASE + byte) for byte in os.fsencode(match[0]))


def to_os(text: str) -> str:
    """Convert text back to the name or path that `os` expects."""
    if text.isascii() or not _FROM_TEXT.search(text):
        return text
    return os.fsdecode(_FROM_TEXT.sub(_unescape, text).encode("utf-8", "surrogateescape"))


def _unescape(match: re.Match[str]) -> str:
    return bytes(ord(char) - _BASE for char in match[0]).decode("ascii", "surrogateescape")


def clean(path: str, field: str) -> str:
    """Return an absolute path without `.`, `..`, doubled or trailing slashes; links are not resolved. Raises
    InvalidParams if it is not an absolute path."""
    if not path.startswith("/"):
        raise InvalidParams(f"`{field}`: {shown(path)} is not an absolute path", field=field)
    if "\0" in path or len(path) > _MAX_CHARS:
        why = "it contains a NUL character" if "\0" in path else f"it is longer than {_MAX_CHARS} characters"
        raise InvalidParams(f"`{field}` is not a path: {why}", field=field)
    clean_path = to_text(to_os(os.path.normpath(path)))
    return "/" + clean_path.lstrip("/")


def shown(path: str) -> str:
    """Format a path for a message, truncated to a readable length."""
    return repr(path if len(path) <= 300 else f"{path[:300]}…")


def as_folder(path: str) -> str:
    """Return the path of a directory with its trailing slash, as in `folder.path`."""
    return path if path.endswith("/") else path + "/"


def of_folder(folder: str) -> str:
    """Return the clean path of a directory that was given with its trailing slash."""
    return folder.rstrip("/") or "/"


def parent(path: str) -> str:
    """Return the clean path of the directory that contains a clean path; the parent of `/` is `/`."""
    return of_folder(path.rpartition("/")[0])


def ancestors(path: str) -> Iterator[str]:
    """Yield the clean paths of all directories above a clean path, nearest first."""
    while path != "/":
        path = parent(path)
        yield path


def split(path: str) -> tuple[str, str]:
    """Split a clean path into its folder (with slash) and its name; the folder of `/` is empty."""
    if path == "/":
        return "", "/"
    folder, _, name = path.rpartition("/")
    return folder + "/", name


def extension(name: str) -> str:
    """Return the part after the last dot, in lower case; empty if only dots precede it (`.bashrc`)."""
    stem, dot, last = name.rpartition(".")
    return last.lower() if dot and stem.strip(".") else ""


def is_within(path: str, roots: Iterable[str]) -> bool:
    """True if a clean path is one of `roots` or below one."""
    return any(path == root or path.startswith(as_folder(root)) for root in roots)


def overlap(one: str, other: str) -> bool:
    """True if one of two clean paths is the other or lies below it."""
    return is_within(one, (other,)) or is_within(other, (one,))


def spelled(path: str) -> str:
    """Return a clean path as it is spelled on disk. A name that exists only in another Unicode form, and only one, is
    replaced by that form. The path is left as given from the first missing name on. Blocks."""
    if path.isascii() or os.path.lexists(to_os(path)):
        return path
    at = ""
    parts = path.split("/")[1:]
    for index, part in enumerate(parts):
        there = part if os.path.lexists(to_os(f"{at}/{part}")) else _other_form(at or "/", part)
        if there is None:
            return "/".join([at, *parts[index:]])
        at = f"{at}/{there}"
    return at


def _other_form(folder: str, name: str) -> str | None:
    """Return the only name in a folder that differs from `name` in nothing but its Unicode form."""
    if name.isascii():
        return None
    wanted = unicodedata.normalize("NFC", name)
    try:
        names = map(to_text, os.listdir(to_os(folder)))
    except OSError:
        return None
    same = [one for one in names if not one.isascii() and unicodedata.normalize("NFC", one) == wanted]
    return same[0] if len(same) == 1 else None


class FileRoots:
    """The service's roots, with text paths: `paths` are the roots, `denied` the paths that are off limits."""

    def __init__(self, roots: Roots) -> None:
        self.all = roots
        self.paths = tuple(map(to_text, roots))
        self.denied = tuple(map(to_text, roots.denied))

    @property
    def reachable(self) -> tuple[str, ...]:
        """The roots that the current client may access."""
        return tuple(map(to_text, self.all.reachable))

    def clean(self, path: str, field: str) -> str:
        """Return an absolute path in its plain form (`paths.clean`); a relative one is below the only root. Raises
        InvalidParams."""
        return clean(to_text(self.all.absolute(to_os(path), field)), field)

    def real(self, path: str, field: str) -> str:
        """Return the real path of a clean path, spelled as on disk, with every link resolved. Raises InvalidParams if
        it is outside the roots, Denied if it may not be read."""
        return self._checked(to_text(os.path.realpath(to_os(spelled(path)))), path, field)

    def place(self, path: str, field: str, *, moved: str = "") -> str:
        """Return the path as spelled on disk, with every link but the last resolved: the entry itself, which may be a
        link. Raises the same errors as `real`.

        Args:
            moved: the entry to be moved to this path, which may so get another Unicode form.
        """
        folder, name = split(spelled(path))
        if not folder:
            return self._checked(path, path, field)
        above = as_folder(to_text(os.path.realpath(to_os(folder))))
        if above + name == moved:
            name = split(path)[1]
        return self._checked(above + name, path, field)

    def missing(self, path: str, field: str = "") -> str:
        """Return that a path does not exist, and which names in its folder are similar; blocks."""
        said = f"{shown(path)} does not exist{self.all.similar(to_os(path))}"
        return f"`{field}`: {said}" if field else said

    def _checked(self, real: str, path: str, field: str) -> str:
        reachable = self.reachable
        if not is_within(real, reachable):
            there = ", ".join(reachable) or "none; pass a folder: `linckia serve PATH`"
            raise InvalidParams(f"`{field}`: {shown(path)} is outside the roots ({there})", field=field)
        self.all.check(to_os(real), field=field)
        return real
