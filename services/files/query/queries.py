"""Saved queries: a filter under a name, checked when it is saved, run over the whole index."""

from __future__ import annotations

import time

import apsw
import msgspec

from proto.errors import InvalidParams
from proto.ops.files.queries import (
    FoundEntries,
    QueryCreate,
    QueryDelete,
    QueryExecute,
    QueryGet,
    QueryList,
    QueryListing,
    QueryUpdate,
    SavedQuery,
)
from proto.ops.files.shared import Deleted, Filter
from services.files import times
from services.files.core import Core
from services.files.query import named
from services.files.query.entries import Order, Select, conditions, ordering, page
from services.files.store.sql import Row, fetch_all
from services.runtime.handlers import Context, handles


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a query."""

    query: Filter
    description: str = ""


class Queries:
    """The operations of `proto.ops.files.queries`."""

    def __init__(self, core: Core) -> None:
        self._database = core.database

    @handles(QueryCreate)
    async def create(self, params: QueryCreate, ctx: Context) -> SavedQuery:
        _check(params.query)
        text = msgspec.json.encode(Definition(query=params.query, description=params.description)).decode()

        def change(db: apsw.Connection) -> SavedQuery:
            named.require_free(db, "query", params.name)
            now = time.time_ns()
            db.execute("INSERT INTO saved_query VALUES(?,?,?,?)", (params.name, text, now, now))
            return _find(db, params.name)

        return await self._database.write(change)

    @handles(QueryExecute)
    async def execute(self, params: QueryExecute, ctx: Context) -> FoundEntries:
        def query(db: apsw.Connection) -> FoundEntries:
            select, order = selection(db, params.name)
            found, _ = page(db, select, order, limit=params.limit, offset=params.offset)
            return FoundEntries(query=params.name, **found)

        return await self._database.read(query)

    @handles(QueryList)
    async def listing(self, params: QueryList, ctx: Context) -> QueryListing:
        def query(db: apsw.Connection) -> QueryListing:
            queries = [_saved(row) for row in fetch_all(db, "SELECT * FROM saved_query ORDER BY name")]
            return QueryListing(queries=queries, total=len(queries))

        return await self._database.read(query)

    @handles(QueryGet)
    async def get(self, params: QueryGet, ctx: Context) -> SavedQuery:
        return await self._database.read(lambda db: _find(db, params.name))

    @handles(QueryUpdate)
    async def update(self, params: QueryUpdate, ctx: Context) -> SavedQuery:
        if params.query is not None:
            _check(params.query)

        def change(db: apsw.Connection) -> SavedQuery:
            before = _find(db, params.name)
            definition = Definition(
                query=before.query if params.query is None else params.query,
                description=before.description if params.description is None else params.description,
            )
            db.execute(
                "UPDATE saved_query SET definition = ?, updated = ? WHERE name = ?",
                (msgspec.json.encode(definition).decode(), time.time_ns(), params.name),
            )
            return _find(db, params.name)

        return await self._database.write(change)

    @handles(QueryDelete)
    async def delete(self, params: QueryDelete, ctx: Context) -> Deleted:
        def change(db: apsw.Connection) -> None:
            named.find(db, "query", params.name)
            db.execute("DELETE FROM saved_query WHERE name = ?", (params.name,))

        await self._database.write(change)
        return Deleted(name=params.name, deleted=True, message=f"query {params.name!r} was deleted")


def _check(query: Filter) -> None:
    """Raises InvalidParams, which names the field, where a query could never be run."""
    try:
        conditions(query)
    except InvalidParams as error:
        field = error.failure.field
        raise InvalidParams(str(error).replace(f"`{field}`", f"`query.{field}`", 1), field=f"query.{field}") from None


def selection(db: apsw.Connection, name: str, field: str = "name") -> tuple[Select, Order]:
    """What a saved query finds, and its order. Raises InvalidParams where there is none of that name."""
    query = _find(db, name, field).query
    return Select(conditions(query)), ordering(query)


def _find(db: apsw.Connection, name: str, field: str = "name") -> SavedQuery:
    return _saved(named.find(db, "query", name, field))


def _saved(row: Row) -> SavedQuery:
    name, text, created, updated = row
    definition = msgspec.json.decode(text, type=Definition)
    return SavedQuery(
        name=name,
        description=definition.description,
        query=definition.query,
        created_at=times.rfc3339(created),
        updated_at=times.rfc3339(updated),
    )
