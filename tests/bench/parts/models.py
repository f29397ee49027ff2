"""The models of a search, called in this process as their services would call them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import trio

from proto.operation import Params
from proto.ops.embed import EmbedMaxSim, EmbedResult, EmbedTexts, MaxSimResult, TextKind, pack
from proto.ops.rerank import Ranked, RerankModel, RerankModelParams, RerankPairs, RerankResult
from services.embed.backends import Backend
from services.embed.encoder import LateInteraction, LatePair
from services.embed.main import load
from services.embed.serving import EmbedSettings, Loaded
from services.rerank import main as cross_encoder
from services.shared.models.device import Precision


class InProcessEmbedder:
    """The embedding model, called as the service would call it."""

    def __init__(self, precision: Precision = Precision.AUTO, backend: Backend = Backend.AUTO) -> None:
        self.model: Loaded = load(
            EmbedSettings(precision=precision, backend=backend), "cpu", Path(tempfile.gettempdir())
        )

    def embed(self, params: EmbedTexts) -> EmbedResult:
        tokens = self.model.tokenizer.encode(params.texts, params.kind)
        order = sorted(range(len(tokens.ids)), key=lambda index: len(tokens.ids[index]))
        vectors = np.empty((len(order), self.model.encoder.width), dtype=np.float32)
        for some in batches(order, [len(ids) for ids in tokens.ids], 2048):
            vectors[some] = self.model.encoder.compute([tokens.ids[index] for index in some])
        return EmbedResult(
            vectors=pack(vectors),
            fingerprint=self.model.fingerprint,
            tokens_per_letter=self.model.tokenizer.per_letter(params.texts, tokens.ids, params.kind),
            background=self.model.background,
        )

    async def passages(self, params: EmbedTexts) -> EmbedResult:
        return await trio.to_thread.run_sync(self.embed, params)

    async def query(self, params: EmbedTexts, timeout_s: float) -> EmbedResult:
        return await trio.to_thread.run_sync(self.embed, params)

    def max_sim(self, params: EmbedMaxSim) -> MaxSimResult:
        query = self.model.tokenizer.encode([params.query], TextKind.QUERY).ids[0]
        texts = self.model.tokenizer.encode(params.texts, TextKind.PASSAGE).ids
        late = LateInteraction(self.model.encoder)
        return MaxSimResult(scores=late.compute([LatePair(query, ids) for ids in texts])[:, 0].tolist())


class InProcessRerankers:
    """`embed` and `rerank`, called as a search does to rank its candidates."""

    def __init__(self, embedder: InProcessEmbedder, model: str) -> None:
        self._embedder = embedder
        self.cross: cross_encoder.Loaded | None = cross_encoder.load(cross_encoder.RerankSettings(model=model), "cpu")

    @property
    def name(self) -> str:
        return "none" if self.cross is None else self.cross.files.name

    async def __call__(self, params: Params[Any], *, timeout_s: float | None = None) -> Any:
        return await trio.to_thread.run_sync(self._answer, params)

    def _answer(self, params: Params[Any]) -> MaxSimResult | RerankModel | RerankResult:
        if isinstance(params, EmbedMaxSim):
            return self._embedder.max_sim(params)
        if self.cross is None:
            return RerankModel(available=False)
        if isinstance(params, RerankModelParams):
            return RerankModel(
                available=True, model=self.name, max_tokens=self.cross.files.max_tokens, tokens_per_s=1e9, device="cpu"
            )  # fmt: skip
        assert isinstance(params, RerankPairs)
        scores = self.cross.encoder.compute(self.cross.tokenizer.encode(params.query, params.texts).pairs)[:, 0]
        order = np.argsort(-scores, kind="stable")
        return RerankResult(
            ranked=[Ranked(index=int(index), score=float(scores[index])) for index in order], model=self.name
        )


def batches(order: Sequence[int], lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Split `order` where the sum of the lengths would exceed `budget`."""
    batch: list[int] = []
    spent = 0
    for index in order:
        if batch and spent + lengths[index] > budget:
            yield batch
            batch, spent = [], 0
        batch.append(index)
        spent += lengths[index]
    if batch:
        yield batch
