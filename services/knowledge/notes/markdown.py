"""Parse a note: title, date, tags, references, and its body in sections.

Parsing never fails: any text is a note. `problem` names a part that could not be parsed; the rest is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.knowledge.notes import frontmatter, headings
from services.knowledge.notes.files import Place
from services.knowledge.notes.links import Reference, pointers
from services.shared.date_ranges import instant
from services.shared.models.measure import Measure
from services.shared.text.cutting import Part, Section, cut, without_data
from services.shared.text.markdown import Outline

VERSION = 8
"""Increment when the same text would yield a different note; all notes are then read again."""

MAX_INDEXED_CHARS = 4 * 1024 * 1024
"""Longer notes are indexed only up to this length, but can be read completely."""

MAX_POINTERS = 10_000
"""Maximum number of references and of tags per note.  A note with more is generated, and the rest is not indexed."""

MIN_EMBEDDED_CHARS = 51
"""Shorter bodies say too little to be worth embedding."""


@dataclass(frozen=True, slots=True)
class Note:
    """A parsed note; `date` is Unix time from its front matter."""

    title: str
    sections: tuple[Section, ...]
    references: tuple[Reference, ...]
    tags: tuple[str, ...]
    date: float | None
    embed: bool
    front_matter: Section | None
    problem: str | None


def parse(text: str, place: Place, measure: Measure) -> Note:
    """Parse the note at `place`, cut into sections that fit the model that `measure` describes."""
    problem = None
    normal = frontmatter.normal(text)
    if len(normal) > MAX_INDEXED_CHARS:
        problem = f"only the first {MAX_INDEXED_CHARS} of {len(normal)} characters are searched"
        normal = normal[:MAX_INDEXED_CHARS]
    front, body = frontmatter.split(normal)
    plan = headings.outlined(body)
    references, tags = pointers(body, plan.code, front, place)
    for name, pointed in (("links", references), ("tags", tags)):
        if len(pointed) > MAX_POINTERS:
            problem = problem or f"only the first {MAX_POINTERS} of {len(pointed)} {name} are indexed"
    title = _title(front, plan) or stem(place.path)
    lines, data = without_data(body.split("\n"))
    if data:
        problem = problem or f"{data} characters of data (such as base64) are not searched"
    before = front.lines
    blocks = [block._replace(first=block.first + before, end=block.end + before) for block in plan.blocks]
    date = None
    for key in ("date", "updated", "modified", "created"):
        value = front.first(key)
        if value is not None:
            try:
                date = instant(value)
                break
            except (ValueError, OverflowError):
                problem = problem or f"front matter `{key}` is not a valid date: {value[:80]!r}"
    head = None
    if front.lines:
        source = normal.split("\n", front.lines)[1 : front.lines - 1]
        if any(line.strip() for line in source):
            head = Section("\n".join(source), 0, (Part(2, front.lines - 1, ()),))
    return Note(
        title=title,
        sections=tuple(cut([""] * before + lines, blocks, title, measure)),
        references=references[:MAX_POINTERS],
        tags=tags[:MAX_POINTERS],
        date=date,
        embed=len(body.strip()) >= MIN_EMBEDDED_CHARS,
        front_matter=head,
        problem=front.problem or problem,
    )


def own_title(text: str) -> str:
    """Return the title in a note's text; empty if its file name serves as title."""
    front, body = frontmatter.split(frontmatter.normal(text))
    return _title(front, headings.outlined(body))


def _title(front: frontmatter.FrontMatter, plan: Outline) -> str:
    return " ".join((front.first("title") or "").split())[:300] or next(iter(plan.headings), "")


def stem(path: str) -> str:
    """Return a path's base name without its extension."""
    return path.rpartition("/")[2][:-3]
