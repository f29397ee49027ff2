"""What a search answers right after a restart, while words are yet to be checked and vectors to be read."""

from __future__ import annotations

from pathlib import Path

import trio

from proto.ops.retrieve import Fusion, Group, Item, RetrievePut, RetrieveSearch
from services.retrieve.main import open_service
from tests.in_process import Bench, services_in_process

COLLECTIONS = ("first", "second", "third")

Answers = dict[str, tuple[list[str], list[str], list[str]]]


async def ask(bench: Bench, name: str, answers: Answers) -> None:
    """Check the groups found, the stages that ran, and the reported problems."""
    query = RetrieveSearch(collection=name, query="sea star", fusion=Fusion(method="lexical"))
    answer = await bench.call(query)
    answers[name] = [hit.group for hit in answer.hits], answer.stages, answer.degraded


async def test_after_a_restart_words_of_every_collection_are_found_at_once_and_not_degraded(tmp_path: Path) -> None:
    async with services_in_process({"retrieve": open_service}, tmp_path) as bench:
        piece = Item(key="1", text="A sea star grows back any arm.", embed=False)
        for name in COLLECTIONS:
            await bench.call(RetrievePut(collection=name, groups=[Group(id=f"in-{name}", items=[piece])]))
        for some in (COLLECTIONS, COLLECTIONS[1:], COLLECTIONS[2:]):
            await bench.stop("retrieve")
            await bench.start("retrieve")
            answers: Answers = {}
            async with trio.open_nursery() as nursery:
                for name in some:
                    nursery.start_soon(ask, bench, name, answers)
            assert answers == {name: ([f"in-{name}"], ["lexical"], []) for name in some}
