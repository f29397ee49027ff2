"""The operator takes what waits for a vector, and stores vectors that were made elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio

from proto.errors import InvalidParams, Unavailable
from proto.ops.embed import EmbedMaxSim, EmbedModel, EmbedModelParams, EmbedResult, EmbedTexts, MaxSimResult
from proto.ops.retrieve import (
    Group,
    Item,
    Outbox,
    RetrieveOutboxes,
    RetrievePut,
    RetrieveSettle,
    RetrieveSimilar,
    RetrieveStatus,
    RetrieveWaiting,
    SettledItem,
    WaitingItem,
)
from services.retrieve.main import open_service as open_retrieve
from services.runtime.handlers import Context, Environment, Handlers, handles
from tests.in_process import Bench, services_in_process
from tests.unit.retrieve.rig import DIMENSIONS, vector

MODEL = "words:1"
TEXTS = ["one zebra", "two zebras", "three okapis", "four okapis"]


class AwayEmbedder:
    """Knows its model, and embeds nothing."""

    @handles(EmbedModelParams)
    async def on_model(self, params: EmbedModelParams, ctx: Context) -> EmbedModel:
        return EmbedModel(
            model="words", fingerprint=MODEL, dimensions=DIMENSIONS, max_tokens=256, device="cpu", precision="fp32"
        )

    @handles(EmbedTexts)
    async def on_texts(self, params: EmbedTexts, ctx: Context) -> EmbedResult:
        raise Unavailable("the model rests", retry_after_ms=60_000)

    @handles(EmbedMaxSim)
    async def on_maxsim(self, params: EmbedMaxSim, ctx: Context) -> MaxSimResult:
        raise Unavailable("the model rests", retry_after_ms=60_000)


@asynccontextmanager
async def open_embed(env: Environment) -> AsyncIterator[Handlers]:
    yield Handlers(AwayEmbedder())


@asynccontextmanager
async def filled(folder: Path) -> AsyncIterator[Bench]:
    services = {"embed": open_embed, "retrieve": open_retrieve}
    async with services_in_process(services, folder, settings={"retrieve": {"rerank": "off"}}) as bench:
        groups = [Group(id=f"g{n}", items=[Item(key="0", text=text)]) for n, text in enumerate(TEXTS)]
        await bench.call(RetrievePut(collection="notes", groups=groups))
        yield bench


async def waiting(bench: Bench, **page: int) -> list[WaitingItem]:
    return (await bench.call(RetrieveWaiting(collection="notes", **page))).items


def settle(items: list[WaitingItem], fingerprint: str = MODEL) -> RetrieveSettle:
    rows = [vector(item.text).astype("<f2").tobytes() for item in items]
    return RetrieveSettle(
        collection="notes", fingerprint=fingerprint, vectors=b"".join(rows),
        items=[SettledItem(id=item.id, hash=item.hash) for item in items],
    )  # fmt: skip


async def test_pending_items_are_counted_and_paged_from_the_newest(tmp_path: Path) -> None:
    async with filled(tmp_path) as bench:
        (outbox,) = (await bench.call(RetrieveOutboxes())).outboxes
        assert (outbox.collection, outbox.waiting, outbox.failed) == ("notes", 4, 0)
        first = await waiting(bench, limit=3)
        assert [item.text for item in first] == TEXTS[:0:-1]
        assert [item.text for item in await waiting(bench, before=first[-1].id)] == TEXTS[:1]
        with pytest.raises(InvalidParams, match="no collection okapis"):
            await bench.call(RetrieveOutboxes(collection="okapis"))
        assert (await bench.call(RetrieveWaiting(collection="okapis"))).items == []


async def test_vectors_are_stored_once_however_often_they_come_and_are_searched(tmp_path: Path) -> None:
    async with filled(tmp_path) as bench:
        items = await waiting(bench)
        assert (await bench.call(settle(items[:2]))).vectors_waiting == 2
        assert (await bench.call(settle(items))).vectors_waiting == 0
        assert (await bench.call(settle(items))).vectors_waiting == 0
        with trio.fail_after(30):
            while (status := await bench.call(RetrieveStatus(collection="notes"))).index == "none":  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert (status.vectors, status.vectors_waiting, status.fingerprint) == (4, 0, MODEL)
        found = (await bench.call(RetrieveSimilar(collection="notes", group="g0"))).neighbours
        assert sorted(each.group for each in found) == ["g1", "g2", "g3"]
        assert (await bench.call(RetrieveOutboxes())).outboxes == [Outbox(collection="notes", waiting=0)]


async def test_a_vector_of_words_that_have_changed_is_ignored(tmp_path: Path) -> None:
    async with filled(tmp_path) as bench:
        items = await waiting(bench)
        await bench.call(
            RetrievePut(collection="notes", groups=[Group(id="g3", items=[Item(key="0", text="now a gnu")])])
        )
        assert (await bench.call(settle(items))).vectors_waiting == 1
        assert [item.text for item in await waiting(bench)] == ["now a gnu"]


async def test_vectors_of_another_model_or_shape_are_refused(tmp_path: Path) -> None:
    async with filled(tmp_path) as bench:
        items = await waiting(bench)
        with pytest.raises(InvalidParams, match="words:2, but words:1"):
            await bench.call(settle(items, "words:2"))
        good = settle(items)
        for wrong in (good.vectors[2:], np.full(4 * DIMENSIONS, np.nan, "<f2").tobytes(), bytes(len(good.vectors))):
            with pytest.raises(InvalidParams, match="parameter `vectors`"):
                await bench.call(RetrieveSettle(collection="notes", fingerprint=MODEL, items=good.items, vectors=wrong))
        assert len(await waiting(bench)) == 4
