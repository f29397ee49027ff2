"""Saved queries: named filters, validated when saved and run over the whole index."""

from __future__ import annotations

import time

import apsw
import msgspec
from msgspec import structs

from proto.errors import InvalidParams
from services.files.core import Family, reads, writes
from services.files.operations import queries as ops
from services.files.operations.shared import Deleted, EntryPage, Filter
from services.files.query import named
from services.files.query.entries import Order, Select, conditions, page
from services.files.store.sql import Row, fetch_all, fetch_one
from services.shared import times


class QueryDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A saved query as stored."""

    query: Filter
    description: str = ""


class QueryTools(Family):
    """The operations of `services.files.operations.queries`."""

    @writes(ops.QueryCreate)
    def create(self, db: apsw.Connection, params: ops.QueryCreate) -> ops.SavedQuery:
        _check(params.query)
        named.require_free(db, "query", params.name)
        text, now = _stored(params), time.time_ns()
        db.execute("INSERT INTO saved_query VALUES(?,?,?,?)", (params.name, text, now, now))
        return _find(db, params.name)

    @reads(ops.QueryExecute)
    def execute(self, db: apsw.Connection, params: ops.QueryExecute) -> ops.FoundEntries:
        select, order = selection(db, params.name)
        found, _ = page(self._core.columns, db, select, order, limit=params.limit, offset=params.offset)
        return ops.FoundEntries(query=params.name, **structs.asdict(found))

    @reads(ops.FilesFind)
    def find(self, db: apsw.Connection, params: ops.FilesFind) -> EntryPage:
        if fetch_one(db, "SELECT 1 FROM scan LIMIT 1") is None:
            raise InvalidParams("nothing is indexed yet; call `files_index` for a folder first", field="path_contains")
        order, select = Order(params.sort_by, params.sort_desc), Select(conditions(params))
        found, _ = page(self._core.columns, db, select, order, limit=params.limit, offset=params.offset)
        return found

    @reads(ops.QueryList)
    def listing(self, db: apsw.Connection, params: ops.QueryList) -> ops.QueryListing:
        queries = [_saved(row) for row in fetch_all(db, "SELECT * FROM saved_query ORDER BY name")]
        return ops.QueryListing(queries=queries, total=len(queries))

    @reads(ops.QueryGet)
    def get(self, db: apsw.Connection, params: ops.QueryGet) -> ops.SavedQuery:
        return _find(db, params.name)

    @writes(ops.QueryUpdate)
    def update(self, db: apsw.Connection, params: ops.QueryUpdate) -> ops.SavedQuery:
        given = {name: value for name in ("query", "description") if (value := getattr(params, name)) is not None}
        now_meant = structs.replace(_find(db, params.name), **given)
        _check(now_meant.query)
        db.execute(
            "UPDATE saved_query SET definition = ?, updated = ? WHERE name = ?",
            (_stored(now_meant), time.time_ns(), params.name),
        )
        return _find(db, params.name)

    @writes(ops.QueryDelete)
    def delete(self, db: apsw.Connection, params: ops.QueryDelete) -> Deleted:
        named.find(db, "query", params.name)
        db.execute("DELETE FROM saved_query WHERE name = ?", (params.name,))
        return Deleted(name=params.name, deleted=True, message=f"query {params.name!r} was deleted")


def _check(query: Filter) -> None:
    """Raises InvalidParams, which names the field, if a query could never be run."""
    try:
        conditions(query)
    except InvalidParams as error:
        field = error.failure.field
        raise InvalidParams(str(error).replace(f"`{field}`", f"`query.{field}`", 1), field=f"query.{field}") from None


def selection(db: apsw.Connection, name: str, field: str = "name") -> tuple[Select, Order]:
    """Return what a saved query selects, and its order. Raises InvalidParams if the name is unknown."""
    query = _find(db, name, field).query
    return Select(conditions(query)), Order(query.sort_by, query.sort_desc)


def _find(db: apsw.Connection, name: str, field: str = "name") -> ops.SavedQuery:
    return _saved(named.find(db, "query", name, field))


def _stored(query: ops.QueryCreate | ops.SavedQuery) -> str:
    return msgspec.json.encode(msgspec.convert(query, QueryDefinition, from_attributes=True)).decode()


def _saved(row: Row) -> ops.SavedQuery:
    name, text, created, updated = row
    definition = structs.asdict(msgspec.json.decode(text, type=QueryDefinition))
    return ops.SavedQuery(name=name, **definition, created_at=times.rfc3339(created), updated_at=times.rfc3339(updated))
