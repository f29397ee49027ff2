"""Operations of `yaml`: read and change values in YAML files, leaving every other byte unchanged."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from proto.errors import InvalidParams
from proto.operation import Family, Params, Role, detail
from proto.ops.changes import ChangeId, NotKept

_CODES = {
    -32000: "The file cannot be read or written",
    -32001: "The file is not valid YAML 1.2",
    -32002: "The path is not in the document",
    -32003: "The change cannot be made at this path; the file is unchanged",
    -32602: "An argument is missing, unknown or of the wrong type",
}

tool = Family("yaml", surfaces=("yaml",), codes=_CODES, within_roots=True)
step = Family("yaml", role=Role.STEP, codes=_CODES, within_roots=True, text="text")
text_tool = Family("yaml", surfaces=("yaml",), codes=_CODES, within_roots=True, text="text")

File: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4096, description="YAML file below a root")]
Path: TypeAlias = Annotated[
    str, Meta(max_length=65536, description='As `server.host`, `items[0].name`, `labels["a.b/c"]`')
]
Document: TypeAlias = Annotated[Annotated[int, Meta(ge=0)], detail("Which document of the file, from 0")]
IfMatch: TypeAlias = Annotated[str | None, Meta(description="Only if its SHA-256 is still this")]
DryRun: TypeAlias = Annotated[bool, detail("Only return the diff")]
Digest: TypeAlias = Annotated[str, Meta(description="SHA-256 of the file's bytes, hexadecimal, for `if_match`")]
Above: TypeAlias = Annotated[str | None, Meta(description="Lines above the entry, without `#`; empty removes them")]
YamlValue: TypeAlias = str | int | float | bool | None
"""A string is YAML text. Anything else is written as JSON, which is YAML too."""
Beside: TypeAlias = Annotated[str | None, Meta(description="At the end of its line, without `#`; empty removes it")]


class GetResult(msgspec.Struct, frozen=True):
    """The source of one value."""

    text: Annotated[str, Meta(description="The value exactly as in the file")]
    digest: Digest


class EditResult(msgspec.Struct, frozen=True):
    """The outcome of an edit."""

    text: Annotated[str, Meta(description="The answer as text, for display")]
    digest: Digest
    changed: Annotated[bool, Meta(description="False if the file already read so, or nothing was written")]
    diff: Annotated[str | None, Meta(description="In a dry run: the unified diff")] = None
    change: ChangeId = ""
    not_kept: NotKept = ""


class CommentsResult(msgspec.Struct, frozen=True):
    """The comments of one entry, without their `#`; null if absent."""

    above: str | None
    beside: str | None
    digest: Digest


class Fault(msgspec.Struct, frozen=True):
    """A violation of a schema."""

    path: str
    line: Annotated[int, Meta(description="Line in the file, counted from 1")]
    column: Annotated[int, Meta(description="Column in characters, counted from 1")]
    message: str


class ValidateResult(msgspec.Struct, frozen=True):
    """Schema violations of a document; none if it is valid."""

    valid: bool
    faults: list[Fault]
    digest: Digest


class PathEdit(msgspec.Struct, frozen=True, tag_field="op", forbid_unknown_fields=True):
    """One edit of several, at a path."""

    path: Path


class SetEdit(PathEdit, frozen=True, tag="set"):
    """As `yaml_set`."""

    value: Annotated[YamlValue, Meta(description="As YAML")]


class DeleteEdit(PathEdit, frozen=True, tag="delete"):
    """As `yaml_delete`."""


class AppendEdit(PathEdit, frozen=True, tag="append"):
    """As `yaml_append`."""

    value: Annotated[YamlValue, Meta(description="As YAML")]


class RenameEdit(PathEdit, frozen=True, tag="rename"):
    """As `yaml_rename`."""

    key: Annotated[str, Meta(description="The new key, as plain text without quotes")]


class CommentEdit(PathEdit, frozen=True, tag="comment"):
    """As `yaml_set_comments`."""

    above: Above = None
    beside: Beside = None


Edit: TypeAlias = SetEdit | DeleteEdit | AppendEdit | RenameEdit | CommentEdit


@text_tool.read("yaml_get", is_exact=True, deadline_s=30, title="Read a YAML value")
class NoyalibGet(Params[GetResult], frozen=True, kw_only=True):
    """Read a value from a YAML file on disk by its path (`server.port`), exactly as written. Not for whole files or
    other formats."""

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


@text_tool.write("yaml_set", idempotent=True, deadline_s=30, title="Set a YAML value", once_with=("if_match",))
class NoyalibSet(PathChange, frozen=True, kw_only=True):
    """Set a value in a YAML file (change a port, a version) by its path; comments and all else stay byte for byte.
    Missing keys are made. What would alter more is refused. Several: yaml_edit."""

    value: Annotated[YamlValue, Meta(description='As YAML: `0.0.2`, `"hello"`, `[1, 2]`')]


@text_tool.destroy("yaml_delete", idempotent=False, deadline_s=30, title="Delete a YAML entry")
class YamlDelete(PathChange, frozen=True, kw_only=True):
    """Remove a key or list item from a YAML file, with its comments."""


@text_tool.write("yaml_append", idempotent=False, deadline_s=30, title="Append to a YAML sequence")
class YamlAppend(PathChange, frozen=True, kw_only=True):
    """Append an item to a list in a YAML file, in the list's own style. A key: yaml_set."""

    value: Annotated[YamlValue, Meta(description="As YAML")]


@text_tool.write("yaml_rename", idempotent=False, deadline_s=30, title="Rename a YAML key")
class YamlRename(PathChange, frozen=True, kw_only=True):
    """Rename a key in a YAML file; value, place and comments stay."""

    key: Annotated[str, Meta(description="Plain text; quoted in the file if needed")]


@tool.read("yaml_get_comments", deadline_s=30, title="Read YAML comments")
class YamlGetComments(Params[CommentsResult], frozen=True, kw_only=True):
    """Read the comments of an entry in a YAML file: the lines above it, and the one beside it."""

    file: File
    path: Path
    document: Document = 0


@text_tool.write(
    "yaml_set_comments", idempotent=True, deadline_s=30, title="Write YAML comments", once_with=("if_match",)
)
class YamlSetComments(PathChange, frozen=True, kw_only=True):
    """Write the comments of an entry in a YAML file; omitted ones stay, empty ones are removed."""

    above: Above = None
    beside: Beside = None


@text_tool.destroy("yaml_edit", idempotent=False, deadline_s=60, title="Edit YAML in several places")
class YamlEdit(Params[EditResult], frozen=True, kw_only=True):
    """Edit one YAML file in several places at once, all or none, each edit seeing those before it. One value:
    yaml_set."""

    file: File
    edits: Annotated[list[Edit], Meta(min_length=1, max_length=1000, description="The edits, in order")]
    document: Document = 0
    if_match: IfMatch = None
    dry_run: DryRun = False


@step.destroy("yaml_merge", idempotent=False, deadline_s=60, title="Merge into YAML")
class YamlMerge(Params[EditResult], frozen=True, kw_only=True):
    """Merge a mapping, or another YAML file, into a YAML file at a path, all or none; comments and layout stay."""

    file: File
    values: Annotated[dict[str, Any] | None, Meta(description="The mapping to merge in")] = None
    source: Annotated[str, Meta(max_length=4096, description="Instead of `values`: a YAML file below a root")] = ""
    path: Annotated[Path, Meta(description="The mapping to merge into; the whole document by default")] = ""
    lists: Annotated[
        Literal["replace", "append"], Meta(description="Whether a list replaces the one there, or is appended to it")
    ] = "replace"
    remove_nulls: Annotated[bool, Meta(description="A null removes its key, instead of being its value")] = False
    document: Document = 0
    if_match: IfMatch = None
    dry_run: DryRun = False

    def check(self) -> None:
        if (self.values is None) != bool(self.source):
            raise InvalidParams("`values`: give `values` or `source`, one of them", field="values")


@tool.read("yaml_validate", deadline_s=30, title="Check YAML by a schema")
class YamlValidate(Params[ValidateResult], frozen=True, kw_only=True):
    """Validate a YAML file against a JSON Schema (2020-12 by default; no remote references)."""

    file: File
    schema: Annotated[dict[str, Any], Meta(description="The JSON Schema itself")]
    document: Document = 0
