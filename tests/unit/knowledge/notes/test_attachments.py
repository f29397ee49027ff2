"""Links to files that are no notes are broken where there is no such file, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.knowledge.operations.notes import KnowledgeStatusResult
from tests.unit.knowledge.rig import Bench, notes_service, settled, until, write


def broken(status: KnowledgeStatusResult) -> list[str]:
    return [each.link for each in status.broken_links]


async def after_a_look(bench: Bench, expected: list[str]) -> None:
    """Results are reused for a short time."""
    await until(bench, lambda status: broken(status) == expected)


@pytest.mark.parametrize(
    ("file", "links"),
    [
        ("files/Manual v2.pdf", "[[Manual v2.pdf#page=3]] ![[files/Manual v2.pdf]] [[manual V2.PDF|the manual]]"),
        ("notes/img/a.PNG", "![[a.png|300]] ![[./img/a.PNG]] ![[img/a.png]] ![[/notes/img/a.PNG|300x200]]"),
        ("maps/Board.canvas", "[[Board.canvas]] [[../maps/Board.canvas#part]]"),
        ("media/Vögel.mp3", "![[Vo\u0308gel.mp3]] ![[V\u00f6gel.mp3]]"),
        ("media/e\u0301.webp", "![[\u00e9.webp]] ![[../media/\u00e9.webp]]"),
        ("LICENSE", "[[LICENSE]]"),
        ("データ/表.xlsx", "[[表.xlsx]] [[データ/表.xlsx]]"),
        (".attachments/x.svg", "![[/.attachments/x.svg]]"),
    ],
)
async def test_a_file_of_any_type_is_found_by_name_and_path(tmp_path: Path, root: Path, file: str, links: str) -> None:
    write(root, file, "data")
    write(root, "notes/a.md", f"---\ncover: '[[{Path(file).name}]]'\n---\n{links}\n" if file[0] != "." else links)
    async with notes_service(tmp_path, root) as bench:
        assert broken(await settled(bench, 1)) == []


async def test_a_file_that_is_missing_is_named_until_it_comes(tmp_path: Path, root: Path) -> None:
    write(root, "a.md", "![[gone.png]] [[sub/b.pdf#page=2]] [[c.canvas]] [[No note]]\n")
    write(root, "b.pdf", "in another folder than was said")
    write(root, "node_modules/c.canvas", "not of the notes")
    async with notes_service(tmp_path, root) as bench:
        assert broken(await settled(bench, 1)) == ["gone.png", "sub/b.pdf#page=2", "c.canvas", "No note"]
        write(root, "deep/er/gone.png", "it")
        write(root, "sub/b.pdf", "it")
        await after_a_look(bench, ["c.canvas", "No note"])
        (root / "deep/er/gone.png").unlink()
        await after_a_look(bench, ["gone.png", "c.canvas", "No note"])
