"""The service `approvals`: calls of clients that wait for a person, and the person's decisions.

The kernel asks it about each call that the settings choose, and passes on only approved calls. Pending approvals are
on disk, so they outlive every process; a call that is repeated after a death finds its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial

import apsw
import trio

from proto.approvals import QUESTION
from proto.errors import InvalidParams, LinckiaError, OperationError, Unavailable
from proto.mcp import INPUTS
from proto.ops import approvals as ops
from proto.vocabulary import current_name
from services.approvals import preview, store
from services.approvals.operations import ApprovalShow, WaitingCall
from services.approvals.store import Row
from services.runtime.database import Database, Kind
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.shared.times import NS, rfc3339

ASKED_CHARS = 1_500
"""Length of the parameters in a question to a client."""


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service; it is ready once the database is open."""
    path = env.data_dir / "approvals.db"
    # Deleted parameters are overwritten, since they may be secret.
    pragmas = {"secure_delete": 1}
    database = await env.opened(
        Database, path, store.SCHEMA, kind=Kind.SOURCE, readers=2, pragmas=pragmas, on_damage=env.damaged
    )
    yield Handlers(Approvals(env, database))


class Approvals:
    """The handlers."""

    def __init__(self, env: Environment, database: Database) -> None:
        self._env = env
        self._database = database
        self._waiting: dict[str, int] = {}
        """How many calls wait for the decision, by the approval's id."""
        self._asked: dict[str, ops.ApprovalWait] = {}
        """What the calls are, by the same."""
        self._admitting = trio.Lock()
        self._news = trio.Event()

    @handles(ops.ApprovalWait)
    async def wait(self, params: ops.ApprovalWait, ctx: Context) -> ops.Decision:
        row = await self._admit(params)
        try:
            failure: LinckiaError | None = None
            async with trio.open_nursery() as nursery:
                if params.elicit and row.state == store.PENDING:
                    nursery.start_soon(self._ask, row, params, ctx)
                try:
                    await self._decided(row)
                except LinckiaError as error:
                    # Outside of the nursery, which would wrap it.
                    failure = error
                nursery.cancel_scope.cancel()
            if failure is not None:
                raise failure
            # A decision that is given to a call counts for no other one.
            done = await self._database.write(partial(store.use, id_=row.id))
        finally:
            self._left(row.id)
        if done is None or done.state not in (store.APPROVED, store.DENIED):
            raise Unavailable("the approval was removed")
        return ops.Decision(id=done.id, approved=done.state == store.APPROVED, by=done.by, reason=done.reason)

    async def _admit(self, params: ops.ApprovalWait) -> Row:
        now_ns = time.time_ns()
        asked = Row(
            id="", digest=preview.digest(params), keyed=bool(params.key), operation=params.operation,
            tool=preview.tool(params), asker=params.who, session=params.session, source=params.source,
            target=params.target, preview=preview.shown(params), size=params.size, asked_ns=now_ns,
            expires_ns=now_ns + int(params.timeout_s * NS), allow_on_time_out=params.allow_on_time_out,
            waiter=params.wait,
        )  # fmt: skip
        # Two equal calls must not find the same approval, so one is admitted after the other.
        async with self._admitting:
            row = await self._database.write(partial(store.admit, asked=asked, live=set(self._waiting), now_ns=now_ns))
            self._waiting[row.id] = self._waiting.get(row.id, 0) + 1
            self._asked[row.id] = params
        self._show()
        return row

    def _left(self, id_: str) -> None:
        self._waiting[id_] -= 1
        if not self._waiting[id_]:
            del self._waiting[id_], self._asked[id_]
        self._show()

    def _show(self) -> None:
        # The page takes the number from it, and sees by the id that other calls wait.
        waiting, latest = len(self._waiting), next(reversed(self._waiting), "")
        self._env.info(waiting=f"{waiting} calls, the latest {latest}; see `linckia approve`" if waiting else "")

    async def _decided(self, row: Row) -> None:
        """Wait until somebody has decided, or the time is over."""
        while True:
            news = self._news
            found = await self._database.read(partial(store.of_id, id_=row.id))
            if found is None or found.state != store.PENDING:
                return
            with trio.move_on_after(max(0.0, (found.expires_ns - time.time_ns()) / NS)):
                await news.wait()
            if time.time_ns() >= found.expires_ns:
                await self._write(partial(store.time_out, id_=row.id, now_ns=time.time_ns()))

    async def _write(self, change: partial[Row | None]) -> Row | None:
        """Make a change that those who wait have to know."""
        found = await self._database.write(change)
        self._news.set()
        self._news = trio.Event()
        return found

    async def _ask(self, row: Row, params: ops.ApprovalWait, ctx: Context) -> None:
        """Ask the client that makes the call; others may decide first."""
        question = {
            "method": "elicitation/create",
            "params": {"message": _question(row), "requestedSchema": {"type": "object", "properties": {}}},
        }
        try:
            answers = await ctx.ask_client(INPUTS, {"inputs": {QUESTION: question}})
            answer = answers.get(QUESTION)
            action = answer.get("action") if isinstance(answer, dict) else None
            if action in ("accept", "decline"):
                decide = partial(store.decide, id_=row.id, approve=action == "accept", reason="")
                await self._write(partial(decide, by=f"the user of {params.who}", now_ns=time.time_ns()))
        except LinckiaError as error:
            # It cannot be asked, or has gone, or the disk is full: others can still decide.
            ctx.log("debug", f"the client did not decide: {error}")

    @handles(ops.ApprovalDecide)
    async def decide(self, params: ops.ApprovalDecide, ctx: Context) -> ops.Decided:
        before = await self._database.read(partial(store.of_id, id_=params.id))
        if before is None:
            raise InvalidParams(f"no approval has the id {params.id!r}; `linckia approve` lists them", field="id")
        for field, given, there in (
            ("operation", params.operation, before.name), ("asker_name", params.asker_name, before.asker),
        ):  # fmt: skip
            if given and given != there:
                raise InvalidParams(f"`{field}`: approval {params.id} is about {there!r}, not {given!r}", field=field)
        now_ns, wanted = time.time_ns(), store.APPROVED if params.approve else store.DENIED

        def change(db: apsw.Connection) -> Row | None:
            store.expire(db, set(self._waiting), now_ns)
            return store.decide(
                db, params.id, approve=params.approve, by=params.who, reason=params.reason, now_ns=now_ns
            )

        row = await self._write(partial(change))
        if row is None or row.state == store.EXPIRED:
            raise OperationError(f"the time to decide about {params.id} is over", field="id")
        if (row.state, row.by) != (wanted, params.who):
            raise OperationError(f"{params.id} was {row.state} by {row.by} before", field="id")
        waits = "" if params.id in self._waiting else "; the call no longer waits, but a repetition finds this decision"
        message = f"{row.name} of {row.asker} is {row.state}{waits}"
        return ops.Decided(message=message, approval=self._shown(row, now_ns))

    @handles(ops.ApprovalListParams)
    async def list_(self, params: ops.ApprovalListParams, ctx: Context) -> ops.ApprovalList:
        now_ns = time.time_ns()

        def query(db: apsw.Connection) -> tuple[list[Row], list[Row]]:
            pending = store.select(db, "state=? ORDER BY number", (store.PENDING,))
            recent = "state<>? ORDER BY decided_ns DESC, number DESC LIMIT ?"
            return pending, store.select(db, recent, (store.PENDING, params.recent))

        pending, recent = await self._database.read(query)
        return ops.ApprovalList(
            pending=[self._shown(row, now_ns) for row in pending if row.expires_ns > now_ns or row.id in self._waiting],
            recent=[self._shown(row, now_ns) for row in recent],
        )

    @handles(ApprovalShow)
    async def show(self, params: ApprovalShow, ctx: Context) -> WaitingCall:
        if (asked := self._asked.get(params.id)) is None:
            raise InvalidParams(f"no call with the id {params.id!r} waits; `linckia approve` lists those", field="id")
        found, why = preview.whole(asked)
        return WaitingCall(id=params.id, operation=current_name(asked.operation), parameters=found, why=why)

    def _shown(self, row: Row, now_ns: int) -> ops.Approval:
        is_pending = row.state == store.PENDING
        return ops.Approval(
            id=row.id, operation=current_name(row.operation), tool=row.tool,
            asker=row.asker, source=row.source, target=row.target,
            preview=row.preview, size=row.size, state=row.state, waiting=row.id in self._waiting,
            asked_at=_at(row.asked_ns), expires_at=_at(row.expires_ns),
            left_s=max(0.0, round((row.expires_ns - now_ns) / NS, 1)) if is_pending else 0,
            on_time_out="allow" if row.allow_on_time_out else "deny",
            decided_at="" if is_pending else _at(row.decided_ns), by=row.by, reason=row.reason,
        )  # fmt: skip


def _question(row: Row) -> str:
    about = f" ({row.target})" if row.target else ""
    part = f", for {row.source}" if row.source else ""
    shown = row.preview if len(row.preview) <= ASKED_CHARS else f"{row.preview[:ASKED_CHARS]}…"
    return f"Approve {row.name}{about}{part}?\n\n{shown}"


def _at(at_ns: int) -> str:
    return rfc3339(at_ns // NS * NS)
