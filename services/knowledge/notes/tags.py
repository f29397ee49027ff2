"""Add tags to a note's file, in its last `<!-- tags: … -->` comment or a new one at the end.

All other bytes of the file are kept, even invalid ones. Comments inside code blocks are examples and are left alone.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proto.errors import InvalidParams
from services.knowledge.notes.links import entries, tag_comments
from services.runtime.rewrite import Rewritten, rewrite
from services.runtime.roots import Roots
from services.shared.text.markdown import outline

_LINE_BREAK = re.compile(r"\r\n?|\n")
_FENCE = re.compile(r"\s*(?:```+|~~~+)\s*\Z")
_ENDS_IT = re.compile(r",|--|>|[\x00-\x1f\x7f\x85\u2028\u2029]")
_RELATION = re.compile(r"\[[^\[\],]+:[^\[\],]+\]")


@dataclass(frozen=True, slots=True)
class Tagged:
    """A file with added tags: its bytes, all entries of the comment, and whether the comment existed before."""

    data: bytes
    entries: tuple[str, ...]
    merged: bool


def checked(tags: Sequence[str]) -> tuple[str, ...]:
    """Trim and deduplicate tags.  Raises InvalidParams for a tag that would not be read back unchanged."""
    for index, tag in enumerate(tags):
        text = tag.strip()
        wrong = ""
        if not text:
            wrong = "a tag is blank"
        elif _ENDS_IT.search(text):
            wrong = f"{text[:80]!r} contains a comma, `--`, `>` or a line break, which would end it"
        elif ("[" in text or "]" in text) and not _RELATION.fullmatch(text):
            wrong = f"{text[:80]!r} has brackets, which are only allowed in a relation `[KEY: id]`"
        if wrong:
            raise InvalidParams(f"parameter `tags[{index}]`: {wrong}", field=f"tags[{index}]")
    return tuple(dict.fromkeys(" ".join(tag.split()) for tag in tags))


def tagged(data: bytes, tags: Sequence[str]) -> Tagged:
    """Add `tags` to a file's bytes.  Raises InvalidParams if the file is UTF-16."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InvalidParams("the file is UTF-16; tags can only be added to UTF-8 files", field="file_path")
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
    """Return the last tag comment outside code blocks."""
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
    """Return whether a code block is closed.  An unclosed fence extends to the end of the note by mistake."""
    if not lines[first:end] or not lines[first].lstrip(" >-*+0123456789.)\t").startswith(("```", "~~~")):
        return True
    return end - first > 1 and _FENCE.match(lines[end - 1].lstrip(" >\t")) is not None


def add_tags(
    path: str, roots: Roots, tags: Sequence[str], answer: Callable[[Tagged, bool], object]
) -> tuple[Tagged, Rewritten]:
    """Add `tags` to a file.  Blocks.  Raises the exceptions of `rewrite` and `tagged`.

    Args:
        answer: makes the answer to the call of what was added, and of whether the file changed.
    """
    done = rewrite(
        path, roots, lambda data: tagged(data, tags).data, field="file_path",
        answer=lambda done: answer(tagged(done.before, tags), True),
    )  # fmt: skip
    return tagged(done.before, tags), done
