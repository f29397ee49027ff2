"""The service `embed`: loads one model, warms it up, and answers `embed_texts` and `embed_model`.

It is ready only after real forward passes, and ends itself when the model is lost. One process, one model; of the
setting `workers` the kernel makes as many processes, which share one queue of calls.
"""

from __future__ import annotations

import contextlib
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
from services.embed.encoder import Backend, Encoder, Vectors, load_code, open_encoder, use_threads
from services.embed.late import LateInteraction, LatePair
from services.embed.tokens import TextTokenizer, Tokens
from services.embed.weights import AUTO, ModelFiles, fingerprint, resolve
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.runtime.models.batcher import Batcher, BatchLimits, Lane, watch_health
from services.runtime.models.checkpoint import TOKENIZE_AT_ONCE, Ids, ModelMissing
from services.runtime.models.device import Precision, batches_at_once

_INLINE_CHARACTERS = 2000
"""A request so short is tokenized in the event loop: a tenth of a millisecond, where the switch to a thread costs more.
"""

_MOST_TOKENS_ON_A_CPU = 2048
"""Of a batch: fewer make fp32 a tenth slower, more are no faster and take more memory."""

_CANARY = "The quick brown fox jumps over the lazy dog."


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[services.embed]`."""

    model: Annotated[str, Meta(description="`auto`, a folder, or an id in the local cache")] = AUTO
    backend: Annotated[Backend, Meta(description="torch, or onnx: far less memory, on the CPU")] = Backend.TORCH
    precision: Annotated[Precision, Meta(description="auto, fp32, bf16 (torch) or int8 (onnx)")] = Precision.AUTO
    workers: Annotated[int, Meta(ge=1, description="Processes of the pool, as many as the kernel started")] = 1
    batches: Annotated[int, Meta(ge=0, description="Batches computed at once in a process; 0: by its cores")] = 0
    threads: Annotated[int, Meta(ge=1, description="Threads of one batch; more than 1 for large models only")] = 1
    max_tokens: Annotated[int, Meta(ge=8, description="Read at most so many tokens of a text")] | None = None
    query_prefix: Annotated[str, Meta(description="Instead of the model's own")] | None = None
    passage_prefix: Annotated[str, Meta(description="Instead of the model's own")] | None = None
    batch_ms: Annotated[float, Meta(ge=0, description="Work in one batch of passages; 0: by the device")] = 0
    max_waiting_tokens: Annotated[int, Meta(ge=1, description="Tokens that may wait in each lane")] = 1_000_000
    health_every_s: Annotated[float, Meta(gt=0, description="Idle time after which the model is tried")] = 30
    # The kernel reads it, and ends the process then (`rests_by` of its catalog).
    unload_after_s: Annotated[
        float, Meta(ge=0, description="Idle time after which the process ends until the next call; 0: never")
    ] = 300


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
        folder: keeps the graph of the backend `onnx`.

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
    encoder = open_encoder(
        files,
        settings.backend,
        device=device,
        precision=settings.precision,
        threads=settings.threads,
        folder=folder,
    )
    encoder.warm_up(files.max_tokens)
    canary = tokenizer.encode([_CANARY], TextKind.QUERY).ids[0]
    return Loaded(files, fingerprint(files), tokenizer, encoder, canary, encoder.compute([canary])[0])


def rehearse(root: Path, settings: Mapping[str, Any]) -> None:
    """Import the model's code alone, since its weights would be in memory twice."""
    with contextlib.suppress(ModelMissing, ValueError):
        load_code(resolve(str(settings.get("model", AUTO))), Backend(settings.get("backend", Backend.TORCH)))


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the model has answered."""
    try:
        settings = msgspec.convert(env.settings, Settings)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"settings of embed: {error}") from None
    device = (env.mode or "cpu") if settings.backend is Backend.TORCH else "cpu"
    loaded = await trio.to_thread.run_sync(load, settings, device, env.data_dir)
    # A single query is computed in this thread: more threads than it is worth would have to be woken first.
    use_threads(settings.backend, settings.threads)
    service = EmbedService(env.background, settings, loaded)
    service.start()
    model = service.model
    env.info(model=model.model, fingerprint=model.fingerprint, device=model.device, precision=model.precision)
    yield Handlers(service)


class EmbedService:
    """The operations of `embed`.

    Args:
        background: runs the batches, the watch over the model's health.
    """

    def __init__(self, background: trio.Nursery, settings: Settings, loaded: Loaded) -> None:
        self._background = background
        self._settings = settings
        self._loaded = loaded
        self._encoder, self._tokenizer = loaded.encoder, loaded.tokenizer
        self._on_gpu = loaded.encoder.device == "cuda"
        limits = _limits(settings, self._on_gpu)
        self._batcher: Batcher[Ids] = Batcher(self._encoder.width, limits, verb="embedded")
        self._late: Batcher[LatePair] = Batcher(1, limits, verb="compared")
        # Queries have a thread of their own for tokenizing too, or they would wait for the tokens of a bulk request.
        self._limiters = {kind: trio.CapacityLimiter(1) for kind in TextKind}

    @property
    def model(self) -> EmbedModel:
        loaded = self._loaded
        return EmbedModel(
            model=loaded.files.name,
            fingerprint=loaded.fingerprint,
            dimensions=loaded.encoder.width,
            max_tokens=loaded.files.max_tokens,
            device=loaded.encoder.device,
            precision=loaded.encoder.precision.value,
        )

    def start(self) -> None:
        """Compute batches and watch the model's health from now on."""
        settings, encoder, start_soon = self._settings, self._encoder, self._background.start_soon
        at_once = batches_at_once(encoder.device, processes=settings.workers, threads=settings.threads)
        for _ in range(settings.batches or at_once):
            start_soon(self._batcher.run, encoder)
        if not self._on_gpu:
            # A query waits for no batch of passages, but shares the processors with them.
            start_soon(self._batcher.run, encoder, Lane.PROMPT)
        start_soon(self._late.run, LateInteraction(encoder))
        canary, expected = self._loaded.canary, self._loaded.canary_vector
        start_soon(partial(watch_health, self._batcher, canary, expected, alike, every_s=settings.health_every_s))

    @handles(EmbedTexts)
    async def embed_texts(self, params: EmbedTexts, ctx: Context) -> EmbedResult:
        if bool(params.texts) is bool(params.tokens):
            raise InvalidParams("exactly one of `texts` and `tokens` is needed, and not empty", field="texts")
        lane = Lane.PROMPT if params.kind is TextKind.QUERY else Lane.BULK
        self._batcher.admit(lane, len(params.texts) + len(params.tokens))
        ids = self._tokenizer.check(params.tokens)
        tokens = await self._tokenized(params.texts, params.kind)
        ids.extend(tokens.ids)
        return EmbedResult(
            vectors=pack(await self._batcher.compute(ids, lane)),
            fingerprint=self._loaded.fingerprint,
            truncated=tokens.truncated,
            tokens=sum(map(len, ids)),
        )

    @handles(EmbedModelParams)
    async def embed_model(self, params: EmbedModelParams, ctx: Context) -> EmbedModel:
        return self.model

    @handles(EmbedMaxSim)
    async def embed_maxsim(self, params: EmbedMaxSim, ctx: Context) -> MaxSimResult:
        self._late.admit(Lane.PROMPT, len(params.texts))
        query = (await self._tokenized([params.query], TextKind.QUERY)).ids[0]
        texts = await self._tokenized(params.texts, TextKind.PASSAGE, TextKind.QUERY)
        scores = await self._late.compute([LatePair(query, ids) for ids in texts.ids], Lane.PROMPT)
        return MaxSimResult(scores=scores[:, 0].tolist())

    async def _tokenized(self, texts: Sequence[str], kind: TextKind, line: TextKind | None = None) -> Tokens:
        """
        Args:
            line: whose thread does it, where not that of `kind`.
        """
        found = Tokens([], [])
        for start in range(0, len(texts), TOKENIZE_AT_ONCE):
            some = texts[start : start + TOKENIZE_AT_ONCE]
            if sum(map(len, some)) <= _INLINE_CHARACTERS:
                tokens = self._tokenizer.encode(some, kind)
            else:
                limiter = self._limiters[line or kind]
                tokens = await trio.to_thread.run_sync(self._tokenizer.encode, some, kind, limiter=limiter)
            found.ids.extend(tokens.ids)
            found.truncated.extend(start + index for index in tokens.truncated)
        return found


def _limits(settings: Settings, on_gpu: bool) -> BatchLimits:
    # On a GPU a query may have to wait for a batch.
    target_s = (settings.batch_ms or (80 if on_gpu else 400)) / 1000
    if on_gpu:
        return BatchLimits(target_s=target_s, max_waiting_tokens=settings.max_waiting_tokens, first_tokens=16384)
    return BatchLimits(
        target_s=target_s, max_waiting_tokens=settings.max_waiting_tokens, max_tokens=_MOST_TOKENS_ON_A_CPU
    )


def alike(left: Vectors, right: Vectors) -> bool:
    """Whether two unit vectors are of the same text."""
    return float(left @ right) > 0.99
