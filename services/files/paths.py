"""Paths as text, without loss, whatever bytes a file's name holds, and where they may lead.

A name is text exactly where it is valid UTF-8. Each byte that is not becomes one character of the private area U+10FE80
to U+10FEFF (0x10FE00 and the byte); a true character of that area is written byte by byte in the same way. So every
name has one text, every text leads to one name, and all of it passes through JSON, SQLite and the tools' arguments.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator

from linckia.proto.errors import InvalidParams
from linckia.services.runtime.roots import Roots

_BASE = 0x10FE00
_FROM_OS = re.compile("[\udc80-\udcff\U0010fe80-\U0010feff]")
_FROM_TEXT = re.compile("[\U0010fe80-\U0010feff]+")
_MAX_CHARS = 32_768
"""Of a path in a request."""


def to_text(name: str) -> str:
    """The text of a name or path as `os` gives it (surrogateescape)."""
    if name.isascii() or not _FROM_OS.search(name):
        return name
    return _FROM_OS.sub(_escape, name)


def _escape(match: re.Match[str]) -> str:
    return "".join(chr(_BASE + byte) for byte in os.fsencode(match[0]))


def to_os(text: str) -> str:
    """The name or path as `os` wants it."""
    if text.isascii() or not _FROM_TEXT.search(text):
        return text
    return os.fsdecode(_FROM_TEXT.sub(_unescape, text).encode("utf-8", "surrogateescape"))


def _unescape(match: re.Match[str]) -> str:
    return bytes(ord(char) - _BASE for char in match[0]).decode("ascii", "surrogateescape")


def clean(path: str, field: str) -> str:
    """An absolute path without `.`, `..`, doubled and trailing slashes; no link is looked at. Raises InvalidParams
    where it is not absolute, or no path at all."""
    if not path.startswith("/"):
        raise InvalidParams(f"`{field}`: {shown(path)} is not an absolute path", field=field)
    if "\0" in path or len(path) > _MAX_CHARS:
        why = "it holds a NUL character" if "\0" in path else f"it is longer than {_MAX_CHARS} characters"
        raise InvalidParams(f"`{field}` is not a path: {why}", field=field)
    clean_path = to_text(to_os(os.path.normpath(path)))
    return "/" + clean_path.lstrip("/")


def shown(path: str) -> str:
    """A path in a message: not longer than anyone reads."""
    return repr(path if len(path) <= 300 else f"{path[:300]}…")


def as_folder(path: str) -> str:
    """The path of a directory as `folder.path` has it, with its slash."""
    return path if path.endswith("/") else path + "/"


def of_folder(folder: str) -> str:
    """The clean path of a directory that is given with its slash."""
    return folder.rstrip("/") or "/"


def parent(path: str) -> str:
    """The clean path of the directory that holds a clean path; of `/` itself."""
    return of_folder(path.rpartition("/")[0])


def ancestors(path: str) -> Iterator[str]:
    """The clean paths of all directories above a clean path, nearest first."""
    while path != "/":
        path = parent(path)
        yield path


def split(path: str) -> tuple[str, str]:
    """A clean path as its folder (with slash) and its name; of `/` the folder is empty."""
    if path == "/":
        return "", "/"
    folder, _, name = path.rpartition("/")
    return folder + "/", name


def extension(name: str) -> str:
    """What follows the last dot, in lower case; nothing where only dots come before it (`.bashrc`)."""
    stem, dot, last = name.rpartition(".")
    return last.lower() if dot and stem.strip(".") else ""


def is_within(path: str, roots: Iterable[str]) -> bool:
    """Whether a clean path is one of `roots` or lies below one."""
    return any(path == root or path.startswith(as_folder(root)) for root in roots)


def overlap(one: str, other: str) -> bool:
    """Whether one of two clean paths is the other or lies below it."""
    return is_within(one, (other,)) or is_within(other, (one,))


def spelled(path: str) -> str:
    """A clean path as the disk has it; each name that is not there, but is in another Unicode form, is taken in that.
    The rest of a path that is not there stays as it is written; blocks."""
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
    """The name in a folder that differs from another in its Unicode form alone."""
    if name.isascii():
        return None
    wanted = unicodedata.normalize("NFC", name)
    try:
        names = sorted(map(to_text, os.listdir(to_os(folder))))
    except OSError:
        return None
    return next((one for one in names if not one.isascii() and unicodedata.normalize("NFC", one) == wanted), None)


class FileRoots:
    """The service's roots, for paths as text; `paths` are theirs, `denied` what is out of reach."""

    def __init__(self, roots: Roots) -> None:
        self.all = roots
        self.paths = tuple(map(to_text, roots))
        self.denied = tuple(map(to_text, roots.denied))

    @property
    def reachable(self) -> tuple[str, ...]:
        """Those that the client which is served may reach."""
        return tuple(map(to_text, self.all.reachable))

    def real(self, path: str, field: str) -> str:
        """The real path of a clean path, `spelled` and every link followed. Raises InvalidParams where it leads out of
        the roots, Denied where it may not be read."""
        return self._checked(to_text(os.path.realpath(to_os(spelled(path)))), path, field)

    def place(self, path: str, field: str, *, moved: str = "") -> str:
        """The path, `spelled`, with every link but the last followed: the entry itself, which may be a link. Raises as
        `real`.

        Args:
            moved: the entry that is to have the path as its new one, and so may get another Unicode form.
        """
        folder, name = split(spelled(path))
        if not folder:
            return self._checked(path, path, field)
        above = as_folder(to_text(os.path.realpath(to_os(folder))))
        if above + name == moved:
            name = split(path)[1]
        return self._checked(above + name, path, field)

    def _checked(self, real: str, path: str, field: str) -> str:
        reachable = self.reachable
        if not is_within(real, reachable):
            there = ", ".join(reachable) or "none; start with a folder, `linckia serve PATH`"
            raise InvalidParams(f"`{field}`: {shown(path)} is outside the roots ({there})", field=field)
        self.all.check(to_os(real), field=field)
        return real
