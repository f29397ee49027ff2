"""The database of tasks."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import apsw
import msgspec

from proto.errors import Failure, OperationError
from proto.ops.tasks import Task, TaskFailure, TaskList
from proto.vocabulary import current_name
from services.runtime.database import Schema
from services.shared.times import rfc3339
from services.tasks.manifest import SCHEMA_VERSION
from services.tasks.owners import Owner
from services.tasks.ownership import attribute


def _own_by_id(db: apsw.Connection) -> None:
    for table in ("task", "timer"):
        db.execute(f"ALTER TABLE {table} ADD COLUMN name TEXT NOT NULL DEFAULT ''")
        db.execute(f"ALTER TABLE {table} ADD COLUMN limits TEXT NOT NULL DEFAULT ''")
    db.execute("DROP INDEX task_owner")
    db.execute("CREATE INDEX task_owner ON task(owner, limits, number)")
    attribute(db)


SCHEMA = Schema(
    SCHEMA_VERSION,
    """
    CREATE TABLE task(
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        operation TEXT NOT NULL,
        mandate TEXT NOT NULL,
        is_mounted INTEGER NOT NULL,
        state TEXT NOT NULL,
        started_ns INTEGER NOT NULL,
        ended_ns INTEGER,
        result BLOB,
        failure BLOB,
        told INTEGER NOT NULL DEFAULT 0,
        bytes INTEGER NOT NULL DEFAULT 0,
        name TEXT NOT NULL DEFAULT '',
        limits TEXT NOT NULL DEFAULT ''
    );
    CREATE INDEX task_owner ON task(owner, limits, number);
    CREATE INDEX task_ended ON task(ended_ns);
    CREATE INDEX task_untold ON task(number) WHERE told=0 AND state<>'working';
    CREATE INDEX task_unfinished ON task(owner, bytes) WHERE state='working';
    CREATE TABLE timer(
        id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        operation TEXT NOT NULL,
        mandate TEXT NOT NULL,
        is_mounted INTEGER NOT NULL,
        cron TEXT NOT NULL,
        time_zone TEXT NOT NULL,
        missed TEXT NOT NULL,
        next_s INTEGER NOT NULL,
        bytes INTEGER NOT NULL DEFAULT 0,
        name TEXT NOT NULL DEFAULT '',
        limits TEXT NOT NULL DEFAULT ''
    );
    CREATE INDEX timer_next ON timer(next_s);
    CREATE INDEX timer_owner ON timer(owner, bytes);
    """,
    migrations={
        1: """
        ALTER TABLE task ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE timer ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
        UPDATE task SET bytes=length(mandate) WHERE state='working';
        UPDATE timer SET bytes=length(mandate);
        CREATE INDEX task_unfinished ON task(owner, bytes) WHERE state='working';
        CREATE INDEX timer_owner ON timer(owner, bytes);
        """,
        2: _own_by_id,
    },
)
"""`result` is JSON, `failure` an encoded `Failure`; `told` says whether the event log has the task's end.
`is_mounted`: the call goes to a mounted server, and its result is that server's reply. `bytes` is
the size of the mandate, in the indexes that add up what an owner has stored. `owner`, `name` and `limits` are those
of an `Owner`."""

LATEST = 100
"""How many tasks are kept whatever the clock says."""

_COLUMNS = "id, operation, state, started_ns, ended_ns, result, failure"


class Unfinished(NamedTuple):
    """A task to be carried out."""

    id: str
    owner: Owner
    operation: str
    mandate: str
    is_mounted: bool
    is_resumed: bool = False
    """Whether an earlier process has begun it."""


class Usage(NamedTuple):
    """What an owner has stored: unfinished tasks and timers, and the bytes of their calls."""

    tasks: int
    task_bytes: int
    timers: int
    timer_bytes: int


USAGE_QUERY = """
    SELECT * FROM (SELECT count(*), coalesce(sum(bytes), 0) FROM task WHERE owner=?1 AND state='working'),
                  (SELECT count(*), coalesce(sum(bytes), 0) FROM timer WHERE owner=?1)
"""


def usage(db: apsw.Connection, owner: Owner) -> Usage:
    """Return what an owner has stored, from the indexes alone."""
    row: Any = db.execute(USAGE_QUERY, (owner.id,)).fetchone()
    return Usage(*row)


def insert(db: apsw.Connection, task: Unfinished) -> Task:
    """Store a new task and return it."""
    db.execute(
        "INSERT INTO task(id, owner, name, limits, operation, mandate, bytes, is_mounted, state, started_ns) "
        "VALUES(?,?,?,?,?,?,?,?,'working',?)",
        (task.id, *task.owner, task.operation, task.mandate, len(task.mandate), task.is_mounted, time.time_ns()),
    )
    return find(db, task.id, task.owner)


def find(db: apsw.Connection, id_: str, owner: Owner) -> Task:
    """Return a task. Raises OperationError if this owner has no such task that it may see."""
    row: Any = db.execute(f"SELECT limits, {_COLUMNS} FROM task WHERE id=? AND owner=?", (id_, owner.id)).fetchone()
    if row is None or not owner.may_see(row[0]):
        raise OperationError(f"there is no task {id_[:100]!r}; tasks_list lists yours of the last 24 hours", field="id")
    return _task(*row[1:])


def select(db: apsw.Connection, owner: Owner, state: str | None, limit: int) -> TaskList:
    """Return the latest tasks of an owner that it may see, without results."""
    every = db.execute("SELECT DISTINCT limits FROM task WHERE owner=?", (owner.id,))
    visible = msgspec.json.encode([limits for (limits,) in every if owner.may_see(limits)]).decode()
    where = "owner=?1 AND (?2 IS NULL OR state=?2) AND limits IN (SELECT value FROM json_each(?3))"
    bindings = (owner.id, state, visible)
    columns = _COLUMNS.replace("result", "NULL")
    rows = db.execute(f"SELECT {columns} FROM task WHERE {where} ORDER BY number DESC LIMIT ?4", (*bindings, limit))
    tasks = [_task(*row) for row in rows]
    return TaskList(tasks=tasks, total=int(db.execute(f"SELECT count(*) FROM task WHERE {where}", bindings).get))


def unfinished(db: apsw.Connection) -> list[Unfinished]:
    """Return all tasks that have not ended."""
    return [
        Unfinished(id_, Owner(*owner), current_name(operation), mandate, bool(is_mounted), is_resumed=True)
        for id_, operation, mandate, is_mounted, *owner in db.execute(
            "SELECT id, operation, mandate, is_mounted, owner, name, limits FROM task "
            "WHERE state='working' ORDER BY number"
        )
    ]


def end(
    db: apsw.Connection, id_: str, state: str, *, result: bytes | None = None, failure: Failure | None = None
) -> None:
    """Store the end of a task, unless it has ended already."""
    encoded = None if failure is None else msgspec.json.encode(failure)
    db.execute(
        "UPDATE task SET state=?, ended_ns=?, result=?, failure=?, mandate='' WHERE id=? AND state='working'",
        (state, time.time_ns(), result, encoded, id_),
    )


def delete(db: apsw.Connection, id_: str) -> None:
    """Remove a task that nobody knows."""
    db.execute("DELETE FROM task WHERE id=?", (id_,))


class Ended(NamedTuple):
    """A task whose end is not in the event log yet."""

    id: str
    owner_name: str
    operation: str
    state: str
    ended_ns: int


def unreported(db: apsw.Connection) -> list[Ended]:
    """Return ended tasks that the event log does not have."""
    query = "SELECT id, name, operation, state, ended_ns FROM task WHERE told=0 AND state<>'working' LIMIT 100"
    return [Ended(*row) for row in db.execute(query)]


def purge(db: apsw.Connection, kept_ns: int) -> None:
    """Remove the tasks that ended longer than `kept_ns` ago. The latest stay: a clock that jumps would remove them."""
    db.execute(
        "DELETE FROM task WHERE ended_ns < ? AND told AND number <= (SELECT max(number) FROM task) - ?",
        (time.time_ns() - kept_ns, LATEST),
    )


def _task(
    id_: str, operation: str, state: Any, started_ns: int, ended_ns: int | None, result: bytes | None,
    failure: bytes | None,
) -> Task:  # fmt: skip
    failed = None
    if failure is not None:
        found = msgspec.json.decode(failure, type=Failure)
        failed = TaskFailure(
            kind=found.kind.value, message=found.message, executed=found.executed, field=found.field or "",
            code=found.code, details=found.data,
        )  # fmt: skip
    return Task(
        id=id_, operation=current_name(operation), state=state, started=rfc3339(started_ns),
        ended="" if ended_ns is None else rfc3339(ended_ns),
        result=None if result is None else msgspec.json.decode(result), failure=failed,
    )  # fmt: skip
