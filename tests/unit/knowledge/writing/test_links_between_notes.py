"""Links between notes: by which names they find their targets, how they are followed, and notes that are close."""

from __future__ import annotations

from pathlib import Path

import pytest

from proto.errors import Unavailable
from proto.ops.graph import Direction
from services.knowledge.operations.notes import ExploreLinks, KnowledgeStatsSummary, NoteLink
from tests.unit.knowledge.rig import MemorySearch, links, notes_service, settled, write


async def test_edges_follow_the_text_and_the_targets(tmp_path: Path, root: Path) -> None:
    write(
        root, "a.md", "---\nfollows: b\n---\n[[Missing Title]] [x](sub/c.md) [tag: B] tag-c\n<!-- tags: [seen: x9] -->"
    )
    write(root, "b.md", "# B")
    write(root, "sub/c.md", "# C\n\n[[a]] [[c]]")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 3)
        expected = [("FOLLOWS", "b"), ("LINKS_TO", "c"), ("TAGGED_AS", "b"), ("EXEMPLIFIES", "c"), ("SEEN", "x9")]
        assert await links(bench, "a") == expected
        assert await links(bench, "a", "follows") == [("FOLLOWS", "b")]
        assert await links(bench, "c") == [("CITES", "a")]
        assert await links(bench, "nobody") == []
        write(root, "late.md", "# Missing  title")
        await settled(bench, 4)
        assert ("CITES", "late") in await links(bench, "a")
        write(root, "late.md", "# Renamed title")
        await settled(bench, 4)
        assert await links(bench, "a") == expected
        (root / "b.md").unlink()
        await settled(bench, 3)
        assert await links(bench, "a") == [e for e in expected if e[1] != "b"]
        write(root, "a.md", "nothing")
        await settled(bench, 3)
        assert await links(bench, "a") == []
        assert (await bench.call(KnowledgeStatsSummary())).text.startswith("Nodes: 3\nEdges: 1\nVectors: 0\nSize: 1.")


@pytest.mark.parametrize(
    "name", ["my-note-v2", "My Note_v2", "my note_V2.md", "The Title", "sub/My Note_v2", "in/sub/My Note_v2"]
)
async def test_wikilink_resolves_by_id_title_file_name_or_path(tmp_path: Path, root: Path, name: str) -> None:
    write(root, "in/sub/My Note_v2.md", "# The title")
    write(root, "from.md", f"[[{name}]]")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 2)
        assert await links(bench, "from") == [("CITES", "my-note-v2")]


async def test_links_are_followed_in_both_directions_and_by_steps(tmp_path: Path, root: Path) -> None:
    for source, target in ("ab", "bc", "ca", "dc"):
        write(root, f"{source}.md", f"[[{target}]]")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 4)
        assert await bench.call(ExploreLinks(id="a")) == [NoteLink(target="b", type="CITES")]
        assert await bench.call(ExploreLinks(id="c", direction=Direction.IN)) == [
            NoteLink(target="c", type="CITES", source="b"),
            NoteLink(target="c", type="CITES", source="d"),
        ]
        deep = await bench.call(ExploreLinks(id="a", depth=5))
        assert [(link.source, link.target, link.depth) for link in deep] == [
            ("a", "b", 1),
            ("b", "c", 2),
            ("c", "a", 3),
        ]
        both = await bench.call(ExploreLinks(id="d", depth=2, direction=Direction.BOTH))
        assert {(link.source, link.target) for link in both} == {("d", "c"), ("c", "a"), ("b", "c")}


async def test_similar_notes_are_found_on_demand(tmp_path: Path, root: Path) -> None:
    write(root, "a.md", "zebra walks far away at dawn")
    write(root, "b.md", "zebra walks far away at dawn now")
    write(root, "c.md", "quagga runs")
    search = MemorySearch()
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 3)
        assert await links(bench, "a", "Similar") == [("SIMILAR", "b")]
        assert await links(bench, "nobody", "similar") == []
        search.vectors = False
        with pytest.raises(Unavailable, match="vectors"):
            await links(bench, "a", "similar")
