"""Notes with the true search behind them: what the two promise each other holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from proto.errors import Unavailable
from proto.ops.retrieve import RetrieveGroups
from services.knowledge.main import open_service as open_knowledge
from services.knowledge.operations.notes import KnowledgeStatsSummary, SearchDocuments
from services.llm.main import open_service as open_llm
from services.retrieve.main import open_service as open_retrieve
from tests.in_process import services_in_process
from tests.unit.knowledge.rig import settled, until, write

SERVICES = {"retrieve": open_retrieve, "llm": open_llm, "knowledge": open_knowledge}
SETTINGS = {"knowledge": {"scan_interval_s": 0.02}}


async def test_notes_are_found_filtered_and_follow_their_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    filler = "Nothing of note is said here at all. " * 8
    write(root, "guides/setup.md", f"---\ntags: [howto]\ndate: 2026-01-17\n---\n"
          f"# Guide\n\n{filler}\n\n## Install\n\n{filler}\n\n"
          f"Run the zebra installer.\n\n## Use\n\n{filler * 3}\n")  # fmt: skip
    write(
        root, "animals.md", "# Animals\n\nThe zebra is striped; the quagga is gone for good, as far as anyone knows.\n"
    )
    write(root, "short.md", "zebra")
    write(root, "empty.md", "")
    async with services_in_process(SERVICES, tmp_path / "data", roots=[root], settings=SETTINGS) as bench:
        await settled(bench, 4)

        async def ids(**conditions: object) -> set[str]:
            params = SearchDocuments(query="zebra", **conditions)  # type: ignore[arg-type]  # each test names real fields
            return {hit.id for hit in (await bench.call(params)).results}

        assert await ids() == {"setup", "animals", "short"}
        for budget, kept in ((1, 1), (10_000, 3)):
            # An answer that is cut says so.
            within = await bench.call(SearchDocuments(query="zebra", max_tokens=budget))
            assert (len(within.results), within.left_out) == (kept, 3 - kept)
        assert await ids(tags=["HOWTO"]) == {"setup"}
        assert await ids(path="guides/") == {"setup"}
        assert await ids(until="2026-01-17") == {"setup"}
        assert await ids(since="2026-01-18") == {"animals", "short"}
        # Hardly any of the words: the nearest are shown, and said to be unlikely.
        long = "zebra " + " ".join(f"quixotic{n}" for n in range(60))
        unlikely = await bench.call(SearchDocuments(query=long))
        assert {hit.id for hit in unlikely.results} == {"setup", "animals", "short"}
        assert "nothing relevant was found" in unlikely.note
        assert "these are the nearest" in unlikely.note
        assert (await bench.call(SearchDocuments(query=long, min_score=0.1))).results == []
        answer = await bench.call(SearchDocuments(query="zebra installer", limit=1))
        (hit,) = answer.results
        assert (hit.id, hit.preview) == ("setup", "Guide")
        assert hit.context == "Guide > Install (lines 9-13)"
        assert "Run the zebra installer." in hit.snippet
        assert hit.source == "lexical"
        assert answer.metadata.stages == ["lexical"]
        assert any(reason.startswith("vector") for reason in answer.metadata.degraded)
        write(root, "animals.md", "# Animals\n\nThe okapi is shy.\n")
        (root / "short.md").unlink()
        await settled(bench, 3)
        assert await ids() == {"setup"}
        assert (await bench.call(SearchDocuments(query="okapi"))).results[0].id == "animals"
        with trio.fail_after(10):
            while (await bench.call(RetrieveGroups(collection="notes"))).ids != ["animals", "empty", "setup"]:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert (await bench.call(KnowledgeStatsSummary())).text.startswith("Nodes: 3\nEdges: 0\nVectors: 0\nSize: ")
        await bench.stop("knowledge")


@pytest.mark.slow
async def test_search_that_dies_during_the_ingest_has_every_note_once_in_the_end(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for number in range(300):
        write(root, f"n{number}.md", f"# N {number}\n\nThe zebra number{number} walks.\n")
    async with services_in_process(SERVICES, tmp_path / "data", roots=[root], settings=SETTINGS) as bench:
        for _ in range(2):
            await until(bench, lambda status: status.notes == 300)
            await bench.stop("retrieve")
            with pytest.raises(Unavailable):
                await bench.call(SearchDocuments(query="zebra"))
            await trio.lowlevel.checkpoint()
            await bench.start("retrieve")
        await settled(bench, 300, within_s=20)
        await until(bench, lambda status: status.waiting is None)
        assert len((await bench.call(RetrieveGroups(collection="notes"))).ids) == 300
        for number in (0, 150, 299):
            found = await bench.call(SearchDocuments(query=f"number{number}"))
            assert [hit.id for hit in found.results] == [f"n{number}"]
        await bench.stop("knowledge")
