"""Every text that is stored is in the index or waits for it, and `documents_verify` says so where one is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw
import pytest
import trio

from proto.ops.documents.reading import DocumentsVerify
from services.documents.operations.find import DocumentsGrep
from services.documents.operations.listing import DocumentsStatus
from services.documents.store.databases import Store
from services.documents.text import trigram_index
from services.documents.verify import unfindable
from tests.in_process import Bench
from tests.unit.documents.rig import add_text, documents

T = TypeVar("T")


async def stored(tmp_path: Path) -> Path:
    """The folder of a store with one text, which is in the index."""
    async with documents(tmp_path) as bench:
        await add_text(bench, "a.txt", "a needle\n")
        await indexed(bench)
    (packs,) = (tmp_path / "data").rglob("packs.db")
    return packs.parent


async def indexed(bench: Bench) -> None:
    with trio.fail_after(10):
        while (await bench.call(DocumentsStatus())).index_waiting:  # noqa: ASYNC110  # no event tells
            await trio.sleep(0.01)


class Killed(BaseException):
    """The end of the process at this place."""


async def test_an_interrupted_build_of_the_index_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = await stored(tmp_path)
    for file in folder.glob("index.db*"):
        file.unlink()
    store = Store(folder)

    async def cut(change: object) -> None:
        raise Killed

    monkeypatch.setattr(store.index, "write", cut)
    with pytest.raises(Killed):
        await store.refill()
    store.close()
    async with documents(tmp_path) as bench:
        assert [match.file for match in (await bench.call(DocumentsGrep(pattern="needle"))).matches] == ["a.txt"]
        await indexed(bench)
        assert (await bench.call(DocumentsVerify())).problems == []
        assert [match.file for match in (await bench.call(DocumentsGrep(pattern="needle"))).matches] == ["a.txt"]


async def test_text_that_is_in_no_index_is_reported(tmp_path: Path) -> None:
    store = Store(await stored(tmp_path))
    try:
        assert await unfindable(store) == []
        await store.write_index(lambda db: trigram_index.remove(db, 1))
        (told,) = await unfindable(store)
        assert told.startswith("1 texts that grep would miss")
    finally:
        store.close()


async def test_text_that_is_deleted_between_two_looks_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(await stored(tmp_path))
    seen: list[object] = []
    read = store.read

    async def slow(query: Callable[[apsw.Connection], T]) -> T:
        """The packs as they are now, and the index as it is once all is deleted."""
        with store.packs.reader() as connection:
            connection.execute("BEGIN")
            assert connection.execute("SELECT count(*) FROM object").fetchall() == [(1,)]
            await store.write(lambda db: db.execute("DELETE FROM document; DELETE FROM object").fetchall())
            await store.write_index(lambda db: trigram_index.remove(db, 1))
            await store.write(lambda db: db.execute("DELETE FROM index_outbox").fetchall())
            monkeypatch.setattr(store, "read", read)
            result = query(connection)
            seen.append(result)
            connection.execute("ROLLBACK")
            return result

    monkeypatch.setattr(store, "read", slow)
    try:
        assert await unfindable(store) == []
        assert seen == [{1}]
    finally:
        store.close()


async def test_an_incomplete_index_is_not_used(tmp_path: Path) -> None:
    folder = await stored(tmp_path)
    index = apsw.Connection(str(folder / "index.db"))
    index.execute("DELETE FROM setting; DELETE FROM done; DELETE FROM trigram")
    index.close()
    store = Store(folder)
    assert not bool(store.is_complete)
    await store.refill()
    assert store.is_complete
    assert await store.read(lambda db: db.execute("SELECT object FROM index_outbox").fetchall()) == [(1,)]
    store.close()


async def test_the_index_of_another_store_is_set_aside(tmp_path: Path) -> None:
    folder = await stored(tmp_path)
    index = apsw.Connection(str(folder / "index.db"))
    index.execute("UPDATE setting SET value='another'")
    index.close()
    async with documents(tmp_path) as bench:
        assert [match.file for match in (await bench.call(DocumentsGrep(pattern="needle"))).matches] == ["a.txt"]
        await indexed(bench)
        assert (await bench.call(DocumentsVerify())).problems == []
    assert len(list(folder.glob("index.db.damaged-*"))) == 1
