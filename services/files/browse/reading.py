"""Looking at the index entry by entry, and at the database that holds it."""

from __future__ import annotations

import json
import mimetypes
import os
import time
from collections.abc import Sequence
from typing import Any

import apsw
import msgspec
import trio

from proto.errors import InvalidParams
from proto.ops.files.reading import (
    DbDiagnose,
    Diagnosis,
    Inspect,
    InspectResult,
    Navigate,
    NavigateEntry,
    NavigateResult,
    Preferences,
    SessionInfo,
    SessionInfoResult,
    SessionSetPreferences,
)
from services.files import paths, times
from services.files.browse import media
from services.files.core import Core
from services.files.index.history import last_scan
from services.files.index.listing import birth_ns
from services.files.query.entries import MAX_BYTES, find_indexed, fitting, node_uri
from services.files.query.matching import EXTENSIONS
from services.files.store import schema
from services.files.store.sql import fetch_all, fetch_one, fetch_value, key
from services.runtime.handlers import Context, handles

STALE_S = 3600
"""What `index` takes for out of date unless it is told otherwise."""

PREFERENCES_KEPT_NS = 30 * times.DAY_NS
"""Since one was last set, of a session that may be over."""

PICTURED = EXTENSIONS["image"] | EXTENSIONS["video"] | {"pdf"}
"""Extensions of files that there may be a thumbnail of."""

_ORDERS = {"name": key("name"), "size": "size", "mtime": "mtime"}


class Reading:
    """The operations of `proto.ops.files.reading`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @handles(Navigate)
    async def navigate(self, params: Navigate, ctx: Context) -> NavigateResult:
        column = _ORDERS[params.sort]
        path, folder = await self._core.database.read(lambda db: find_indexed(db, params.path, follow=True))
        if folder.kind != schema.DIRECTORY:
            raise InvalidParams(
                f"`path`: {paths.shown(path)} is a {schema.KINDS[folder.kind]}, not a directory; `inspect` shows it",
                field="path",
            )
        direction = "DESC" if params.desc else "ASC"

        pictured: list[tuple[int, str]] = []

        def query(db: apsw.Connection) -> NavigateResult:
            total: int = fetch_value(db, "SELECT count(*) FROM node WHERE parent = ?", (folder.id,))
            rows = db.execute(
                "SELECT name, path, size, kind, mtime, extension, device, inode, ctime FROM node WHERE parent = ?"
                f" ORDER BY {column} {direction}, {key('name')}, name LIMIT ? OFFSET ?",
                (folder.id, params.limit, params.offset),
            )
            entries, cut = fitting(_navigated(pictured, n, *row) for n, row in enumerate(rows))
            end = params.offset + len(entries)
            summary = (
                f"{total} entries, {folder.size} bytes in all; these are {len(entries)} of them, as many as fit"
                f" into {MAX_BYTES} bytes. Go on with offset={end}, or set a limit."
            )
            return NavigateResult(
                path=path,
                entries=entries,
                total=total,
                has_more=end < total,
                scanning=job.id if (job := self._core.jobs.scanning(path)) else None,
                summary=summary if cut else None,
            )

        found = await self._core.database.read(query)
        return await _with_thumbnails(ctx, found, pictured) if pictured else found

    @handles(Inspect)
    async def inspect(self, params: Inspect, ctx: Context) -> InspectResult:
        path, entry = await self._core.database.read(lambda db: find_indexed(db, params.path))
        within = paths.is_within(path, self._core.roots.paths)
        born = await trio.to_thread.run_sync(birth_ns, path) if within else None
        target = await trio.to_thread.run_sync(_target, path) if within and entry.kind == schema.SYMLINK else None

        def query(db: apsw.Connection) -> InspectResult:
            scanned = max(entry.scanned, last_scan(db, path) or 0)
            is_folder = entry.kind == schema.DIRECTORY
            problem = fetch_value(db, "SELECT problem FROM folder WHERE id = ?", (entry.id,)) if is_folder else None
            uri = node_uri(path)
            return InspectResult(
                path=path,
                kind=schema.KINDS[entry.kind],
                size=entry.size,
                disk_size=entry.disk,
                modified_at=times.rfc3339(entry.mtime),
                created_at=times.rfc3339(entry.ctime if born is None else born),
                changed_at=times.rfc3339(entry.ctime),
                scanned_at=times.rfc3339(scanned),
                inode=entry.inode,
                links=entry.links,
                resource_uri=uri,
                metadata_uri=f"{uri.rstrip('/')}/metadata",
                metadata_count=0,
                metadata=[],
                extension=entry.extension or None,
                mime_type=None if is_folder else mimetypes.guess_type(entry.name)[0],
                files=entry.files if is_folder else None,
                directories=entry.directories if is_folder else None,
                target=target,
                problem=problem,
            )

        found = await self._core.database.read(query)
        if not within or entry.kind != schema.FILE or not entry.size:
            return found
        made = await media.artifacts(ctx, path)
        return msgspec.structs.replace(
            found,
            metadata_count=len(made),
            metadata=made,
            thumbnail_uri=media.first(made, media.THUMBNAIL),
            timeline_uri=media.first(made, media.TIMELINE),
        )

    @handles(DbDiagnose)
    async def diagnose(self, params: DbDiagnose, ctx: Context) -> Diagnosis:
        size = await trio.to_thread.run_sync(self._core.database.size_bytes)

        def query(db: apsw.Connection) -> Diagnosis:
            wrong = [row[0] for row in fetch_all(db, "PRAGMA integrity_check(10)")]
            return Diagnosis(
                database_path=str(self._core.database.path),
                database_size=size,
                integrity_check="; ".join(wrong),
                entry_count=_count(db, "node"),
                resource_set_count=_count(db, "resource_set"),
                orphaned_entries=fetch_value(
                    db, "SELECT count(*) FROM entry WHERE parent NOT IN (SELECT id FROM folder)"
                ),
                stale_entries=_stale(db, time.time_ns() - STALE_S * times.NS),
                wrong_sums=fetch_value(db, _WRONG_SUMS),
                rebuilt=bool(self._core.database.rebuilt),
            )

        return await self._core.database.read(query)

    @handles(SessionInfo)
    async def session_info(self, params: SessionInfo, ctx: Context) -> SessionInfoResult:
        size = await trio.to_thread.run_sync(self._core.database.size_bytes)

        def query(db: apsw.Connection) -> SessionInfoResult:
            return SessionInfoResult(
                database_path=str(self._core.database.path),
                database_size=size,
                entry_count=_count(db, "node"),
                resource_set_count=_count(db, "resource_set"),
                source_count=_count(db, "source"),
                plan_count=_count(db, "plan"),
                query_count=_count(db, "saved_query"),
                roots=list(self._core.roots.paths),
                preferences=_preferences(db, ctx.session),
            )

        return await self._core.database.read(query)

    @handles(SessionSetPreferences)
    async def set_preferences(self, params: SessionSetPreferences, ctx: Context) -> Preferences:
        now = time.time_ns()

        def change(db: apsw.Connection) -> Preferences:
            for name, value in params.preferences.items():
                if value is None:
                    db.execute("DELETE FROM session_preference WHERE session = ? AND name = ?", (ctx.session, name))
                else:
                    db.execute(
                        "INSERT OR REPLACE INTO session_preference VALUES(?,?,?,?)",
                        (ctx.session, name, msgspec.json.encode(value).decode(), now),
                    )
            # The end of a session is not announced.
            db.execute("DELETE FROM session_preference WHERE session <> '' AND at < ?", (now - PREFERENCES_KEPT_NS,))
            return Preferences(preferences=_preferences(db, ctx.session))

        return await self._core.database.write(change)


def _navigated(
    pictured: list[tuple[int, str]], at: int, name: str, path: str, size: int, kind: int, mtime: int, extension: str,
    device: int, inode: int, ctime: int,
) -> NavigateEntry:  # fmt: skip
    """An entry of a directory, `at` its place on the page; what may have a thumbnail is noted in `pictured`."""
    if kind == schema.FILE and extension in PICTURED:
        pictured.append((at, f"{device}-{inode}-{size}-{mtime}-{ctime}"))
    return NavigateEntry(name=name, path=path, size=size, kind=schema.KINDS[kind], mtime=times.rfc3339(mtime))


async def _with_thumbnails(ctx: Context, result: NavigateResult, pictured: Sequence[tuple[int, str]]) -> NavigateResult:
    """With where the thumbnails are that were made already."""
    entries = list(result.entries)
    some = [(at, version) for at, version in pictured if at < len(entries)]
    made = await media.known_thumbnails(ctx, [version for _, version in some])
    for (at, _), url in zip(some, made, strict=True):
        entries[at] = msgspec.structs.replace(entries[at], thumbnail_url=url)
    return msgspec.structs.replace(result, entries=entries)


def _target(path: str) -> str | None:
    try:
        return paths.to_text(os.readlink(paths.to_os(path)))
    except OSError:
        # It is not on the disk any more, or is no link: nothing to be told.
        return None


def _count(db: apsw.Connection, table: str) -> int:
    count: int = fetch_value(db, f"SELECT count(*) FROM {table}")
    return count


def _preferences(db: apsw.Connection, session: str) -> dict[str, Any]:
    rows = fetch_all(db, "SELECT name, value FROM session_preference WHERE session = ? ORDER BY name", (session,))
    return {name: json.loads(value) for name, value in rows}


_WRONG_SUMS = """
SELECT count(*) FROM entry d JOIN (
    SELECT parent, sum(size) AS size, sum(files + (kind = 0)) AS files,
        sum(directories + (kind = 1 AND scanned > 0)) AS directories
    FROM entry GROUP BY parent
) inside ON inside.parent = d.id
WHERE (d.size, d.files, d.directories) IS NOT (inside.size, inside.files, inside.directories)
"""


def _stale(db: apsw.Connection, since: int) -> int:
    """Entries that neither they themselves nor a directory above them was scanned for since then."""
    fresh = [paths.as_folder(root) for (root,) in fetch_all(db, "SELECT root FROM scan WHERE finished >= ?", (since,))]
    outside = " AND ".join("NOT (n.folder >= ? AND n.folder < ?) AND n.path || '/' <> ?" for _ in fresh) or "1"
    bindings = [part for folder in fresh for part in (folder, folder[:-1] + "0", folder)]
    row = fetch_one(db, f"SELECT count(*) FROM node n WHERE n.scanned < ? AND {outside}", (since, *bindings))
    return row[0] if row is not None else 0
