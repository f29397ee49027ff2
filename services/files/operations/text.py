"""Operations of `files` on the text of files on disk: read, find lines, edit and write. None of them needs the index;
writes are indexed before the call returns."""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from proto.errors import InvalidParams
from proto.operation import Params, detail
from proto.ops.changes import ChangeId, NotKept
from services.files.operations.index import beside
from services.files.operations.shared import step, within

AbsolutePath = Annotated[Annotated[str, Meta(min_length=1, max_length=32768)], detail("Absolute path")]
"""Same as `services.files.operations.shared.Path`."""

DryRun = Annotated[bool, detail("Change nothing; return the diff")]

MAX_CONTEXT = 50

IfMatch = Annotated[
    Annotated[str, Meta(max_length=80)] | None, detail("Only if the file still has this `hash`, from reading it")
]


class FileSource(enum.StrEnum):
    """Source of the text, if not the file's own."""

    OWN = ""
    EXTRACTED = "extracted_text"
    ORIGINAL = "original"
    FOLDER = "folder"


Encoding: TypeAlias = Annotated[str, Meta(max_length=32)]


class FileText(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The text of a file, or of some of its lines."""

    text: Annotated[str, Meta(description="Lines end in a line feed, whatever the file has")]
    lines: Annotated[str, Meta(description="The first and the last line of `text`, `1-200`")]
    total_lines: int
    bytes: int
    encoding: Annotated[str, Meta(description="As Python names it; `utf-8-sig` has a byte order mark")]
    encoding_from: Annotated[str, Meta(description="If not UTF-8: mark, declared, detected or assumed")] = ""
    hash: Annotated[str, Meta(description="SHA-256 of the file, for `if_match`")]
    line_ends: Annotated[str, Meta(description="crlf; mixed, kept in `text`; else line feeds")] = ""
    cut_lines: Annotated[int, Meta(description="Lines too long to return whole")] = 0
    next_lines: Annotated[str, Meta(description="The next `lines`")] = ""
    source: Annotated[
        FileSource, Meta(description="extracted_text for a PDF or office document; original for base64")
    ] = FileSource.OWN
    problem: Annotated[str, Meta(description="Why the text is incomplete")] = ""
    next_offset: Annotated[int, Meta(description="With `original`: the next `offset`")] = 0


@within.read("files_read", is_essential=True, surfaces=("files", "core"), deadline_s=60, text="text")
class ReadFile(Params[FileText], frozen=True, kw_only=True):
    """Read a text file on disk, or `lines` of it; the text of PDFs and office documents; a folder's entries. Notes:
    notes_read."""

    path: AbsolutePath
    lines: Annotated[str, Meta(max_length=24, description="`10-80`, `10-`")] = ""
    encoding: Annotated[Encoding, detail("As Python names it; default: detected")] = ""
    original: Annotated[bool, detail("Return the file's bytes as base64, from `offset` on")] = False
    offset: Annotated[Annotated[int, Meta(ge=0)], detail("With `original`: the first byte")] = 0

    def check(self) -> None:
        if self.offset and not self.original:
            said = "parameter `offset`: counts bytes, with `original`; `lines` reads a part of the text"
            raise InvalidParams(said, field="offset")


class GrepLine(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A line that matches."""

    line: int
    text: Annotated[str, Meta(description="A long line is cut around the match, with `…`")]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class GrepFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file with matches."""

    path: str
    matches: list[GrepLine] = []
    count: Annotated[int, Meta(description="With `count`: matching lines")] = 0


class GrepFound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Matches by folder, the files of a folder before its subfolders, each by name."""

    files: list[GrepFile]
    searched: Annotated[int, Meta(description="Files searched")]
    binary: Annotated[int, Meta(description="Files with NUL bytes, left out")] = 0
    unreadable: Annotated[list[str], Meta(description="The first unreadable files and folders")] = []
    truncated: Annotated[str, Meta(description="Why there may be more: limit or time")] = ""
    next_cursor: str = ""


@within.read("files_grep", surfaces=("files", "core"), deadline_s=60)
class GrepFiles(Params[GrepFound], frozen=True, kw_only=True):
    """Grep files on disk (RE2), as ripgrep: no ignored, hidden or binary ones. Stored documents: documents_grep."""

    pattern: Annotated[Annotated[str, Meta(min_length=1, max_length=8192)], detail("RE2, of one line")]
    ignore_case: Annotated[bool, detail("Ignore case")] = False
    literal: Annotated[bool, detail("Treat the pattern as plain text")] = False
    context: Annotated[Annotated[int, Meta(ge=0)], detail("Lines before and after each match")] = 0
    path: Annotated[Annotated[str, Meta(max_length=32768)], detail("File or folder; all roots by default")] = ""
    glob: Annotated[str, Meta(max_length=8192, description="`*.{c,h} !test/`")] = ""
    files_with_matches: Annotated[bool, detail("Return only the files")] = False
    count: Annotated[bool, detail("Return the number of lines of each file")] = False
    hidden: Annotated[bool, detail("Include hidden files and folders")] = False
    no_ignore: Annotated[bool, detail("Include ignored files")] = False
    limit: Annotated[Annotated[int, Meta(ge=1, le=1_000_000)], detail("Lines (or files) at most")] = 100
    cursor: Annotated[Annotated[str, Meta(max_length=40_000)], detail("`next_cursor` of the previous page")] = ""

    def check(self) -> None:
        if self.context > MAX_CONTEXT:
            raise InvalidParams(f"`context`: at most {MAX_CONTEXT} lines", field="context")
        if "\n" in self.pattern:
            raise InvalidParams("`pattern`: must not contain a line feed; it is matched line by line", field="pattern")


class GrepPart(msgspec.Struct, frozen=True, kw_only=True):
    """Matches in some of the files of a piece."""

    files: list[GrepFile]
    done: Annotated[int, Meta(description="Number of files searched, from the first")]
    searched: int
    binary: int
    unreadable: list[str]


Piece = list[tuple[str, list[str]]]
"""Folders, each a real path with its slash, and the names of files in them, encoded as `Path`."""


@beside.read("grep_texts", deadline_s=60)
class GrepTexts(Params[GrepPart], frozen=True, kw_only=True):
    """Search files: the part of `files_grep` that another process can do."""

    how: GrepFiles
    piece: Piece
    most: Annotated[int, Meta(description="Lines (or files) needed")]


class FileEdit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Replace `old`, once or `all`, or `lines`."""

    new: Annotated[Annotated[str, Meta(max_length=16_000_000)], detail("The replacement")]
    old: Annotated[Annotated[str, Meta(max_length=16_000_000)], detail("Exact text; must occur once, unless `all`")] = (
        ""
    )
    lines: Annotated[
        Annotated[str, Meta(max_length=24)], detail("Instead of `old`: `10-80`, `10-`, as numbered before all edits")
    ] = ""
    all: Annotated[bool, detail("Replace every `old`")] = False


class Edited(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The change, already on disk."""

    path: str
    diff: Annotated[str, Meta(description="Unified; a long one is cut, with a note")]
    hash: Annotated[str, Meta(description="Of the new file; in a dry run, as it would be")]
    changed: bool
    replaced: Annotated[int, Meta(description="Places changed")]
    links_left: Annotated[int, Meta(description="Other hard links, which keep the old content")] = 0
    dry_run: bool = False
    change: ChangeId = ""
    not_kept: NotKept = ""


@within.write("files_edit", surfaces=("files", "core"), idempotent=False, deadline_s=60)
class EditFile(Params[Edited], frozen=True, kw_only=True):
    """Edit a file on disk: replace exact text or lines, all or none. YAML: yaml_edit."""

    path: AbsolutePath
    edits: Annotated[list[FileEdit], Meta(min_length=1, max_length=1000)]
    if_match: IfMatch = None
    dry_run: DryRun = False
    encoding: Annotated[Encoding, detail("Default: detected")] = ""

    def check(self) -> None:
        for number, edit in enumerate(self.edits):
            if bool(edit.old) == bool(edit.lines):
                field = f"edits[{number}]"
                raise InvalidParams(f"`{field}`: give `old`, the text to replace, or `lines`; one of them", field=field)


class Written(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The file, already on disk."""

    path: str
    hash: Annotated[str, Meta(description="SHA-256 of the file")]
    bytes: int
    created: bool = False
    changed: Annotated[bool, Meta(description="False if the file had this content already")] = True
    kept: Annotated[str, Meta(description="Encoding and line ends as before, if not UTF-8 and LF")] = ""
    trash_id: Annotated[int | None, Meta(description="The former content, for trash_restore")] = None
    permanent: Annotated[bool, Meta(description="Whether the former content is gone: the trash is off")] = False
    links_left: Annotated[int, Meta(description="Other hard links, which keep the old content")] = 0
    change: ChangeId = ""
    not_kept: NotKept = ""


@within.destroy("files_write", surfaces=("files", "core"), idempotent=True, deadline_s=60)
class WriteFile(Params[Written], frozen=True, kw_only=True):
    """Create a file. An existing one needs `if_match` or `overwrite`, and goes to the trash."""

    path: AbsolutePath
    content: Annotated[Annotated[str, Meta(max_length=64_000_000)], detail("All of it")]
    if_match: IfMatch = None
    overwrite: Annotated[bool, detail("Replace an existing file unconditionally")] = False
    encoding: Annotated[
        Encoding,
        detail("Write exactly `content` in it. Default: as the file before, with its line ends; a new one UTF-8"),
    ] = ""


class DiffSide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A file on disk (`path`), a stored content (`hash`), or a file of a snapshot (`path` and `snapshot`)."""

    path: Annotated[str, Meta(max_length=32768, description="Absolute path")] = ""
    hash: Annotated[str, Meta(max_length=128, description="SHA-256 of a stored version, or its first digits")] = ""
    snapshot: Annotated[str, Meta(max_length=128, description="Id or label: `path` as it was then")] = ""


class FileDiff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How `after` differs from `before`."""

    equal: Annotated[bool, Meta(description="Whether all bytes are equal")]
    diff: Annotated[str, Meta(description="Unified; a long one is cut, with a note")] = ""
    binary: Annotated[str, Meta(description="Why there is no diff: which of them is not text")] = ""
    before_hash: Annotated[str, Meta(description="SHA-256")]
    after_hash: str
    before_bytes: int
    after_bytes: int


@step.read("files_diff", deadline_s=60)
class DiffFiles(Params[FileDiff], frozen=True, kw_only=True):
    """Compare two files line by line: files on disk, or stored versions of them by hash or snapshot."""

    before: DiffSide
    after: DiffSide

    def check(self) -> None:
        for field, side in (("before", self.before), ("after", self.after)):
            if bool(side.path) == bool(side.hash):
                raise InvalidParams(f"`{field}`: give `path` or `hash`, one of them", field=field)
            if side.snapshot and side.hash:
                raise InvalidParams(f"`{field}`: `snapshot` goes with `path`; a hash needs none", field=field)
