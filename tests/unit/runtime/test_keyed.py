"""One effect and one answer for each idempotency key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from proto.errors import InvalidParams, MaybeExecuted, OperationError
from proto.keys import KEPT_S
from proto.wire import frames
from services.runtime import keyed
from services.runtime.database import Database, Kind, Schema
from services.runtime.key_store import KeyStore
from services.runtime.rewrite import rewrite
from services.runtime.roots import Roots

SCHEMA = Schema(1, "CREATE TABLE line(text TEXT);")

Work = Callable[[], Awaitable[bytes]]


class Bench:
    """A service with a table of lines, in one process."""

    def __init__(self, folder: Path, keys: KeyStore, database: Database) -> None:
        self.folder = folder
        self.keys = keys
        self.database = database
        self.runs = 0

    async def add(self, *, shape: bool = True, fails: bool = False, waits: trio.Event | None = None) -> bytes:
        self.runs += 1
        if waits is not None:
            await waits.wait()
        if fails:
            raise OperationError("no")

        def change(db: apsw.Connection) -> str:
            db.execute("INSERT INTO line VALUES('x')")
            return f"line {db.last_insert_rowid()}"

        return frames.pack_body(await (self.database.answer(change) if shape else self.database.write(change)))

    async def call(self, key: str, identity: bytes = b"a", work: Work | None = None, *, resumes: bool = False) -> bytes:
        return await self.keys.serve(key, "add", identity, work or self.add, resumes=resumes)

    async def lines(self) -> int:
        return int(await self.database.read(lambda db: db.execute("SELECT count(*) FROM line").get))


@asynccontextmanager
async def process(folder: Path) -> AsyncIterator[Bench]:
    database = Database(folder / "x.db", SCHEMA, kind=Kind.SOURCE, keeps_keys=True)
    async with trio.open_nursery() as nursery:
        keys = KeyStore(folder, Roots([folder]), nursery)
        keys.keep_in(database)
        await keys.recover()
        yield Bench(folder, keys, database)
    database.close()


async def test_a_repeated_call_gets_the_answer_of_the_first_also_from_the_next_process(tmp_path: Path) -> None:
    async with process(tmp_path) as bench:
        first = await bench.call("k")
        assert await bench.call("k") == first
        assert await bench.call("other") != first
    async with process(tmp_path) as bench:
        assert await bench.call("k") == first
        assert (bench.runs, await bench.lines()) == (0, 2)


async def test_a_key_is_refused_for_other_parameters_also_while_the_first_call_runs(tmp_path: Path) -> None:
    async with process(tmp_path) as bench, trio.open_nursery() as nursery:
        goes_on = trio.Event()
        nursery.start_soon(bench.call, "k", b"a", lambda: bench.add(waits=goes_on))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(InvalidParams, match="other parameters"):
            await bench.call("k", b"b")
        goes_on.set()
        await bench.call("k")
        with pytest.raises(InvalidParams, match="other parameters"):
            await bench.call("k", b"b")
        assert await bench.lines() == 1


async def test_a_hundred_copies_at_once_run_once(tmp_path: Path) -> None:
    answers = set()
    async with process(tmp_path) as bench:

        async def copy() -> None:
            answers.add(await bench.call("k"))

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(copy)
        assert (bench.runs, await bench.lines(), len(answers)) == (1, 1, 1)


async def test_if_the_first_is_cancelled_one_that_waits_takes_over(tmp_path: Path) -> None:
    async with process(tmp_path) as bench, trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def first() -> None:
            with scope:
                await bench.call("k", work=lambda: bench.add(waits=trio.Event()))

        nursery.start_soon(first)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(bench.call, "k")
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        assert await bench.call("k")
        assert await bench.lines() == 1


async def test_a_failure_that_did_nothing_leaves_the_key_unused(tmp_path: Path) -> None:
    async with process(tmp_path) as bench:
        with pytest.raises(OperationError):
            await bench.call("k", work=lambda: bench.add(fails=True))
        assert await bench.call("k", b"b")
        assert await bench.lines() == 1


async def test_an_effect_whose_answer_was_lost_is_not_repeated_unless_it_may_be(tmp_path: Path) -> None:
    async def dies() -> bytes:
        await bench.add(shape=False)
        raise KeyboardInterrupt

    for key in ("k", "resumed"):
        with pytest.raises(BaseExceptionGroup):
            async with process(tmp_path) as bench:
                await bench.call(key, work=dies)
    async with process(tmp_path) as bench:
        with pytest.raises(MaybeExecuted):
            await bench.call("k")
        assert await bench.lines() == 2
        assert await bench.call("resumed", resumes=True)
        assert await bench.lines() == 3


async def test_after_a_day_the_key_is_free_again(tmp_path: Path) -> None:
    async with process(tmp_path) as bench:
        first = await bench.call("k")
        past = (KEPT_S + 1) * 10**9
        await bench.database.write(lambda db: db.execute("UPDATE keyed_call SET at_ns = at_ns - ?", (past,)).fetchall())
        assert await bench.call("k") != first
        for n in range(2 * keyed.PURGE_EVERY):
            await bench.call(f"k{n}")
        old = "SELECT count(*) FROM keyed_call WHERE at_ns < (SELECT max(at_ns) FROM keyed_call) - 3600000000000"
        assert await bench.database.read(lambda db: db.execute(old).get) == 0


@pytest.mark.parametrize("dies", ["before", "after"])
async def test_the_content_of_a_file_says_whether_a_call_that_was_interrupted_changed_it(
    tmp_path: Path, dies: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one")
    times = 0

    def edit(roots: Roots) -> bytes:
        nonlocal times

        def change(data: bytes) -> bytes:
            return data + b"!"

        times += 1
        done = rewrite(str(file), roots, change, answer=lambda done: len(done.after))
        return frames.pack_body(len(done.after))

    async def work() -> bytes:
        return await trio.to_thread.run_sync(edit, Roots([tmp_path]))

    async def interrupted() -> bytes:
        call = keyed.serving()
        assert call is not None
        with bench.database.transaction() as db:
            keyed.intend(db, call, str(file), b"one", b"one!", 4)
        if dies == "after":
            file.write_bytes(b"one!")
        # What this process would store when it ends is what a kill would prevent.
        call.file = None
        raise KeyboardInterrupt

    with pytest.raises(BaseExceptionGroup):
        async with process(tmp_path) as bench:
            await bench.call("k", work=interrupted)
    async with process(tmp_path) as bench:
        assert await bench.call("k", work=work) == frames.pack_body(4)
        assert (file.read_bytes(), times) == (b"one!", 1 if dies == "before" else 0)
        assert await bench.call("k", work=work) == frames.pack_body(4)
    async with process(tmp_path) as bench:
        assert await bench.call("k", work=work) == frames.pack_body(4)
        assert file.read_bytes() == b"one!"


async def test_a_repeated_call_gets_the_answer_that_was_given_first(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one")

    async def work() -> bytes:
        await trio.to_thread.run_sync(
            lambda: rewrite(str(file), Roots([tmp_path]), lambda data: data + b"!", answer=lambda _: "not indexed")
        )
        return frames.pack_body("indexed")

    async with process(tmp_path) as bench:
        assert [await bench.call("k", work=work) for _ in range(5)] == [frames.pack_body("indexed")] * 5
    async with process(tmp_path) as bench:
        assert await bench.call("k", work=work) == frames.pack_body("indexed")
        assert file.read_bytes() == b"one!"
