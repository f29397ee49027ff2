"""The language model as the last stage of a search: which changes it may make, and that nothing is lost if it fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.ops.llm import LlmModel, Placed, Refinement
from services.knowledge.main import open_service
from services.knowledge.operations.notes import FindGaps, SearchDocuments, SearchDocumentsResult, SearchHit
from services.knowledge.search.refinement import ordered
from services.llm.main import open_service as open_llm
from tests.in_process import Bench, services_in_process
from tests.unit.knowledge.rig import MemorySearch, settled, write
from tests.unit.llm.server import Request, Script, Server, reply, saying, serving

ASKED = SearchDocuments(query="zebra stripes")


def make_notes(root: Path) -> None:
    write(root, "one.md", "# One\n\nThe zebra has stripes of black and white, as everybody knows who has seen one.\n")
    write(root, "two.md", "# Two\n\nA zebra runs from the lion across the plain, and often it gets away from him.\n")
    write(root, "three.md", "# Three\n\nStripes are worn by sailors too, on shirts that come from the north coast.\n")


@asynccontextmanager
async def notes(tmp_path: Path, llm: dict[str, Any]) -> AsyncIterator[Bench]:
    """The service of notes beside that of the language model."""
    root = tmp_path / "notes"
    root.mkdir(exist_ok=True)
    make_notes(root)
    services = {"retrieve": MemorySearch().open, "llm": open_llm, "knowledge": open_service}
    settings = {"knowledge": {"scan_interval_s": 0.02}, "llm": llm}
    async with services_in_process(services, tmp_path / "data", roots=[root], settings=settings) as bench:
        await settled(bench, notes=3)
        yield bench
        await bench.stop("knowledge")


def ids(answer: SearchDocumentsResult) -> list[str]:
    return [hit.id for hit in answer.results]


async def test_the_model_reorders_explains_and_says_so(tmp_path: Path) -> None:
    said = {
        "intent": "Animals with stripes.",
        "analysis": "Two notes speak of them.",
        "ranking": [{"n": 3, "score": 0.8, "context": "It runs."}, {"n": 1, "score": 0.6}],
    }
    async with serving(saying(said)) as server, notes(tmp_path, {"url": server.url, "model": "m"}) as bench:
        answer = await bench.call(ASKED)
        shown = [each["id"] for each in server.requests[0].material["results"]]
        assert ids(answer) == [shown[2], shown[0], shown[1]]
        scores = [hit.score for hit in answer.results]
        assert scores == sorted(scores, reverse=True)
        assert scores[:2] == [0.8, 0.6]
        assert answer.results[0].context.endswith(" — It runs.")
        assert "line" in answer.results[0].context
        assert " — " not in answer.results[1].context
        metadata = answer.metadata
        assert (metadata.sonar_enabled, metadata.intent, metadata.analysis, metadata.degraded) == (
            True, "Animals with stripes.", "Two notes speak of them.", [],
        )  # fmt: skip
        assert metadata.stages[-1] == "sonar"


async def test_without_a_model_no_call_is_made_and_nothing_is_degraded(tmp_path: Path) -> None:
    async with notes(tmp_path, {}) as bench:
        metadata = (await bench.call(ASKED)).metadata
        assert (metadata.sonar_enabled, metadata.intent, metadata.analysis, metadata.degraded) == (
            False,
            None,
            None,
            [],
        )


async def hang(server: Server, request: Request, stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def refuse(server: Server, request: Request, stream: trio.SocketStream) -> None:
    await reply(stream, b"broken", "500 Internal Server Error")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (hang, "within 0.3 s"),
        (refuse, "status 500"),
        (saying("As a language model I would rather not."), "not the requested JSON object"),
        (saying({"ranking": [99]}), "nothing that was requested"),
    ],
    ids=["too slow", "status 500", "prose", "unknown numbers"],
)
async def test_if_the_model_fails_the_earlier_stages_result_is_returned(
    tmp_path: Path, script: Script, said: str
) -> None:
    async with notes(tmp_path, {}) as bench:
        plain = await bench.call(ASKED)
    async with serving(script) as server:
        llm = {"url": server.url, "model": "m", "timeout_s": 0.3}
        async with notes(tmp_path, llm) as bench:
            answer = await bench.call(ASKED)
    assert answer.results == plain.results
    assert not answer.metadata.sonar_enabled
    assert [reason for reason in answer.metadata.degraded if reason.startswith("sonar: ") and said in reason]
    assert answer.metadata.stages == plain.metadata.stages


async def test_a_model_whose_service_dies_costs_its_answers_only(tmp_path: Path) -> None:
    async with (
        serving(saying({"ranking": [2, 1]})) as server,
        notes(tmp_path, {"url": server.url, "model": "m"}) as bench,
    ):
        assert (await bench.call(ASKED)).metadata.sonar_enabled
        await bench.stop("llm")
        answer = await bench.call(ASKED)
        assert len(answer.results) == 3
        assert answer.metadata.degraded == ["sonar: service llm is not running"]
        await bench.start("llm")
        assert (await bench.call(ASKED)).metadata.sonar_enabled


async def test_invalid_settings_are_reported_with_the_search(tmp_path: Path) -> None:
    async with notes(tmp_path, {"url": "http://127.0.0.1:1"}) as bench:
        (reason,) = (await bench.call(ASKED)).metadata.degraded
        assert reason.startswith("sonar: settings of llm: `model` is missing")
        assert (await bench.call(LlmModel())).problem


async def test_the_model_chooses_the_types_of_missing_links(tmp_path: Path) -> None:
    async def choose(server: Server, request: Request, stream: trio.SocketStream) -> None:
        link = {"n": 1, "type": "implements", "from": "b", "reason": "One carries out what the other plans."}
        await saying({"links": [link, {"n": 2, "type": "worships"}]})(server, request, stream)

    async with notes(tmp_path, {}) as bench:
        plain = await bench.call(FindGaps(threshold=0.01))
    async with serving(choose) as server, notes(tmp_path, {"url": server.url, "model": "m"}) as bench:
        found = await bench.call(FindGaps(threshold=0.01))
    assert (found[0].source_id, found[0].target_id) == (plain[0].target_id, plain[0].source_id)
    assert (found[0].suggested_link_type, found[0].reason) == ("implements", "One carries out what the other plans.")
    assert found[0].similarity == plain[0].similarity
    assert found[1:] == plain[1:]


async def test_gaps_are_returned_even_if_the_model_fails(tmp_path: Path) -> None:
    async with notes(tmp_path, {}) as bench:
        plain = await bench.call(FindGaps(threshold=0.01))
    async with serving(refuse) as server, notes(tmp_path, {"url": server.url, "model": "m"}) as bench:
        assert await bench.call(FindGaps(threshold=0.01)) == plain


def hit(id_: str, score: float) -> SearchHit:
    return SearchHit(id=id_, score=score, preview="", source="lexical", snippet="", context="")


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ([Placed(index=2), Placed(index=0)], [("c", 0.9), ("a", 0.5), ("b", 0.1)]),
        ([Placed(index=2, score=0.5)], [("c", 0.5), ("a", 0.45), ("b", 0.25)]),
        ([], [("a", 0.9), ("b", 0.5), ("c", 0.1)]),
        ([Placed(index=7), Placed(index=1, score=0.0)], [("b", 0.0), ("a", 0.0), ("c", 0.0)]),
    ],
)
def test_every_note_stays_and_scores_fall(order: list[Placed], expected: list[tuple[str, float]]) -> None:
    hits = [hit("a", 0.9), hit("b", 0.5), hit("c", 0.1)]
    answer = ordered(hits, Refinement(intent=None, analysis=None, order=order, model="m"))
    assert [(each.id, round(each.score, 9)) for each in answer] == expected
