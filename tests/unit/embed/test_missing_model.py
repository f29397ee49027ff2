"""A model that is not installed is a state with a remedy: calls name the command, and it is used once it is there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

from proto.errors import Unavailable
from proto.ops.embed import MODEL_MISSING, EmbedMaxSim, EmbedModelParams, EmbedTexts, TextKind
from proto.ops.retrieve import Group, Item, RetrievePut, RetrieveSearch
from services.embed import main as embed
from services.embed.weights import ModelFiles
from services.retrieve.main import open_service as open_retrieve
from services.shared.models import folders
from services.shared.models.folders import NotInstalled
from tests.in_process import services_in_process
from tests.waiting import until

CALLS = (
    EmbedTexts(texts=["a sea star"], kind=TextKind.PASSAGE),
    EmbedModelParams(),
    EmbedMaxSim(query="arms", texts=["a sea star"]),
)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "installed", lambda name: None)


@pytest.mark.parametrize("model", ["auto", "bge-small-en-v1.5"])
@pytest.mark.usefixtures("nothing_installed")
async def test_calls_fail_at_once_with_the_command(model: str, tmp_path: Path) -> None:
    settings = {"embed": {"model": model}}
    async with services_in_process({"embed": embed.open_service}, tmp_path, settings=settings) as bench:
        command = f"linckia models get {'all-MiniLM-L6-v2' if model == 'auto' else model}"
        info = bench.running["embed"].info
        assert (info["model"], info["remedy"]) == ("none", command)
        assert command in info["note"]
        for call in CALLS:
            with pytest.raises(Unavailable, match=command) as caught:
                await bench.call(call)
            assert caught.value.failure.data == {MODEL_MISSING: command}


async def test_a_model_that_is_installed_later_is_used_without_a_restart(
    tmp_path: Path, packaged: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "LOOK_AGAIN_S", 0.0)
    folder = tmp_path / "model"
    settings = {"embed": {"model": str(folder)}}
    async with services_in_process({"embed": embed.open_service}, tmp_path / "data", settings=settings) as bench:
        with pytest.raises(Unavailable, match="does not exist"):
            await bench.call(CALLS[0])
        shutil.copytree(packaged.folder, folder)
        assert (await bench.call(EmbedModelParams())).dimensions == 384
        assert (await bench.call(CALLS[0])).vectors.shape == (1, 384)
        assert bench.failures == []


async def test_the_disk_is_not_searched_by_every_call(
    tmp_path: Path, nothing_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "LOOK_AGAIN_S", 1e6)
    looked = 0

    def load(*_: object) -> None:
        nonlocal looked
        looked += 1
        raise NotInstalled("no embedding model is installed")

    monkeypatch.setattr(embed, "load", load)
    async with services_in_process({"embed": embed.open_service}, tmp_path) as bench:
        for call in CALLS * 5:
            with pytest.raises(Unavailable):
                await bench.call(call)
    assert looked == 1


@pytest.mark.usefixtures("nothing_installed")
async def test_searches_say_that_vectors_are_unavailable_and_name_the_command(tmp_path: Path) -> None:
    services = {"embed": embed.open_service, "retrieve": open_retrieve}
    async with services_in_process(services, tmp_path) as bench:
        items = [Item(key=str(n), text=f"arm {n} of a sea star") for n in range(3)]
        await bench.call(RetrievePut(collection="notes", groups=[Group(id="g", items=items)]))
        degraded: list[str] = []

        async def is_said() -> bool:
            found = await bench.call(RetrieveSearch(collection="notes", query="sea star"))
            assert found.hits
            degraded[:] = [each for each in found.degraded if each.startswith("vector")]
            return "linckia models get all-MiniLM-L6-v2" in str(degraded)

        with trio.fail_after(60):
            await until(is_said)
        (said,) = degraded
        assert said.startswith("vector: 3 pieces have no vectors, which are unavailable: no embedding model")
        assert "waiting" not in said
