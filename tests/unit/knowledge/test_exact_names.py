"""A path of a note means this note only, whatever it looks like."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from proto.errors import LinckiaError
from services.knowledge.operations.notes import ReadNodeContent
from services.knowledge.operations.writing import EditNote, InjectTags, RenameNote, WriteNote
from tests.unit.documents.test_exact_names import TWINS
from tests.unit.knowledge.rig import notes_service, settled

NAMED = [(f"{name}.md", f"{twin}.md") for name, twin in TWINS]


def tree(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in sorted(os.listdir(folder))}


@pytest.mark.parametrize(("name", "twin"), NAMED)
async def test_operations_touch_only_the_named_note(tmp_path: Path, name: str, twin: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for each in (name, twin):
        (root / each).write_text(f"# Of {each}\n\nsame text\n")
    other = {twin: (root / twin).read_text()}
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench)
        for path in (name, str(root / name)):
            edited = await bench.call(EditNote(path=path, append=f"by {path == name}"))
            assert edited.path == str(root / name)
            assert {each: text for each, text in tree(root).items() if each != name} == other
        await bench.call(InjectTags(file_path=name, tags=["mine"]))
        assert tree(root)[name].endswith("<!-- tags: mine -->\n")
        assert tree(root)[twin] == other[twin]
        written = await bench.call(WriteNote(path=name, content="new text\n", overwrite=True))
        assert (await bench.call(ReadNodeContent(id=written.id))).text == "new text\n"
        assert tree(root) == {**other, name: "new text\n"}
        moved = await bench.call(RenameNote(path=name, to="elsewhere.md"))
        assert (moved.links, tree(root)) == (0, {**other, "elsewhere.md": "new text\n"})


async def test_links_to_a_twin_stay_when_a_note_is_renamed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    links = "[[ab]] [[a*]] [x](a*.md) [y](ab.md) [[a1]] [z](a%2A.md)\n"
    for name, text in (("a*.md", "1\n"), ("ab.md", "2\n"), ("a1.md", "3\n"), ("links.md", links)):
        (root / name).write_text(text)
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench)
        done = await bench.call(RenameNote(path="a*.md", to="new.md"))
        assert done.links == 3
        assert (root / "links.md").read_text() == "[[ab]] [[new]] [x](new.md) [y](ab.md) [[a1]] [z](new.md)\n"


async def test_a_name_that_matches_two_other_unicode_forms_is_ambiguous(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    forms = ["\u1ebf.md", "\u00ea\u0301.md", "e\u0302\u0301.md"]
    assert len({unicodedata.normalize("NFC", form) for form in forms}) == 1
    for form in forms[:2]:
        (root / form).write_text("text\n")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench)
        with pytest.raises(LinckiaError, match="not found"):
            await bench.call(EditNote(path=forms[2], append="x"))
        assert tree(root) == {form: "text\n" for form in sorted(forms[:2])}
