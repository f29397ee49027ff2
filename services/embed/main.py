"""The service `embed`: loads one model, warms it up, and answers `embed_texts` and `embed_model`.

It is ready only after real forward passes, and ends itself when the model is lost. One process, one model; of the
setting `workers` the kernel makes as many processes, which share one queue of calls.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import trio
from msgspec import Meta

from proto.errors import InvalidParams
from proto.ops.embed import (
    EmbedMaxSim,
    EmbedModel,
    EmbedModelParams,
    EmbedResult,
    EmbedTexts,
    MaxSimResult,
    TextKind,
    pack,
)
from services.embed.backends import Backend, onnx_is_here, open_encoder, remembered, try_torch
from services.embed.encoder import Encoder, LateInteraction, LatePair, Vectors
from services.embed.family import supports
from services.embed.samples import COMPARED
from services.embed.tokens import TextTokenizer, Tokens
from services.embed.weights import AUTO, ModelFiles, fingerprint, resolve
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.runtime.models.batcher import Batcher, BatchLimits, Lane, watch_health
from services.runtime.models.checkpoint import Ids, ModelMissing
from services.runtime.models.device import ModelSettings, Precision, batches_at_once

_INLINE_CHARACTERS = 2000
"""A request so short is tokenized in the event loop: a tenth of a millisecond, where the switch to a thread costs more.
"""

_MOST_TOKENS_ON_A_CPU = 2048
"""Of a batch: fewer make fp32 a tenth slower, more are no faster and take more memory."""

TRIAL_AFTER_S = 90.0
"""Idle time after which torch is tried, where it never was: nobody is to wait for that."""

_CANARY = "The quick brown fox jumps over the lazy dog."


class Settings(ModelSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[services.embed]`."""

    model: Annotated[str, Meta(description="`auto`, a folder, or an id in the local cache")] = AUTO
    backend: Annotated[Backend, Meta(description="auto: the fastest on this processor; torch, or onnx")] = Backend.AUTO
    max_tokens: Annotated[int, Meta(ge=8, description="Read at most so many tokens of a text")] | None = None
    query_prefix: Annotated[str, Meta(description="Instead of the model's own")] | None = None
    passage_prefix: Annotated[str, Meta(description="Instead of the model's own")] | None = None
    batch_ms: Annotated[float, Meta(ge=0, description="Work in one batch of passages; 0: by the device")] = 0
    max_waiting_tokens: Annotated[int, Meta(ge=1, description="Tokens that may wait in each lane")] = 1_000_000
    unload_after_s: Annotated[float, Meta(ge=0)] = 300


class Loaded(msgspec.Struct, frozen=True):
    """A model that has answered."""

    files: ModelFiles
    fingerprint: str
    tokenizer: TextTokenizer
    encoder: Encoder
    canary: Ids
    canary_vector: Vectors


def load(settings: Settings, device: str, folder: Path) -> Loaded:
    """Read, load and warm up the model of `settings`.  Blocks.

    Args:
        folder: keeps the graph of the backend `onnx`, and what was measured.

    Raises:
        ModelMissing: it is not on this machine, or not in a form that is loaded.
        OperationError: `device` is `cuda` and there is none, or the backend is not installed or lacks the precision.
    """
    files = resolve(
        settings.model,
        query_prefix=settings.query_prefix,
        passage_prefix=settings.passage_prefix,
        max_tokens=settings.max_tokens,
    )
    tokenizer = TextTokenizer(files)
    # Two batches on a core each are a third faster than one batch on both, and none waits where a core is taken away.
    backend, precision, threads = settings.backend, settings.precision, settings.threads
    encoder = open_encoder(files, backend, device=device, precision=precision, threads=threads, folder=folder)
    encoder.warm_up(files.max_tokens)
    canary = tokenizer.encode([_CANARY], TextKind.QUERY).ids[0]
    return Loaded(files, fingerprint(files), tokenizer, encoder, canary, encoder.compute([canary])[0])


def prepare(settings: Mapping[str, Any]) -> None:
    """Import the model's code alone, as far as the zygote has not: its weights would be in memory twice."""
    with contextlib.suppress(ModelMissing, ValueError):
        files = resolve(str(settings.get("model", AUTO)))
        if not supports(files.config):
            importlib.import_module("transformers")
        elif Backend(settings.get("backend", Backend.AUTO)) is not Backend.TORCH and onnx_is_here():
            importlib.import_module("services.embed.onnx_encoder")


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the model has answered."""
    settings = env.settings_as(Settings)
    device = (env.mode or "cpu") if settings.backend is not Backend.ONNX else "cpu"
    loaded = await trio.to_thread.run_sync(load, settings, device, env.data_dir)
    service = EmbedService(env.background, settings, loaded)
    model = service.model
    env.info(
        model=model.model, fingerprint=model.fingerprint, device=model.device, precision=model.precision,
        backend=loaded.encoder.backend,
    )  # fmt: skip
    if settings.backend is Backend.AUTO and settings.precision is Precision.AUTO and loaded.encoder.backend == "onnx":
        env.background.start_soon(service.try_torch, env.data_dir)
    yield Handlers(service)


class EmbedService:
    """The operations of `embed`.

    Args:
        background: runs the batches, and the watch over the model's health.
    """

    def __init__(self, background: trio.Nursery, settings: Settings, loaded: Loaded) -> None:
        encoder = loaded.encoder
        on_gpu = encoder.device == "cuda"
        # On a GPU a query may have to wait for a batch.
        limits = BatchLimits(
            target_s=(settings.batch_ms or (80 if on_gpu else 400)) / 1000,
            first_tokens=16384 if on_gpu else 1024,
            max_tokens=65536 if on_gpu else _MOST_TOKENS_ON_A_CPU,
            max_waiting_tokens=settings.max_waiting_tokens,
        )
        self._loaded = loaded
        self._last_call = trio.current_time()
        self._tokenizer = loaded.tokenizer
        self._batcher: Batcher[Ids] = Batcher(encoder.width, limits, verb="embedded")
        self._late: Batcher[LatePair] = Batcher(1, limits, verb="compared")
        # Queries have a thread of their own for tokenizing too, or they would wait for the tokens of a bulk request.
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
            # A query waits for no batch of passages, but shares the processors with them.
            background.start_soon(self._batcher.run, encoder, Lane.PROMPT)
        background.start_soon(self._late.run, LateInteraction(encoder))
        health = partial(watch_health, every_s=settings.health_every_s)
        background.start_soon(health, self._batcher, loaded.canary, loaded.canary_vector, alike)

    async def try_torch(self, folder: Path) -> None:
        """Once for a model and a processor, when nothing was to do for long: see `backends.try_torch`."""
        loaded = self._loaded
        if importlib.util.find_spec("torch") is None or remembered(loaded.files, folder) is not None:
            return
        # Each call puts it off, and is not to tell this task: most processes end before.
        while (rests_at := self._last_call + TRIAL_AFTER_S) > trio.current_time():  # noqa: ASYNC110
            await trio.sleep_until(rests_at)
        texts = self._tokenizer.encode(COMPARED, TextKind.PASSAGE).ids
        with contextlib.suppress(OSError):
            await trio.to_thread.run_sync(try_torch, loaded.files, loaded.encoder, texts, folder)

    @handles(EmbedTexts)
    async def embed_texts(self, params: EmbedTexts, ctx: Context) -> EmbedResult:
        if bool(params.texts) is bool(params.tokens):
            raise InvalidParams("exactly one of `texts` and `tokens` is needed, and not empty", field="texts")
        self._last_call = trio.current_time()
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
        )

    @handles(EmbedModelParams)
    async def embed_model(self, params: EmbedModelParams, ctx: Context) -> EmbedModel:
        return self.model

    @handles(EmbedMaxSim)
    async def embed_maxsim(self, params: EmbedMaxSim, ctx: Context) -> MaxSimResult:
        self._last_call = trio.current_time()
        self._late.admit(Lane.PROMPT, len(params.texts))
        query = (await self._tokenized([params.query], TextKind.QUERY)).ids[0]
        texts = await self._tokenized(params.texts, TextKind.PASSAGE, TextKind.QUERY)
        ids = texts.ids if params.within_ms is None else self._in_time(texts.ids, params.within_ms / 1000)
        scores = await self._late.compute([LatePair(query, each) for each in ids], Lane.PROMPT)
        return MaxSimResult(scores=scores[:, 0].tolist())

    def _in_time(self, texts: Sequence[Ids], seconds: float) -> Sequence[Ids]:
        """From the first on, as many as can be compared in that time after those that wait; one at least."""
        left = self._late.tokens_per_s * seconds - self._late.waiting_tokens
        for index, ids in enumerate(texts):
            left -= len(ids)
            if left < 0:
                return texts[: max(1, index)]
        return texts

    async def _tokenized(self, texts: Sequence[str], kind: TextKind, line: TextKind | None = None) -> Tokens:
        """
        Args:
            line: whose thread does it, where not that of `kind`.
        """
        encode = partial(self._tokenizer.encode, texts, kind)
        if sum(map(len, texts)) <= _INLINE_CHARACTERS:
            return encode()
        return await trio.to_thread.run_sync(encode, limiter=self._limiters[line or kind])


def alike(left: Vectors, right: Vectors) -> bool:
    """Whether two unit vectors are of the same text."""
    return float(left @ right) > 0.99
