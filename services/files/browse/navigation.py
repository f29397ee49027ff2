"""Shows the index entry by entry, and the database that holds it."""

from __future__ import annotations

import json
import mimetypes
import os
import time
from typing import Any
from urllib.parse import quote

import apsw
import msgspec

from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.http import CONTENT_PATH
from proto.ops import media
from proto.ops.kernel import KernelContentUrl
from services.files import paths
from services.files.core import Family, reads
from services.files.index.tree import last_scan
from services.files.operations import reading as ops
from services.files.query.column_names import INSIDE
from services.files.query.columns import Columns, is_large
from services.files.query.entries import ENOUGH, FEW, MAX_BYTES, Order, find_indexed, fitting, node_uri
from services.files.query.matching import EXTENSIONS
from services.files.store import schema
from services.files.store.sql import fetch_all, fetch_one, fetch_value, key
from services.runtime.handlers import Context, handles
from services.shared import times
from services.shared.creation_time import created_ns

STALE_S = 3600
"""Age at which `index` considers a scan stale by default."""

PREFERENCES_KEPT_NS = 30 * times.DAY_NS
"""How long preferences are kept after they were last set, since their session may be over."""

PICTURED = EXTENSIONS["image"] | EXTENSIONS["video"] | {"pdf"}
"""Extensions of files that may have a thumbnail."""


class BrowseTools(Family):
    """The operations of `services.files.operations.reading`."""

    @handles(ops.Navigate)
    async def navigate(self, params: ops.Navigate, ctx: Context) -> ops.NavigateResult:
        order = Order("name", params.desc).sql()
        if params.sort != "name":
            order = f"ORDER BY n.{params.sort} {'DESC' if params.desc else 'ASC'}, {key('n.name')}, n.name"

        def query(db: apsw.Connection) -> tuple[ops.NavigateResult, dict[int, str]]:
            path, folder = find_indexed(db, self._core.roots, params.path, follow=True)
            if folder.kind != schema.DIRECTORY:
                why = f"is a {schema.KINDS[folder.kind]}, not a directory; use `files_inspect`"
                raise InvalidParams(f"`path`: {paths.shown(path)} {why}", field="path")
            limit = min(params.limit, ENOUGH)
            total, from_, given = children(self._core.columns, db, folder.id, order, limit + params.offset)
            rows = fetch_all(
                db,
                "SELECT n.name, n.path, n.size, n.kind, n.mtime, n.extension, format('%d-%d-%d-%d-%d', n.device,"
                f" n.inode, n.size, n.mtime, n.ctime) FROM {from_} n.parent = ? {order} LIMIT ? OFFSET ?",
                (*given, folder.id, limit, params.offset),
            )
            entries, cut = fitting(
                ops.NavigateEntry(name=name, path=path, size=size, kind=schema.KINDS[kind], mtime=times.rfc3339(mtime))
                for name, path, size, kind, mtime, *_ in rows
            )
            end = params.offset + len(entries)
            summary = (
                f"{total} entries, {folder.size} bytes in all; truncated to {len(entries)} to fit into"
                f" {MAX_BYTES} bytes. Continue with offset={end}, or set a limit."
            )
            whole = fetch_value(db, "SELECT rows FROM folder WHERE id = ?", (folder.id,)) == schema.WHOLE
            if whole:
                summary = (
                    f"This folder is shown as one row for its {folder.files} files and {folder.directories} folders,"
                    f" {folder.size} bytes; `files_index` it with no_ignore to list them."
                )
            job = self._core.jobs.scanning(path)
            result = ops.NavigateResult(
                path=path, entries=entries, total=total, has_more=end < total,
                scanning=None if job is None else job.id, summary=summary if cut or whole else None,
            )  # fmt: skip
            pictured = {
                at: version
                for at, (_, _, _, kind, _, extension, version) in enumerate(rows[: len(entries)])
                if kind == schema.FILE and extension in PICTURED
            }
            return result, pictured

        found, pictured = await self._core.database.read(query)
        if pictured:
            made = await known_thumbnails(ctx, list(pictured.values()))
            for at, url in zip(pictured, made, strict=True):
                found.entries[at] = msgspec.structs.replace(found.entries[at], thumbnail_url=url)
        return found

    @handles(ops.Inspect)
    async def inspect(self, params: ops.Inspect, ctx: Context) -> ops.InspectResult:
        def query(db: apsw.Connection) -> tuple[ops.InspectResult, bool]:
            path, entry = find_indexed(db, self._core.roots, params.path)
            within = paths.is_within(path, self._core.roots.paths)
            born = created_ns(paths.to_os(path)) or None if within else None
            target = _target(path) if within and entry.kind == schema.SYMLINK else None
            scanned = max(entry.scanned, last_scan(db, path) or 0)
            is_folder = entry.kind == schema.DIRECTORY
            problem = fetch_value(db, "SELECT problem FROM folder WHERE id = ?", (entry.id,)) if is_folder else None
            uri = node_uri(path)
            found = ops.InspectResult(
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
            return found, within and entry.kind == schema.FILE and entry.size > 0

        found, has_content = await self._core.database.read(query)
        if not has_content:
            return found
        made = await artifacts(ctx, found.path)
        return msgspec.structs.replace(
            found,
            metadata_count=len(made),
            metadata=made,
            thumbnail_uri=_first(made, media.THUMBNAIL),
            timeline_uri=_first(made, media.TIMELINE),
        )

    @reads(ops.DbDiagnose)
    def diagnose(self, db: apsw.Connection, params: ops.DbDiagnose) -> ops.Diagnosis:
        wrong = [row[0] for row in fetch_all(db, "PRAGMA integrity_check(10)")]
        orphaned = fetch_value(db, "SELECT count(*) FROM entry WHERE parent NOT IN (SELECT id FROM folder)")
        return ops.Diagnosis(
            database_path=str(self._core.database.path),
            database_size=self._core.database.size_bytes(),
            integrity_check="; ".join(wrong),
            entry_count=_count(db, "node"),
            resource_set_count=_count(db, "resource_set"),
            orphaned_entries=orphaned,
            stale_entries=_stale(db, time.time_ns() - STALE_S * times.NS),
            wrong_sums=fetch_value(db, _WRONG_SUMS),
            rebuilt=bool(self._core.database.rebuilt),
        )

    @handles(ops.SessionInfo)
    async def session_info(self, params: ops.SessionInfo, ctx: Context) -> ops.SessionInfoResult:
        def query(db: apsw.Connection) -> ops.SessionInfoResult:
            return ops.SessionInfoResult(
                database_path=str(self._core.database.path),
                database_size=self._core.database.size_bytes(),
                entry_count=_count(db, "node"),
                resource_set_count=_count(db, "resource_set"),
                source_count=_count(db, "source"),
                plan_count=_count(db, "plan"),
                query_count=_count(db, "saved_query"),
                roots=list(self._core.roots.paths),
                preferences=_preferences(db, ctx.session),
            )

        return await self._core.database.read(query)

    @handles(ops.SessionSetPreferences)
    async def set_preferences(self, params: ops.SessionSetPreferences, ctx: Context) -> ops.Preferences:
        now = time.time_ns()

        def change(db: apsw.Connection) -> ops.Preferences:
            for name, value in params.preferences.items():
                if value is None:
                    db.execute("DELETE FROM session_preference WHERE session = ? AND name = ?", (ctx.session, name))
                else:
                    db.execute(
                        "INSERT OR REPLACE INTO session_preference VALUES(?,?,?,?)",
                        (ctx.session, name, msgspec.json.encode(value).decode(), now),
                    )
            # Sessions end without notice.
            db.execute("DELETE FROM session_preference WHERE session <> '' AND at < ?", (now - PREFERENCES_KEPT_NS,))
            return ops.Preferences(preferences=_preferences(db, ctx.session))

        return await self._core.database.answer(change)


def children(
    columns: Columns, db: apsw.Connection, folder: int, order: str, count: int
) -> tuple[int, str, tuple[str, ...]]:
    """Return the number of a directory's entries, and a selection of rows that contains the first `count` of them, with
    its bindings."""
    total = "SELECT count(*) FROM {} n.parent = ?"
    every = "node n WHERE"
    large = count <= FEW and is_large(db, "entry WHERE parent = ?", (folder,))
    column = f"{INSIDE}{folder} {order}"
    view = columns.view(db, {column}) if large else None
    if view is None:
        return fetch_value(db, total.format(every), (folder,)), every, ()
    number, first = view.children(column, count)
    some = "json_each(?) c CROSS JOIN node n ON n.id = c.value WHERE"
    changed = msgspec.json.encode(view.changed).decode()
    number += fetch_value(db, total.format(some), (changed, folder))
    return number, some, (msgspec.json.encode([*first, *view.changed]).decode(),)


def _target(path: str) -> str | None:
    try:
        return paths.to_text(os.readlink(paths.to_os(path)))
    except OSError:
        # It no longer exists, or is not a link.
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
    """Count the entries that were last scanned before `since`, as were all directories above them."""
    fresh = [paths.as_folder(root) for (root,) in fetch_all(db, "SELECT root FROM scan WHERE finished >= ?", (since,))]
    outside = " AND ".join("NOT (n.folder >= ? AND n.folder < ?) AND n.path || '/' <> ?" for _ in fresh) or "1"
    bindings = [part for folder in fresh for part in (folder, folder[:-1] + "0", folder)]
    row = fetch_one(db, f"SELECT count(*) FROM node n WHERE n.scanned < ? AND {outside}", (since, *bindings))
    return row[0] if row is not None else 0


# What `media` derives from a file; empty while that service is unavailable

LIMIT_S = 45.0
"""Shorter than the deadline of `inspect`: a slow decoder must not cost the rest of the answer."""

KNOWN_LIMIT_S = 1.0
"""A directory is shown without thumbnails rather than late."""


async def artifacts(ctx: Context, path: str) -> list[ops.Artifact]:
    """Return the pictures and metadata of a file's content."""
    try:
        found = await ctx.call(media.MediaInspect(path=path), timeout_s=LIMIT_S)
    except LinckiaError as error:
        ctx.log("info", f"cannot get media of {path}: {error}")
        return []
    url = await _content_url(ctx)
    listed = [_artifact(each, url) for each in found.artifacts]
    metadata = found.metadata | ({"problem": found.problem} if found.problem else {})
    if metadata:
        listed.append(ops.Artifact(type="metadata", mime_type=found.mime_type, url=_of(url, path), metadata=metadata))
    return listed


async def thumbnail(ctx: Context, path: str) -> bytes:
    """Return the thumbnail as a JPEG. Raises LinckiaError, with the reason, if it has no thumbnail."""
    found = await ctx.call(media.MediaInspect(path=path), timeout_s=LIMIT_S)
    made = next((each for each in found.artifacts if each.type == media.THUMBNAIL), None)
    if made is None or found.hash is None:
        raise OperationError(f"no thumbnail of {path[:200]!r}: {found.problem or f'it is {found.mime_type}'}")
    return (await ctx.call(media.MediaArtifactParams(hash=found.hash, name=made.name))).data


async def known_thumbnails(ctx: Context, versions: list[str]) -> list[str | None]:
    """Return the URL of the thumbnail of each file that already has one; `media` identifies files by these versions."""
    try:
        found = await ctx.call(media.MediaThumbnails(versions=versions), timeout_s=KNOWN_LIMIT_S)
    except LinckiaError as error:
        ctx.log("info", f"cannot get thumbnails: {error}")
        return [None] * len(versions)
    if not any(found.paths):
        return [None] * len(versions)
    url = await _content_url(ctx)
    return [_of(url, path) if path else None for path in found.paths]


def _first(of: list[ops.Artifact], kind: str) -> str | None:
    """Return the URL of the first artefact of a type."""
    return next((each.url for each in of if each.type == kind), None)


def _artifact(made: media.MediaArtifact, url: str) -> ops.Artifact:
    metadata = made.metadata | {"width": made.width, "height": made.height, "size": made.size}
    return ops.Artifact(type=made.type, mime_type=made.mime_type, url=_of(url, made.path), metadata=metadata)


async def _content_url(ctx: Context) -> str:
    """Return the URL at which files are served, or just its path if they are not served now, since they may be
    later."""
    try:
        return await ctx.call(KernelContentUrl()) or CONTENT_PATH
    except LinckiaError as error:
        ctx.log("info", f"cannot get the address where files are served: {error}")
        return CONTENT_PATH


def _of(url: str, path: str) -> str:
    return f"{url}?path={quote(path)}"
