"""A full disk and damaged pages: failed changes report it, readable data is served, and work resumes by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from proto.errors import Executed, OperationError
from proto.operation import Params
from proto.ops.documents.reading import DocumentsGet, DocumentsVerify
from services.documents.code import parsing
from services.documents.components import Components
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.change import DocumentsDelete
from services.documents.operations.find import DocumentsGraph, DocumentsGrep, DocumentsSearch
from services.documents.operations.listing import DocumentsList, DocumentsStatus
from services.documents.operations.sessions import SessionStart, SessionWatch
from services.documents.store.databases import Store
from services.documents.text import indexing
from services.runtime.handlers import Environment
from services.runtime.storage import DiskFull
from tests.in_process import Bench
from tests.unit.documents.rig import add_text, documents, listed, tree
from tests.unit.runtime.faults import damage_page, disk, pages_of
from tests.waiting import until

TEXTS = {f"{n}.txt": "".join(f"needle {n} {line} {n * line * 7919:x}\n" for line in range(300)) for n in range(8)}
TREE = {f"tree/{name}": text for name, text in TEXTS.items()} | {"tree/code.py": "def needle():\n    return 1\n"}


async def attempt(bench: Bench, call: Params[Any]) -> OperationError | None:
    """What a call fails with; any other failure than one of the operation goes through."""
    try:
        await bench.call(call)
    except OperationError as error:
        return error
    return None


async def lines(bench: Bench, pattern: str) -> int:
    return (await bench.call(DocumentsGrep(pattern=pattern, count=True))).match_count


async def settled(bench: Bench) -> None:
    """Wait until the index has no pending work."""

    async def done() -> bool:
        return not (await bench.call(DocumentsStatus())).index_waiting

    await until(done)


@pytest.mark.slow
async def test_a_disk_that_is_full_at_any_statement_undoes_the_whole_change_and_no_more(tmp_path: Path) -> None:
    with disk() as faulty:
        async with documents(tmp_path) as bench:
            await add_text(bench, "kept.txt", "kept")
            await settled(bench)
            for at in range(1, 40):
                # The work in the background may be what meets it first; it pauses and goes on.
                faulty.fill(at)
                failed = await attempt(bench, DocumentsAdd(name=f"{at}.txt", content=f"text {at}"))
                faulty.room()
                if failed is not None:
                    assert "full" in str(failed)
                    assert failed.failure.executed is Executed.NO
                    assert await listed(bench, path=f"{at}.txt") == []
                    await add_text(bench, f"{at}.txt", f"text {at}")
            assert len(await listed(bench)) == 40
            await settled(bench)
            assert await lines(bench, "text") == 39
            assert (await bench.call(DocumentsVerify())).problems == []


@pytest.mark.slow
async def test_reads_continue_and_indexing_resumes_after_the_disk_was_full(tmp_path: Path) -> None:
    with disk() as faulty:
        async with documents(tmp_path) as bench:
            await add_text(bench, "a.txt", "a needle")
            faulty.fill()
            for _ in range(3):
                with pytest.raises(OperationError, match="full") as caught:
                    await bench.call(DocumentsDelete(name="a.txt"))
                assert caught.value.failure.executed is Executed.NO
            assert await lines(bench, "needle") == 1
            assert (await bench.call(DocumentsGet(name="a.txt", include_content=True))).content == "a needle"

            async def struck() -> bool:
                return faulty.struck

            await until(struck)
            faulty.room()
            await settled(bench)
            assert (await bench.call(DocumentsVerify())).problems == []
            assert bench.failures == []


async def test_a_directory_on_a_full_disk_may_have_been_stored_in_part(tmp_path: Path) -> None:
    tree(tmp_path / "root", dict(TREE))
    with disk() as faulty:
        async with documents(tmp_path) as bench:
            faulty.fill(3)
            with pytest.raises(OperationError, match="full") as caught:
                await bench.call(DocumentsAdd(path="tree"))
            assert caught.value.failure.executed is Executed.MAYBE
            faulty.room()
            assert (await bench.call(DocumentsAdd(path="tree"))).files == len(TREE)
            await settled(bench)
            assert await lines(bench, "needle") == 300 * len(TEXTS) + 1


@pytest.mark.slow
async def test_a_watched_folder_is_added_once_there_is_room(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, {"w/a.txt": "first"})
    with disk() as faulty:
        async with documents(tmp_path) as bench:
            await bench.call(SessionStart(label="s"))
            await bench.call(SessionWatch(root=str(root / "w"), interval_ms=100))

            async def there(count: int) -> None:
                async def met() -> bool:
                    return len(await listed(bench)) == count

                await until(met)

            await there(1)
            faulty.fill()
            tree(root, {"w/b.txt": "second"})

            async def struck() -> bool:
                return faulty.struck

            await until(struck)
            faulty.room()
            await there(2)
            assert bench.failures == []


@pytest.mark.slow
@pytest.mark.parametrize("step", ["indexing.settle", "parsing.put"])
async def test_a_full_disk_is_not_blamed_on_the_document_being_extracted_or_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    module, name = {"indexing.settle": (indexing, "settle"), "parsing.put": (parsing, "put")}[step]
    tree(tmp_path / "root", {"wide.txt": "a needle".encode("utf-16"), "code.py": "def needle():\n    return 1\n"})
    real = getattr(module, name)
    left = 4

    def full(*given: Any, **named: Any) -> None:
        nonlocal left
        if left:
            left -= 1
            raise DiskFull("the disk is full")
        real(*given, **named)

    monkeypatch.setattr(module, name, full)
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path="wide.txt"))
        await bench.call(DocumentsAdd(path="code.py"))
        # A read goes on.
        assert (await bench.call(DocumentsGraph(list_types=True))).node_type_counts["file"] == 2

        async def done() -> bool:
            status = await bench.call(DocumentsStatus())
            types = (await bench.call(DocumentsGraph(list_types=True))).node_type_counts
            assert status.quarantined == 0
            return not status.extraction_waiting and types == {"file": 2, "function": 1}

        await until(done)
        await settled(bench)
        assert await lines(bench, "needle") == 2


async def test_after_a_failed_commit_the_next_write_succeeds(tmp_path: Path) -> None:
    with disk() as faulty:
        async with documents(tmp_path) as bench:
            for _ in range(2):
                faulty.fill(2)
                with pytest.raises(OperationError, match="full"):
                    await bench.call(SessionStart(label="s"))
                faulty.room()
                await bench.call(SessionStart(label="s"))


async def a_store(tmp_path: Path) -> Path:
    """A closed store with the tree in it, its logs in its databases; the path of the packs."""
    tree(tmp_path / "root", dict(TREE))
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path="tree"))
        await add_text(bench, "alone.txt", "".join(f"alone {n * 7919:x}\n" for n in range(20_000)))
        await settled(bench)
    (packs,) = (tmp_path / "data").rglob("packs.db")
    return packs


@pytest.mark.parametrize(
    "table",
    ["object", "sqlite_autoindex_object_1", "block", "pack", "packed", "document", "sqlite_autoindex_document_1",
     "document_object", "setting", "snapshot", "index_outbox", "sqlite_schema"],
)  # fmt: skip
async def test_a_damaged_page_of_the_packs_is_reported_with_file_and_remedy_and_the_rest_is_served(
    tmp_path: Path, table: str
) -> None:
    packs = await a_store(tmp_path)
    # The last one: the root of a large table, whose loss is the loss of all, comes first.
    damage_page(packs, pages_of(packs, table)[-1])
    async with documents(tmp_path) as bench:
        if table != "sqlite_schema":
            verified = await bench.call(DocumentsVerify())
            assert verified.problems
            assert any("packs.db" in one or "main" in one for one in verified.problems)
        calls: list[Params[Any]] = [
            DocumentsGet(path="alone.txt", include_content=True),
            DocumentsGet(path=str(tmp_path / "root/tree/3.txt"), include_content=True),
            DocumentsList(),
            DocumentsGrep(pattern="needle"),
            DocumentsSearch(query="needle"),
            DocumentsGraph(list_types=True),
            DocumentsAdd(name="new.txt", content="something new"),
            DocumentsDelete(path="alone.txt"),
            DocumentsStatus(),
        ]
        failures = [await attempt(bench, call) for call in calls]
        told = [str(one) for one in failures if one is not None]
        assert all("packs.db" in one or "not found" in one.lower() for one in told), told
        if table in ("block", "pack"):
            # One pack or content is lost, all others are there.
            assert len(told) <= 1
            answer = await bench.call(DocumentsGrep(pattern="needle", count=True))
            assert answer.match_count >= 300 * 5
            assert table == "block" or answer.degraded
        assert bench.failures == []
    assert packs.exists()


async def test_data_outside_a_damaged_page_can_still_be_added_and_read(tmp_path: Path) -> None:
    packs = await a_store(tmp_path)
    # From the middle of a long content: the way to the rest of it is lost.
    damage_page(packs, pages_of(packs, "block")[2])
    async with documents(tmp_path) as bench:
        with pytest.raises(OperationError, match=r"packs\.db") as caught:
            await bench.call(DocumentsGet(name="alone.txt", include_content=True))
        assert "restore" in str(caught.value)
        await add_text(bench, "new.txt", "new text")
        assert (await bench.call(DocumentsGet(name="new.txt", include_content=True))).content == "new text"
        verified = await bench.call(DocumentsVerify())
        assert len(verified.damaged) == 1
        assert "alone.txt" in verified.damaged[0]
        assert any("packs.db" in one for one in (await bench.call(DocumentsStatus())).degraded)


TABLES = ("done", "trigram_data", "trigram_idx", "word", "sample", "code", "symbol", "used", "setting", "term")


@pytest.mark.parametrize(
    ("table", "running"),
    # The setting is read as the store opens, and is remembered from then on.
    [(table, running) for table in TABLES for running in (False, True) if (table, running) != ("setting", True)],
)
async def test_a_damaged_index_is_rebuilt_and_nothing_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, running: bool
) -> None:
    packs = await a_store(tmp_path)
    index = packs.with_name("index.db")
    pages = pages_of(index, table)

    def damage() -> None:
        for page in pages:
            damage_page(index, page)

    def damaged_when_open(env: Environment, store: Store) -> Components:
        damage()
        return Components(env, store)

    if running:
        # Before work in the background reads pages, since SQLite keeps those that it has read.
        monkeypatch.setattr("services.documents.main.Components", damaged_when_open)
    else:
        damage()
    async with documents(tmp_path) as bench:
        for _ in range(2):
            answer = await bench.call(DocumentsGrep(pattern="needle 3", limit=1000))
            assert answer.match_count == 300
            (related,) = (await bench.call(DocumentsGet(name="code.py", graph=True))).related
            assert related.label == "needle"
            found = await bench.call(DocumentsSearch(query="needle 3 299"))
            assert found.total >= 1
        verified = await bench.call(DocumentsVerify())
        await settled(bench)

        async def whole() -> bool:
            return not any("index" in one for one in (await bench.call(DocumentsStatus())).degraded)

        await until(whole)
        verified = await bench.call(DocumentsVerify())
        assert (verified.damaged, verified.problems) == ([], [])
        assert (await bench.call(DocumentsGrep(pattern="needle 3", limit=1000))).match_count == 300
        assert bench.failures == []
    assert len(list(index.parent.glob("index.db.damaged-*"))) == 1


async def test_answers_say_degraded_until_a_damaged_index_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs = await a_store(tmp_path)
    for page in pages_of(packs.with_name("index.db"), "done"):
        damage_page(packs.with_name("index.db"), page)
    blocked = trio.Event()

    async def wait(indexing: object) -> bool:
        await blocked.wait()
        return False

    monkeypatch.setattr("services.documents.text.indexing.Indexing._index_some", wait)
    async with documents(tmp_path) as bench:
        for _ in range(2):
            answer = await bench.call(DocumentsGrep(pattern="needle 3", limit=1000))
            assert answer.match_count == 300
            assert any("rebuilt" in one for one in answer.degraded)
        found = await bench.call(DocumentsSearch(query="needle"))
        assert any("rebuilt" in one for one in found.degraded)
        blocked.set()
