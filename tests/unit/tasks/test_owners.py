"""Tasks and timers belong to a token, not to its name, and their results only to who may do as much."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from proto.errors import Forbidden, OperationError
from proto.grants import Grant, Token
from proto.later import NOT_VALID
from proto.ops.tasks import (
    Schedule,
    ScheduleCancel,
    ScheduleList,
    TaskAdopt,
    TaskCancel,
    TaskGet,
    TaskListParams,
    TaskWait,
)
from proto.wire import frames
from services.runtime.database import Database, Kind
from services.runtime.dispatch import ClientRequests
from services.tasks import store
from services.tasks.limits import Limits
from services.tasks.owners import USER, of_grant
from services.tasks.timers import Timers
from tests.unit.tasks.rig import Bench, PlayedContext, tasks_with

FORMER = Grant("ci", id="0000")
AGAIN = Grant("ci", id="1111")
DAILY = Schedule(operation="mcp_echo", cron="0 3 * * *")


async def at_once(mandate: str, client: ClientRequests) -> None:
    await trio.lowlevel.checkpoint()


async def ended(bench: Bench, owner: Grant) -> str:
    id_ = await bench.start("mcp_echo", owner)
    await bench.tasks.wait(TaskWait(id=id_), PlayedContext(owner))
    return id_


async def sees(bench: Bench, id_: str, owner: Grant) -> bool:
    """Whether this client finds the task, in every way alike."""
    context = PlayedContext(owner)
    listed = id_ in [each.id for each in (await bench.tasks.listing(TaskListParams(), context)).tasks]
    for handler, params in ((bench.tasks.get, TaskGet(id=id_)), (bench.tasks.cancel, TaskCancel(id=id_))):
        if listed:
            assert (await handler(params, context)).id == id_  # type: ignore[arg-type]  # each takes its own parameters
        else:
            with pytest.raises(OperationError, match="there is no task"):
                await handler(params, context)  # type: ignore[arg-type]  # each takes its own parameters
    return listed


def timers_of(bench: Bench, now: float = 1_000_000_000.0) -> Timers:
    return Timers(bench.database, bench.tasks, Limits(bench.settings), lambda: now)


async def test_a_new_token_with_a_revoked_name_does_not_inherit_tasks_and_timers(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with tasks_with(tmp_path, at_once) as bench:
        id_, timers = await ended(bench, FORMER), timers_of(bench)
        timer = await timers.schedule(DAILY, PlayedContext(FORMER))
        assert await sees(bench, id_, FORMER)
        assert not await sees(bench, id_, AGAIN)
        assert (await timers.listing(ScheduleList(), PlayedContext(AGAIN))).timers == []
        with pytest.raises(OperationError, match="there is no timer"):
            await timers.cancel(ScheduleCancel(id=timer.id), PlayedContext(AGAIN))
        assert (await timers.listing(ScheduleList(), PlayedContext(FORMER))).timers == [timer]


async def test_an_adopted_call_belongs_to_its_clients_token(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tasks_with(tmp_path, at_once) as bench:
        monkeypatch.setattr(bench.tasks, "begin", lambda task: None)
        params = TaskAdopt(operation="files_delete", call="name", grant=FORMER)
        id_ = (await bench.tasks.adopt(params, PlayedContext())).id
        assert [(await bench.get(id_, FORMER)).id] == [id_]
        assert not await sees(bench, id_, AGAIN)


@pytest.mark.parametrize(
    ("made", "asks", "may"),
    [
        (Grant("s", id="i"), Grant("s", id="i"), True),
        (Grant("s", id="i"), Grant("s", read_only=True, id="i"), False),
        (Grant("s", id="i"), Grant("s", ("core",), id="i"), False),
        (Grant("s", id="i"), Grant("s", (), ("/a",), id="i"), False),
        (Grant("s", read_only=True, id="i"), Grant("s", id="i"), True),
        (Grant("s", ("core",), id="i"), Grant("s", ("files", "core"), id="i"), True),
        (Grant("s", ("files", "core"), id="i"), Grant("s", ("core",), id="i"), False),
        (Grant("s", (), ("/a/b",), id="i"), Grant("s", (), ("/a",), id="i"), True),
        (Grant("s", (), ("/ab",), id="i"), Grant("s", (), ("/a",), id="i"), False),
        (Grant("s", (), ("/a", "/b"), id="i"), Grant("s", (), ("/a",), id="i"), False),
    ],
)
async def test_a_result_is_seen_only_with_limits_that_include_those_of_its_call(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, made: Grant, asks: Grant, may: bool
) -> None:
    async with tasks_with(tmp_path, at_once) as bench:
        id_, timers = await ended(bench, made), timers_of(bench)
        timer = await timers.schedule(DAILY, PlayedContext(made))
        assert await sees(bench, id_, asks) == may
        assert (await timers.listing(ScheduleList(), PlayedContext(asks))).timers == ([timer] if may else [])


async def test_a_timer_ends_with_its_token(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async def revoked(mandate: str, client: ClientRequests) -> None:
        raise Forbidden("the token ci is not valid now", field=NOT_VALID)

    async with tasks_with(tmp_path, revoked) as bench:
        now = [1_000_000_000.0]
        timers = Timers(bench.database, bench.tasks, Limits(bench.settings), lambda: now[0])
        await timers.schedule(DAILY, PlayedContext(FORMER))
        now[0] += 24 * 3600
        (task,) = await bench.database.write(timers._take)
        bench.tasks.begin(task)
        await bench.tasks.wait(TaskWait(id=task.id), PlayedContext(FORMER))
        assert (await timers.listing(ScheduleList(), PlayedContext(FORMER))).timers == []


VERSION_2 = """
CREATE TABLE task(
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, operation TEXT NOT NULL,
    mandate TEXT NOT NULL, is_mounted INTEGER NOT NULL, state TEXT NOT NULL, started_ns INTEGER NOT NULL,
    ended_ns INTEGER, result BLOB, failure BLOB, told INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX task_owner ON task(owner, number);
CREATE INDEX task_ended ON task(ended_ns);
CREATE INDEX task_untold ON task(number) WHERE told=0 AND state<>'working';
CREATE INDEX task_unfinished ON task(owner, bytes) WHERE state='working';
CREATE TABLE timer(
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, operation TEXT NOT NULL, mandate TEXT NOT NULL,
    is_mounted INTEGER NOT NULL, cron TEXT NOT NULL, time_zone TEXT NOT NULL, missed TEXT NOT NULL,
    next_s INTEGER NOT NULL, bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX timer_next ON timer(next_s);
CREATE INDEX timer_owner ON timer(owner, bytes);
PRAGMA user_version=2;
"""


def mandate(grant: list[object] | None, token: str) -> str:
    """As version 2 had it sealed."""
    body = frames.encode(["task x", "ci", grant, token, {"operation": "mcp_echo", "arguments": {}}, ""])
    return base64.b64encode(bytes(32) + body).decode()


def test_tasks_of_earlier_versions_belong_to_the_token_in_their_mandate(tmp_path: Path) -> None:
    file, sha256 = tmp_path / "tasks.db", hashlib.sha256(b"secret").hexdigest()
    by_token = mandate(["ci", ["core"], [], True], sha256)
    by_issuer = mandate(["oauth:ann", [], [], False], "")
    with contextlib.closing(apsw.Connection(str(file))) as db:
        db.execute(VERSION_2).fetchall()
        for id_, owner, call, state in (
            ("u", "", mandate(None, ""), "working"), ("t", "ci", by_token, "working"), ("e", "ci", "", "completed"),
            ("a", "ci", "call:name", "working"), ("o", "oauth:ann", by_issuer, "working"),
        ):  # fmt: skip
            db.execute(
                "INSERT INTO task(id, owner, operation, mandate, is_mounted, state, started_ns) "
                "VALUES(?,?,'mcp_echo',?,0,?,1)", (id_, owner, call, state),
            )  # fmt: skip
        for id_, owner, call in (("u", "", mandate(None, "")), ("t", "ci", by_token), ("o", "oauth:ann", by_issuer)):
            db.execute("INSERT INTO timer VALUES(?,?,'mcp_echo',?,0,'0 3 * * *','UTC','run',9,0)", (id_, owner, call))
    file.chmod(0o600)
    token = Token(name="ci", sha256=sha256, created=0.0, surfaces=("core",), read_only=True)
    same, again = of_grant(token.grant), of_grant(Grant("ci", ("core",), (), True, "another"))
    with contextlib.closing(Database(file, store.SCHEMA, kind=Kind.SOURCE)) as database, database.snapshot() as db:
        assert [each.id for each in store.select(db, USER, None, 9).tasks] == ["u"]
        assert [each.id for each in store.select(db, same, None, 9).tasks] == ["t"]
        assert store.select(db, again, None, 9).total == 0
        assert store.select(db, of_grant(Grant("oauth:ann", id="oauth:x")), None, 9).total == 0
        assert {each.id for each in store.unfinished(db)} == {"u", "t", "a", "o"}
        # Nobody could cancel the timer of the issuer's client.
        rows = db.execute("SELECT id, owner, name FROM timer ORDER BY id").fetchall()
        assert rows == [("t", token.id, "ci"), ("u", "", "")]
