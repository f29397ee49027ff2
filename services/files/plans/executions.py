"""Plan executions: each is a row that records its progress, and a task.

A oneshot execution processes its sources one after another, in the order of entry ids. Its position is stored with each
batch, and it resumes there after a crash. If outcomes call operations, the position is stored with each entry that
meets the conditions; a call that must not be repeated is recorded before it starts, and never restarted. A continuous
execution does the same once, and then acts at least once on each change that its followers report, until it is stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial

import apsw
import msgspec
import trio

from proto.errors import LinckiaError
from services.files.core import Core
from services.files.index.listing import look
from services.files.operations.plans import Condition, ExecutionRecord, ExecutionStatus, Mode, Outcome, PlanSource
from services.files.plans import followers, outcomes, source_entries
from services.files.plans.classifying import ClassifierTools
from services.files.plans.followers import Followed, Followers, OnChange
from services.files.plans.outcomes import OutcomeRunner, Tally
from services.files.plans.source_entries import Batch, PlanEntry
from services.files.query import named, sets
from services.files.store.database import steadily
from services.files.store.sql import Row, fetch_all
from services.shared import times

BATCH = 1_000

KEPT_EXECUTIONS = 1_000
"""Number of ended executions that are kept per plan; older ones are deleted."""

_log = logging.getLogger("linckia.files")


class PlanDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A plan as stored."""

    description: str = ""
    mode: Mode = "oneshot"
    sources: list[PlanSource]
    conditions: Condition | None = None
    outcomes: list[Outcome] = []
    mandates: list[str] = []
    """The kernel's mandates for the outcomes' calls; clients never see them."""


class Executions:
    """All executions of this process. Methods run on trio's thread only."""

    def __init__(self, core: Core, following: Followers, classifying: ClassifierTools, nursery: trio.Nursery) -> None:
        """`nursery` must end before the database is closed."""
        self._core = core
        self._following = following
        self._classifying = classifying
        self._nursery = nursery
        self._running: dict[int, tuple[trio.CancelScope, trio.Event]] = {}

    async def resume(self) -> None:
        """Resume executions that an ended process left unfinished."""
        rows = await self._core.database.read(
            lambda db: fetch_all(db, "SELECT id, definition FROM execution WHERE status = 'running'")
        )
        for id_, text in rows:
            self.start(id_, msgspec.json.decode(text, type=PlanDefinition))

    def start(self, id_: int, plan: PlanDefinition) -> None:
        """Run an execution whose row is already stored."""
        scope, ended = self._running[id_] = trio.CancelScope(), trio.Event()

        async def run() -> None:
            try:
                with scope:
                    runner = OutcomeRunner(self._core, self._classifying, plan.outcomes, plan.mandates)
                    await self._run(_Execution(self._core, runner, id_, plan))
            finally:
                self._running.pop(id_, None)
                ended.set()

        self._nursery.start_soon(run)

    async def stop(self, id_: int, plan: PlanDefinition) -> None:
        """Stop an execution whose row already says that it has ended, and wait until it has."""
        for subscription in subscriptions(id_, plan):
            await self._following.stop(subscription)
        running = self._running.get(id_)
        if running is not None:
            scope, ended = running
            scope.cancel()
            await ended.wait()

    async def close(self) -> None:
        """Stop all executions in an orderly shutdown; they resume at the next start."""
        for scope, ended in list(self._running.values()):
            scope.cancel()
            await ended.wait()

    async def _run(self, execution: _Execution) -> None:
        plan = execution.plan
        status: ExecutionStatus = "completed"
        error = None
        try:
            await steadily(self._core.env, "plans", execution.run_sources)
            if followed := _followed(execution.id, plan):
                for source, each in followed:
                    self._following.start(each, execution.on_change(source))
                await trio.sleep_forever()
        except (LinckiaError, OSError, apsw.Error) as failure:
            _log.warning("execution %d failed: %s", execution.id, failure)
            status, error = "failed", str(failure)

        async def end() -> None:
            await self._core.database.write(lambda db: finish(db, execution.id, status, error))

        await steadily(self._core.env, "plans", end)
        named.notify(self._core.env, "plan-executions", "plans")


class _Execution:
    """A running execution."""

    def __init__(self, core: Core, runner: OutcomeRunner, id_: int, plan: PlanDefinition) -> None:
        self._core = core
        self._runner = runner
        self.id = id_
        self.plan = plan
        calls = outcomes.calls_of(plan.outcomes)
        self._calls = bool(calls)
        self._once = not all(outcomes.TABLE[call.operation].idempotent for call in calls)

    async def run_sources(self) -> None:
        """Process all sources that are not followed, from the stored position on. Raises LinckiaError or OSError if a
        source cannot be read."""
        first, after = await self._core.database.write(self._take_up)
        for number, source in enumerate(self.plan.sources):
            if number < first or is_followed(self.plan, source):
                continue
            if not after:
                await self._prepare(source)
            await self._process_all(source, number, after)
            after = 0

    def _take_up(self, db: apsw.Connection) -> tuple[int, int]:
        ((source, after, doing),) = fetch_all(db, "SELECT source, after, doing FROM execution WHERE id = ?", (self.id,))
        if doing is not None:
            # The outcome may or may not have run.
            db.execute(
                "UPDATE execution SET doing = NULL, failed = failed + 1, error = coalesce(error, ?) WHERE id = ?",
                (f"{doing}: the process ended while this was running, so it may or may not have been done", self.id),
            )
        return source, after

    async def _prepare(self, source: PlanSource) -> None:
        """Bring the index up to date for the source."""
        path = source.config.path
        if not source_entries.is_filesystem(source) or path is None:
            return
        core = self._core
        if source.config.recursive:
            await core.jobs.rescan(path, must_exist=True)
            return
        if await trio.to_thread.run_sync(look, path) is None:
            raise FileNotFoundError(f"{path} does not exist")
        await trio.to_thread.run_sync(followers.live(core, path, recursive=False).list_root)

    async def _process_all(self, source: PlanSource, number: int | None = None, after: int = 0) -> None:
        """Process the entries of a source with ids above `after`. The position is stored if `number` is given: the
        index of the source in a pass through all of them."""
        while True:
            batch = await self._core.database.read(
                partial(source_entries.next_batch, source=source, wanted=self.plan.conditions, last=after, limit=BATCH)
            )
            if not batch.ids:
                break
            after = batch.ids[-1]
            if self._calls and batch.matched:
                await self._one_by_one(source, batch, number)
            else:
                await self._process(source, batch, None if number is None else (number, after))

        def settle(db: apsw.Connection) -> None:
            if source.target_set is not None and source.update_mode == "replace":
                id_ = sets.make(db, source.target_set)
                members = {entry for (entry,) in fetch_all(db, "SELECT entry_id FROM member WHERE set_id = ?", (id_,))}
                sets.remove(db, id_, members - source_entries.all_ids(db, source))
            if number is not None:
                db.execute("UPDATE execution SET source = ?, after = 0 WHERE id = ?", (number + 1, self.id))

        await self._core.database.write(settle)

    async def _process(self, source: PlanSource, batch: Batch, position: tuple[int, int] | None = None) -> None:
        """Process some entries together, and store the position if there is one."""
        if source.target_set is not None:
            await self._core.database.write(lambda db: _select(db, source, batch.ids))
        tally = Tally()
        if batch.matched:
            await self._runner.do(batch.matched, tally)
        await self._core.database.write(lambda db: self._note(db, len(batch.ids), len(batch.matched), tally, position))

    async def _one_by_one(self, source: PlanSource, batch: Batch, number: int | None) -> None:
        """Process entries whose outcomes call operations, with one transaction between two calls. It stores the result
        of the previous call, skips entries that do not meet the conditions, and records the next call if that must not
        be repeated."""
        claims = number is not None and self._once
        ids = batch.ids
        done, matched, tally = 0, 0, Tally()  # not stored yet

        def step(db: apsw.Connection, end: int, entry: PlanEntry | None) -> PlanEntry | None:
            # The outcome of another entry may have changed or moved this one.
            fresh = None if entry is None else source_entries.reread(db, source, self.plan.conditions, entry.id)
            if source.target_set is not None:
                _select(db, source, ids[done:end])
            claimed = claims and fresh is not None
            stored = end if claimed or entry is None or fresh is None else end - 1
            position = None if number is None or stored == 0 else (number, ids[stored - 1])
            doing = fresh.path if claimed and fresh is not None else None
            self._note(db, stored - done, matched + claimed, tally, position, doing)
            return fresh

        for entry in (*batch.matched, None):
            end = len(ids) if entry is None else ids.index(entry.id, done) + 1
            fresh = await self._core.database.write(partial(step, end=end, entry=entry))
            matched, tally = 0, Tally()
            if fresh is None:
                done = end
                continue
            await self._runner.do([fresh], tally)
            done = end if claims else end - 1
            matched = int(not claims)

    def _note(
        self,
        db: apsw.Connection,
        processed: int,
        matched: int,
        tally: Tally,
        position: tuple[int, int] | None,
        doing: str | None = None,
    ) -> None:
        db.execute(
            "UPDATE execution SET processed = processed + ?, matched = matched + ?, applied = applied + ?,"
            " failed = failed + ?, error = coalesce(error, ?), doing = ? WHERE id = ?",
            (processed, matched, tally.applied, tally.failed, tally.error, doing, self.id),
        )
        if position is not None:
            db.execute("UPDATE execution SET source = ?, after = ? WHERE id = ?", (*position, self.id))

    def on_change(self, source: PlanSource) -> OnChange:
        """Return the callback that processes changes of the source's path."""

        async def act(changed: Sequence[str] | None) -> None:
            database, wanted = self._core.database, self.plan.conditions
            if changed is not None:
                for start in range(0, len(changed), BATCH):
                    some = changed[start : start + BATCH]
                    batch = await database.read(
                        partial(source_entries.batch_of, source=source, wanted=wanted, found=some)
                    )
                    if batch.ids:
                        await self._process(source, batch)
                return
            await self._process_all(source)

        return act


def _select(db: apsw.Connection, source: PlanSource, ids: Sequence[int]) -> None:
    """Add those entries that are still indexed to the source's set."""
    if source.target_set is not None:
        sets.add(db, sets.make(db, source.target_set), sorted(sets.present(db, ids)))


def is_followed(plan: PlanDefinition, source: PlanSource) -> bool:
    """True if the plan acts on changes of the source."""
    return plan.mode == "continuous" and source_entries.is_filesystem(source)


def subscriptions(id_: int, plan: PlanDefinition) -> list[str]:
    """Return the names under which an execution follows its sources."""
    return [each.subscription for _, each in _followed(id_, plan)]


def _followed(id_: int, plan: PlanDefinition) -> list[tuple[PlanSource, Followed]]:
    found = []
    for number, source in enumerate(plan.sources):
        config = source.config
        if is_followed(plan, source) and config.path is not None:
            name = f"plan-{id_}-{number}"
            found.append((source, Followed(name, config.path, config.recursive, config.debounce_ms / 1000)))
    return found


def begin(db: apsw.Connection, plan: str, definition: PlanDefinition) -> int:
    """Store that a plan is being executed. Returns the execution's id."""
    db.execute(
        "INSERT INTO execution(plan, definition, status, started) VALUES(?,?,'running',?)",
        (plan, msgspec.json.encode(definition).decode(), time.time_ns()),
    )
    id_ = db.last_insert_rowid()
    for subscription in subscriptions(id_, definition):
        followers.begin(db, subscription)
    db.execute(
        "DELETE FROM execution WHERE plan = ? AND status <> 'running' AND id NOT IN"
        " (SELECT id FROM execution WHERE plan = ? ORDER BY id DESC LIMIT ?)",
        (plan, plan, KEPT_EXECUTIONS),
    )
    return id_


def finish(db: apsw.Connection, id_: int, status: ExecutionStatus, error: str | None) -> None:
    """Store that an execution has ended, if it was still running."""
    db.execute(
        "UPDATE execution SET status = ?, finished = ?, error = coalesce(?, error) WHERE id = ? AND status = 'running'",
        (status, time.time_ns(), error, id_),
    )


def running(db: apsw.Connection, plan: str) -> list[tuple[int, PlanDefinition]]:
    """Return the running executions of a plan: at most one."""
    rows = fetch_all(db, "SELECT id, definition FROM execution WHERE plan = ? AND status = 'running'", (plan,))
    return [(id_, msgspec.json.decode(text, type=PlanDefinition)) for id_, text in rows]


EXECUTION = "id, plan, status, started, finished, processed, matched, applied, failed, error"


def execution_of(row: Row) -> ExecutionRecord:
    """Build an execution record from a row of the columns `EXECUTION`."""
    id_, plan, status, started, finished, processed, matched, applied, failed, error = row
    return ExecutionRecord(
        execution_id=id_, plan_name=plan, status=status, started_at=started // times.NS,
        completed_at=None if finished is None else finished // times.NS, entries_processed=processed,
        entries_matched=matched, outcomes_applied=applied, outcomes_failed=failed, error=error,
    )  # fmt: skip
