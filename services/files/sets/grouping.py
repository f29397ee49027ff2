"""The tools that make, fill, link and delete resource sets."""

from __future__ import annotations

import os

import apsw

from proto.errors import InvalidParams, OperationError
from proto.ops.files.sets import (
    SET_CHANGES,
    EdgeChanged,
    ResourceSet,
    ResourceSetAddChild,
    ResourceSetCreate,
    ResourceSetDelete,
    ResourceSetDetails,
    ResourceSetGet,
    ResourceSetList,
    ResourceSetModify,
    ResourceSetRemoveChild,
    ResourceSets,
    SetChanged,
)
from proto.ops.files.shared import Deleted, FileEntry
from services.files import paths, times
from services.files.core import Core
from services.files.index.tree import find
from services.files.query import named
from services.files.query.entries import BY_PATH, MAX_BYTES, Select, entry_of, fitting, known
from services.files.sets import sets
from services.files.store.rows import Row, fetch_all, fetch_one, fetch_value
from services.runtime.handlers import Context, handles

_COLUMNS = (
    "s.name, s.description, (SELECT count(*) FROM member WHERE set_id = s.id),"
    " (SELECT count(*) FROM edge WHERE parent = s.id), s.created, s.updated"
)


class Grouping:
    """The operations of `proto.ops.files.sets`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def _tell(self, *names: str) -> None:
        named.tell(self._core.env, "resource-sets", *(f"resource-sets/{name}" for name in names))

    @handles(ResourceSetCreate)
    async def create(self, params: ResourceSetCreate, ctx: Context) -> ResourceSet:
        def change(db: apsw.Connection) -> ResourceSet:
            if fetch_value(db, "SELECT 1 FROM resource_set WHERE name = ?", (params.name,)) is not None:
                raise InvalidParams(
                    f"`name`: there is a resource set {params.name[:200]!r} already; resource-set-get shows it",
                    field="name",
                )
            return _set(db, sets.make(db, params.name, params.description))

        made = await self._core.database.write(change)
        self._tell(params.name)
        return made

    @handles(ResourceSetList)
    async def listing(self, params: ResourceSetList, ctx: Context) -> ResourceSets:
        def query(db: apsw.Connection) -> ResourceSets:
            total: int = fetch_value(db, "SELECT count(*) FROM resource_set")
            rows = db.execute(f"SELECT {_COLUMNS} FROM resource_set s ORDER BY s.name")
            found, cut = fitting(map(_of, rows))
            return ResourceSets(
                resource_sets=found,
                total=total,
                summary=f"{total} sets; these are the first {len(found)}, as many as fit into {MAX_BYTES} bytes."
                if cut
                else None,
            )

        return await self._core.database.read(query)

    @handles(ResourceSetGet)
    async def get(self, params: ResourceSetGet, ctx: Context) -> ResourceSetDetails:
        def query(db: apsw.Connection) -> ResourceSetDetails:
            id_ = sets.find(db, params.name)
            about = _set(db, id_)
            select = Select((), [id_])
            wanted = params.limit if params.include_entries else 1
            total, size, rows = select.first(db, BY_PATH, limit=wanted, offset=params.offset)
            entries: list[FileEntry] | None = None
            has_more = summary = None
            if params.include_entries:
                entries, cut = fitting(map(entry_of, rows))
                end = params.offset + len(entries)
                has_more = end < total
                if cut:
                    summary = (
                        f"{total} entries, {size} bytes in files; these are {len(entries)} of them, as many as fit into"
                        f" {MAX_BYTES} bytes. Go on with offset={end}, or set a limit."
                    )
            return ResourceSetDetails(
                name=about.name,
                description=about.description,
                entry_count=about.entry_count,
                child_count=about.child_count,
                created_at=about.created_at,
                updated_at=about.updated_at,
                children=_linked(db, id_, down=True),
                parents=_linked(db, id_, down=False),
                total_size=size,
                entries=entries,
                limit=params.limit if params.include_entries else None,
                offset=params.offset if params.include_entries else None,
                has_more=has_more,
                summary=summary,
            )

        return await self._core.database.read(query)

    @handles(ResourceSetModify)
    async def modify(self, params: ResourceSetModify, ctx: Context) -> SetChanged:
        adds = known(params.operation, SET_CHANGES, "operation") == "add"
        asked = {paths.clean(path, f"paths[{n}]"): n for n, path in enumerate(params.paths)}

        def change(db: apsw.Connection) -> SetChanged:
            id_ = sets.find(db, params.name)
            entries: dict[int, None] = {}
            missing = []
            for path, n in asked.items():
                entry = indexed(db, path)
                if entry is not None:
                    entries[entry] = None
                elif not adds:
                    missing.append(path)
                else:
                    field = f"paths[{n}]"
                    raise InvalidParams(
                        f"`{field}`: {paths.shown(path)} is not in the index, so nothing was changed; `index` takes it"
                        " in",
                        field=field,
                    )
            changed = sets.add(db, id_, entries) if adds else sets.remove(db, id_, entries)
            count, _ = sets.counts(db, id_)
            return SetChanged(
                name=params.name,
                operation=params.operation,
                changed=changed,
                unchanged=len(entries) - changed,
                entry_count=count,
                not_indexed=missing,
            )

        changed = await self._core.database.write(change)
        self._tell(params.name)
        return changed

    @handles(ResourceSetDelete)
    async def delete(self, params: ResourceSetDelete, ctx: Context) -> Deleted:
        def change(db: apsw.Connection) -> None:
            db.execute("DELETE FROM resource_set WHERE id = ?", (sets.find(db, params.name),))

        await self._core.database.write(change)
        self._tell(params.name)
        return Deleted(name=params.name, deleted=True, message=f"resource set {params.name!r} was deleted")

    @handles(ResourceSetAddChild)
    async def add_child(self, params: ResourceSetAddChild, ctx: Context) -> EdgeChanged:
        def change(db: apsw.Connection) -> bool:
            parent, child = sets.find(db, params.parent, "parent"), sets.find(db, params.child, "child")
            if parent == child:
                raise InvalidParams(f"`child`: {params.child!r} cannot be a child of itself", field="child")
            if any(id_ == parent for id_, _ in sets.around(db, child, down=True, depth=None)):
                raise InvalidParams(
                    f"`child`: {params.parent!r} is below {params.child!r} already, so this would close a cycle",
                    field="child",
                )
            before = db.total_changes()
            db.execute("INSERT OR IGNORE INTO edge VALUES(?,?)", (parent, child))
            return db.total_changes() > before

        changed = await self._core.database.write(change)
        self._tell(params.parent, params.child)
        message = f"{params.child!r} is a child of {params.parent!r}" + (" now" if changed else ", and was before")
        return EdgeChanged(parent=params.parent, child=params.child, changed=changed, message=message)

    @handles(ResourceSetRemoveChild)
    async def remove_child(self, params: ResourceSetRemoveChild, ctx: Context) -> EdgeChanged:
        def change(db: apsw.Connection) -> None:
            parent, child = sets.find(db, params.parent, "parent"), sets.find(db, params.child, "child")
            before = db.total_changes()
            db.execute("DELETE FROM edge WHERE parent = ? AND child = ?", (parent, child))
            if db.total_changes() == before:
                children = ", ".join(_linked(db, parent, down=True)[: sets.NAMED_IN_ERRORS]) or "none"
                raise OperationError(
                    f"`child`: {params.child!r} is not a child of {params.parent!r}; its children are: {children}"
                )

        await self._core.database.write(change)
        self._tell(params.parent, params.child)
        message = f"{params.child!r} is not a child of {params.parent!r} any more"
        return EdgeChanged(parent=params.parent, child=params.child, changed=True, message=message)


def indexed(db: apsw.Connection, path: str) -> int | None:
    """The id of the entry at a clean path, or at where its links lead; None where none of both is in the index."""
    found = find(db, path)
    if found is None or not found.scanned:
        real = paths.to_text(os.path.realpath(paths.to_os(path)))
        found = find(db, real) if real != path else None
    return found.id if found is not None and found.scanned else None


def _set(db: apsw.Connection, id_: int) -> ResourceSet:
    row = fetch_one(db, f"SELECT {_COLUMNS} FROM resource_set s WHERE s.id = ?", (id_,))
    if row is None:
        raise LookupError(f"there is no set {id_}")
    return _of(row)


def _of(row: Row) -> ResourceSet:
    name, description, entries, children, created, updated = row
    return ResourceSet(
        name=name,
        description=description,
        entry_count=entries,
        child_count=children,
        created_at=times.rfc3339(created),
        updated_at=times.rfc3339(updated),
    )


def _linked(db: apsw.Connection, id_: int, *, down: bool) -> list[str]:
    there, here = ("child", "parent") if down else ("parent", "child")
    rows = fetch_all(
        db,
        f"SELECT s.name FROM edge JOIN resource_set s ON s.id = {there} WHERE {here} = ? ORDER BY s.name",
        (id_,),
    )
    return [name for (name,) in rows]
