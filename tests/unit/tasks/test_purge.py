"""Tasks that ended are kept for a day, and the latest of them whatever the clock says."""

from __future__ import annotations

from pathlib import Path

import apsw

from services.runtime.database import Database, Kind
from services.tasks import store
from services.tasks.owners import USER
from services.tasks.store import LATEST, Unfinished

DAY_NS = 86_400 * 10**9


def fill(db: apsw.Connection, count: int) -> None:
    """Store tasks that have ended, and whose end is in the event log."""
    for n in range(count):
        store.insert(db, Unfinished(f"t{n}", USER, "index", "", False))
        store.end(db, f"t{n}", "completed", result=b"{}")
    db.execute("UPDATE task SET told=1")


def kept_after(folder: Path, kept_ns: int) -> int:
    database = Database(folder / "tasks.db", store.SCHEMA, kind=Kind.SOURCE)
    try:
        with database.transaction() as db:
            fill(db, LATEST + 20)
            store.purge(db, kept_ns)
            return int(db.execute("SELECT count(*) FROM task").get)
    finally:
        database.close()


def test_a_clock_that_jumps_does_not_remove_the_latest_tasks(tmp_path: Path) -> None:
    assert kept_after(tmp_path, -DAY_NS) == LATEST


def test_tasks_are_kept_for_their_time(tmp_path: Path) -> None:
    assert kept_after(tmp_path, DAY_NS) == LATEST + 20
