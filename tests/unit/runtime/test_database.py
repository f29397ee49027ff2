"""The storage contract that every service's database keeps."""

from __future__ import annotations

import threading
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from kernel.cli.care import doctor
from proto import grants
from proto.errors import Executed, OperationError, Unavailable
from proto.grants import Grant
from proto.ops.kernel import ServiceStatus
from proto.wire.frames import DAMAGE
from services.runtime.database import Database, Kind, Schema
from services.runtime.database.copies import damaged_files
from services.runtime.database.file import KEPT_ASIDE
from services.runtime.database.schema import UnknownVersion
from services.runtime.storage import Damaged, DiskFull
from tests.unit.runtime.faults import damage_page, disk, files_in, page_count, pages_of

SCHEMA = Schema(
    version=2,
    tables="CREATE TABLE item(name TEXT PRIMARY KEY, value TEXT NOT NULL DEFAULT '') WITHOUT ROWID",
    migrations={1: "ALTER TABLE item ADD COLUMN value TEXT NOT NULL DEFAULT ''"},
    begin=lambda db: db.execute("INSERT INTO item(name) VALUES('first')"),
)


def put(db: apsw.Connection, name: str, value: str = "") -> str:
    db.execute("INSERT INTO item VALUES(?, ?)", (name, value))
    return name


def names(db: apsw.Connection) -> list[str]:
    return [str(name) for (name,) in db.execute("SELECT name FROM item ORDER BY name")]


def opened(path: Path, kind: Kind = Kind.SOURCE, schema: Schema = SCHEMA) -> Database:
    return Database(path / "t.db", schema, kind=kind)


async def test_a_write_that_returned_is_on_disk_after_the_process_ends(tmp_path: Path) -> None:
    database = opened(tmp_path)
    assert await database.write(lambda db: put(db, "a")) == "a"
    # Not closed: another process sees what is on disk.
    other = apsw.Connection(str(tmp_path / "t.db"))
    assert names(other) == ["a", "first"]
    database.close()


async def test_an_exception_undoes_its_own_change_and_no_other(tmp_path: Path) -> None:
    database = opened(tmp_path)
    first, hold = threading.Event(), threading.Event()
    results: dict[str, object] = {}

    def slow(db: apsw.Connection) -> None:
        first.set()
        hold.wait(10)

    def fails(db: apsw.Connection) -> None:
        put(db, "half")
        raise ValueError("no")

    async def run(name: str, change: object) -> None:
        try:
            results[name] = await database.write(change)  # type: ignore[arg-type]  # of several types
        except ValueError as error:
            results[name] = error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "slow", slow)
        await trio.to_thread.run_sync(first.wait)
        before = database.version
        for name in ("a", "b"):
            nursery.start_soon(run, name, lambda db, name=name: put(db, name))
        nursery.start_soon(run, "fails", fails)
        await trio.testing.wait_all_tasks_blocked()
        hold.set()
    assert isinstance(results["fails"], ValueError)
    assert await database.read(names) == ["a", "b", "first"]
    assert database.version == before + 2, "those that waited shared a transaction"
    database.close()


async def test_changes_that_share_a_transaction_are_each_their_own_clients(tmp_path: Path) -> None:
    database = opened(tmp_path)
    begun, hold = threading.Event(), threading.Event()
    seen: dict[str, str] = {}

    def slow(db: apsw.Connection) -> None:
        begun.set()
        hold.wait(10)

    async def run(name: str) -> None:
        grants.current.set(Grant(name))

        def change(db: apsw.Connection) -> None:
            grant = grants.current.get()
            seen[name] = "" if grant is None else grant.name

        await database.write(change)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.write, slow)
        await trio.to_thread.run_sync(begun.wait)
        for name in ("ada", "bob"):
            nursery.start_soon(run, name)
        await trio.testing.wait_all_tasks_blocked()
        hold.set()
    assert seen == {"ada": "ada", "bob": "bob"}
    database.close()


async def test_a_queued_change_is_made_even_if_its_task_is_cancelled(tmp_path: Path) -> None:
    database = opened(tmp_path)
    with trio.CancelScope() as scope:

        def change(db: apsw.Connection) -> None:
            trio.from_thread.run_sync(scope.cancel)
            put(db, "a")

        await database.write(change)
    assert await database.read(names) == ["a", "first"]
    database.close()


async def test_after_commit_hooks_run_before_the_next_transaction(tmp_path: Path) -> None:
    database = opened(tmp_path)
    seen: list[object] = []
    await database.write(lambda db: put(db, "a"), lambda name: seen.append((name, database.version)))
    assert seen == [("a", 1)]
    database.close()


async def test_a_cancelled_read_ends_its_statement(tmp_path: Path) -> None:
    database = opened(tmp_path)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with trio.move_on_after(0.05) as scope:
        await database.read(lambda db: db.execute(endless).fetchall())
    assert scope.cancelled_caught
    database.close()


@pytest.mark.parametrize("statement", [1, 2, 3])
async def test_a_full_disk_at_any_statement_changes_nothing_and_passes(tmp_path: Path, statement: int) -> None:
    with disk() as one:
        database = opened(tmp_path)

        def change(db: apsw.Connection) -> None:
            put(db, "a")
            put(db, "b")

        one.fill(statement)
        with pytest.raises(DiskFull) as caught:
            await database.write(change)
        assert one.struck
        assert caught.value.failure.executed is Executed.NO
        assert "nothing was done" in str(caught.value)
        assert caught.value.failure.retry_after_ms
        assert await database.read(names) == ["first"], "reads go on"
        one.room()
        await database.write(change)
        assert await database.read(names) == ["a", "b", "first"]
        database.close()


async def test_the_file_systems_own_limit_is_a_full_disk(tmp_path: Path) -> None:
    database = opened(tmp_path)
    await database.exclusive(lambda db: db.execute("PRAGMA max_page_count=4").fetchall())
    with pytest.raises(DiskFull):
        await database.write(lambda db: put(db, "large", "x" * 100_000))
    await database.exclusive(lambda db: db.execute("PRAGMA max_page_count=4294967294").fetchall())
    await database.write(lambda db: put(db, "large", "x" * 100_000))
    assert await database.read(names) == ["first", "large"]
    database.close()


async def test_a_disk_that_is_full_at_the_start_does_not_keep_the_service_from_starting(tmp_path: Path) -> None:
    with disk() as one:
        one.fill()
        database = opened(tmp_path)
        with pytest.raises(DiskFull):
            await database.write(lambda db: put(db, "a"))
        one.room()
        await database.write(lambda db: put(db, "a"))
        assert await database.read(names) == ["a", "first"]
        database.close()


async def fill(path: Path, kind: Kind) -> None:
    database = opened(path, kind)
    await database.write(lambda db: [put(db, f"{i:04}", "x" * 200) for i in range(400)])
    database.close()


async def test_a_damaged_page_makes_a_derived_database_start_again(tmp_path: Path) -> None:
    await fill(tmp_path, Kind.DERIVED)
    path = tmp_path / "t.db"
    damage_page(path, pages_of(path, "item")[5])
    told: list[str] = []
    database = Database(path, SCHEMA, kind=Kind.DERIVED, on_rebuilt=lambda: told.append(database.rebuilt))
    assert not database.rebuilt
    with pytest.raises(Unavailable):
        await database.read(names)
    assert told == [database.rebuilt]
    assert told[0]
    assert await database.read(names) == ["first"]
    await database.write(lambda db: put(db, "a"))
    assert len(files_in(tmp_path, "t.db.damaged-*")) == 1
    database.close()


async def test_only_the_newest_set_aside_files_are_kept_even_if_the_clock_is_set_back(tmp_path: Path) -> None:
    future = tmp_path / f"t.db.damaged-{2**62}"
    future.write_text("of a clock that was ahead")
    for n in range(KEPT_ASIDE + 1):
        (tmp_path / "t.db").write_bytes(b"no database at all %d" % n * 1000)
        opened(tmp_path, Kind.DERIVED).close()
    aside = damaged_files(tmp_path / "t.db")
    assert future not in aside
    assert [path.read_bytes()[:20] for path in aside] == [b"no database at all %d" % n for n in (1, 2, 3)]


async def test_a_damaged_page_of_a_source_database_leaves_the_others_readable(tmp_path: Path) -> None:
    await fill(tmp_path, Kind.SOURCE)
    path = tmp_path / "t.db"
    damage_page(path, pages_of(path, "item")[-1])
    told: list[str] = []
    database = Database(path, SCHEMA, kind=Kind.SOURCE, on_damage=told.append)
    one = "SELECT name FROM item WHERE name = ?"
    assert await database.read(lambda db: db.execute(one, ("0000",)).fetchall()) == [("0000",)]
    with pytest.raises(Damaged) as caught:
        await database.read(names)
    assert str(path) in str(caught.value)
    assert ".recover" in str(caught.value)
    assert told == [database.damage]
    served = [ServiceStatus(name="t", state="ready", info={DAMAGE: told[0]}), ServiceStatus(name="u", state="ready")]
    assert [(found.what, found.verdict, found.found) for found in doctor.damages(served)] == [
        ("t", "bad", database.damage)
    ]
    assert await database.read(lambda db: db.execute(one, ("0000",)).fetchall()) == [("0000",)]
    assert not files_in(tmp_path, "t.db.damaged-*")
    database.close()


@pytest.mark.parametrize("kind", list(Kind))
async def test_a_file_that_is_no_database_does_not_keep_the_service_from_starting(tmp_path: Path, kind: Kind) -> None:
    (tmp_path / "t.db").write_bytes(b"no database at all" * 1000)
    database = opened(tmp_path, kind)
    if kind is Kind.DERIVED:
        assert database.rebuilt
        assert await database.read(names) == ["first"]
    else:
        for _ in range(2):
            with pytest.raises(Damaged):
                await database.write(lambda db: put(db, "a"))
        assert database.damage
    database.close()


async def test_damage_in_an_attached_database_is_not_blamed_on_the_reading_one(tmp_path: Path) -> None:
    await fill(tmp_path, Kind.DERIVED)
    path = tmp_path / "t.db"
    damage_page(path, pages_of(path, "item")[3])
    index = opened(tmp_path, Kind.DERIVED)
    source = Database(tmp_path / "source.db", SCHEMA, kind=Kind.SOURCE, attached={"idx": index})
    with pytest.raises(Unavailable):
        await source.read(lambda db: db.execute("SELECT * FROM idx.item").fetchall())
    assert index.rebuilt
    assert not source.damage
    assert await source.read(lambda db: db.execute("SELECT name FROM idx.item").fetchall()) == [("first",)]
    source.close()
    index.close()


async def test_an_older_file_is_migrated_and_a_newer_one_refused(tmp_path: Path) -> None:
    old = Schema(version=1, tables="CREATE TABLE item(name TEXT PRIMARY KEY) WITHOUT ROWID")
    database = opened(tmp_path, schema=old)
    await database.write(lambda db: db.execute("INSERT INTO item VALUES('kept')"))
    database.close()
    database = opened(tmp_path)
    assert await database.read(lambda db: db.execute("SELECT * FROM item").fetchall()) == [("kept", "")]
    database.close()
    with pytest.raises(UnknownVersion, match="schema version 2"):
        opened(tmp_path, schema=old)
    database = opened(tmp_path, Kind.DERIVED, old)
    assert "schema version 2" in database.rebuilt
    database.close()


async def test_a_kill_during_the_migration_leaves_the_older_file(tmp_path: Path) -> None:
    old = Schema(version=1, tables="CREATE TABLE item(name TEXT PRIMARY KEY) WITHOUT ROWID")
    opened(tmp_path, schema=old).close()

    def dies(db: apsw.Connection) -> None:
        db.execute("ALTER TABLE item ADD COLUMN value TEXT NOT NULL DEFAULT ''")
        raise SystemExit

    with pytest.raises(SystemExit):
        opened(tmp_path, schema=Schema(version=2, tables="", migrations={1: dies}))
    database = opened(tmp_path)
    assert await database.read(lambda db: db.execute("SELECT * FROM item").fetchall()) == []
    database.close()


async def test_a_checkpoint_says_whether_a_reader_kept_the_log(tmp_path: Path) -> None:
    database = opened(tmp_path)
    await database.write(lambda db: put(db, "a"))
    with database.snapshot() as reader:
        names(reader)
        await database.write(lambda db: put(db, "b"))
        assert not await database.checkpoint()
    assert await database.checkpoint()
    assert not (tmp_path / "t.db-wal").stat().st_size
    await database.give_back()
    assert database.size_bytes() == page_count(tmp_path / "t.db") * 4096
    database.close()


async def test_a_private_file_is_accessible_to_its_owner_only(tmp_path: Path) -> None:
    database = Database(tmp_path / "t.db", SCHEMA, kind=Kind.SOURCE)
    await database.write(lambda db: put(db, "a"))
    assert {file.stat().st_mode & 0o777 for file in files_in(tmp_path)} == {0o600}
    database.close()


async def test_constraint_errors_are_passed_through(tmp_path: Path) -> None:
    database = opened(tmp_path)
    with pytest.raises(apsw.ConstraintError):
        await database.write(lambda db: put(db, "first"))

    def refuses(db: apsw.Connection) -> None:
        raise OperationError("not this one")

    with pytest.raises(OperationError, match="not this one"):
        await database.write(refuses)
    database.close()


async def test_readers_that_open_while_the_file_is_put_aside_find_the_old_or_the_new_one(tmp_path: Path) -> None:
    database = opened(tmp_path, Kind.DERIVED)
    found: list[object] = []

    async def read() -> None:
        for _ in range(20):
            try:
                found.append(await database.read(names))
            except Unavailable:
                found.append(None)

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(read)
        for _ in range(20):
            await trio.to_thread.run_sync(lambda: database.begin_again("for a test", database.generation))
    assert all(each in (None, ["first"]) for each in found)
    database.close()
