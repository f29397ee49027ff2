"""With real models: another one takes over when all vectors are of it, and scores mean the same by each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.errors import OperationError
from proto.ops.embed import EmbedTexts, TextKind
from proto.ops.retrieve import (
    DOUBTFUL,
    CollectionStatus,
    Fusion,
    Group,
    Item,
    RetrievePut,
    RetrieveSearch,
    RetrieveStatus,
    SearchResult,
)
from services.embed.main import open_service as open_embed
from services.embed.weights import PACKAGED, resolve
from services.retrieve.main import open_service as open_retrieve
from tests.in_process import Bench, services_in_process

pytest.importorskip(PACKAGED[0], reason="the package with the model's weights is not installed")

SERVICES = {"embed": open_embed, "retrieve": open_retrieve}
TEXTS = (
    "A sea star can grow back an arm that it has lost.",
    "The mill on the river was built of granite in 1788.",
    "Interest rates rose by a quarter per cent in spring.",
    "Sourdough bread needs flour, water, salt and patience.",
    "The violin is tuned in fifths, from the low G upwards.",
    "Rust spreads fastest where the paint of a car is scratched.",
    "A comet's tail always points away from the sun.",
    "Children learn to read sooner when they are read to.",
)
QUERY = "which animals regrow limbs?"
STRANGERS = ("zzyzx quorblat frimble", "kubernetes ingress controller timeout", "wann tagt der Bundesrat")


def save_other_model(folder: Path) -> Path:
    """A BERT of other weights and dimensions than the packaged one, with the tokenizer of that."""
    import torch

    transformers = pytest.importorskip("transformers")
    torch.manual_seed(7)
    config = transformers.BertConfig(
        vocab_size=30522, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    shutil.copy(resolve(PACKAGED[1]).tokenizer, folder / "tokenizer.json")
    return folder


async def found(bench: Bench, query: str, method: str = "weighted") -> SearchResult:
    """The answer once the query's vector came in time: a model that is loaded again is not waited for at first."""
    asked = RetrieveSearch(collection="notes", query=query, fusion=Fusion(method=method))
    with trio.fail_after(60):
        while "vector" not in (answer := await bench.call(asked)).stages:  # noqa: ASYNC110
            await trio.sleep(0.05)
    return answer


async def until(bench: Bench, *, vectors: int, coming: str | None) -> CollectionStatus:
    """Wait until `vectors` vectors are searched, and those of the model `coming` are pending."""
    with trio.fail_after(60):
        while True:
            status = await bench.call(RetrieveStatus(collection="notes"))
            if (status.vectors, status.coming) == (vectors, coming):
                return status
            await trio.sleep(0.02)


@pytest.mark.slow
async def test_the_previous_model_is_loaded_until_all_vectors_are_of_the_new_one(tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {"embed": {"backend": "onnx"}, "retrieve": {"rerank": "off"}}
    notes = [Group(id=f"n{n}", items=[Item(key="0", text=text)]) for n, text in enumerate(TEXTS)]
    async with services_in_process(SERVICES, tmp_path / "data", settings=settings) as bench:
        await bench.call(RetrievePut(collection="notes", groups=notes))
        first = await until(bench, vectors=len(TEXTS), coming=None)
        before = await found(bench, QUERY, "vector")
        assert before.hits[0].group == "n0"
        await bench.stop("embed")
        settings["embed"]["model"] = str(save_other_model(tmp_path / "other"))
        await bench.start("embed")
        of_before = EmbedTexts(texts=[QUERY], kind=TextKind.QUERY, fingerprint=first.fingerprint or "")
        again = await bench.call(of_before)
        assert (again.fingerprint, again.vectors.shape) == (first.fingerprint, (1, 384))
        with pytest.raises(OperationError, match="the model words:1 is not in use, and its location is unknown"):
            await bench.call(EmbedTexts(texts=[QUERY], fingerprint="words:1"))
        # As `linckia models use` does.
        await bench.stop("retrieve")
        await bench.start("retrieve")
        with trio.fail_after(60):
            while (await until(bench, vectors=len(TEXTS), coming=None)).fingerprint == first.fingerprint:  # noqa: ASYNC110
                await trio.sleep(0.02)
        assert (await found(bench, TEXTS[5], "vector")).hits[0].group == "n5"


@pytest.mark.slow
@pytest.mark.parametrize("is_other", [False, True])
async def test_unrelated_texts_are_doubtful_and_right_answers_are_not_in_any_model(
    tmp_path: Path, is_other: bool
) -> None:
    model = str(save_other_model(tmp_path / "other")) if is_other else "auto"
    settings = {"embed": {"backend": "onnx", "model": model}, "retrieve": {"rerank": "off"}}
    notes = [Group(id=f"n{n}", items=[Item(key="0", text=text)]) for n, text in enumerate(TEXTS)]
    async with services_in_process(SERVICES, tmp_path / "data", settings=settings) as bench:
        await bench.call(RetrievePut(collection="notes", groups=notes))
        await until(bench, vectors=len(TEXTS), coming=None)
        for n, text in enumerate(TEXTS):
            best = (await found(bench, text, "vector")).hits[0]
            assert best.group == f"n{n}"
            best = (await found(bench, " ".join(text.split()[:4]))).hits[0]
            assert best.group == f"n{n}"
            assert best.score >= 0.3
        for query in STRANGERS:
            answer = await found(bench, query)
            assert answer.best is not None
            assert answer.best < DOUBTFUL, query
