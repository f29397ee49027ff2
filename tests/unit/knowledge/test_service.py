"""The service as its callers see it: notes kept in step with real files, read, searched, and explored."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from proto.errors import Internal, InvalidParams, LinckiaError, OperationError, Unavailable
from proto.ops.knowledge import (
    Direction,
    ExploreLinks,
    KnowledgeStatsSummary,
    KnowledgeStatus,
    ListDirectoryStructure,
    NoteLink,
    ReadNodeContent,
    SearchDocuments,
)
from services.knowledge.notes.files import MAX_READ_BYTES, Place
from services.knowledge.notes.markdown import Note
from services.knowledge.notes.markdown import parse as true_parse
from tests.unit.knowledge.rig import Bench, MemorySearch, notes_service, settled, until, write


async def read(bench: Bench, id_: str) -> str:
    return (await bench.call(ReadNodeContent(id=id_))).text


async def found(bench: Bench, query: str) -> list[str]:
    return [hit.id for hit in (await bench.call(SearchDocuments(query=query))).results]


async def links(bench: Bench, id_: str, relation: str | None = None) -> list[tuple[str, str]]:
    return [(link.type, link.target) for link in await bench.call(ExploreLinks(id=id_, relation=relation))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


async def test_note_is_read_as_its_file_is_to_the_byte(tmp_path: Path, root: Path) -> None:
    text = "\ufeff---\r\ntitle: T\r\n---\r\n\r\n# Head\r\n\r\ntrailing  \n\n\n"
    write(root, "My Note_v2.md", text)
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        assert await read(bench, "my-note-v2") == text


async def test_unknown_note_and_vanished_file_are_told_apart(tmp_path: Path, root: Path) -> None:
    file = write(root, "docs/x.md", "text")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        with pytest.raises(OperationError, match=r"^Node not found\.$"):
            await read(bench, "y")
        file.unlink()
        with pytest.raises(OperationError, match=r"^File not found: docs/x\.md$"):
            await read(bench, "x")
        await settled(bench, 0)
        with pytest.raises(OperationError, match=r"^File not found: docs/x\.md$"):
            await read(bench, "x")


async def test_note_replaced_by_a_link_out_of_the_roots_is_not_read(tmp_path: Path, root: Path) -> None:
    secret = write(tmp_path, "secret.md", "secret")
    file = write(root, "x.md", "text")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        file.unlink()
        file.symlink_to(secret)
        with pytest.raises(OperationError, match=r"File cannot be read: x\.md|File not found: x\.md"):
            await read(bench, "x")


async def test_edit_rename_and_deletion_show(tmp_path: Path, root: Path) -> None:
    write(root, "a.md", "# A\n\nThe zebra walks.")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        assert await found(bench, "zebra") == ["a"]
        write(root, "a.md", "# A\n\nThe giraffe walks.")
        await settled(bench, 1)
        assert (await found(bench, "zebra"), await found(bench, "giraffe")) == ([], ["a"])
        (root / "a.md").rename(root / "b.md")
        await settled(bench, 1)
        assert await found(bench, "giraffe") == ["b"]
        assert "giraffe" in await read(bench, "b")
        (root / "b.md").unlink()
        await settled(bench, 0)
        assert await found(bench, "giraffe") == []


async def test_edit_that_keeps_size_and_mtime_shows(tmp_path: Path, root: Path) -> None:
    file = write(root, "a.md", "zebra")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        stamp = file.stat()
        file.write_text("camel")
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        await settled(bench, 1)
        assert await found(bench, "camel") == ["a"]


async def test_second_file_of_a_name_gets_an_id_from_its_path_and_all_ids_stay(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    for path in ("z/note.md", "a/note.md", "a/b/note.md", "x/Z note.md", "x/z-note.md"):
        write(root, path, path)
    expected = {"note": "a/note.md", "z-note": "x/Z note.md", "a-b-note": "a/b/note.md"}
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 5)
        assert expected.items() <= {id_: await read(bench, id_) for id_ in search.groups}.items()
        before = {id_: await read(bench, id_) for id_ in search.groups}
        assert len(set(before.values())) == 5
    write(root, "note.md", "note.md")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 6)
        assert before.items() <= {id_: await read(bench, id_) for id_ in search.groups}.items()
        (root / "a/note.md").unlink()
        await settled(bench, 5)
        del before["note"]
        assert before.items() <= {id_: await read(bench, id_) for id_ in search.groups}.items()


async def test_note_moved_to_another_folder_keeps_its_id_and_is_put_once_more(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a/note.md", "short one")
    write(root, "b/note.md", "long one")
    write(root, "other.md", "[[note]]")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 3)
        assert await read(bench, "b-note") == "long one"
        (root / "b/note.md").rename(root / "c.md")
        (root / "b").rmdir()
        (root / "a").rename(root / "moved")
        await settled(bench, 3)
        assert await read(bench, "note") == "short one"
        assert await read(bench, "c") == "long one"
        assert await links(bench, "other") == [("CITES", "note")]
        assert search.groups["note"].metadata["path"] == "moved/note.md"
        assert sorted(search.groups) == ["c", "note", "other"]


async def test_unchanged_note_is_not_put_again(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "text\n")
    write(root, "b.md", "text\n")
    for change in ("", "text\n\n\n", "text\n"):
        async with notes_service(tmp_path / "data", root, search=search) as bench:
            if change:
                write(root, "a.md", change)
            await settled(bench, 2)
    assert sorted(search.put_ids) == ["a", "b"]


async def test_lines_follow_when_only_blank_lines_came_before(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "# T\n\nzebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 1)
        write(root, "a.md", "\n\n# T\n\nzebra")
        await settled(bench, 1)
        (hit,) = (await bench.call(SearchDocuments(query="zebra"))).results
        assert hit.context == "T (lines 3-5)"


async def test_folders_that_hold_notes_are_listed(tmp_path: Path, root: Path) -> None:
    for path in ("top.md", "docs/deep/a.md", "briefs/b.md", "empty/x.txt"):
        write(root, path, "x")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 3)
        assert await bench.call(ListDirectoryStructure()) == ["./", "briefs/", "docs/deep/"]
        shutil.rmtree(root / "briefs")
        await settled(bench, 2)
        assert await bench.call(ListDirectoryStructure()) == ["./", "docs/deep/"]


async def test_search_answers_passage_context_and_what_ran(tmp_path: Path, root: Path) -> None:
    write(
        root,
        "g.md",
        "---\ntitle: Guide\ntags: [howto]\ndate: 2026-01-17\n---\n# Guide\n\n## Install\n\nGet the zebra.\n",
    )
    write(root, "sub/h.md", "# Other\n\nA zebra too.\n")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 2)
        answer = await bench.call(SearchDocuments(query="zebra get"))
        hit = answer.results[0]
        assert (hit.id, hit.preview, hit.source, hit.context) == (
            "g",
            "Guide",
            "lexical",
            "Guide > Install (lines 8-10)",
        )
        assert "Get the zebra." in hit.snippet
        assert (answer.metadata.query, answer.metadata.sonar_enabled) == ("zebra get", False)
        assert (answer.metadata.stages, answer.metadata.degraded) == (["lexical"], [])
        for params, ids in (
            (SearchDocuments(query="zebra", tags=["HowTo"]), ["g"]),
            (SearchDocuments(query="zebra", path="sub/"), ["h"]),
            (SearchDocuments(query="zebra", until="2026-01-17"), ["g"]),
            (SearchDocuments(query="zebra", since="2026-01-18"), ["h"]),
            (SearchDocuments(query="zebra", limit=1), ["g"]),
        ):
            assert [hit.id for hit in (await bench.call(params)).results] == ids
        with pytest.raises(InvalidParams, match="query"):
            await bench.call(SearchDocuments(query=" \n"))


async def test_search_fails_openly_while_the_search_is_down_and_the_rest_answers(tmp_path: Path, root: Path) -> None:
    write(root, "a.md", "zebra [[b]]")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        await bench.stop("retrieve")
        with pytest.raises(Unavailable):
            await found(bench, "zebra")
        with pytest.raises(Unavailable):
            await bench.call(KnowledgeStatsSummary())
        write(root, "b.md", "giraffe")
        status = await until(bench, lambda status: status.notes == 2 and status.waiting is not None)
        assert status.pending == 1
        assert await read(bench, "b") == "giraffe"
        await bench.start("retrieve")
        await settled(bench, 2)
        assert await found(bench, "giraffe") == ["b"]


@pytest.mark.slow
async def test_answer_says_how_far_the_ingest_is(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "zebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 1)
        search.refuse = lambda ids: Unavailable("starting", retry_after_ms=100)
        write(root, "b.md", "zebra")
        await until(bench, lambda status: status.waiting is not None)
        degraded = (await bench.call(SearchDocuments(query="zebra"))).metadata.degraded
        assert degraded == [
            "index: 1 of 2 notes are still to be indexed",
            "index: waits, the search is not available: starting",
        ]
        search.refuse = lambda ids: None
        await settled(bench, 2)
        assert (await bench.call(SearchDocuments(query="zebra"))).metadata.degraded == []


async def test_note_that_the_search_refuses_is_named_and_stops_no_other(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    search.refuse = lambda ids: Internal("cannot take it") if "poison" in ids else None
    for number in range(100):
        write(root, f"n{number}.md", f"zebra {number}")
    write(root, "poison.md", "zebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        status = await until(bench, lambda status: status.notes == 101 and status.pending == 1)
        assert [(problem.path, problem.reason) for problem in status.problems] == [
            (str(root / "poison.md"), "the search refused it: cannot take it")
        ]
        assert len(search.groups) == 100
        search.refuse = lambda ids: None
        write(root, "poison.md", "zebra mended")
        await settled(bench, 101)
        assert len(search.groups) == 101


async def test_search_that_refuses_everything_makes_the_ingest_wait(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    search.refuse = lambda ids: Internal("disk full") if ids else None
    for number in range(40):
        write(root, f"n{number}.md", "zebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        status = await until(bench, lambda status: status.waiting is not None)
        assert status.waiting is not None
        assert "it refuses every note: disk full" in status.waiting
        search.refuse = lambda ids: None
        await settled(bench, 40)
        assert len(search.groups) == 40


@pytest.mark.slow
@pytest.mark.parametrize("failures", [[Unavailable("down")] * 3, [Internal("odd")] * 2])
async def test_lost_and_left_over_groups_are_put_right_at_the_start(
    tmp_path: Path, root: Path, failures: Sequence[LinckiaError]
) -> None:
    search = MemorySearch()
    for name in "abc":
        write(root, f"{name}.md", f"zebra {name}")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 3)
    search.groups["stray"] = search.groups.pop("b")
    coming = list(failures)
    search.refuse = lambda ids: coming.pop() if coming else None
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await until(bench, lambda status: sorted(search.groups) == ["a", "b", "c"] and not status.pending)
    assert coming == []


async def test_damaged_database_is_put_aside_and_built_anew(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "zebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 1)
    database = tmp_path / "data/knowledge/notes.db"
    write(database.parent, database.name, "rubbish" * 1000)
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        assert (await settled(bench, 1)).rebuilt
        assert await found(bench, "zebra") == ["a"]
    assert any(name.startswith("notes.db.damaged-") for name in os.listdir(tmp_path / "data/knowledge"))


async def test_unmounted_root_keeps_its_notes_and_says_so(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "zebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 1)
        shutil.move(root, tmp_path / "away")
        await until(bench, lambda status: status.problem_count == 1)
        answer = await bench.call(SearchDocuments(query="zebra"))
        assert [hit.id for hit in answer.results] == ["a"]
        assert answer.metadata.degraded == [f"index: {root}: folder cannot be read: No such file or directory"]
        shutil.move(tmp_path / "away", root)
        await until(bench, lambda status: status.problem_count == 0)
    assert search.put_ids == ["a"]


async def test_notes_of_a_root_that_is_no_longer_served_leave(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "zebra")
    other = tmp_path / "other"
    write(other, "b.md", "zebra")
    async with notes_service(tmp_path / "data", root, other, search=search) as bench:
        await settled(bench, 2)
    async with notes_service(tmp_path / "data", other, search=search) as bench:
        await settled(bench, 1)
        assert await found(bench, "zebra") == ["b"]
        with pytest.raises(OperationError):
            await read(bench, "a")


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


@pytest.mark.slow
async def test_service_is_ready_and_answers_before_the_first_scan_is_through(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "zebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 1)
    gate = trio.Event()
    search.refuse = lambda ids: Unavailable("not yet") if not gate.is_set() else None
    for number in range(10):
        write(root, f"n{number}.md", "giraffe")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        answer = await bench.call(SearchDocuments(query="zebra"))
        assert [hit.id for hit in answer.results] == ["a"]
        assert answer.metadata.degraded
        gate.set()
        await settled(bench, 11)
        assert (await bench.call(KnowledgeStatus())).waiting is None


async def test_file_that_shrinks_or_grows_during_the_ingest_ends_up_as_it_is(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    file = write(root, "a.md", "start")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        for number in range(60):
            file.write_text(f"version {number}")
            await trio.sleep(0.005)
        await settled(bench, 1)
        await settled(bench, 1)
        assert search.groups["a"].items[0].text == "version 59"


async def test_huge_note_is_searched_up_to_the_limit_read_whole_and_said(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.knowledge.notes.markdown.MAX_INDEXED_CHARS", 1000)
    text = "zebra\n\n" + "word " * 400 + "\n\nquagga"
    write(root, "big.md", text)
    async with notes_service(tmp_path / "data", root) as bench:
        status = await settled(bench, 1)
        assert [problem.reason for problem in status.problems] == [
            f"only the first 1000 of {len(text)} characters are searched"
        ]
        assert (await found(bench, "zebra"), await found(bench, "quagga")) == (["big"], [])
        assert await read(bench, "big") == text


async def test_file_too_large_to_read_is_named_and_stops_no_other(tmp_path: Path, root: Path) -> None:
    os.truncate(write(root, "big.md", "x"), MAX_READ_BYTES + 1)
    write(root, "small.md", "zebra")
    async with notes_service(tmp_path / "data", root) as bench:
        status = await until(bench, lambda status: status.notes == 2 and status.pending == 1)
        assert [(problem.path, problem.reason) for problem in status.problems] == [
            (
                str(root / "big.md"),
                f"is not indexed: {MAX_READ_BYTES + 1} bytes, more than the {MAX_READ_BYTES} that are read",
            )
        ]
        with pytest.raises(OperationError, match=r"^File cannot be read: big\.md: \d+ bytes"):
            await read(bench, "big")
        answer = await bench.call(SearchDocuments(query="zebra"))
        assert [hit.id for hit in answer.results] == ["small"]
        assert answer.metadata.degraded == ["index: 1 of 2 notes could not be indexed, see knowledge_status"]
        write(root, "big.md", "zebra now short")
        await settled(bench, 2)


async def test_note_the_parser_cannot_take_is_named_and_stops_no_other(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(text: str, place: Place) -> Note:
        if "poison" in text:
            raise ZeroDivisionError("defect")
        return true_parse(text, place)

    monkeypatch.setattr("services.knowledge.notes.markdown.parse", parse)
    write(root, "a.md", "poison")
    write(root, "b.md", "zebra")
    async with notes_service(tmp_path / "data", root) as bench:
        status = await until(bench, lambda status: status.notes == 2 and status.pending == 1)
        assert [problem.reason for problem in status.problems] == ["cannot be parsed: ZeroDivisionError: defect"]
        assert await found(bench, "zebra") == ["b"]
