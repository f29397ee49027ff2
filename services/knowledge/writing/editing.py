"""Edit a note's text.

Everything else is preserved byte for byte: line breaks, a byte order mark, a missing break at the end. Text from
clients is converted to the file's line breaks.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from proto.errors import InvalidParams, OperationError
from services.knowledge.notes import frontmatter, headings
from services.knowledge.notes.excerpts import LINE, parent_of, section_lines
from services.knowledge.operations.writing import EditNote, Replacement, SectionText
from services.shared.text.nearest import nearest_line

MARK = "\ufeff"

Merge = Callable[[str], str]
"""A function that merges values into front matter in YAML."""

_HEADING = re.compile(r"(#{1,6})\s+")
_LEVEL = 2
"""Default level of a new heading, as level 1 is the note's title."""


def decoded(data: bytes) -> str:
    """Decode a file.  Raises OperationError if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        said = f"`path`: the file is not UTF-8 (byte {error.start + 1}); save it as UTF-8 to edit it"
        raise OperationError(said, field="path") from None


def edited(text: str, edit: EditNote, merge: Merge) -> str:
    """Apply `edit` to a text.  Raises InvalidParams, OperationError, and the exceptions of `merge`."""
    line_break = break_of(text)
    if edit.replace is not None:
        text = _replaced(text, edit.replace, line_break)
    if edit.section is not None:
        text = _with_section(text, edit.section, line_break)
    if edit.prepend:
        head, body = split(text)
        text = head + _ended(_broken(edit.prepend, line_break), line_break) + body
    if edit.append:
        ends = text.endswith(("\n", "\r")) or text in ("", MARK)
        added = _broken(edit.append, line_break)
        text = text + _ended(added, line_break) if ends else text + line_break + added
    return with_front_matter(text, merge) if edit.front_matter else text


def split(text: str) -> tuple[str, str]:
    """Split a text into its head (byte order mark and front matter with dashes) and the rest."""
    start = len(text) - len(text.removeprefix(MARK))
    front, _ = frontmatter.split(flat(text)[start:])
    lines: list[str] = LINE.findall(text[start:])
    head = text[:start] + "".join(lines[: front.lines])
    return head, text[len(head) :]


def with_front_matter(text: str, merge: Merge) -> str:
    """Merge the front matter of a text, creating it if it is missing and removing it if nothing is left."""
    line_break = break_of(text)
    head, body = split(text)
    mark = MARK if head.startswith(MARK) else ""
    first, *inside, last = LINE.findall(head.removeprefix(mark)) or (f"---{line_break}", f"---{line_break}")
    inner = "".join(inside)
    merged = merge(inner)
    if len(merged) > frontmatter.MAX_CHARS:
        said = f"`front_matter`: {len(merged)} characters; the limit is {frontmatter.MAX_CHARS}"
        raise InvalidParams(said, field="front_matter")
    if merged == inner:
        return text
    if merged.strip() in ("", "{}"):
        return mark + body
    return mark + first + _ended(merged if inner else _broken(merged, line_break), line_break) + last + body


def flat(text: str) -> str:
    """Convert line breaks to `\\n`, keeping all offsets."""
    return text.replace("\r\n", " \n").replace("\r", "\n")


def break_of(text: str) -> str:
    """Return `\\r\\n` if all line breaks of a text are, else `\\n`."""
    return "\r\n" if "\r\n" in text and "\n" not in text.replace("\r\n", "") else "\n"


def _broken(given: str, line_break: str) -> str:
    return given.replace("\r\n", "\n").replace("\n", line_break)


def _ended(text: str, line_break: str) -> str:
    return text if text.endswith(("\n", "\r")) or not text else text + line_break


def _replaced(text: str, replacement: Replacement, line_break: str) -> str:
    old, new = replacement.old, replacement.new
    if old not in text:
        old = _broken(old, line_break)
    first = text.find(old)
    if first < 0:
        near = nearest_line(text, old) or "; notes_read has its text"
        raise _refused(f"`replace.old` does not occur in the note{near}", "replace.old")
    times, at = 1, text.find(old, first + 1)
    while at >= 0:
        times, at = times + 1, text.find(old, at + 1)
    if times > 1:
        said = f"`replace.old` occurs {times} times but must be unique; include more of the surrounding text"
        raise _refused(said, "replace.old")
    return text[:first] + _broken(new, line_break) + text[first + len(old) :]


def _with_section(text: str, section: SectionText, line_break: str) -> str:
    if not headings.without_marks(section.heading).strip(" #>") or "\n" in section.heading:
        raise InvalidParams("parameter `section.heading` must be one non-blank heading", field="section.heading")
    lines = LINE.findall(text)
    found = section_lines(text, section.heading, field="section.heading", must_be=not section.create)
    content: list[str] = LINE.findall(_broken(section.content, line_break).strip("\r\n"))
    if found is not None:
        # The content may begin with the heading, as notes_read returns it.
        heading = lines[found.heading]
        if content and _HEADING.match(content[0]) and headings.same(content[0], heading):
            content = LINE.findall("".join(content[1:]).lstrip("\r\n"))
        return "".join(_below(lines, found.body, found.end, content, line_break))
    above, last = parent_of(text, section.heading)
    marks = _HEADING.match(last.strip())
    level = len(marks[1]) if marks else _LEVEL
    end = len(lines)
    if above:
        parent = section_lines(text, above, field="section.heading")
        assert parent is not None, "a missing section raises"
        level, end = min(6, parent.level + 1), parent.end
    head = f"{'#' * level} {headings.without_marks(last)}{line_break}"
    return "".join(_below(lines, end, end, [head, *([line_break, *content] if content else ())], line_break))


def _below(lines: list[str], start: int, end: int, content: list[str], line_break: str) -> list[str]:
    """Replace the lines from `start` to `end`, keeping the blank lines around them."""
    before, old, after = lines[:start], lines[start:end], lines[end:]
    texts = [number for number, line in enumerate(old) if line.strip()]
    if texts:
        leading, closing = old[: texts[0]], old[texts[-1] + 1 :]
    else:
        leading = [line_break] if before and before[-1].strip() else []
        closing = old or ([line_break] if after else [])
    if not content:
        return [*before, *closing, *after]
    if before:
        before[-1] = _ended(before[-1], line_break)
    if after or not lines or lines[-1].endswith(("\n", "\r")):
        content = [*content[:-1], _ended(content[-1], line_break)]
    return [*before, *leading, *content, *closing, *after]


def _refused(said: str, field: str) -> OperationError:
    return OperationError(said, field=field)
