"""PDFs and UTF-16 are searched like plain text, misspelt words find their documents, and watched files are added
automatically.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from proto.errors import InvalidParams, OperationError
from proto.ops.documents.reading import DocumentsGet
from proto.ops.retrieve import RetrievePut
from services.decode.main import open_service as open_decode
from services.documents import sessions
from services.documents.add.add import Adding, add_changes
from services.documents.add.folders import Walk
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.change import DocumentsDelete
from services.documents.operations.find import DocumentsGrep, DocumentsSearch, SearchType
from services.documents.operations.listing import DocumentsStatus
from services.documents.operations.sessions import SessionStart, SessionStop, SessionWatch
from services.documents.store.rows import DocumentAttributes
from services.retrieve.main import open_service as open_retrieve
from services.runtime.handlers import Context, Environment, Handlers
from services.shared.outbox import Outbox
from services.watch.main import open_service as open_watch
from tests.in_process import Bench
from tests.unit.documents.rig import add_text, documents, listed, tree
from tests.waiting import until


def pdf(*pages: str) -> bytes:
    """A small PDF with a line of text on each page."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, text in enumerate(pages):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * n} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    data = bytearray(b"%PDF-1.4\n")
    places: list[int] = []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n".encode()
    start = len(data)
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    data += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}".encode()
    data += f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n".encode()
    return bytes(data)


async def found(bench: Bench, pattern: str) -> list[str]:
    return [Path(match.file).name for match in (await bench.call(DocumentsGrep(pattern=pattern))).matches]


async def searched(bench: Bench, query: str, **more: object) -> list[str]:
    answer = await bench.call(DocumentsSearch(query=query, **more))  # type: ignore[arg-type]  # as the caller types
    return [hit.name for hit in answer.results]


async def test_pdf_and_utf16_are_found_at_once_and_come_back_as_they_were(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    book = pdf("The sea star regrows", "its lost arm slowly")
    files = {
        "book.pdf": book,
        "broken.pdf": b"%PDF-1.4\nthis is none",
        "wide.txt": "Größe über alles\nzweite Zeile".encode("utf-16"),
        "big.txt": "ÉTOILE de mer\n".encode("utf-16-be"),
        "latin.txt": "caf\xe9 noir\n".encode("latin-1"),
    }
    files["big.txt"] = b"\xfe\xff" + files["big.txt"]
    tree(root, files)
    async with documents(tmp_path, {"decode": open_decode}) as bench:
        answer = await bench.call(DocumentsAdd(path=str(root)))
        assert (answer.files, answer.failed_count, answer.text_waiting) == (5, 0, 0)
        assert await found(bench, "lost arm") == ["book.pdf"]
        assert await found(bench, "zweite") == ["wide.txt"]
        assert await found(bench, "(?i)étoile") == ["big.txt"]
        assert await searched(bench, "regrows") == ["book.pdf"]
        got = await bench.call(DocumentsGet(name="book.pdf", include_content=True))
        assert (got.mime_type, got.content) == ("application/pdf", "The sea star regrows\n\f\nits lost arm slowly")
        kept = await bench.call(DocumentsGet(name="book.pdf", include_content=True, original=True))
        assert base64.b64decode(kept.content or "") == book
        wide = await bench.call(DocumentsGet(name="wide.txt", include_content=True, original=True))
        assert base64.b64decode(wide.content or "") == files["wide.txt"]
        status = await bench.call(DocumentsStatus(detailed=True))
        assert status.quarantined == 1
        assert status.quarantine is not None
        assert "broken.pdf: not a readable PDF" in status.quarantine[0]


async def test_pdf_is_found_once_its_decoder_is_there(tmp_path: Path) -> None:
    tree(tmp_path / "root", {"book.pdf": pdf("The sea star"), "plain.txt": "a lost arm"})
    async with documents(tmp_path, {"decode": open_decode}) as bench:
        await bench.stop("decode")
        answer = await bench.call(DocumentsAdd(path=str(tmp_path / "root")))
        assert (answer.files, answer.text_waiting) == (2, 1)
        assert await found(bench, "lost arm") == ["plain.txt"]
        await bench.start("decode")
        await bench.call(DocumentsAdd(path="plain.txt", collection="again"))

        async def there() -> bool:
            return await found(bench, "sea star") == ["book.pdf"]

        await until(there)


async def test_a_scan_ignores_the_words_that_the_index_ignores(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        await add_text(bench, "other.txt", "After all, we should.\n")
        await add_text(bench, "zebra.txt", "A zebra.\n")
        assert await searched(bench, "should we see a zebra after all?") == ["zebra.txt"]
        assert await searched(bench, "should we") == ["other.txt"]


@pytest.mark.parametrize("with_search", [False, True])
async def test_search_finds_at_once_with_the_search_service_and_without(tmp_path: Path, *, with_search: bool) -> None:
    others = {"retrieve": open_retrieve} if with_search else {}
    async with documents(tmp_path, others) as bench:
        await add_text(bench, "db/tuning.md", "# Database optimization\n\nUse an index.\n", tags=["db"], collection="k")
        await add_text(bench, "cooking.txt", "How to boil an egg.\nSalt the water.\n", tags=["food"])

        async def fed() -> bool:
            return (await bench.call(DocumentsStatus())).search_waiting == 0

        for waited in (False, True):
            if waited and with_search:
                await until(fed)
            assert (await searched(bench, "database optimization"))[0] == "tuning.md"
            assert await searched(bench, "egg", tags=["db"]) == []
            assert await searched(bench, "egg", tags=["food"]) == ["cooking.txt"]
            assert await searched(bench, "index", collection="k") == ["tuning.md"]
            assert await searched(bench, "index", path="db") == ["tuning.md"]
            assert await searched(bench, "index", extension="txt") == []
            for strange in ('"', "a AND (", "NEAR(", "*", "-", "'; DROP TABLE document;--", "\0", "", "日本", "  "):
                await bench.call(DocumentsSearch(query=strange))
            answer = await bench.call(DocumentsSearch(query="egg salt", line_numbers=True, context=1))
            hit = answer.results[0]
            assert [match.line_number for match in hit.matches] == [1, 2]
            assert hit.matches[0].context_after == ["Salt the water."]
            assert hit.snippet.startswith("How to boil")
            assert answer.type in ("keyword", "hybrid")
            assert bool(answer.degraded) or with_search
            paths = await bench.call(DocumentsSearch(query="egg", paths_only=True))
            assert (paths.paths, paths.results) == (["cooking.txt"], [])
            by_hash = await bench.call(DocumentsSearch(hash=hit.hash[:8]))
            assert (by_hash.type, by_hash.total, by_hash.results[0].path) == ("hash", 1, "cooking.txt")
            keyword = await bench.call(DocumentsSearch(query="egg", type=SearchType.KEYWORD))
            assert keyword.type == "keyword"
            assert keyword.stages
        with pytest.raises(InvalidParams, match="`query`"):
            await bench.call(DocumentsSearch())
        with pytest.raises(InvalidParams, match="too short"):
            await bench.call(DocumentsSearch(hash="abc"))


async def test_a_search_that_has_not_heard_of_a_deletion_yet_answers_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with documents(tmp_path, {"retrieve": open_retrieve}) as bench:
        names = [f"{number}.txt" for number in range(6)]
        for number, name in enumerate(names):
            await add_text(bench, name, "zebra " * (20 - 3 * number) + f"and the words of number {number}\n" * 30)

        async def fed() -> bool:
            return (await bench.call(DocumentsStatus())).search_waiting == 0

        await until(fed)
        keyword = SearchType.KEYWORD
        before = await bench.call(DocumentsSearch(query="zebra", type=keyword, limit=6))
        order = [hit.name for hit in before.results]
        assert sorted(order) == names
        monkeypatch.setattr(Outbox, "hurry", lambda outbox: None)
        await bench.call(DocumentsDelete(names=order[:4]))
        # The search was not asked for passages of the remaining documents.
        after = await bench.call(DocumentsSearch(query="zebra", type=keyword, limit=1))
        assert (after.total, [hit.name for hit in after.results]) == (2, order[4:5])
        assert after.results[0].snippet.startswith("zebra zebra")


async def test_a_misspelt_word_finds_the_intended_one_unless_turned_off(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        await add_text(bench, "a.txt", "A kubernetes deployment")

        async def indexed() -> bool:
            return (await bench.call(DocumentsStatus())).index_waiting == 0

        await until(indexed)
        answer = await bench.call(DocumentsSearch(query="kuberentes"))
        assert (answer.corrected, answer.total) == ({"kuberentes": "kubernetes"}, 1)
        assert (await bench.call(DocumentsSearch(query="kuberentes", fuzzy=False))).total == 0
        assert (await bench.call(DocumentsSearch(query="kuberentes", similarity=0.99))).total == 0


@pytest.mark.slow
@pytest.mark.parametrize("followed", [False, True])
async def test_changes_below_a_watched_folder_are_added_until_the_session_ends(
    tmp_path: Path, followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    tree(root, {"w/a.txt": "first", "outside.txt": "no"})
    looked: list[str] = []

    async def counted(adding: Adding, walk: Walk, given: DocumentAttributes) -> int:
        looked.append(walk.directory)
        return await add_changes(adding, walk, given)

    monkeypatch.setattr(sessions, "add_changes", counted)
    async with documents(tmp_path, {"watch": open_watch} if followed else None) as bench:
        session = await bench.call(SessionStart(label="watching"))
        watched = await bench.call(SessionWatch(root=str(root / "w"), interval_ms=100))
        assert watched.roots == [str(root / "w")]

        async def come(*names: str) -> None:
            async def there() -> bool:
                return {one.name: one.session for one in await listed(bench)} == dict.fromkeys(
                    names, session.session_id
                )

            await until(there)

        async def changed() -> bool:
            return (await bench.call(DocumentsGet(name="a.txt", include_content=True))).content == "changed"

        await come("a.txt")
        tree(root, {"w/b.txt": "second"})
        await come("a.txt", "b.txt")
        tree(root, {"w/a.txt": "changed"})
        await until(changed)
        if followed:
            # The watcher says when there is something to look for: nothing is looked for in the meantime.
            before = len(looked)
            await trio.sleep(0.5)
            assert len(looked) <= before + 1
        with pytest.raises(InvalidParams, match="`root`"):
            await bench.call(SessionWatch())
        off = await bench.call(SessionWatch(enabled=False))
        assert off.roots == []
        await bench.call(SessionStop())
        with pytest.raises(OperationError, match="no session"):
            await bench.call(SessionWatch(root=str(root / "w")))


async def test_documents_added_during_a_search_are_found(tmp_path: Path) -> None:
    asked, told = trio.Event(), trio.Event()

    @contextlib.asynccontextmanager
    async def overtaken(env: Environment) -> AsyncIterator[Handlers]:
        async with open_retrieve(env) as handlers:
            params, put = handlers.by_name["retrieve_put"]
            searched_params, search = handlers.by_name["retrieve_search"]

            async def put_later(given: Any, ctx: Context) -> Any:
                await asked.wait()
                return await put(given, ctx)

            async def answer_later(given: Any, ctx: Context) -> Any:
                found = await search(given, ctx)
                asked.set()
                await told.wait()
                return found

            handlers.by_name.update(retrieve_put=(params, put_later), retrieve_search=(searched_params, answer_later))
            yield handlers

    async with documents(tmp_path, {"retrieve": overtaken}) as bench, trio.open_nursery() as nursery:
        await add_text(bench, "arms.txt", "A starfish regrows its arms.\n")
        found: list[str] = []

        async def look() -> None:
            found.extend(await searched(bench, "starfish"))

        async def fed() -> bool:
            return (await bench.call(DocumentsStatus())).search_waiting == 0

        nursery.start_soon(look)
        await until(fed)
        told.set()
    assert found == ["arms.txt"]


async def test_hits_carry_the_lines_of_their_snippets_and_are_found_by_their_folders(tmp_path: Path) -> None:
    text = (
        "\n\n\nimport os\n\n\n" + "\n\n".join(f"def f{n}(a):\n    return a + {n}" for n in range(300)) + "\nzebra = 1\n"
    )
    async with documents(tmp_path, {"retrieve": open_retrieve}) as bench:
        await add_text(bench, "pumps/drive.py", text)

        async def fed() -> bool:
            return (await bench.call(DocumentsStatus())).search_waiting == 0

        for waited in (False, True):
            if waited:
                await until(fed)
            for query in ("zebra", "f250", "import os", "pumps"):
                (hit,) = (await bench.call(DocumentsSearch(query=query))).results
                assert hit.first_line is not None
                assert hit.last_line is not None
                lines = text.split("\n")[hit.first_line - 1 : hit.last_line]
                # It may end within a line.
                assert "\n".join(lines).startswith(hit.snippet.rstrip("\n"))
                assert hit.snippet.count("\n") == len(lines) - 1


async def test_contents_cut_by_an_earlier_version_are_indexed_again_and_searchable_meanwhile(tmp_path: Path) -> None:
    put: list[str] = []

    @contextlib.asynccontextmanager
    async def counting(env: Environment) -> AsyncIterator[Handlers]:
        async with open_retrieve(env) as handlers:
            params, handle = handlers.by_name["retrieve_put"]

            async def count(asked: RetrievePut, ctx: Context) -> object:
                put.extend(group.id for group in asked.groups)
                return await handle(asked, ctx)

            handlers.by_name["retrieve_put"] = (params, count)
            yield handlers

    path = tmp_path / "data/documents/packs.db"

    def cut() -> bool:
        with contextlib.closing(apsw.Connection(str(path))) as db:
            return db.execute("SELECT value FROM setting WHERE name = 'cut'").get not in ("", "another", None)

    for turn in range(3):
        put.clear()
        async with documents(tmp_path, {"retrieve": counting}) as bench:

            async def done(bench: Bench = bench) -> bool:
                return cut() and (await bench.call(DocumentsStatus())).search_waiting == 0

            if not turn:
                for number in range(40):
                    await add_text(bench, f"{number}.txt", f"the zebra of number{number}th")
            assert await searched(bench, "number7th") == ["7.txt"]
            await until(done)
        if turn == 1:
            assert len(set(put)) == len(put) == 40
        elif turn:
            assert put == []
        else:
            with contextlib.closing(apsw.Connection(str(path))) as db:
                db.execute("UPDATE setting SET value = 'another' WHERE name = 'cut'")
