"""The service `watch`: opens its database, starts the watcher in the background, and serves requests."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import AsyncIterator

import apsw
import trio

from proto.errors import InvalidParams, OperationError
from proto.ops import watch as ops
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.runtime.roots import Roots
from services.shared.date_ranges import rfc3339
from services.watch import trees
from services.watch.database import read, select, stored_sequence, text_of
from services.watch.inotify import system_limit
from services.watch.snapshot import Snapshot
from services.watch.tracker import Tracker
from services.watch.trees import Rules, Spec, Tree, encode, outermost
from services.watch.watcher import Watcher

MAX_PROBLEMS = 100

Key = tuple[str, str]
"""Caller and name of a subscription."""


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service; ready once the database is open. Earlier changes are discovered while the first calls are
    served."""
    watcher = await env.opened(Watcher, env, env.data_dir / "watch.db")
    env.background.start_soon(watcher.run)
    yield Handlers(Watching(watcher, env.roots))


class Watching:
    """The service's operations."""

    def __init__(self, watcher: Watcher, roots: Roots) -> None:
        self._watcher = watcher
        self._database = watcher.store.database
        self._roots = roots

    @handles(ops.WatchSubscribe)
    async def subscribe(self, params: ops.WatchSubscribe, ctx: Context) -> ops.Subscribed:
        spec, missing = await trio.to_thread.run_sync(_specify, params, self._roots)
        key, text = (ctx.caller, params.name), encode(spec)
        store, acknowledged = self._watcher.store, self._watcher.acknowledged

        def subscribe(tracker: Tracker) -> tuple[Tree, bool]:
            with tracker.transaction() as db:
                before = _find(db, key)
                known = select(db, "SELECT tree FROM tree WHERE spec=?", (text,))
                if not known:
                    db.execute("INSERT INTO tree(spec) VALUES(?)", (text,))
                number = known[0][0] if known else db.last_insert_rowid()
                kept = before is not None and before[0] == number
                if missing is not None and not kept:
                    raise missing
                if not kept:
                    store.sequence += 1
                    row = (*key, number, store.sequence)
                    db.execute("INSERT OR REPLACE INTO subscription VALUES(?, ?, ?, ?, 0)", row)
                    acknowledged.pop(key, None)
                    if before is not None:
                        _forget_unread(tracker, db, before[0])
            return tracker.trees.setdefault(number, Tree(number, spec, complete=False)), kept

        tree, kept = await self._watcher.change(subscribe)
        if not tree.complete:
            self._watcher.sweep(tree.number)
        return ops.Subscribed(paths=list(spec.paths), sequence=store.sequence, complete=tree.complete, kept=kept)

    @handles(ops.WatchUnsubscribe)
    async def unsubscribe(self, params: ops.WatchUnsubscribe, ctx: Context) -> ops.Unsubscribed:
        key = (ctx.caller, params.name)

        def unsubscribe(tracker: Tracker) -> bool:
            with tracker.transaction() as db:
                before = _find(db, key)
                if before is not None:
                    db.execute("DELETE FROM subscription WHERE caller=? AND name=?", key)
                    self._watcher.acknowledged.pop(key, None)
                    _forget_unread(tracker, db, before[0])
            return before is not None

        return ops.Unsubscribed(removed=await self._watcher.change(unsubscribe))

    @handles(ops.WatchChanges)
    async def changes(self, params: ops.WatchChanges, ctx: Context) -> ops.Changes:
        key = (ctx.caller, params.subscription)
        watcher = self._watcher

        def query(db: apsw.Connection) -> ops.Changes:
            return _changes(db, key, params.after, params.limit)

        changed = watcher.changed
        answer = await self._database.read(query)
        with trio.move_on_after(params.wait_s):
            while not (answer.changes or answer.resync or watcher.ending.is_set()):
                await changed.wait()
                changed = watcher.changed
                # Shielded so that an answer that is ready is not lost.
                with trio.CancelScope(shield=True):
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
        polled, at = len(watcher.watches.without), watcher.reconciled_at
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
            last_reconcile=rfc3339(at, timespec="milliseconds"),
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
        rows = select(
            db,
            "SELECT caller, name, tree, acknowledged, (SELECT count(*) FROM entry JOIN folder USING(folder)"
            " WHERE folder.tree=subscription.tree) FROM subscription ORDER BY caller, name",
        )
        each = []
        # While the watcher is paused, the stored trees still say what is followed.
        known_trees = watcher.trees or trees.load(db)
        for caller, name, number, stored, entries in rows:
            if (tree := known_trees.get(number)) is None:
                continue  # its subscription is just ending
            acknowledged = max(stored, watcher.acknowledged.get((caller, name), 0))
            ((lag,),) = select(db, "SELECT count(*) FROM change WHERE tree=? AND sequence>?", (number, acknowledged))
            missing = [text_of(path) for path in sorted(tree.missing)]
            each.append(
                ops.SubscriptionStatus(
                    caller=caller, name=name, paths=list(tree.spec.paths), entries=entries,
                    complete=tree.complete, acknowledged=acknowledged, lag=lag, missing=missing,
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


def _specify(params: ops.WatchSubscribe, roots: Roots) -> tuple[Spec, InvalidParams | None]:
    """Validate the parameters. Returns an error for a new subscription if a folder is missing.

    Raises InvalidParams or Denied.
    """
    paths = []
    missing = None
    for index, path in enumerate(params.paths):
        field = f"paths[{index}]"
        real = os.path.realpath(path)
        if not roots.holds(real):
            raise InvalidParams(
                f"parameter `{field}`: {path[:200]} is not below a root ({', '.join(roots) or 'none configured'})",
                field=field,
            )
        roots.check(real, field=field)
        if not os.path.isdir(real):
            reason = "is not a directory" if os.path.lexists(real) else os.strerror(errno.ENOENT).lower()
            missing = InvalidParams(f"parameter `{field}`: {path[:200]}: {reason}", field=field)
        paths.append(real)
    try:
        Rules(params.ignore, params.include)
    except ValueError as error:
        raise InvalidParams(f"parameter `ignore`: {error}", field="ignore") from None
    kept = outermost(paths) if params.recursive else tuple(sorted(set(paths)))
    include = tuple(sorted(set(params.include)))
    return Spec(paths=kept, recursive=params.recursive, ignore=tuple(params.ignore), include=include), missing


def _find(db: apsw.Connection, key: Key) -> tuple[int, int, bool] | None:
    """Return a subscription's tree, the number after which changes can be read, and whether its first scan is
    complete."""
    query = "SELECT tree, max(floor, since), complete FROM subscription JOIN tree USING(tree) WHERE caller=? AND name=?"
    rows = select(db, query, key)
    return (rows[0][0], rows[0][1], bool(rows[0][2])) if rows else None


def _forget_unread(tracker: Tracker, db: apsw.Connection, tree: int) -> None:
    if not select(db, "SELECT 1 FROM subscription WHERE tree=? LIMIT 1", (tree,)):
        tracker.forget(tree)


def _changes(db: apsw.Connection, key: Key, after: int, limit: int) -> ops.Changes:
    """Raises OperationError if there is no such subscription."""
    found = _find(db, key)
    if found is None:
        raise OperationError(f"no subscription {key[1]!r} of {key[0]}; create it with watch_subscribe")
    tree, since, complete = found
    latest = stored_sequence(db)
    if not complete:
        return ops.Changes(changes=[], sequence=after, more=False, resync=False, complete=False)
    if after < since or after > latest:
        return ops.Changes(changes=[], sequence=latest, more=False, resync=True, complete=True)
    rows = read(db, tree, after, limit + 1)
    more = len(rows) > limit
    rows = rows[:limit]
    sequence = rows[-1].sequence if rows else after
    return ops.Changes(changes=rows, sequence=sequence, more=more, resync=False, complete=True)


def _degraded(paused: str, polled: int, problems: int, each: list[ops.SubscriptionStatus]) -> list[str]:
    said = [f"paused: {paused}"] if paused else []
    if polled:
        said.append(
            f"{polled} folders exceed the watch limit and are polled every few seconds instead; "
            "raise the limit with: sysctl fs.inotify.max_user_watches=1048576"
        )
    if problems:
        said.append(f"{problems} folders cannot be read")
    if missing := sorted({path for one in each for path in one.missing}):
        said.append(f"missing: {', '.join(missing[:10])}")
    return said
