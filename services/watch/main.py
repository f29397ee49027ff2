"""The service `watch`: opens its database, starts watching beside it, and answers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
import trio

from proto.operation import Params
from proto.ops.watch import (
    Change,
    ChangeKind,
    Changes,
    Entry,
    EntryKind,
    FolderProblem,
    SnapshotPage,
    Subscribed,
    SubscriptionStatus,
    Unsubscribed,
    WatchChanges,
    WatchSnapshot,
    WatchStatus,
    WatchStatusResult,
    WatchSubscribe,
    WatchUnsubscribe,
)
from services.runtime.handlers import Context, Environment, Handlers
from services.watch import store as log
from services.watch import subscriptions
from services.watch.inotify import system_limit
from services.watch.snapshot import Snapshot
from services.watch.store import Logged, Row, Store, select
from services.watch.subscriptions import Key, Snapshots
from services.watch.watcher import Watcher, rfc3339

KINDS = (EntryKind.FILE, EntryKind.FOLDER, EntryKind.LINK, EntryKind.OTHER)
CHANGES = (ChangeKind.CREATED, ChangeKind.MODIFIED, ChangeKind.DELETED, ChangeKind.RENAMED)

MAX_PROBLEMS = 100


def rehearse(root: Path, settings: Mapping[str, Any]) -> Sequence[Params[Any]]:
    """A folder with a file in it, from the subscription to what is told of it."""
    (root / "folder").mkdir()
    (root / "folder/file").touch()
    name = "rehearsal"
    return [
        WatchSubscribe(name=name, paths=[str(root)]),
        WatchChanges(subscription=name, wait_s=1.0),
        WatchSnapshot(subscription=name),
        WatchChanges(subscription=name, after=1),
        WatchStatus(),
    ]


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the database is open; what changed while nobody watched is found beside the first answers."""
    store = await trio.to_thread.run_sync(Store, env.data_dir / "watch.db")
    try:
        watcher = Watcher(env, store)
        reading = Reading(watcher, tuple(str(root) for root in env.roots))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watcher.run)
                yield handlers_of(reading)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(reading.close, limiter=reading.turn)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(store.close)


class Reading:
    """What the handlers share: a reading connection, and the snapshots that are being read."""

    def __init__(self, watcher: Watcher, roots: tuple[str, ...]) -> None:
        self.watcher = watcher
        self.roots = roots
        self.db = watcher.store.reader()
        self.snapshots = Snapshots(watcher)
        self.turn = trio.CapacityLimiter(1)
        """Whoever uses the reading connection or the snapshots holds it."""

    def close(self) -> None:
        self.snapshots.close()
        self.db.close()


def handlers_of(reading: Reading) -> Handlers:
    """The operations."""
    handlers = Handlers()
    watcher = reading.watcher

    @handlers.handle(WatchSubscribe)
    async def subscribe(params: WatchSubscribe, ctx: Context) -> Subscribed:
        spec = await trio.to_thread.run_sync(subscriptions.specify, params, reading.roots)
        key = (ctx.caller, params.name)
        tree, kept = await trio.to_thread.run_sync(subscriptions.subscribe, watcher, key, spec, limiter=watcher.turn)
        if not tree.complete:
            watcher.sweep(tree.number)
        return Subscribed(paths=list(spec.paths), sequence=watcher.store.sequence, complete=tree.complete, kept=kept)

    @handlers.handle(WatchUnsubscribe)
    async def unsubscribe(params: WatchUnsubscribe, ctx: Context) -> Unsubscribed:
        key = (ctx.caller, params.name)
        removed = await trio.to_thread.run_sync(subscriptions.unsubscribe, watcher, key, limiter=watcher.turn)
        return Unsubscribed(removed=removed)

    @handlers.handle(WatchChanges)
    async def changes(params: WatchChanges, ctx: Context) -> Changes:
        key = (ctx.caller, params.subscription)
        answer: Changes | None = None
        with trio.move_on_after(params.wait_s):
            while True:
                news = watcher.news
                # Not to be cut off in the middle: an answer that is there is given.
                with trio.CancelScope(shield=True):
                    found = await trio.to_thread.run_sync(read, key, params.after, params.limit, limiter=reading.turn)
                answer = found
                if found.changes or found.resync or watcher.ending:
                    break
                ctx.rests()
                await news.wait()
        if answer is None:
            answer = await trio.to_thread.run_sync(read, key, params.after, params.limit, limiter=reading.turn)
        if not answer.resync:
            watcher.acknowledged[key] = max(params.after, watcher.acknowledged.get(key, 0))
        return answer

    def read(key: Key, after: int, limit: int) -> Changes:
        db = reading.db
        with _snapshot_of(db):
            found = subscriptions.required(db, key)
            ((latest,),) = select(db, "SELECT value FROM meta WHERE key='sequence'")
            if not found.complete:
                return Changes(changes=[], sequence=after, more=False, resync=False, complete=False)
            if after < found.since or after > latest:
                return Changes(changes=[], sequence=latest, more=False, resync=True, complete=True)
            rows = log.read(db, found.tree, after, limit + 1)
        more = len(rows) > limit
        rows = rows[:limit]
        return Changes(
            changes=[_change(row) for row in rows],
            sequence=rows[-1].sequence if rows else after,
            more=more,
            resync=False,
            complete=True,
        )

    @handlers.handle(WatchSnapshot)
    async def snapshot(params: WatchSnapshot, ctx: Context) -> SnapshotPage:
        key = (ctx.caller, params.subscription)

        def page() -> SnapshotPage:
            cursor = params.cursor or reading.snapshots.begin(key)
            found, following, sequence = reading.snapshots.page(key, cursor, params.limit)
            return SnapshotPage(entries=[_entry(path, row) for path, row in found], cursor=following, sequence=sequence)

        return await trio.to_thread.run_sync(page, limiter=reading.turn)

    @handlers.handle(WatchStatus)
    async def status(params: WatchStatus, ctx: Context) -> WatchStatusResult:
        watcher.drain()
        settled, dirty, sweeping = watcher.settled, watcher.dirty, watcher.sweeping
        each, changes_held, problems = await trio.to_thread.run_sync(describe, limiter=reading.turn)
        polled = len(watcher.watches.without)
        return WatchStatusResult(
            watches=len(watcher.watches),
            watch_limit=system_limit("max_user_watches"),
            polled=polled,
            overflows=watcher.overflows,
            queue_limit=system_limit("max_queued_events"),
            events=watcher.events,
            dirty=dirty,
            scanning=sweeping,
            settled=settled,
            last_reconcile=rfc3339(watcher.reconciled_at),
            reconcile_ms=round(watcher.reconcile_s * 1000, 1),
            reconcile_interval_s=round(watcher.reconcile_interval_s, 1),
            sequence=watcher.store.sequence,
            changes=changes_held,
            subscriptions=each,
            degraded=_degraded(polled, problems, each),
            problems=problems[:MAX_PROBLEMS],
            problem_count=len(problems),
            size_bytes=watcher.store.size_bytes(),
            rebuilt=watcher.store.rebuilt,
        )

    def describe() -> tuple[list[SubscriptionStatus], int, list[FolderProblem]]:
        db = reading.db
        with _snapshot_of(db):
            rows = select(db, "SELECT caller, name, tree, acknowledged FROM subscription ORDER BY caller, name")
            counted: dict[int, int] = {}
            each = []
            for caller, name, number, stored in rows:
                tree = watcher.tracker.trees.get(number)
                if tree is None:
                    continue  # Its subscription ends at this moment.
                if number not in counted:
                    ((counted[number],),) = select(
                        db, "SELECT count(*) FROM entry JOIN folder USING(folder) WHERE tree=?", (number,)
                    )
                acknowledged = max(stored, watcher.acknowledged.get((caller, name), 0))
                ((lag,),) = select(
                    db, "SELECT count(*) FROM change WHERE tree=? AND sequence>?", (number, acknowledged)
                )
                each.append(
                    SubscriptionStatus(
                        caller=caller, name=name, paths=list(tree.spec.paths), entries=counted[number],
                        complete=tree.complete, acknowledged=acknowledged, lag=lag,
                        missing=[_text(path) for path in sorted(tree.missing)],
                    )
                )  # fmt: skip
            ((held,),) = select(db, "SELECT count(*) FROM change")
        known = Snapshot(db)
        problems = [
            FolderProblem(path=_text(path), reason=reason)
            for folder, reason in sorted(watcher.tracker.problems.items())
            if (path := known.path_of(folder)) is not None
        ]
        return each, held, problems

    return handlers


@contextlib.contextmanager
def _snapshot_of(db: apsw.Connection) -> Iterator[None]:
    """One consistent state of the database."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("ROLLBACK")


def _degraded(polled: int, problems: list[FolderProblem], each: list[SubscriptionStatus]) -> list[str]:
    said = []
    if polled:
        said.append(
            f"{polled} folders are past the limit of watches and are looked at every few seconds instead; "
            "raise it with: sysctl fs.inotify.max_user_watches=1048576"
        )
    if problems:
        said.append(f"{len(problems)} folders cannot be looked into")
    if missing := sorted({path for one in each for path in one.missing}):
        said.append(f"not there: {', '.join(missing[:10])}")
    return said


def _text(path: bytes) -> str:
    return path.decode("utf-8", "replace")


def _raw(path: bytes | None) -> bytes | None:
    """The bytes of a path that is no text."""
    if path is None:
        return None
    try:
        path.decode()
    except UnicodeDecodeError:
        return path
    return None


def _change(row: Logged) -> Change:
    return Change(
        sequence=row.sequence,
        change=CHANGES[row.change],
        path=_text(row.path),
        kind=KINDS[row.kind],
        size=row.size,
        mtime_ns=row.mtime_ns,
        inode=row.inode,
        old_path=None if row.old_path is None else _text(row.old_path),
        raw_path=_raw(row.path),
        raw_old_path=_raw(row.old_path),
    )


def _entry(path: bytes, row: Row) -> Entry:
    return Entry(
        path=_text(path), kind=KINDS[row.kind], size=row.size, mtime_ns=row.mtime_ns, inode=row.inode,
        raw_path=_raw(path),
    )  # fmt: skip
