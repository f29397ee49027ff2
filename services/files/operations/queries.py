"""Operations of `files` that find entries of the whole index: at once, or by a query that is saved."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from proto.operation import Params
from services.files.operations.shared import Deleted, Description, EntryPage, Filter, Limit, Offset, tool, whole_step

QueryName = Annotated[str, Meta(min_length=1, max_length=1024, description="Name of a saved query")]

Definition = Annotated[Filter, Meta(description="What to find")]


class SavedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A saved query."""

    name: str
    description: str
    query: Filter
    created_at: Annotated[str, Meta(description="RFC 3339")]
    updated_at: Annotated[str, Meta(description="RFC 3339")]


@tool.write("queries_create", idempotent=False, deadline_s=10)
class QueryCreate(Params[SavedQuery], frozen=True, kw_only=True):
    """Save a query over the index of files under a new name, to be run again by queries_execute. Only once:
    files_find."""

    name: QueryName
    query: Definition
    description: Description = ""


class FoundEntries(EntryPage, frozen=True, kw_only=True):
    """A page of the entries that a query finds."""

    query: Annotated[str, Meta(description="Name of the query")]


@tool.read("queries_execute", title="Run a saved query", deadline_s=60)
class QueryExecute(Params[FoundEntries], frozen=True, kw_only=True):
    """Run a saved query over the index, returning its entries. Not `ops_query`, which reads in steps."""

    name: QueryName
    limit: Limit = 100
    offset: Offset = 0


class QueryListing(msgspec.Struct, frozen=True, kw_only=True):
    """All saved queries, by name."""

    queries: list[SavedQuery]
    total: int


@tool.read("queries_list", deadline_s=10)
class QueryList(Params[QueryListing], frozen=True, kw_only=True):
    """List saved queries over files."""


@tool.read("queries_get", deadline_s=10)
class QueryGet(Params[SavedQuery], frozen=True, kw_only=True):
    """Read the definition of a saved query."""

    name: QueryName


@tool.write("queries_update", idempotent=True, deadline_s=10)
class QueryUpdate(Params[SavedQuery], frozen=True, kw_only=True):
    """Change a saved query's description, or its whole definition."""

    name: QueryName
    description: Description | None = None
    query: Annotated[Definition | None, Meta(extra_json_schema={"x-form-of": "queries_create"})] = None


@tool.destroy("queries_delete", idempotent=False, deadline_s=10)
class QueryDelete(Params[Deleted], frozen=True, kw_only=True):
    """Delete a saved query; its files stay."""

    name: QueryName


@whole_step.read("files_find", deadline_s=60)
class FilesFind(Filter, Params[EntryPage], frozen=True, kw_only=True):
    """Find files and folders of the index by name, kind, extension, path, size or time. By content: files_grep."""

    common: ClassVar = {"min_mtime": "since", "max_mtime": "until"}
    limit: Limit = 100
    offset: Offset = 0
