"""NFC and NFD are one name: of files and folders, ids, links, headings, tags and paths that a search asks for."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from proto.errors import LinckiaError
from services.knowledge.notes.spelling import as_on_disk
from services.knowledge.operations.notes import ExploreLinks, QueryByTags, ReadNodeContent, SearchDocuments
from services.knowledge.operations.writing import EditNote, InjectTags, RenameNote, WriteNote
from tests.unit.knowledge.rig import notes_service, settled, write

FORMS = [("NFC", "NFD"), ("NFD", "NFC")]
NAMES = ["Caf\u00e9", "Zo\u00eb \u0160koda", "\ud55c\uad6d\uc5b4", "\u30d7\u30ed\u30b8\u30a7\u30af\u30c8"]


def as_form(text: str, form: str) -> str:
    return unicodedata.normalize("NFC" if form == "NFC" else "NFD", text)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("stored", "asked"), FORMS)
async def test_a_note_is_found_by_either_unicode_form_and_has_no_twin(
    tmp_path: Path, root: Path, stored: str, asked: str, name: str
) -> None:
    there, given = (f"{as_form(name, form)}/{as_form(name, form)}.md" for form in (stored, asked))
    assert there != given
    write(root, there, "# T\n\nzebra text\n")
    write(root, "a.md", f"---\nup: '[[{given[:-3]}]]'\n---\n[[{Path(given).stem}]] [x](<{given}>)\n")
    async with notes_service(tmp_path, root) as bench:
        status = await settled(bench, 2)
        assert status.broken_links == []
        id_ = Path(as_form(name, "NFC")).name.lower().replace(" ", "-")
        assert {link.target for link in await bench.call(ExploreLinks(id="a"))} == {id_}
        assert (await bench.call(ReadNodeContent(id=as_form(id_, asked)))).text.startswith("# T")
        with pytest.raises(LinckiaError, match="the note already exists"):
            await bench.call(WriteNote(path=given, content="twin"))
        done = await bench.call(WriteNote(path=str(root / given), content="# T\n\nquagga\n", overwrite=True))
        assert done.path == str(root / there)
        await bench.call(EditNote(path=given, append="more"))
        await bench.call(InjectTags(file_path=given, tags=[as_form("\u00e9tude", stored)]))
        beside = await bench.call(WriteNote(path=f"{Path(given).parent}/new.md", content="zebra beside"))
        assert beside.path == str(root / Path(there).parent / "new.md")
        assert sorted(os.listdir(root)) == sorted(["a.md", Path(there).parent.name])
        await settled(bench, 3)
        found = await bench.call(SearchDocuments(query="quagga", path=f"{Path(given).parent}/"))
        assert [hit.id for hit in found.results] == [id_]
        tagged = await bench.call(QueryByTags(tags=[as_form("\u00c9tude", asked)]))
        assert [note.id for note in tagged] == [id_]


@pytest.mark.parametrize(("stored", "asked"), FORMS)
async def test_a_renaming_follows_links_of_the_other_form_and_takes_no_taken_name(
    tmp_path: Path, root: Path, stored: str, asked: str
) -> None:
    old, given, taken = (
        as_form("R\u00e9sum\u00e9", stored),
        as_form("R\u00e9sum\u00e9", asked),
        as_form("\u00dcber", stored),
    )
    write(root, f"{old}.md", "it")
    write(root, f"{taken}.md", "other")
    write(root, "a.md", f"[[{given}]] [x]({given}.md)\n")
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 3)
        with pytest.raises(LinckiaError, match="already exists"):
            await bench.call(RenameNote(path=f"{given}.md", to=as_form("\u00dcber.md", asked)))
        await bench.call(RenameNote(path=f"{given}.md", to="CV.md"))
        assert (root / "a.md").read_text() == "[[CV]] [x](CV.md)\n"


def test_a_new_path_keeps_its_spelling(tmp_path: Path) -> None:
    roots = [str(tmp_path)]
    new = str(tmp_path / "e\u0301" / "x.md")
    assert as_on_disk(new, roots) == new
    (tmp_path / "\u00e9").mkdir()
    assert as_on_disk(new, roots) == str(tmp_path / "\u00e9" / "x.md")
    (tmp_path / "e\u0301").mkdir()
    assert as_on_disk(new, roots) == new
    assert as_on_disk("/elsewhere/e\u0301", roots) == "/elsewhere/e\u0301"
