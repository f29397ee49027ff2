"""A note is read by its lines or by a heading; errors for missing parts suggest similar ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from proto.errors import InvalidParams, OperationError
from services.knowledge.notes.excerpts import part
from services.knowledge.operations.notes import ReadNodeContent
from tests.unit.knowledge.rig import notes_service, settled, write

NOTE = (
    "---\r\ntitle: T\r\n---\r\n# Guide\r\nintro\r\n## Set-up\r\none\r\n### Linux\r\ntwo\r\n"
    "```\r\n# no heading\r\n```\r\n## Usage\r\nthree\r\n### Linux\r\nfour"
)


@pytest.mark.parametrize(
    ("lines", "text", "said"),
    [
        ("5", "intro\r\n", "5-5"),
        ("-2", "---\r\ntitle: T\r\n", "1-2"),
        ("15-", "### Linux\r\nfour", "15-16"),
        ("16-900", "four", "16-16"),
    ],
)
def test_lines_are_those_of_the_file_to_the_byte(lines: str, text: str, said: str) -> None:
    found = part(NOTE, lines, "")
    assert (found.text, found.lines, found.total_lines) == (text, said, 16)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("Set-up", "6-12"),
        ("## usage", "13-16"),
        ("Linux", "8-12"),
        ("Usage > Linux", "15-16"),
        ("Guide", "4-16"),
    ],
)
def test_a_section_ends_where_the_next_of_its_level_begins(section: str, said: str) -> None:
    assert part(NOTE, "", section).lines == said


def test_lines_within_a_section_and_nothing_at_all() -> None:
    assert part(NOTE, "-7", "Set-up").lines == "6-7"
    assert part(NOTE, "", "").text == NOTE


@pytest.mark.parametrize("lines", ["x", "1-2-3", "", "-", "99-", "9-8"])
def test_invalid_line_ranges_are_refused_by_name(lines: str) -> None:
    with pytest.raises(InvalidParams, match="`lines`"):
        part(NOTE, lines or " ", "")


def test_errors_for_missing_names_suggest_similar_ones() -> None:
    with pytest.raises(OperationError, match=r"^section not found: 'Setup'; did you mean Set-up\?$"):
        part(NOTE, "", "Setup")


async def test_a_note_is_read_in_parts_and_errors_suggest_similar_notes(tmp_path: Path, root: Path) -> None:
    write(root, "deploy-guide.md", NOTE)
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        assert (await bench.call(ReadNodeContent(id="deploy-guide", section="Set-up"))).lines == "6-12"
        with pytest.raises(OperationError, match=r"^Node not found\. Did you mean deploy-guide\?$"):
            await bench.call(ReadNodeContent(id="deploy-guid"))
