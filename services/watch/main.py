"""The service `watch`: opens its database, starts watching beside it, and answers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
import trio

from proto.operation import Params
from proto.ops import watch as ops
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.watch import subscriptions, trees
from services.watch.inotify import system_limit
from services.watch.snapshot import Snapshot
from services.watch.store import read, select, stored_sequence, text_of
from services.watch.subscriptions import Key
from services.watch.watcher import Watcher, rfc3339

MAX_PROBLEMS = 100


def rehearse(root: Path, settings: Mapping[str, Any]) -> Sequence[Params[Any]]:
    """A folder with a file in it, from the subscription to its first change."""
    (root / "folder").mkdir()
    (root / "folder/file").touch()
    name = "rehearsal"
    return [
        ops.WatchSubscribe(name=name, paths=[str(root)]),
        ops.WatchChanges(subscription=name, wait_s=1.0),
        ops.WatchChanges(subscription=name, after=1),
        ops.WatchStatus(),
    ]


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the database is open; what changed while nothing watched is found beside the first answers."""
    watcher = await trio.to_thread.run_sync(Watcher, env, env.data_dir / "watch.db")
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            yield Handlers(Watching(watcher, tuple(str(root) for root in env.roots)))
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(watcher.store.database.close)


class Watching:
    """The operations."""

    def __init__(self, watcher: Watcher, roots: tuple[str, ...]) -> None:
        self._watcher = watcher
        self._database = watcher.store.database
        self._roots = roots

    @handles(ops.WatchSubscribe)
    async def subscribe(self, params: ops.WatchSubscribe, ctx: Context) -> ops.Subscribed:
        spec = await trio.to_thread.run_sync(subscriptions.specify, params, self._roots)
        key = (ctx.caller, params.name)
        watcher = self._watcher
        tree, kept = await watcher.change(
            lambda tracker: subscriptions.subscribe(tracker, key, spec, watcher.acknowledged)
        )
        if not tree.complete:
            watcher.sweep(tree.number)
        sequence = watcher.store.sequence
        return ops.Subscribed(paths=list(spec.paths), sequence=sequence, complete=tree.complete, kept=kept)

    @handles(ops.WatchUnsubscribe)
    async def unsubscribe(self, params: ops.WatchUnsubscribe, ctx: Context) -> ops.Unsubscribed:
        key = (ctx.caller, params.name)
        acknowledged = self._watcher.acknowledged
        removed = await self._watcher.change(lambda tracker: subscriptions.unsubscribe(tracker, key, acknowledged))
        return ops.Unsubscribed(removed=removed)

    @handles(ops.WatchChanges)
    async def changes(self, params: ops.WatchChanges, ctx: Context) -> ops.Changes:
        key = (ctx.caller, params.subscription)
        watcher = self._watcher

        def query(db: apsw.Connection) -> ops.Changes:
            return _changes(db, key, params.after, params.limit)

        answer: ops.Changes | None = None
        with trio.move_on_after(params.wait_s):
            while True:
                news = watcher.news
                # Not to be cut off in the middle: an answer that is there is given.
                with trio.CancelScope(shield=True):
                    found = await self._database.read(query)
                answer = found
                if found.changes or found.resync or watcher.ending:
                    break
                await news.wait()
        if answer is None:
            answer = await self._database.read(query)
        if not answer.resync:
            watcher.acknowledged[key] = max(params.after, watcher.acknowledged.get(key, 0))
        return answer

    @handles(ops.WatchStatus)
    async def status(self, params: ops.WatchStatus, ctx: Context) -> ops.WatchStatusResult:
        watcher = self._watcher
        watcher.drain()
        settled, dirty, sweeping, paused = watcher.settled, watcher.dirty, watcher.sweeping, watcher.paused
        each, changes_held, problems = await self._database.read(self._describe)
        polled = len(watcher.watches.without)
        return ops.WatchStatusResult(
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
            degraded=_degraded(paused, polled, len(problems), each),
            problems=problems[:MAX_PROBLEMS],
            problem_count=len(problems),
            size_bytes=self._database.size_bytes(),
            rebuilt=bool(self._database.rebuilt),
        )

    def _describe(self, db: apsw.Connection) -> tuple[list[ops.SubscriptionStatus], int, list[ops.FolderProblem]]:
        watcher = self._watcher
        rows = select(db, "SELECT caller, name, tree, acknowledged FROM subscription ORDER BY caller, name")
        counted: dict[int, int] = {}
        each = []
        # While the watcher pauses, what is stored still says what is followed.
        known_trees = watcher.trees or trees.load(db)
        for caller, name, number, stored in rows:
            tree = known_trees.get(number)
            if tree is None:
                continue  # Its subscription ends at this moment.
            if number not in counted:
                ((counted[number],),) = select(
                    db, "SELECT count(*) FROM entry JOIN folder USING(folder) WHERE tree=?", (number,)
                )
            acknowledged = max(stored, watcher.acknowledged.get((caller, name), 0))
            ((lag,),) = select(db, "SELECT count(*) FROM change WHERE tree=? AND sequence>?", (number, acknowledged))
            each.append(
                ops.SubscriptionStatus(
                    caller=caller, name=name, paths=list(tree.spec.paths), entries=counted[number],
                    complete=tree.complete, acknowledged=acknowledged, lag=lag,
                    missing=[text_of(path) for path in sorted(tree.missing)],
                )
            )  # fmt: skip
        ((held,),) = select(db, "SELECT count(*) FROM change")
        known = Snapshot(db)
        problems = [
            ops.FolderProblem(path=text_of(known.path(folder)), reason=reason)
            for folder, reason in sorted(watcher.problems.items())
            if known.folder(folder) is not None
        ]
        return each, held, problems


def _changes(db: apsw.Connection, key: Key, after: int, limit: int) -> ops.Changes:
    """Raises OperationError where there is no such subscription."""
    found = subscriptions.required(db, key)
    latest = stored_sequence(db)
    if not found.complete:
        return ops.Changes(changes=[], sequence=after, more=False, resync=False, complete=False)
    if after < found.since or after > latest:
        return ops.Changes(changes=[], sequence=latest, more=False, resync=True, complete=True)
    rows = read(db, found.tree, after, limit + 1)
    more = len(rows) > limit
    rows = rows[:limit]
    return ops.Changes(
        changes=rows,
        sequence=rows[-1].sequence if rows else after,
        more=more,
        resync=False,
        complete=True,
    )


def _degraded(paused: str, polled: int, problems: int, each: list[ops.SubscriptionStatus]) -> list[str]:
    said = [f"changes are not looked at for now: {paused}"] if paused else []
    if polled:
        said.append(
            f"{polled} folders are past the limit of watches and are looked at every few seconds instead; "
            "raise it with: sysctl fs.inotify.max_user_watches=1048576"
        )
    if problems:
        said.append(f"{problems} folders cannot be looked into")
    if missing := sorted({path for one in each for path in one.missing}):
        said.append(f"not there: {', '.join(missing[:10])}")
    return said
