"""Operations of `knowledge` that write notes. When they return, the note is on disk, and is found by its words if
`indexed` is true."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from proto.errors import InvalidParams
from proto.operation import Params, detail
from proto.ops.changes import ChangeId, NotKept
from services.knowledge.operations.notes import Tag, tool

MAX_CHARS = 16 * 1024 * 1024

Text = Annotated[str, Meta(max_length=MAX_CHARS)]
NotePath = Annotated[Annotated[str, Meta(max_length=4096)], detail("The file, absolute or below a root")]
NoteId = Annotated[Annotated[str, Meta(max_length=1024)], detail("Instead of `path`: from notes_search")]
FrontMatter = Annotated[Annotated[dict[str, Any], Meta(max_length=256)], detail("YAML between `---`, as data")]
DryRun = Annotated[bool, detail("Change nothing; return the diff")]
IfMatch = Annotated[str | None, Meta(description="Only if its `hash` is this")]


class NoteWritten(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The written note, or in a dry run its diff."""

    path: Annotated[str, Meta(description="The file, absolute")]
    hash: Annotated[str, Meta(description="SHA-256 of its current bytes, for `if_match`")]
    changed: Annotated[bool, Meta(description="False if it read so already, or nothing was written")]
    id: Annotated[str, Meta(description="For notes_read")] = ""
    previous: Annotated[str | None, Meta(description="Hash of the old content")] = None
    indexed: Annotated[bool, Meta(description="Whether notes_search finds it yet")] = False
    diff: Annotated[str, Meta(description="In a dry run")] = ""
    change: ChangeId = ""
    not_kept: NotKept = ""


@tool.destroy("notes_write", surfaces=("knowledge", "core"), idempotent=True, deadline_s=30, within_roots=True)
class WriteNote(Params[NoteWritten], frozen=True, kw_only=True):
    """Write a whole note (Markdown) in a root. Replaces an old one only with `if_match` or `overwrite`.
    Parts: notes_edit."""

    path: Annotated[NotePath, Meta(min_length=1)]
    content: Annotated[Text, detail("All of it, without front matter if given as data")]
    front_matter: FrontMatter = {}
    if_match: IfMatch = None
    overwrite: Annotated[bool, detail("Replace an existing note unconditionally")] = False


class Replacement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text that occurs once."""

    old: Annotated[str, Meta(min_length=1, max_length=MAX_CHARS)]
    new: Text


class SectionText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text below a heading `B`, `A > B`, or `B[2]`, the second."""

    heading: Annotated[str, Meta(min_length=1, max_length=1024)]
    content: Text
    create: Annotated[bool, detail("Add the section at the end if missing")] = False


@tool.destroy("notes_edit", surfaces=("knowledge", "core"), idempotent=False, deadline_s=30, within_roots=True)
class EditNote(Params[NoteWritten], frozen=True, kw_only=True):
    """Edit parts of a note, named by `path` or `id`: replace, section, prepend, append, front_matter, in this order,
    all or none. Tags: notes_tag."""

    path: NotePath = ""
    id: NoteId = ""
    replace: Replacement | None = None
    section: SectionText | None = None
    prepend: Annotated[Text, detail("Before the text, below front matter")] = ""
    append: Annotated[Text, detail("After the last line")] = ""
    front_matter: Annotated[FrontMatter, Meta(description="Keys to set; null removes")] = {}
    if_match: IfMatch = None
    dry_run: Annotated[bool, Meta(description="Only return the diff")] = False

    def check(self) -> None:
        check_one(self.path, self.id)
        if not (self.replace or self.section or self.prepend or self.append or self.front_matter):
            said = "parameter `append`: say what to change: append, prepend, replace, section or front_matter"
            raise InvalidParams(said, field="append")


class InjectTagsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The change, already on disk."""

    message: Annotated[str, Meta(description="`Successfully injected N tags into PATH`, or `merged`")]
    tags: Annotated[list[str], Meta(description="All entries of the comment now")]
    changed: Annotated[bool, Meta(description="False if every tag was there already")]
    change: ChangeId = ""
    not_kept: NotKept = ""


@tool.write("notes_tag", idempotent=True, deadline_s=30, text="message")
class InjectTags(Params[InjectTagsResult], frozen=True, kw_only=True):
    """Tag a Markdown file: adds `<!-- tags: a, b -->` at its end, or merges them into the last such comment. Tags of
    stored documents: documents_update."""

    common: ClassVar = {"file_path": "path"}
    file_path: Annotated[str, Meta(min_length=1, max_length=4096, description="The file, absolute or below a root")]
    tags: Annotated[list[Tag], Meta(min_length=1, max_length=256, description="The tags to add")]


class NoteRenamed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The note's new place and the changed files; in a dry run, what would change."""

    path: Annotated[str, Meta(description="The file, absolute")]
    former_path: str
    id: Annotated[str, Meta(description="The note's new id; the former one still works")] = ""
    links: Annotated[int, Meta(description="Links rewritten")] = 0
    files: Annotated[list[str], Meta(description="Files whose links were rewritten, its own included")] = []
    left: Annotated[list[str], Meta(description="Files that link to it but are read-only or not UTF-8")] = []
    indexed: Annotated[bool, Meta(description="Whether it is found in its new place yet")] = False
    diff: Annotated[str, Meta(description="In a dry run")] = ""
    change: ChangeId = ""


@tool.write("notes_rename", idempotent=False, deadline_s=120)
class RenameNote(Params[NoteRenamed], frozen=True, kw_only=True):
    """Rename or move a note, named by `path` or `id`, and the links to it in other notes. Other files:
    files_rename."""

    to: Annotated[str, Meta(min_length=1, max_length=4096, description="File name, or path below its root")]
    path: NotePath = ""
    id: NoteId = ""
    dry_run: DryRun = False

    def check(self) -> None:
        check_one(self.path, self.id)


def check_one(path: str, id_: str) -> None:
    """Raises InvalidParams unless exactly one of the two is given."""
    if bool(path) == bool(id_):
        said = "name the note by one of `path` and `id`" + (", not by both" if path else "")
        raise InvalidParams(f"parameter `path`: {said}", field="path")
