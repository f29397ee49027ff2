"""Operations of `knowledge` for the page: folders and notes page by page, a note with everything around it, and the
graph of all notes. They are no tools of a model; clients call them over HTTP."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import CLIENT, OPERATOR, Family, Params, Role
from services.knowledge.operations.notes import NodeId
from services.knowledge.operations.writing import Text

page = Family("knowledge", role=Role.INTERNAL, callers=(CLIENT, OPERATOR))

MAX_MAPPED = 100_000
"""Notes of the graph at most."""


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that holds notes, itself or further below."""

    path: Annotated[str, Meta(description="Absolute, without a slash at its end")]
    name: str
    notes: Annotated[int, Meta(description="Notes below it")]


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A note of a list."""

    id: str
    title: str
    path: Annotated[str, Meta(description="Relative to its root")]
    date: Annotated[str | None, Meta(description="The `date` of its front matter, else its last change; RFC 3339")]


class Browsed(msgspec.Struct, frozen=True, kw_only=True):
    """A page of notes, and the folders beside them."""

    folders: list[Folder]
    notes: list[Listed]
    count: Annotated[int, Meta(description="Notes in all, on this page or not")]


@page.read("notes_browse", deadline_s=10)
class BrowseNotes(Params[Browsed], frozen=True, kw_only=True):
    """List the folders and notes of a folder; with `below`, `words`, `tag` or `unlinked` the notes below it that
    match."""

    folder: Annotated[str, Meta(max_length=4096, description="Absolute; by default the root, or all roots")] = ""
    words: Annotated[str, Meta(max_length=1024, description="All of them occur in the title or the path")] = ""
    tag: Annotated[str, Meta(max_length=256, description="Only notes with this tag or one below it")] = ""
    unlinked: Annotated[bool, Meta(description="Only notes that no other note links to")] = False
    below: Annotated[bool, Meta(description="All notes below the folder, instead of its folders and notes")] = False
    latest: Annotated[bool, Meta(description="The latest first, instead of by path")] = False
    offset: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class Heading(msgspec.Struct, frozen=True):
    """A heading."""

    level: int
    title: str
    line: Annotated[int, Meta(description="In the file, from 1")]


class ShownLink(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A link as written, and where it leads."""

    written: str
    id: Annotated[str, Meta(description="Of the note; empty if there is none")] = ""
    title: str = ""
    file: Annotated[str, Meta(description="Absolute path, if it is another file that exists")] = ""
    relation: Annotated[str, Meta(description="Its type, if it is not an ordinary link")] = ""
    line: Annotated[int, Meta(description="In the file, from 1; 0: in the front matter")] = 0


class Property(msgspec.Struct, frozen=True):
    """A property of the front matter."""

    name: str
    values: list[str]


class Linking(msgspec.Struct, frozen=True):
    """A note that links to the shown one."""

    id: str
    title: str


class Shown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A note and everything around it."""

    id: str
    title: str
    path: Annotated[str, Meta(description="Relative to its root")]
    file: Annotated[str, Meta(description="Absolute")]
    text: Annotated[str, Meta(description="The whole file; the given text is not repeated")] = ""
    hash: Annotated[str, Meta(description="Of the file, for `if_match`")] = ""
    start: Annotated[int, Meta(description="Lines of the front matter")] = 0
    problem: Annotated[str, Meta(description="Why the front matter cannot be read")] = ""
    tags: list[str] = []
    properties: list[Property] = []
    headings: list[Heading] = []
    links: list[ShownLink] = []
    backlinks: list[Linking] = []
    backlink_count: int = 0


@page.read("notes_show", deadline_s=30)
class ShowNote(Params[Shown], frozen=True, kw_only=True):
    """Read a note with its properties, headings, links and backlinks; or what they would be with another text."""

    id: NodeId
    text: Annotated[Text | None, Meta(description="Instead of the file's")] = None
    backlinks: Annotated[int, Meta(ge=0, le=10_000, description="Backlinks at most")] = 100


class NoteMap(msgspec.Struct, frozen=True, kw_only=True):
    """The graph of all notes in columns. Numbers are places in the lists of names."""

    ids: list[str]
    titles: list[str]
    folders: Annotated[list[str], Meta(description="The folders, relative to their root, each ending in `/`")]
    folder: Annotated[list[int], Meta(description="The folder of each note")]
    tags: Annotated[list[str], Meta(description="The tags, the most frequent first")]
    tagged: Annotated[list[list[int]], Meta(description="The tags of each note")]
    edges: Annotated[list[int], Meta(description="The two notes of each pair of linked ones, one pair after another")]
    more: Annotated[int, Meta(description="Notes left out")]


@page.read("notes_map", deadline_s=30)
class MapNotes(Params[NoteMap], frozen=True, kw_only=True):
    """Return all notes and the links between them, as compactly as possible."""

    limit: Annotated[int, Meta(ge=1, le=MAX_MAPPED, description="Notes at most")] = MAX_MAPPED
