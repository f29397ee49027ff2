"""Operations of `yaml`: values in YAML files read and changed with every other byte left as it is."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from proto.operation import Family, Params

_CODES = {
    -32000: "The file cannot be read or written",
    -32001: "The file is not valid YAML 1.2",
    -32002: "The path is not in the document",
    -32003: "The change cannot be made at this path; the file is as it was",
    -32602: "An argument is missing, unknown or of the wrong type",
}

tool = Family("yaml", surfaces=("yaml",), codes=_CODES, within_roots=True)
text_tool = Family("yaml", surfaces=("yaml",), codes=_CODES, within_roots=True, text="text")

File: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=4096, description="Path to the YAML file on disk, below the roots")
]
Path: TypeAlias = Annotated[
    str,
    Meta(
        max_length=65536,
        description='Dotted and indexed path, such as `server.host`, `items[0].name` or `labels["a.b/c"]`',
    ),
]
Document: TypeAlias = Annotated[int, Meta(ge=0, description="Which document of the file, counted from 0")]
IfMatch: TypeAlias = Annotated[
    str | None,
    Meta(description="SHA-256 of the file's bytes that the change is meant for; refused if the file has changed since"),
]
DryRun: TypeAlias = Annotated[bool, Meta(description="Answer the unified diff and change nothing")]
Digest: TypeAlias = Annotated[str, Meta(description="SHA-256 of the file's bytes, hexadecimal: pass it as `if_match`")]
Above: TypeAlias = Annotated[
    str | None, Meta(description="The comment lines straight above the entry, without `#`; empty removes them")
]
Beside: TypeAlias = Annotated[
    str | None, Meta(description="The comment at the end of its line, without `#`; empty removes it")
]


class GetResult(msgspec.Struct, frozen=True):
    """The source of one value."""

    text: Annotated[str, Meta(description="The value exactly as it stands in the file")]
    digest: Digest


class EditResult(msgspec.Struct, frozen=True):
    """What an edit did."""

    text: Annotated[str, Meta(description="The text of the answer, as a client shows it")]
    digest: Digest
    changed: Annotated[bool, Meta(description="False where the file already read so, or nothing was written")]
    diff: Annotated[str | None, Meta(description="For a dry run: the unified diff of what would change")] = None


class CommentsResult(msgspec.Struct, frozen=True):
    """The comments of one entry, without their `#`; null where there is none."""

    above: str | None
    beside: str | None
    digest: Digest


class Fault(msgspec.Struct, frozen=True):
    """One way in which a document fails a schema."""

    path: str
    line: Annotated[int, Meta(description="Line in the file, counted from 1")]
    column: Annotated[int, Meta(description="Column in characters, counted from 1")]
    message: str


class ValidateResult(msgspec.Struct, frozen=True):
    """The faults of a document under a schema; none where it is valid."""

    valid: bool
    faults: list[Fault]
    digest: Digest


class PathEdit(msgspec.Struct, frozen=True, tag_field="op", forbid_unknown_fields=True):
    """One edit of several, at a path."""

    path: Path


class SetEdit(PathEdit, frozen=True, tag="set"):
    """As `noyalib_set`."""

    value: Annotated[str, Meta(description="The new value as a YAML fragment")]


class DeleteEdit(PathEdit, frozen=True, tag="delete"):
    """As `yaml_delete`."""


class AppendEdit(PathEdit, frozen=True, tag="append"):
    """As `yaml_append`."""

    value: Annotated[str, Meta(description="The new item as a YAML fragment")]


class RenameEdit(PathEdit, frozen=True, tag="rename"):
    """As `yaml_rename`."""

    key: Annotated[str, Meta(description="The new key, as plain text without quotes")]


class CommentEdit(PathEdit, frozen=True, tag="comment"):
    """As `yaml_set_comments`."""

    above: Above = None
    beside: Beside = None


Edit: TypeAlias = SetEdit | DeleteEdit | AppendEdit | RenameEdit | CommentEdit


@text_tool.read("noyalib_get", deadline_s=30, title="Read a YAML value")
class NoyalibGet(Params[GetResult], frozen=True, kw_only=True):
    """Read the value at a path in a YAML file, exactly as it is written: quotes, spacing and inner comments included.

    A key with nothing after it answers the empty text; an alias answers `*name`.
    """

    file: File
    path: Path
    document: Document = 0


class PathChange(Params[EditResult], frozen=True, kw_only=True):
    """Parameters of the operations that make one edit at a path."""

    file: File
    path: Path
    document: Document = 0
    if_match: IfMatch = None
    dry_run: DryRun = False


@text_tool.write("noyalib_set", idempotent=True, deadline_s=30, title="Set a YAML value", once_with=("if_match",))
class NoyalibSet(PathChange, frozen=True, kw_only=True):
    """Set the value at a path in a YAML file; comments, blank lines, order and style of everything else stay as they
    are.

    Missing keys are made. A change that would alter anything but this value is refused and leaves the file as it was.
    """

    value: Annotated[str, Meta(description='The new value as YAML, such as `0.0.2`, `"hello"` or `[1, 2, 3]`')]


@text_tool.destroy("yaml_delete", idempotent=False, deadline_s=30, title="Delete a YAML entry")
class YamlDelete(PathChange, frozen=True, kw_only=True):
    """Delete the key or the item at a path, with the comments that belong to it."""


@text_tool.write("yaml_append", idempotent=False, deadline_s=30, title="Append to a YAML sequence")
class YamlAppend(PathChange, frozen=True, kw_only=True):
    """Append an item to the sequence at a path, in that sequence's own style."""

    value: Annotated[str, Meta(description="The new item as YAML")]


@text_tool.write("yaml_rename", idempotent=False, deadline_s=30, title="Rename a YAML key")
class YamlRename(PathChange, frozen=True, kw_only=True):
    """Give the key at a path another name; its value, place and comments stay."""

    key: Annotated[str, Meta(description="The new key, as plain text; quoted in the file where it must be")]


@tool.read("yaml_get_comments", deadline_s=30, title="Read YAML comments")
class YamlGetComments(Params[CommentsResult], frozen=True, kw_only=True):
    """Read the comments of the entry at a path: the lines directly above it, and the one behind it."""

    file: File
    path: Path
    document: Document = 0


@text_tool.write(
    "yaml_set_comments", idempotent=True, deadline_s=30, title="Write YAML comments", once_with=("if_match",)
)
class YamlSetComments(PathChange, frozen=True, kw_only=True):
    """Write the comments of the entry at a path; an omitted one stays as it is, and an empty one is removed."""

    above: Above = None
    beside: Beside = None


@text_tool.destroy("yaml_edit", idempotent=False, deadline_s=60, title="Edit a YAML file in several places")
class YamlEdit(Params[EditResult], frozen=True, kw_only=True):
    """Make several edits of one file, each seeing those before it, all or none."""

    file: File
    edits: Annotated[list[Edit], Meta(min_length=1, max_length=1000, description="The edits, in order")]
    document: Document = 0
    if_match: IfMatch = None
    dry_run: DryRun = False


@tool.read("yaml_validate", deadline_s=30, title="Check YAML against a JSON Schema")
class YamlValidate(Params[ValidateResult], frozen=True, kw_only=True):
    """Check a document of a YAML file against a JSON Schema (2020-12 unless it says otherwise; no remote
    references)."""

    file: File
    schema: Annotated[dict[str, Any], Meta(description="The JSON Schema itself")]
    document: Document = 0
