"""Adding tags to a note's file, in the last `<!-- tags: … -->` comment of its text or a new one at its end.

The file's bytes are kept but for the comment, whatever their encoding's errors; a comment inside a code block is an
example and left alone.
"""

from __future__ import annotations

import os
import re
import stat
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from proto.errors import InvalidParams
from services.knowledge.notes.files import MAX_READ_BYTES, TooLarge
from services.knowledge.notes.links import entries, tag_comments
from services.knowledge.notes.markdown import outline
from services.runtime.replace import CannotReplace, ChangedMeanwhile, FileLocks, replace_file
from services.runtime.roots import OutsideRoots, is_below, printable

_LINE_BREAK = re.compile(r"\r\n?|\n")
_FENCE = re.compile(r"\s*(?:```+|~~~+)\s*\Z")
_RELATION = re.compile(r"\[[^\[\],]+:[^\[\],]+\]")

_ATTEMPTS = 20
"""A program that writes to the file at each attempt to replace it does so without pause."""


class Contended(Exception):
    """The file was not changed: others kept writing to it, or it may not be replaced."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A text with its tags: all entries of the comment, and whether they joined an earlier one."""

    data: bytes
    entries: tuple[str, ...]
    merged: bool


def checked(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags as they are written: each once, trimmed.

    Raises:
        InvalidParams: one that is blank, or that would not be read back as itself.
    """
    for index, tag in enumerate(tags):
        text = tag.strip()
        field = f"tags[{index}]"
        if not text:
            raise InvalidParams(f"parameter `{field}`: a tag is blank", field=field)
        if "," in text or "--" in text or ">" in text or any(ord(c) < 32 or c in "\x7f\x85\u2028\u2029" for c in text):
            raise InvalidParams(
                f"parameter `{field}`: {text[:80]!r} holds a comma, `--`, `>` or a line break, which would end it",
                field=field,
            )
        if ("[" in text or "]" in text) and not _RELATION.fullmatch(text):
            raise InvalidParams(
                f"parameter `{field}`: {text[:80]!r} has brackets; only a relation `[KEY: id]` may have them",
                field=field,
            )
    return tuple(dict.fromkeys(" ".join(tag.split()) for tag in tags))


def tagged(data: bytes, tags: Sequence[str]) -> Tagged:
    """The file `data` with `tags` added.

    Raises:
        InvalidParams: the file is not in an encoding that ASCII can be added to.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InvalidParams("the file is UTF-16; tags can be added to UTF-8 files", field="file_path")
    text = data.decode("utf-8", "surrogateescape")
    line_break = "\r\n" if "\r\n" in text and "\n" not in text.replace("\r\n", "") else "\n"
    comment = _last_comment(text)
    if comment is None:
        body = text.rstrip("\r\n")
        written = f"{body}{line_break}{line_break}<!-- tags: {', '.join(tags)} -->{line_break}"
        return Tagged(written.encode("utf-8", "surrogateescape"), tuple(tags), merged=False)
    start, end, content = comment
    before = entries(content)
    after = tuple(dict.fromkeys((*before, *tags)))
    if after == tuple(before):
        return Tagged(data, after, merged=True)
    written = f"{text[:start]}<!-- tags: {', '.join(after)} -->{text[end:]}"
    return Tagged(written.encode("utf-8", "surrogateescape"), after, merged=True)


def _last_comment(text: str) -> tuple[int, int, str] | None:
    """The last tag comment that does not stand in a code block."""
    comments = list(tag_comments(text))
    if not comments:
        return None
    starts = [0, *(match.end() for match in _LINE_BREAK.finditer(text))]
    normal = _LINE_BREAK.sub("\n", text)
    lines = normal.split("\n")
    code = [(first, stop) for first, stop in outline(normal).code if _is_closed(lines, first, stop)]
    for start, end, content in reversed(comments):
        line = bisect_right(starts, start) - 1
        if not any(first <= line < stop for first, stop in code):
            return start, end, content
    return None


def _is_closed(lines: Sequence[str], first: int, end: int) -> bool:
    """Whether a code block has an end: one that was left open runs to the end of the note by mistake."""
    if not lines[first:end] or not lines[first].lstrip(" >-*+0123456789.)\t").startswith(("```", "~~~")):
        return True
    return end - first > 1 and _FENCE.match(lines[end - 1].lstrip(" >\t")) is not None


def locate(file_path: str, roots: Sequence[str]) -> str:
    """The absolute path that `file_path` means: itself, or below the first root that has such a file.

    Raises:
        InvalidParams: it cannot be a note's path.
    """
    if "\0" in file_path or not file_path.lower().endswith(".md"):
        raise InvalidParams(
            f"parameter `file_path`: {file_path[:200]!r} is not a Markdown file (.md)", field="file_path"
        )
    if os.path.isabs(file_path):
        return file_path
    candidates = [os.path.join(root, file_path) for root in roots]
    return next((path for path in candidates if os.path.lexists(path)), candidates[0] if candidates else file_path)


def rewrite(path: str, roots: Sequence[str], change: Callable[[bytes], bytes]) -> bool:
    """Replace the contents of a regular file below `roots` by `change` of them; answers whether they differ.

    A symbolic link is followed to its target, which must be below the roots too, and stays a link.  Blocks.

    Raises:
        OSError: the file is not there, or may not be read or written.
        OutsideRoots, TooLarge: as `files.read`.
        Contended: the file never held still, or may not be replaced.
        Whatever `change` raises; nothing is written then.
    """
    for _ in range(_ATTEMPTS):
        real = Path(os.path.realpath(path))
        if not is_below(str(real), roots):
            raise OutsideRoots(f"{printable(path)} is not below the roots")
        status = real.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise OutsideRoots(f"{printable(path)} is not a regular file")
        if status.st_size > MAX_READ_BYTES:
            raise TooLarge(f"{status.st_size} bytes, more than the {MAX_READ_BYTES} that are read")
        try:
            with FileLocks().hold(real):
                before = real.read_bytes()
                after = change(before)
                if after == before:
                    return False
                replace_file(real, before, after)
                return True
        except ChangedMeanwhile:
            continue
        except CannotReplace as error:
            raise Contended(str(error)) from None
    raise Contended(f"{printable(path)} is being written by others without pause")


def add_tags(path: str, roots: Sequence[str], tags: Sequence[str]) -> tuple[Tagged, bool]:
    """Add `tags` to a file; its text with them, and whether it changed. Blocks. Raises as `rewrite` and `tagged`."""
    results: list[Tagged] = []

    def change(data: bytes) -> bytes:
        results.append(tagged(data, tags))
        return results[-1].data

    changed = rewrite(path, roots, change)
    return results[-1], changed
