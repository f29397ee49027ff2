"""A note parsed from its text: title, date, tags, references, and its body in sections.

Parsing is total: any text gives a note. `problem` names the part that could not be understood; the rest is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from linckia.services.knowledge.notes import frontmatter
from linckia.services.knowledge.notes.files import Place
from linckia.services.knowledge.notes.links import Reference, pointers
from linckia.services.runtime.date_ranges import instant
from linckia.services.runtime.models.measure import Measure
from linckia.services.runtime.text.cutting import Part, Section, cut, without_data
from linckia.services.runtime.text.markdown import Outline, outline

VERSION = 6
"""Rises when the same text would give another note: then all notes are read again."""

MAX_INDEXED_CHARS = 4 * 1024 * 1024
"""Of a longer note only so much is searched; all of it is still read."""

MAX_POINTERS = 10_000
"""References of one note, and tags; a note with more is generated, and the rest is not indexed."""

MIN_EMBEDDED_CHARS = 51
"""A body of 50 characters or less says too little to have a meaning of its own."""


@dataclass(frozen=True, slots=True)
class Note:
    """A note as it is indexed; `date` is Unix seconds from its front matter."""

    title: str
    sections: tuple[Section, ...]
    references: tuple[Reference, ...]
    tags: tuple[str, ...]
    date: float | None
    embed: bool
    front_matter: Section | None
    problem: str | None


def parse(text: str, place: Place, measure: Measure) -> Note:
    """The note at `place` with the contents `text`, cut so that a model of that `measure` reads all of it."""
    problem = None
    normal = frontmatter.normal(text)
    if len(normal) > MAX_INDEXED_CHARS:
        problem = f"only the first {MAX_INDEXED_CHARS} of {len(normal)} characters are searched"
        normal = normal[:MAX_INDEXED_CHARS]
    front, body = frontmatter.split(normal)
    plan = outline(body)
    references, tags = pointers(body, plan.code, front, place)
    for name, pointed in (("links", references), ("tags", tags)):
        if len(pointed) > MAX_POINTERS:
            problem = problem or f"only the first {MAX_POINTERS} of {len(pointed)} {name} are indexed"
    title = _title(front, plan) or stem(place.path)
    lines, data = without_data(body.split("\n"))
    if data:
        problem = problem or f"{data} characters of data (base64 and the like) are left out of the search"
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
                problem = problem or f"front matter `{key}` is no date: {value[:80]!r}"
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
    """The title that a note gives itself; empty where its file name is its title."""
    front, body = frontmatter.split(frontmatter.normal(text))
    return _title(front, outline(body))


def _title(front: frontmatter.FrontMatter, plan: Outline) -> str:
    return " ".join((front.first("title") or "").split())[:300] or next(iter(plan.headings), "")


def stem(path: str) -> str:
    """A path's base name without its extension."""
    return path.rpartition("/")[2][:-3]
