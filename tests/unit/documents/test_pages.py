"""HTML pages are read as documents: their visible text is found and returned, and their source on request."""

from __future__ import annotations

import base64
import contextlib
from pathlib import Path

import apsw
import pytest

from proto.ops.documents.reading import DocumentsGet
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.find import DocumentsGrep, DocumentsSearch
from services.documents.operations.listing import DocumentsStatus
from services.documents.store.kinds import nature
from services.documents.store.tables import TEXT_OWN, TEXT_WAITING
from services.retrieve.main import open_service as open_retrieve
from tests.in_process import Bench
from tests.unit.documents.rig import add_text, documents, tree
from tests.waiting import until

PAGE = """<!DOCTYPE html>
<html><head><title>Rates &amp; terms</title><style>.fee { color: red }</style>
<script>var fee = "hidden";</script></head>
<body><h1 class="fee">Fees</h1><p>A fee of 5 &lt; 6 euros for each <b>reim</b>bursement.</p></body></html>
"""
TEXT = "# Rates & terms\n\n# Fees\n\nA fee of 5 < 6 euros for each reimbursement."


async def lines(bench: Bench, pattern: str, *, original: bool = False) -> list[tuple[str, str]]:
    found = await bench.call(DocumentsGrep(pattern=pattern, original=original))
    return [(Path(match.file).name, match.line_text) for match in found.matches]


@pytest.mark.parametrize(
    ("name", "mime"), [("a.html", None), ("b.HTM", None), ("c.xhtml", None), ("saved", None), ("d.bin", "text/html"),
                       ("e", "text/HTML; charset=utf-8"), ("f.html", "text/plain")],
)  # fmt: skip
async def test_get_and_grep_of_a_page_use_its_visible_text(tmp_path: Path, name: str, mime: str | None) -> None:
    async with documents(tmp_path) as bench:
        added = await add_text(bench, name, PAGE, mimeType=mime)
        assert (added.text_waiting, added.without_text) == (0, [])
        got = await bench.call(DocumentsGet(name=name, include_content=True))
        assert (got.content, got.content_source, got.text_problem) == (TEXT, "extracted_text", None)
        assert got.text_charset is None
        assert await lines(bench, "reimbursement") == [(name, TEXT.splitlines()[-1])]
        assert await lines(bench, "5 < 6") == [(name, TEXT.splitlines()[-1])]
        assert await lines(bench, "hidden|class=|&amp;") == []
        kept = await bench.call(DocumentsGet(name=name, include_content=True, original=True))
        assert base64.b64decode(kept.content or "").decode() == PAGE
        assert (kept.content_source, kept.text_problem) == ("original", None)


async def test_grep_of_originals_finds_the_source_of_pages_mail_and_notebooks(tmp_path: Path) -> None:
    mail = "From: a@b.example\nSubject: =?utf-8?b?R3LDtsOfZQ==?=\nX-Kind: listed\n\nclass=told\n"
    book = '{"cells": [{"cell_type": "code", "source": "class=said", "metadata": {}}], "metadata": {}}'
    files: dict[str, str | bytes] = {"a.html": PAGE, "b.eml": mail, "c.ipynb": book, "d.txt": "class=plain\n",
             "e.html": '<meta charset="windows-1252"><p class="gr\u00f6\u00dfe">x</p>'.encode("cp1252")}  # fmt: skip
    tree(tmp_path / "root", files)
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(tmp_path / "root")))
        assert {name for name, _ in await lines(bench, "class=")} == {"b.eml", "c.ipynb", "d.txt"}
        for _ in range(2):
            assert {name for name, _ in await lines(bench, "class=", original=True)} == set(files)
            assert await lines(bench, "X-Kind: listed", original=True) == [("b.eml", "X-Kind: listed")]
            assert [name for name, _ in await lines(bench, "gr\u00f6\u00dfe", original=True)] == ["e.html"]
            assert [name for name, _ in await lines(bench, '"cells"', original=True)] == ["c.ipynb"]

            async def is_indexed() -> bool:
                return (await bench.call(DocumentsStatus())).index_waiting == 0

            await until(is_indexed)
        page = await bench.call(DocumentsGrep(pattern="class=", original=True, limit=2))
        rest = await bench.call(DocumentsGrep(pattern="class=", original=True, cursor=page.next_cursor))
        assert len(page.matches) + len(rest.matches) == len(files)
        assert len({match.file for match in (*page.matches, *rest.matches)}) == len(files)


@pytest.mark.parametrize(
    "name", ["base.html.j2", "page.tsx", "index.ejs", "App.vue", "view.php", "layout.hbs", "x.txt"]
)
def test_templates_are_read_as_source(name: str) -> None:
    assert nature(PAGE.encode(), name).text_state == TEXT_OWN
    assert nature(PAGE.encode(), "page.html").text_state == TEXT_WAITING


async def test_a_page_without_visible_text_says_so(tmp_path: Path) -> None:
    page = '<!doctype html><html><body><div id="app"></div><script src="main.js"></script></body></html>'
    async with documents(tmp_path) as bench:
        added = await add_text(bench, "app.html", page)
        assert added.without_text == ["app.html: it has no visible text"]
        got = await bench.call(DocumentsGet(name="app.html", include_content=True))
        assert (got.content, got.content_source, got.text_problem) == (page, "original", "it has no visible text")
        assert await lines(bench, "main.js") == []
        assert await lines(bench, "main.js", original=True) == [("app.html", page)]


async def test_a_search_names_the_lines_that_get_returns(tmp_path: Path) -> None:
    async with documents(tmp_path, {"retrieve": open_retrieve}) as bench:
        await add_text(bench, "rates.html", PAGE)
        found = (await bench.call(DocumentsSearch(query="reimbursement", line_numbers=True))).results[0]
        assert found.first_line is not None
        assert found.last_line == found.first_line + found.snippet.count("\n")
        shown = TEXT.split("\n")[found.first_line - 1 : found.last_line]
        assert "\n".join(shown).endswith("each reimbursement.")
        assert [match.line_number for match in found.matches] == [TEXT.split("\n").index(TEXT.splitlines()[-1]) + 1]
        # Text that looks like markup is not read as markup a second time.
        await add_text(bench, "tags.html", "<p>Write &lt;b&gt;zebra&lt;/b&gt; for bold</p>")
        hits = (await bench.call(DocumentsSearch(query="zebra"))).results
        assert [hit.snippet for hit in hits if hit.name == "tags.html"] == ["Write <b>zebra</b> for bold"]


async def test_pages_stored_before_are_read_again(tmp_path: Path) -> None:
    packs = tmp_path / "data" / "documents" / "packs.db"
    async with documents(tmp_path) as bench:
        for number in range(70):
            await add_text(bench, f"{number}.html", PAGE.replace("5 &lt;", f"{number} &lt;"))
        await add_text(bench, "other.txt", "class=plain")

        async def is_indexed() -> bool:
            return (await bench.call(DocumentsStatus())).index_waiting == 0

        await until(is_indexed)
    with contextlib.closing(apsw.Connection(str(packs))) as db:
        # Version 4 had the source as text.
        db.execute("UPDATE object SET text_state=1, problem=NULL, charset=NULL").fetchall()
        db.execute("DELETE FROM text").fetchall()
        db.pragma("user_version", 4)
    async with documents(tmp_path) as bench:

        async def is_found() -> bool:
            return len(await lines(bench, "each reimbursement")) == 70

        await until(is_found)
        assert await lines(bench, "class=") == [("other.txt", "class=plain")]
        assert await lines(bench, "^A fee of 33 <") == [("33.html", TEXT.splitlines()[-1].replace("5", "33"))]
