"""Gaps, tags, times, topics and reading lists, on real files with a search in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from proto.errors import InvalidParams, Unavailable
from proto.ops.retrieve import Pair, Pairs, RetrievePairs
from services.knowledge.operations.notes import (
    ClusterDocuments,
    ClusterMethod,
    FindDuplicateNotes,
    FindGaps,
    KnowledgeStatus,
    QueryByTags,
    SuggestReading,
    TemporalSearch,
)
from services.knowledge.search import gaps
from services.runtime.handlers import Context, handles
from tests.unit.knowledge.rig import Bench, MemorySearch, notes_service, settled, write

ZEBRA = "The striped zebra grazes beside quagga herds near water holes in the long dry season."
SOUP = "Tomatoes simmer with basil in the saucepan until they are soft, and are then passed through a sieve."
OTHER = "In the long dry season quagga herds and the striped zebra look for water holes to graze near."
THIRD = "Water holes matter: near them, herds such as the quagga and the striped zebra graze in a long dry season."
FOURTH = "A long dry season: herds graze near water holes, the quagga beside the striped zebra."


async def gap_pairs(bench: Bench, **params: object) -> list[tuple[str, str]]:
    found = await bench.call(FindGaps(**params))  # type: ignore[arg-type]  # each test names real fields
    return [(gap.source_id, gap.target_id) for gap in found]


async def test_gaps_are_similar_pairs_without_a_link_in_either_direction(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "a.md", f"# A\n\n## Herds\n\n{ZEBRA} [tag: plains]\n")
    write(root, "b.md", f"# B\n\n## Herds\n\n{OTHER} [tag: plains]\n")
    write(root, "c.md", f"# C\n\n{THIRD} See [[a]].\n")
    write(root, "d.md", f"# D\n\n{FOURTH}\n")
    write(root, "e.md", "# E\n\nQuite another matter, told in words that stand in none of the other notes here.\n")
    search = MemorySearch()
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 5)
        found = await bench.call(FindGaps(threshold=0.3))
        pairs = {(gap.source_id, gap.target_id) for gap in found}
        assert pairs == {("a", "b"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")}
        assert [gap.similarity for gap in found] == sorted((gap.similarity for gap in found), reverse=True)
        first = next(gap for gap in found if (gap.source_id, gap.target_id) == ("a", "b"))
        assert "striped" in first.reason
        assert "'Herds'" in first.reason
        assert "plains" in first.reason
        assert f"a line 5 “{ZEBRA}”" in first.reason
        assert f"b line 5 “{OTHER}”" in first.reason
        assert first.suggested_link_type == "references"
        assert len(await gap_pairs(bench, threshold=0.3, limit=2)) == 2
        assert await gap_pairs(bench, threshold=1.0) == []
        write(root, "d.md", f"# D\n\n{FOURTH} [[b]] [[c]]\n")
        await settled(bench, 5)
        assert set(await gap_pairs(bench, threshold=0.3)) == {("a", "b"), ("a", "d"), ("b", "c")}


async def test_equal_notes_are_duplicates_and_not_gaps(tmp_path: Path) -> None:
    root = tmp_path / "root"
    text = f"# Herds\n\n{ZEBRA} {THIRD}\n"
    write(root, "one.md", text)
    write(root, "copies/one.md", f"{text}\n\n")
    write(root, "edited.md", text.replace("long", "short", 1))
    write(root, "told-otherwise.md", f"# Herds\n\n{FOURTH} {OTHER}\n")
    write(root, "far.md", "# Far\n\nQuite another matter, told in words that stand in none of the other notes.\n")
    write(root, "index.md", "[[edited]]\n")
    write(root, "blank.md", "\n")
    write(root, "empty.md", "")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 8)
        found = await bench.call(FindDuplicateNotes())
        (group,) = found.groups
        assert [(note.id, note.path) for note in group.notes] == [
            ("edited", "edited.md"), ("one", "one.md"), ("copies-one", "copies/one.md"),
        ]  # fmt: skip
        assert (group.size, found.more, found.degraded) == (3, 0, [])
        assert 0.8 <= group.share < 1
        (group,) = (await bench.call(FindDuplicateNotes(threshold=1.0))).groups
        assert ([note.id for note in group.notes], group.share) == (["one", "copies-one"], 1.0)
        write(root, "soup.md", f"# Soup\n\n{SOUP}\n")
        write(root, "soup-again.md", f"# Soup\n\n{SOUP}\n")
        await settled(bench, 10)
        few = await bench.call(FindDuplicateNotes(limit=1))
        assert ([each.id for each in few.groups[0].notes], few.more) == (["soup", "soup-again"], 1)
        pairs = await gap_pairs(bench, threshold=0.3)
        assert {"told-otherwise"} <= {id_ for pair in pairs for id_ in pair}
        same = {"one", "copies-one", "edited"}
        assert [pair for pair in pairs if same.issuperset(pair)] == []


async def test_broken_links_and_orphans_are_listed_with_suggestions(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "setup.md", "# Setting up\n\nSee [[deploy]].\n")
    write(root, "guides/deploy.md", "# Deploying\n\nBegin with [[setup]].\n")
    write(root, "alone.md", "# Alone\n\n[[alone]] [tag: plants] <!-- tags: [FOLLOWS: nothing] -->\n")
    write(
        root,
        "a.md",
        "---\ntitle: A\nfollows: seetup\n---\n\n`[[code]]` <!-- tags: x,\n y -->\n[[Setting upp]] and\n"
        "[it](deploi.md) [pdf](x.pdf) [outside](../../x.md) [kept](kept.md)\n\n[[setup]] [[Nothing like it at all]]\n",
    )
    (root / "kept.md").mkdir()
    async with notes_service(tmp_path / "data", root) as bench:
        status = await settled(bench, 4)
        assert status.orphans == ["alone"]
        assert [(each.note, each.path, each.link, each.line, each.meant) for each in status.broken_links] == [
            ("a", "a.md", "seetup", None, ["setup"]),
            ("a", "a.md", "Setting upp", 8, ["setup"]),
            ("a", "a.md", "deploi.md", 9, ["guides/deploy.md"]),
            ("a", "a.md", "Nothing like it at all", 11, []),
        ]
        few = await bench.call(KnowledgeStatus(limit=1))
        assert (len(few.broken_links), few.broken_link_count, few.orphan_count) == (1, 4, 1)
        write(root, "deploi.md", "# It is there\n\n[[alone]]\n")
        status = await settled(bench, 5)
        assert (status.broken_link_count, status.orphans) == (3, [])


async def test_gaps_behind_many_linked_pairs_are_found_all_the_same(tmp_path: Path) -> None:
    class Many(MemorySearch):
        @handles(RetrievePairs)
        async def on_pairs(self, params: RetrievePairs, ctx: Context) -> Pairs:
            self.asked_pairs.append(params)
            pairs = [Pair(first="a", second="b", similarity=0.9)] * 3000 + [Pair(first="a", second="c", similarity=0.8)]
            return Pairs(pairs=pairs[: params.limit], more=params.limit < len(pairs), groups=3)

    root, search = tmp_path / "root", Many()
    for name, text in (("a", "[[b]]"), ("b", "B"), ("c", "C")):
        write(root, f"{name}.md", text)
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 3)
        assert await gap_pairs(bench) == [("a", "c")]
    assert [params.limit for params in search.asked_pairs] == [2000, 16000]


async def test_absence_of_gaps_is_not_claimed_while_notes_cannot_be_compared(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "a.md", f"# A\n\n{ZEBRA}\n")
    search = MemorySearch()
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 1)
        assert await gap_pairs(bench) == []
        search.vectors = False
        with pytest.raises(Unavailable, match="1 pieces are still waiting"):
            await gap_pairs(bench)
        await bench.stop("retrieve")
        with pytest.raises(Unavailable):
            await gap_pairs(bench)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("brief-auth", "debrief-auth", ("debrief-auth", "brief-auth", "follows")),
        ("auth-impl", "auth-spec", ("auth-impl", "auth-spec", "implements")),
        ("2026-01-09-standup", "2026-01-10-standup", ("2026-01-10-standup", "2026-01-09-standup", "follows")),
        ("part-10", "part-9", ("part-10", "part-9", "follows")),
        ("part-3", "part-9", ("part-3", "part-9", "references")),
        ("2026-01-09-a", "2026-01-10-b", ("2026-01-09-a", "2026-01-10-b", "references")),
        ("a", "b", ("a", "b", "references")),
        ("debrief-auth", "debrief-login", ("debrief-auth", "debrief-login", "references")),
    ],
)
def test_link_type_is_suggested_by_the_names(first: str, second: str, expected: tuple[str, str, str]) -> None:
    assert gaps.suggestion(first, second) == expected


async def test_notes_are_listed_by_their_tags(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "old.md", "---\ntags: [Auth, security]\ndate: 2025-01-01\n---\n# Old\n")
    write(root, "new.md", "---\ndate: 2026-01-01\n---\n# New\n\n[tag: auth] <!-- tags: tutorial -->\n")
    write(root, "none.md", "# None\n")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 3)

        async def ids(*tags: str, match: Literal["all", "any"] = "all") -> list[str]:
            return [note.id for note in await bench.call(QueryByTags(tags=list(tags), match=match))]

        assert await ids("AUTH") == ["new", "old"]
        assert await ids("#auth", "security") == ["old"]
        assert await ids("tutorial", "security", match="any") == ["new", "old"]
        assert await ids("tutorial", "security") == []
        (note,) = await bench.call(QueryByTags(tags=["security"]))
        assert (note.title, note.path, note.tags) == ("Old", "old.md", ["auth", "security"])
        assert note.date == "2025-01-01T00:00:00+00:00"
        with pytest.raises(InvalidParams, match="tags"):
            await ids("  ")


async def test_search_in_a_time_finds_only_its_notes_and_says_the_time(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for month in ("01", "02", "03"):
        write(root, f"m{month}.md", f"---\ndate: 2026-{month}-15\n---\n# M\n\nzebra\n")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 3)
        answer = await bench.call(TemporalSearch(query="zebra", date_range="2026-02..2026-03"))
        assert sorted(hit.id for hit in answer.results) == ["m02", "m03"]
        assert (answer.since, answer.until) == ("2026-02-01T00:00:00+00:00", "2026-03-31T23:59:59.999999+00:00")
        with pytest.raises(InvalidParams, match="date_range"):
            await bench.call(TemporalSearch(query="zebra", date_range="whenever"))


async def test_reading_goes_from_what_matches_to_what_it_is_linked_with(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "one.md", "# One\n\nzebra tracking [[hub]]\n")
    write(root, "two.md", "# Two\n\nzebra tracking [[hub]]\n")
    write(root, "hub.md", "# Hub\n\nHow animals are followed.\n")
    write(root, "far.md", "# Far\n\nNothing to do with it.\n")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 4)
        answer = await bench.call(SuggestReading(context="zebra tracking"))
        assert [each.id for each in answer.results] == ["one", "two", "hub"]
        assert answer.results[2].reason == "linked with one, two"
        assert answer.results[0].reason.startswith("matches in ")
        assert answer.stages[-1] == "links"
        beside = await bench.call(SuggestReading(context="one"))
        assert "one" not in [each.id for each in beside.results]
        assert {"two", "hub"} <= {each.id for each in beside.results}
        with pytest.raises(InvalidParams, match="context"):
            await bench.call(SuggestReading(context=" "))


async def test_reading_beside_a_note_of_few_words_goes_by_its_links_and_its_place(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "herds/todo.md", "# Todo\n\n[[migration]]\n")
    write(root, "migration.md", "# Migration of animals\n\nHow they wander in autumn.\n")
    write(root, "wander.md", "# Seasons\n\nWhen animals start to wander.\n")
    write(root, "herds/old.md", "Quagga, by itself.\n")
    write(root, "soup.md", "Tomatoes, cut.\n")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 5)
        answer = await bench.call(SuggestReading(context="todo"))
        reasons = {each.id: each.reason for each in answer.results}
        assert answer.results[0].id == "migration"
        assert "linked with todo" in reasons["migration"]
        assert "matches in" in reasons["wander"]
        assert reasons["old"] == "in the same folder, herds/"
        assert "soup" not in reasons


async def test_clusters_are_labelled_and_the_same_every_time(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for n in range(3):
        write(root, f"zebra{n}.md", f"# Zebra {n}\n\nStripes and grazing on the savannah. [[zebra0]]\n")
    for n in range(2):
        write(root, f"soup{n}.md", f"# Soup {n}\n\nSimmer tomatoes with basil in the saucepan. [[soup0]]\n")
    search = MemorySearch()
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 5)
        for method in ClusterMethod:
            assert method is not ClusterMethod.TOPICS or await bench.call(ClusterDocuments(notes_each=2)) == (
                await bench.call(ClusterDocuments(method=method, notes_each=2))
            )
            answer = await bench.call(ClusterDocuments(method=method, notes_each=2))
            assert [(cluster.size, len(cluster.notes)) for cluster in answer.clusters] == [(3, 2), (2, 2)]
            assert "zebra" in answer.clusters[0].label
            assert "soup" in answer.clusters[1].label
            assert (answer.notes, answer.left_out, answer.degraded) == (5, 0, [])
            assert answer == await bench.call(ClusterDocuments(method=method, notes_each=2))
        few = await bench.call(ClusterDocuments(min_size=3))
        assert ([cluster.size for cluster in few.clusters], few.left_out) == ([3], 2)
        write(root, "alone.md", "# Alone\n\nNothing links here, and nothing else is of the kind.\n")
        await settled(bench, 6)
        for method in (ClusterMethod.LINKS, ClusterMethod.SIMILAR):
            answer = await bench.call(ClusterDocuments(method=method))
            assert ([cluster.size for cluster in answer.clusters], answer.left_out) == ([3, 2], 1)
            answer = await bench.call(ClusterDocuments(method=method, min_size=1))
            assert ([cluster.size for cluster in answer.clusters], answer.left_out) == ([3, 2, 1], 0)
        assert (await bench.call(ClusterDocuments(count=2))).method is ClusterMethod.KMEANS
        with pytest.raises(InvalidParams, match="`count`"):
            await bench.call(ClusterDocuments(method=ClusterMethod.LINKS, count=2))
        search.vectors = False
        with pytest.raises(Unavailable):
            await bench.call(ClusterDocuments())
        assert len((await bench.call(ClusterDocuments(method=ClusterMethod.LINKS))).clusters) == 2
