"""Serves what the audit log and the timeline have recorded to the service that keeps it for clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from kernel.chronicle.audit import Audit, AuditEntry
from kernel.chronicle.audit_positions import read_after
from kernel.chronicle.history import Recorder
from kernel.router.router import Router
from proto.errors import OperationError
from proto.operation import Access
from proto.ops import observation as ops

GATHER_S = 0.25
"""How long to gather what happens after the first piece of news."""


class RecordedEvents:
    """Registers the handler of `kernel_happened` with the router. There may be no audit log."""

    def __init__(self, data_dir: Path, router: Router, audit: Audit | None, recorder: Recorder) -> None:
        self._data_dir = data_dir
        self._router = router
        self._audit = audit
        self._recorder = recorder
        router.serve_local({ops.KernelHappened: self._happened})

    async def _happened(self, params: ops.KernelHappened, caller: str) -> ops.Happened:
        position, is_lost = params.audit, False
        with trio.move_on_after(params.wait_s) as waiting:
            while True:
                # Armed before the sources are read, so that nothing that happens meanwhile is missed.
                news = [self._recorder.changed.wait, *([self._audit.written.wait] if self._audit is not None else ())]
                with trio.CancelScope(shield=True):
                    found = await self._read(params, position)
                position, is_lost = found.audit, is_lost or found.audit_lost
                if found.changes or found.timeline or is_lost or found.timeline_lost or not params.wait_s:
                    break
                if not found.more:
                    await _first_of(news)
                    # Under many small writes, reading the log and storing events after each would slow them down.
                    await trio.sleep(GATHER_S)
        if waiting.cancelled_caught:
            found = ops.Happened(
                changes=[], audit=position, audit_lost=is_lost, timeline=[], last=params.last, timeline_lost=False,
                more=False,
            )  # fmt: skip
        return found

    async def _read(self, params: ops.KernelHappened, position: str) -> ops.Happened:
        timeline, timeline_lost = self._recorder.since(params.last, params.limit)
        changes, audit_lost, more = [], False, False
        if self._audit is not None:
            try:
                page = await trio.to_thread.run_sync(read_after, self._data_dir, position, params.limit)
            except OSError as error:
                raise OperationError(f"cannot read the audit log: {error}") from error
            changes = [self._change(each) for each in page.entries if self._is_change(each)]
            position, audit_lost, more = page.position, page.is_lost, page.more
        return ops.Happened(
            changes=changes,
            audit=position,
            audit_lost=audit_lost,
            timeline=timeline,
            last=timeline[-1].number if timeline else params.last,
            timeline_lost=timeline_lost,
            more=more or len(timeline) == params.limit,
        )

    def _is_change(self, entry: AuditEntry) -> bool:
        """Return whether something was changed, may have been, or lines of the log are missing."""
        operation = self._router.table.get(entry.operation)
        if operation is not None and operation.access is Access.READ:
            return False
        return entry.outcome in ("ok", "lost") or bool(entry.executed)

    def _change(self, entry: AuditEntry) -> ops.AuditedChange:
        operation = self._router.table.get(entry.operation)
        return ops.AuditedChange(
            at=entry.at.timestamp(),
            who=entry.who,
            operation=entry.operation,
            service="" if operation is None else operation.service,
            target=entry.target,
            outcome=entry.outcome,
            executed=entry.executed,
            message=entry.message,
            source=entry.source,
            count=entry.count,
        )


async def _first_of(waits: list[Callable[[], Awaitable[None]]]) -> None:
    """Wait until the first of these returns."""
    async with trio.open_nursery() as nursery:

        async def wait(one: Callable[[], Awaitable[None]]) -> None:
            await one()
            nursery.cancel_scope.cancel()

        for one in waits:
            nursery.start_soon(wait, one)
