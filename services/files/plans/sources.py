"""Sources: named folders that are followed or scanned.

Whether a source should run is stored and survives restarts. Its status is derived from its follower and the jobs of its
path.
"""

from __future__ import annotations

import time
import uuid
from typing import NamedTuple

import apsw
import msgspec
import trio
from msgspec import structs

from proto.errors import InvalidParams
from services.files import paths
from services.files.core import Core
from services.files.index.jobs import ACTIVE
from services.files.index.listing import look
from services.files.index.tree import below, find_shown, last_scan, rows_of_root
from services.files.operations import sources as ops
from services.files.operations.shared import Deleted
from services.files.plans import followers
from services.files.plans.followers import Followed, Followers
from services.files.query import named
from services.files.store import schema
from services.files.store.sql import Row, fetch_all, fetch_one, fetch_value
from services.runtime.handlers import Context, handles
from services.runtime.roots import is_text_name
from services.shared import times


class SourceDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A source as stored."""

    type: ops.SourceType
    path: str
    enabled: bool
    watch_recursive: bool
    debounce_ms: int

    def followed(self, subscription: str) -> Followed:
        return Followed(subscription, self.path, self.watch_recursive, self.debounce_ms / 1000)


class _Stored(NamedTuple):
    """A row of `source`, and the latest job of its path."""

    name: str
    definition: SourceDefinition
    created: int
    updated: int
    wanted: bool
    subscription: str | None
    job: Row | None
    """Id, status and error."""


class SourceTools:
    """The operations of `services.files.operations.sources`."""

    def __init__(self, core: Core, following: Followers) -> None:
        self._core = core
        self._following = following
        self._changing = trio.Lock()

    def _status_of(self, stored: _Stored) -> tuple[ops.SourceStatus, str | None]:
        if stored.definition.type == "live":
            if not stored.wanted:
                return "stopped", None
            follower = self._following.find(stored.subscription or "")
            if follower is not None and follower.problem:
                return "error", follower.problem
            return ("running" if follower is not None and follower.in_step else "starting"), None
        if stored.job is None or (not stored.wanted and stored.job[1] == "cancelled"):
            return "stopped", None
        _, status, error = stored.job
        if status in ACTIVE:
            return "running", None
        if status == "failed":
            return "error", error
        return ("completed" if status == "completed" else "stopped"), None

    def _source_of(self, stored: _Stored) -> ops.Source:
        status, error = self._status_of(stored)
        return ops.Source(
            name=stored.name,
            **structs.asdict(stored.definition),
            status=status,
            created_at=times.rfc3339(stored.created),
            updated_at=times.rfc3339(stored.updated),
            error=error,
        )

    @handles(ops.SourceCreate)
    async def create(self, params: ops.SourceCreate, ctx: Context) -> ops.Source:
        path = await trio.to_thread.run_sync(self._core.roots.real, self._core.roots.clean(params.path, "path"), "path")
        found = await trio.to_thread.run_sync(look, path)
        if found is None:
            said = await trio.to_thread.run_sync(self._core.roots.missing, path, "path")
            raise InvalidParams(said, field="path")
        if params.type == "live":
            if found.kind != schema.DIRECTORY:
                raise InvalidParams(f"`path`: {paths.shown(path)} is not a directory", field="path")
            if not is_text_name(paths.to_os(path)):
                raise InvalidParams(f"`path`: {paths.shown(path)} is not UTF-8 and cannot be followed", field="path")
        definition = structs.replace(msgspec.convert(params, SourceDefinition, from_attributes=True), path=path)
        runs = params.type == "live" and params.enabled
        subscription = _new_subscription() if runs else None

        def change(db: apsw.Connection) -> _Stored:
            named.require_free(db, "source", params.name)
            now = time.time_ns()
            db.execute(
                "INSERT INTO source VALUES(?,?,?,?,?,?)",
                (params.name, msgspec.json.encode(definition).decode(), now, now, runs, subscription),
            )
            if subscription is not None:
                followers.begin(db, subscription)
            return _find(db, params.name)

        async with self._changing:
            stored = await self._core.database.answer(change, self._source_of)
            if subscription is not None:
                self._following.start(definition.followed(subscription))
        return self._source_of(stored)

    @handles(ops.SourceStart)
    async def start(self, params: ops.SourceStart, ctx: Context) -> ops.SourceStarted:
        async with self._changing:
            stored = await self._core.database.read(lambda db: _find(db, params.name))
            if stored.definition.type == "manual":
                job = await self._core.jobs.start(
                    stored.definition.path, background=True, rows=rows_of_root(stored.definition.path)
                )
                await self._core.database.write(lambda db: _want(db, params.name, True, None))
                return ops.SourceStarted(
                    name=params.name,
                    status="running",
                    message=f"scanning {stored.definition.path}; see jobs_progress",
                    job_id=job.id,
                )
            if stored.wanted:
                status, _ = self._status_of(stored)
                return ops.SourceStarted(name=params.name, status=status, message="already running")
            subscription = _new_subscription()

            def change(db: apsw.Connection) -> None:
                followers.begin(db, subscription)
                _want(db, params.name, True, subscription)

            await self._core.database.write(change)
            self._following.start(stored.definition.followed(subscription))
        return ops.SourceStarted(name=params.name, status="starting", message=f"following {stored.definition.path}")

    @handles(ops.SourceStop)
    async def stop(self, params: ops.SourceStop, ctx: Context) -> ops.SourceStarted:
        async with self._changing:
            stored = await self._core.database.read(lambda db: _find(db, params.name))
            ran = self._status_of(stored)[0] in ("running", "starting", "error") and stored.wanted
            await self._halt(stored)
        message = "stopped until sources_start" if ran else "not running"
        return ops.SourceStarted(name=params.name, status="stopped", message=message)

    async def _halt(self, stored: _Stored) -> None:
        def change(db: apsw.Connection) -> None:
            if stored.subscription is not None:
                followers.end(db, stored.subscription)
            _want(db, stored.name, False, None)

        # Stored first: it must not restart, whatever happens to this process.
        await self._core.database.write(change)
        if stored.subscription is not None:
            await self._following.stop(stored.subscription)
        elif stored.wanted and stored.job is not None and stored.job[1] in ACTIVE:
            job = self._core.jobs.find(stored.job[0])
            if job is not None:
                job.cancel()
                await job.ended.wait()

    @handles(ops.SourceList)
    async def listing(self, params: ops.SourceList, ctx: Context) -> ops.Sources:
        def query(db: apsw.Connection) -> list[_Stored]:
            return [_stored(db, row) for row in fetch_all(db, "SELECT * FROM source ORDER BY name")]

        found = [self._source_of(stored) for stored in await self._core.database.read(query)]
        return ops.Sources(sources=found, total=len(found))

    @handles(ops.SourceGet)
    async def get(self, params: ops.SourceGet, ctx: Context) -> ops.Source:
        return self._source_of(await self._core.database.read(lambda db: _find(db, params.name)))

    @handles(ops.SourceDelete, resumes=True)
    async def delete(self, params: ops.SourceDelete, ctx: Context) -> Deleted:
        deleted = Deleted(name=params.name, deleted=True, message=f"source {params.name!r} was deleted")

        def change(db: apsw.Connection) -> None:
            db.execute("DELETE FROM source WHERE name = ?", (params.name,))

        async with self._changing:
            await self._halt(await self._core.database.read(lambda db: _find(db, params.name)))
            await self._core.database.answer(change, lambda _: deleted)
        return deleted

    @handles(ops.SourceStats)
    async def stats(self, params: ops.SourceStats, ctx: Context) -> ops.Stats:
        def query(db: apsw.Connection) -> tuple[_Stored, Row, Row, int, int | None]:
            stored = _find(db, params.name)
            path = stored.definition.path
            scans = fetch_one(
                db,
                "SELECT count(*) FILTER (WHERE status = 'completed' AND skipped IS NULL),"
                " count(*) FILTER (WHERE status = 'failed'), max(finished) FILTER (WHERE status = 'completed'),"
                " avg(finished - started) FILTER (WHERE status = 'completed' AND skipped IS NULL)"
                " FROM job WHERE root = ?",
                (path,),
            )
            follow = fetch_one(
                db, "SELECT changes, latest FROM follow WHERE subscription = ?", (stored.subscription or "",)
            )
            entries = 0
            if find_shown(db, path) is not None:
                bounds = below(paths.as_folder(path))
                entries = 1 + fetch_value(db, "SELECT count(*) FROM node WHERE folder >= ? AND folder < ?", bounds)
            return stored, scans or (0, 0, None, None), follow or (0, None), entries, last_scan(db, path)

        stored, (scans, failed, finished, average), (changes, latest), entries, last = await self._core.database.read(
            query
        )
        status, error = self._status_of(stored)
        at = max((when for when in (finished, last) if when is not None), default=None)
        return ops.Stats(
            name=params.name,
            type=stored.definition.type,
            status=status,
            entries_indexed=entries,
            last_scan_at=times.rfc3339_or_none(at),
            total_scans=scans,
            failed_scans=failed,
            average_scan_duration_ms=0 if average is None else round(average / 1e6),
            changes=changes,
            last_change_at=times.rfc3339_or_none(latest if changes else None),
            error=error,
        )


async def resume_sources(core: Core, following: Followers) -> None:
    """Start the live sources that should be running."""
    rows = await core.database.read(
        lambda db: fetch_all(db, "SELECT definition, subscription FROM source WHERE wanted AND subscription NOT NULL")
    )
    for text, subscription in rows:
        following.start(msgspec.json.decode(text, type=SourceDefinition).followed(subscription))


def _new_subscription() -> str:
    # Never reuse an earlier subscription: what the watcher stored for it must not be read.
    return f"source-{uuid.uuid4().hex}"


def _want(db: apsw.Connection, name: str, wanted: bool, subscription: str | None) -> None:
    db.execute("UPDATE source SET wanted = ?, subscription = ? WHERE name = ?", (wanted, subscription, name))


def _find(db: apsw.Connection, name: str) -> _Stored:
    return _stored(db, named.find(db, "source", name))


def _stored(db: apsw.Connection, row: Row) -> _Stored:
    name, text, created, updated, wanted, subscription = row
    definition = msgspec.json.decode(text, type=SourceDefinition)
    query = "SELECT id, status, error FROM job WHERE root = ? AND created >= ? ORDER BY id DESC LIMIT 1"
    job = fetch_one(db, query, (definition.path, created))
    return _Stored(name, definition, created, updated, bool(wanted), subscription, job)
