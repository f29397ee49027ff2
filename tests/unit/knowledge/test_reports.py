"""Notes that users of comparable tools got a wrong answer for, from the cases beside this repository."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from services.knowledge.operations.notes import ExploreLinks, KnowledgeStatus
from services.knowledge.operations.writing import EditNote, RenameNote, SectionText, WriteNote
from tests.unit.knowledge.rig import Bench, notes_service, settled, write

CASES = Path(__file__).resolve().parents[4] / "shared" / "cases" / "reports"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the folder of cases does not lie beside this repository")

HEADINGS = json.loads((CASES / "headings.json").read_text()) if CASES.is_dir() else []


def copied(name: str, root: Path) -> int:
    """Copy a case's notes and count them."""
    shutil.copytree(CASES / "notes" / name, root, dirs_exist_ok=True)
    return len(list(root.rglob("*.md")))


async def targets(bench: Bench, id_: str) -> list[str]:
    return [link.target for link in await bench.call(ExploreLinks(id=id_))]


async def test_a_link_in_a_property_is_an_edge_and_renamed(tmp_path: Path, root: Path) -> None:
    count = copied("front-matter-link", root)
    before = (root / "Kickoff.md").read_text()
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, count)
        assert await targets(bench, "kickoff") == ["acme-ltd"]
        await bench.call(RenameNote(path="Acme Ltd.md", to="Acme Holding.md"))
        assert (root / "Kickoff.md").read_text() == before.replace("Acme Ltd", "Acme Holding")
        await settled(bench, count)
        assert await targets(bench, "kickoff") == ["acme-holding"]


async def test_a_link_to_an_ambiguous_name_means_the_nearest_note(tmp_path: Path, root: Path) -> None:
    count = copied("same-name", root)
    beta = (root / "beta/plan.md").read_bytes()
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, count)
        assert await targets(bench, "plan") == ["todo"]
        assert await targets(bench, "beta-plan") == ["beta-todo"]
        done = await bench.call(RenameNote(path="alpha/todo.md", to="chores.md"))
        assert done.links == 1
        assert (root / "beta/plan.md").read_bytes() == beta
        assert (root / "alpha/plan.md").read_text() == "See [[chores]].\n"
        await settled(bench, count)
        assert await targets(bench, "plan") == ["chores"]
        # The only note of its name has the short id now.
        assert await targets(bench, "beta-plan") == ["todo"]


async def test_a_file_name_comes_before_a_title(tmp_path: Path, root: Path) -> None:
    count = copied("title-or-file-name", root)
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, count)
        assert await targets(bench, "home") == ["household-budget"]


async def test_links_to_existing_attachments_are_not_broken(tmp_path: Path, root: Path) -> None:
    count = copied("attachments", root)
    async with notes_service(tmp_path, root) as bench:
        status = await settled(bench, count)
        assert (status.broken_links, status.broken_link_count) == ([], 0)
        (root / "pump.png").unlink()
        write(root, "Other.md", "a change")
        await settled(bench, count + 1)
        assert [each.link for each in (await bench.call(KnowledgeStatus())).broken_links] == ["pump.png"]


@pytest.mark.parametrize("case", HEADINGS, ids=lambda case: ascii(case["asked"]))
async def test_a_heading_is_found_as_it_is_written(tmp_path: Path, root: Path, case: dict[str, str]) -> None:
    write(root, "n.md", f"{case['line']}\n\nbefore\n")
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 1)
        section = SectionText(case["asked"], "after", create=True)
        await bench.call(EditNote(path="n.md", section=section))
        assert (root / "n.md").read_text() == f"{case['line']}\n\nafter\n"


async def test_front_matter_reads_back_as_it_was_given(tmp_path: Path, root: Path) -> None:
    given = json.loads((CASES / "front_matter.json").read_text())
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 0)
        await bench.call(WriteNote(path="n.md", content="# N\n", front_matter=given))
    _, front, body = (root / "n.md").read_text().split("---\n")
    assert (yaml.safe_load(front), body) == (given, "# N\n")
