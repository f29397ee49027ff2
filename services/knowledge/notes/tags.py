"""Adding tags to a note's file, in the last `<!-- tags: … -->` comment of its text or a new one at its end.

The file's bytes are kept but for the comment, whatever their encoding's errors; a comment inside a code block is an
example and left alone.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from proto.errors import InvalidParams
from services.knowledge.notes.files import read
from services.knowledge.notes.links import entries, tag_comments
from services.runtime.replace import CannotReplace, ChangedMeanwhile, FileLocks, replace_file
from services.runtime.roots import Roots, printable
from services.runtime.text.markdown import outline

_LINE_BREAK = re.compile(r"\r\n?|\n")
_FENCE = re.compile(r"\s*(?:```+|~~~+)\s*\Z")
_ENDS_IT = re.compile(r",|--|>|[\x00-\x1f\x7f\x85\u2028\u2029]")
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
    """Tags as they are written: each once, trimmed.  Raises InvalidParams for one that is not read back as itself."""
    for index, tag in enumerate(tags):
        text = tag.strip()
        wrong = ""
        if not text:
            wrong = "a tag is blank"
        elif _ENDS_IT.search(text):
            wrong = f"{text[:80]!r} holds a comma, `--`, `>` or a line break, which would end it"
        elif ("[" in text or "]" in text) and not _RELATION.fullmatch(text):
            wrong = f"{text[:80]!r} has brackets; only a relation `[KEY: id]` may have them"
        if wrong:
            raise InvalidParams(f"parameter `tags[{index}]`: {wrong}", field=f"tags[{index}]")
    return tuple(dict.fromkeys(" ".join(tag.split()) for tag in tags))


def tagged(data: bytes, tags: Sequence[str]) -> Tagged:
    """The file `data` with `tags` added.  Raises InvalidParams where ASCII cannot be added to its encoding."""
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


def locate(file_path: str, roots: Roots) -> str:
    """The absolute path that `file_path` means: itself, or below the first root that has such a file.

    Raises InvalidParams: it cannot be a note's path.
    """
    if "\0" in file_path or not file_path.lower().endswith(".md"):
        said = f"parameter `file_path`: {file_path[:200]!r} is not a Markdown file (.md)"
        raise InvalidParams(said, field="file_path")
    if os.path.isabs(file_path):
        return file_path
    candidates = [os.path.join(root, file_path) for root in roots.reachable]
    return next((path for path in candidates if os.path.lexists(path)), candidates[0] if candidates else file_path)


def rewrite(path: str, roots: Roots, change: Callable[[bytes], bytes]) -> bool:
    """Replace the contents of a regular file below `roots` by `change` of them; answers whether they differ.  Blocks.

    A symbolic link is followed to its target, which must be below the roots too, and stays a link.

    Raises as `files.read` and `change`, and Contended; nothing is written then.
    """
    for _ in range(_ATTEMPTS):
        real = Path(os.path.realpath(path))
        try:
            # First, so that no folder outside the roots is locked.
            read(str(real), roots)
            roots.check(str(real), write=True, field="file_path")
            with FileLocks().hold(real):
                before = read(str(real), roots).data
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


def add_tags(path: str, roots: Roots, tags: Sequence[str]) -> tuple[Tagged, bool]:
    """Add `tags` to a file; its text with them, and whether it changed. Blocks. Raises as `rewrite` and `tagged`."""
    results: list[Tagged] = []

    def change(data: bytes) -> bytes:
        results.append(tagged(data, tags))
        return results[-1].data

    changed = rewrite(path, roots, change)
    return results[-1], changed
