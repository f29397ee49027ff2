"""Serves a loaded model: tokenizing, batches in two lanes, and health checks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec
import numpy as np
import trio
from msgspec import Meta

from proto.ops.embed import EmbedMaxSim, EmbedModel, EmbedResult, EmbedTexts, MaxSimResult, TextKind, pack
from services.embed.backends import Backend
from services.embed.encoder import Encoder, LateInteraction, LatePair, Vectors
from services.embed.samples import SEEN
from services.embed.tokens import TextTokenizer, Tokens
from services.embed.weights import AUTO, ModelFiles, fingerprint
from services.shared.models.batcher import Batcher, BatchLimits, Lane, watch_health
from services.shared.models.checkpoint import Ids
from services.shared.models.device import ModelSettings, batches_at_once, bytes_of
from services.shared.models.gpu import affordable_tokens

_INLINE_CHARACTERS = 2000
"""A request up to this length is tokenized in the event loop: a tenth of a millisecond, less than switching to a
thread."""

_MOST_TOKENS_ON_A_CPU = 2048
"""Limit per batch: fewer make fp32 a tenth slower, more are no faster and take more memory."""

_FEWEST_TOKENS_ON_A_GPU = 512
"""Batches that turn out too large for the memory are halved."""

_WARM_TOKENS = 512
"""Longest text of the warm-up: pieces are never cut longer (`measure.LONGEST`), and 32,000 tokens take minutes."""

_CANARY = SEEN[0]


class EmbedSettings(ModelSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `[services.embed]`."""

    model: Annotated[str, Meta(description="`auto`, a folder, or an id in the local cache")] = AUTO
    backend: Annotated[
        Backend,
        Meta(description="auto: openvino if it helps, else onnx, else torch; fastest: measures torch too"),
    ] = Backend.AUTO
    max_tokens: Annotated[int, Meta(ge=8, description="Read at most this many tokens of a text")] | None = None
    """Maximum number of tokens read of a text; null: by the model."""
    query_prefix: Annotated[str, Meta(description="Replaces the model's own")] | None = None
    """Text before each query, instead of the model's own."""
    passage_prefix: Annotated[str, Meta(description="Replaces the model's own")] | None = None
    """Text before each passage, instead of the model's own."""
    dimensions: (
        Annotated[int, Meta(ge=1, description="Truncate vectors to this length, if the model was trained for it")]
        | None
    ) = None
    """Length of the vectors; null: that of the model."""
    batch_ms: Annotated[float, Meta(ge=0, description="Work in one batch of passages; 0: by the device")] = 0
    max_waiting_tokens: Annotated[int, Meta(ge=1, description="Tokens that may wait in each lane")] = 1_000_000
    unload_after_s: Annotated[float, Meta(ge=0)] = 300
    """Seconds without a call after which the process ends until the next one; 0: never."""


class Loaded(msgspec.Struct, frozen=True):
    """A model that has been warmed up."""

    files: ModelFiles
    fingerprint: str
    tokenizer: TextTokenizer
    encoder: Encoder
    canary: Ids
    canary_vector: Vectors
    background: tuple[float, float]
    """See `EmbedResult`."""

    @classmethod
    def of(cls, files: ModelFiles, encoder: Encoder) -> Loaded:
        """Warm the model up, and measure its similarity of unrelated texts. Blocks."""
        tokenizer = TextTokenizer(files)
        encoder.special = tokenizer.special
        encoder.warm_up(min(files.max_tokens, _WARM_TOKENS))
        # As in a search: queries are compared with passages.
        asked, answers = (encoder.compute(tokenizer.encode(SEEN, kind).ids) for kind in TextKind)
        strangers = (asked @ answers.T)[~np.eye(len(asked), dtype=bool)]
        canary = tokenizer.encode([_CANARY], TextKind.QUERY).ids[0]
        background = float(strangers.mean()), float(strangers.std())
        return cls(files, fingerprint(files), tokenizer, encoder, canary, encoder.compute([canary])[0], background)


class Serving:
    """A loaded model, and the calls waiting for it.

    Args:
        background: runs the batches, and the health checks.
    """

    def __init__(self, background: trio.Nursery, settings: EmbedSettings, loaded: Loaded) -> None:
        encoder = loaded.encoder
        on_gpu = encoder.device == "cuda"
        # On a GPU a query may have to wait for a batch.
        limits = BatchLimits(
            target_s=(settings.batch_ms or (80 if on_gpu else 400)) / 1000,
            first_tokens=16384 if on_gpu else 1024,
            max_tokens=most_tokens(loaded),
            max_waiting_tokens=settings.max_waiting_tokens,
        )
        self.loaded = loaded
        self._tokenizer = loaded.tokenizer
        self._batcher: Batcher[Ids] = Batcher(encoder.width, limits, verb="embedded")
        self._late: Batcher[LatePair] = Batcher(1, limits, verb="compared")
        # Queries have their own tokenizing thread, or they would wait for the tokens of a bulk request.
        self._limiters = {kind: trio.CapacityLimiter(1) for kind in TextKind}
        self.model = EmbedModel(
            model=loaded.files.name,
            fingerprint=loaded.fingerprint,
            dimensions=encoder.width,
            max_tokens=loaded.files.max_tokens,
            device=encoder.device,
            precision=encoder.precision.value,
        )
        at_once = batches_at_once(encoder.device, processes=settings.workers, threads=settings.threads)
        for _ in range(settings.batches or at_once):
            background.start_soon(self._batcher.run, encoder)
        if not on_gpu:
            # Queries never wait for a batch of passages, but share the processors with them.
            background.start_soon(self._batcher.run, encoder, Lane.PROMPT)
        background.start_soon(self._late.run, LateInteraction(encoder))
        health = partial(watch_health, every_s=settings.health_every_s)
        background.start_soon(health, self._batcher, loaded.canary, loaded.canary_vector, alike)

    async def embed(self, params: EmbedTexts) -> EmbedResult:
        """See `EmbedTexts`."""
        lane = Lane.PROMPT if params.kind is TextKind.QUERY else Lane.BULK
        self._batcher.admit(lane, len(params.texts) + len(params.tokens))
        ids = self._tokenizer.check(params.tokens)
        tokens = await self._tokenized(params.texts, params.kind)
        ids.extend(tokens.ids)
        return EmbedResult(
            vectors=pack(await self._batcher.compute(ids, lane)),
            fingerprint=self.model.fingerprint,
            truncated=tokens.truncated,
            tokens=sum(map(len, ids)),
            tokens_per_letter=self._tokenizer.per_letter(params.texts, tokens.ids, params.kind),
            background=self.loaded.background,
        )

    async def max_sim(self, params: EmbedMaxSim) -> MaxSimResult:
        """See `EmbedMaxSim`."""
        self._late.admit(Lane.PROMPT, len(params.texts))
        query = (await self._tokenized([params.query], TextKind.QUERY)).ids[0]
        texts = await self._tokenized(params.texts, TextKind.PASSAGE, TextKind.QUERY)
        ids = texts.ids if params.within_ms is None else self._in_time(texts.ids, params.within_ms / 1000)
        scores = await self._late.compute([LatePair(query, each) for each in ids], Lane.PROMPT)
        return MaxSimResult(scores=scores[:, 0].tolist())

    def _in_time(self, texts: Sequence[Ids], seconds: float) -> Sequence[Ids]:
        """Return as many of the first texts as can be compared in that time after those already waiting; at least
        one."""
        left = self._late.tokens_per_s * seconds - self._late.waiting_tokens
        for index, ids in enumerate(texts):
            left -= len(ids)
            if left < 0:
                return texts[: max(1, index)]
        return texts

    async def _tokenized(self, texts: Sequence[str], kind: TextKind, line: TextKind | None = None) -> Tokens:
        """Tokenize texts, in a thread if they are long.

        Args:
            line: the kind whose thread does the work; by default that of `kind`.
        """
        encode = partial(self._tokenizer.encode, texts, kind)
        if sum(map(len, texts)) <= _INLINE_CHARACTERS:
            return encode()
        return await trio.to_thread.run_sync(encode, limiter=self._limiters[line or kind])


def most_tokens(loaded: Loaded) -> int:
    """Return the limit per batch: on a GPU, by the memory that is free beside the model."""
    if loaded.encoder.device != "cuda":
        return _MOST_TOKENS_ON_A_CPU
    import torch

    free_bytes, _ = torch.cuda.mem_get_info()
    affordable = affordable_tokens(free_bytes, loaded.files.config, bytes_of(loaded.encoder.precision))
    return max(_FEWEST_TOKENS_ON_A_GPU, min(BatchLimits().max_tokens, affordable))


def alike(left: Vectors, right: Vectors) -> bool:
    """True if two unit vectors are of the same text."""
    return float(left @ right) > 0.99
