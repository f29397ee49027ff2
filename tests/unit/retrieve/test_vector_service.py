"""The settings reach the index: a service told to make segments early does, says so, and opens them again."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from proto.errors import InvalidParams
from proto.ops.retrieve import (
    Fusion,
    Group,
    Item,
    RetrieveDelete,
    RetrievePut,
    RetrieveSearch,
    RetrieveStatus,
    SearchResult,
)
from services.embed import weights
from services.embed.main import open_service as open_embed
from services.retrieve.main import open_service as open_retrieve
from tests.in_process import Bench, services_in_process

pytest.importorskip(weights.PACKAGED[0], reason="the package with the model's weights is not installed")

SERVICES = {"embed": open_embed, "retrieve": open_retrieve}
NOTES = [Group(id=f"n{n}", items=[Item(key="0", text=f"Note {n} on the number {n * n}.")]) for n in range(40)]


async def until_in_segments(bench: Bench) -> None:
    with trio.fail_after(60):
        # The state is the service's; a client of it can only ask.
        while True:
            status = await bench.call(RetrieveStatus(collection="notes"))
            if status.vectors == len(NOTES) and status.index in ("rabitq", "rabitq+flat"):
                return
            await trio.sleep(0.01)


async def answered(bench: Bench, asked: RetrieveSearch) -> SearchResult:
    """The answer once the query's vector came in time: on a busy machine that may take more than one search."""
    with trio.fail_after(60):
        while "vector" not in (found := await bench.call(asked)).stages:  # noqa: ASYNC110
            await trio.sleep(0.1)
    return found


@pytest.mark.slow
async def test_segments_are_made_and_opened_again_by_the_service(tmp_path: Path) -> None:
    settings = {"retrieve": {"flat_vectors": 8, "rerank": "off"}}
    by_vector = RetrieveSearch(collection="notes", query="Note 6 on the number 36.", fusion=Fusion(method="vector"))
    async with services_in_process(SERVICES, tmp_path, settings=settings) as bench:
        await bench.call(RetrievePut(collection="notes", groups=NOTES))
        await until_in_segments(bench)
        assert (await answered(bench, by_vector)).hits[0].group == "n6"
        await bench.stop("retrieve")
        await bench.start("retrieve")
        found = await answered(bench, by_vector)
        assert (found.hits[0].group, found.degraded) == ("n6", [])
        assert (await bench.call(RetrieveStatus(collection="notes"))).index in ("rabitq", "rabitq+flat")
        await bench.call(RetrieveDelete(collection="notes", groups=["n6"]))
        assert "n6" not in {hit.group for hit in (await answered(bench, by_vector)).hits}


async def test_an_impossible_limit_is_named(tmp_path: Path) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with services_in_process(
            {"retrieve": open_retrieve}, tmp_path, settings={"retrieve": {"flat_vectors": 0}}
        ):
            pass
    assert caught.group_contains(InvalidParams, match="flat_vectors")
