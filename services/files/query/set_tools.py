"""The tools that create, fill, link and delete resource sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import apsw
from msgspec import structs

from proto.errors import InvalidParams, OperationError
from services.files import paths
from services.files.core import Family, reads, writes
from services.files.index.tree import find_shown
from services.files.operations import sets as ops
from services.files.operations.shared import Deleted
from services.files.query import named, sets
from services.files.query.entries import BY_PATH, MAX_BYTES, Select, fitting, page
from services.files.store.sql import Row, fetch_all, fetch_value
from services.shared import times

_COLUMNS = (
    "s.name, s.description, (SELECT count(*) FROM member WHERE set_id = s.id),"
    " (SELECT count(*) FROM edge WHERE parent = s.id), s.created, s.updated"
)


EDGES = (ops.ResourceSetAddChild, ops.ResourceSetRemoveChild)


class SetTools(Family):
    """The operations of `services.files.operations.sets`."""

    def notify(self, params: ops.ResourceSetAddChild | ops.ResourceSetCreate) -> None:
        names = (params.parent, params.child) if isinstance(params, EDGES) else (params.name,)
        named.notify(self._core.env, "resource-sets", *(f"resource-sets/{name}" for name in names))

    @writes(ops.ResourceSetCreate)
    def create(self, db: apsw.Connection, params: ops.ResourceSetCreate) -> ops.ResourceSet:
        named.require_free(db, "resource-set", params.name)
        return set_of(db, sets.make(db, params.name, params.description))

    @reads(ops.ResourceSetList)
    def listing(self, db: apsw.Connection, params: ops.ResourceSetList) -> ops.ResourceSets:
        total: int = fetch_value(db, "SELECT count(*) FROM resource_set")
        found, cut = fitting(all_sets(db))
        summary = f"{total} sets; truncated to the first {len(found)} to fit into {MAX_BYTES} bytes."
        return ops.ResourceSets(resource_sets=found, total=total, summary=summary if cut else None)

    @reads(ops.ResourceSetGet)
    def get(self, db: apsw.Connection, params: ops.ResourceSetGet) -> ops.ResourceSetDetails:
        id_ = sets.find(db, params.name)
        select = Select((), [id_])
        # Fields of the answer; its struct checks their types.
        shown: dict[str, Any] = {}
        if params.include_entries:
            found, size = page(self._core.columns, db, select, BY_PATH, limit=params.limit, offset=params.offset)
            shown = {name: getattr(found, name) for name in ("entries", "limit", "offset", "has_more", "summary")}
        else:
            _, size = select.totals(db)
        children, parents = _linked(db, id_, down=True), _linked(db, id_, down=False)
        about = structs.asdict(set_of(db, id_))
        return ops.ResourceSetDetails(**about, children=children, parents=parents, total_size=size, **shown)

    @writes(ops.ResourceSetModify)
    def modify(self, db: apsw.Connection, params: ops.ResourceSetModify) -> ops.SetChanged:
        asked = {self._core.roots.clean(path, f"paths[{n}]"): n for n, path in enumerate(params.paths)}
        id_ = sets.find(db, params.name)
        entries: dict[int, None] = {}
        missing = []
        for path, n in asked.items():
            entry = _indexed(db, path)
            if entry is not None:
                entries[entry] = None
            elif params.operation == "remove":
                missing.append(path)
            else:
                why = f"{paths.shown(path)} is not indexed; call `files_index` first. Nothing was changed"
                raise InvalidParams(f"`paths[{n}]`: {why}", field=f"paths[{n}]")
        changed = sets.add(db, id_, entries) if params.operation == "add" else sets.remove(db, id_, entries)
        count, _ = sets.counts(db, id_)
        return ops.SetChanged(
            name=params.name,
            operation=params.operation,
            changed=changed,
            unchanged=len(entries) - changed,
            entry_count=count,
            not_indexed=missing,
        )

    @writes(ops.ResourceSetDelete)
    def delete(self, db: apsw.Connection, params: ops.ResourceSetDelete) -> Deleted:
        db.execute("DELETE FROM resource_set WHERE id = ?", (sets.find(db, params.name),))
        return Deleted(name=params.name, deleted=True, message=f"resource set {params.name!r} was deleted")

    @writes(ops.ResourceSetAddChild)
    def add_child(self, db: apsw.Connection, params: ops.ResourceSetAddChild) -> ops.EdgeChanged:
        parent, child = sets.find(db, params.parent, "parent"), sets.find(db, params.child, "child")
        if parent == child:
            raise InvalidParams(f"`child`: {params.child!r} cannot be a child of itself", field="child")
        if any(id_ == parent for id_, _ in sets.around(db, child, down=True, depth=None)):
            raise InvalidParams(
                f"`child`: {params.parent!r} is already below {params.child!r}; this would create a cycle",
                field="child",
            )
        before = db.total_changes()
        db.execute("INSERT OR IGNORE INTO edge VALUES(?,?)", (parent, child))
        changed = db.total_changes() > before
        message = (
            f"{params.child!r} is now a child of {params.parent!r}"
            if changed
            else (f"{params.child!r} was already a child of {params.parent!r}")
        )
        return ops.EdgeChanged(parent=params.parent, child=params.child, changed=changed, message=message)

    @writes(ops.ResourceSetRemoveChild)
    def remove_child(self, db: apsw.Connection, params: ops.ResourceSetRemoveChild) -> ops.EdgeChanged:
        parent, child = sets.find(db, params.parent, "parent"), sets.find(db, params.child, "child")
        before = db.total_changes()
        db.execute("DELETE FROM edge WHERE parent = ? AND child = ?", (parent, child))
        if db.total_changes() == before:
            children = ", ".join(_linked(db, parent, down=True)[: named.NAMED_IN_ERRORS]) or "none"
            raise OperationError(
                f"`child`: {params.child!r} is not a child of {params.parent!r}; its children: {children}"
            )
        message = f"{params.child!r} is no longer a child of {params.parent!r}"
        return ops.EdgeChanged(parent=params.parent, child=params.child, changed=True, message=message)


def _indexed(db: apsw.Connection, path: str) -> int | None:
    """Return the id of the entry at a clean path, or at its real path; None if neither is indexed."""
    found = find_shown(db, path) or find_shown(db, paths.to_text(os.path.realpath(paths.to_os(path))))
    return None if found is None else found.id


def set_of(db: apsw.Connection, id_: int) -> ops.ResourceSet:
    """Return a set by its id."""
    (row,) = fetch_all(db, f"SELECT {_COLUMNS} FROM resource_set s WHERE s.id = ?", (id_,))
    return _of(row)


def all_sets(db: apsw.Connection, limit: int = -1, offset: int = 0) -> Iterator[ops.ResourceSet]:
    """Return all sets, ordered by name."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM resource_set s ORDER BY s.name LIMIT ? OFFSET ?", (limit, offset))
    return map(_of, rows)


def _of(row: Row) -> ops.ResourceSet:
    name, description, entries, children, created, updated = row
    return ops.ResourceSet(
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
        db, f"SELECT s.name FROM edge JOIN resource_set s ON s.id = {there} WHERE {here} = ? ORDER BY s.name", (id_,)
    )
    return [name for (name,) in rows]
