"""Pages of a folder's entries with their sizes, for maps that a program draws itself."""

from __future__ import annotations

from collections.abc import Iterable

import apsw
from msgspec import structs

from proto.errors import InvalidParams
from services.files import paths
from services.files.browse.navigation import children
from services.files.core import Family, reads
from services.files.index.tree import last_scan
from services.files.operations import space as ops
from services.files.query.entries import find_indexed
from services.files.store import schema
from services.files.store.sql import Row, fetch_all, key
from services.shared import times

INSIDE = 60
"""Entries of each folder that are returned inside it: smaller ones would be too small to see."""

_ENTRY = "n.name, n.kind, n.size, n.disk, n.mtime, n.files, n.id"


class MapTools(Family):
    """The operations of `services.files.operations.space` for programs."""

    @reads(ops.DiskMap)
    def disk_map(self, db: apsw.Connection, params: ops.DiskMap) -> ops.FolderMap:
        path, folder = find_indexed(db, self._core.roots, params.path, follow=True)
        if folder.kind != schema.DIRECTORY:
            raise InvalidParams(f"`path`: {paths.shown(path)} is not a directory", field="path")
        by = {"name": "", "size": _size(params.measure), "mtime": "n.mtime"}[params.sort]
        direction = "DESC" if params.desc else "ASC"
        names = f"{key('n.name')}, n.name"
        order = f"ORDER BY {by} {direction}, {names}" if by else f"ORDER BY {key('n.name')} {direction}, n.name"
        total, from_, given = children(self._core.columns, db, folder.id, order, params.limit + params.offset)
        query = f"SELECT {_ENTRY} FROM {from_} n.parent = ? {order} LIMIT ? OFFSET ?"
        rows = fetch_all(db, query, (*given, folder.id, params.limit, params.offset))
        end = params.offset + len(rows)
        return ops.FolderMap(
            path=path, size=folder.size, disk_size=folder.disk, files=folder.files, directories=folder.directories,
            scanned_at=times.rfc3339(max(folder.scanned, last_scan(db, path) or 0)),
            entries=list(self._with_insides(db, rows, params)), total=total,
            next_offset=end if rows and end < total else None,
        )  # fmt: skip

    def _with_insides(self, db: apsw.Connection, rows: list[Row], params: ops.DiskMap) -> Iterable[ops.MapEntry]:
        by = _size(params.measure)
        place = 3 if params.measure == "disk" else 2
        folders = [row for row in rows if row[1] == schema.DIRECTORY and row[place] > 0]
        largest = {row[-1] for row in sorted(folders, key=lambda row: -int(row[place]))[: params.inside]}
        order = f"ORDER BY {by} DESC, {key('n.name')}, n.name"
        for row in rows:
            entry = _entry(row)
            if row[-1] in largest:
                _, from_, given = children(self._core.columns, db, row[-1], order, INSIDE)
                query = f"SELECT {_ENTRY} FROM {from_} n.parent = ? AND {by} > 0 {order} LIMIT ?"
                inside = fetch_all(db, query, (*given, row[-1], INSIDE))
                entry = structs.replace(entry, inside=[_entry(each) for each in inside])
            yield entry


def _size(measure: str) -> str:
    return "n.disk" if measure == "disk" else "n.size"


def _entry(row: Row) -> ops.MapEntry:
    name, kind, size, disk, mtime, files, _ = row
    return ops.MapEntry(
        name=name, kind=schema.KINDS[kind], size=size, disk_size=disk, mtime=times.rfc3339(mtime), files=files
    )
