"""The service `embed`: loads one model, warms it up, and answers `embed_texts` and `embed_model`.

It is ready only after real forward passes, and ends itself when the model is lost. One process, one model; of the
setting `workers` the kernel makes as many processes, which share one queue of calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import trio
from msgspec import Meta

from proto.arrays import pack
from proto.errors import InvalidParams
from proto.ops.embed import (
    EmbedMaxSim,
    EmbedModel,
    EmbedModelParams,
    EmbedResult,
    EmbedTexts,
    MaxSimResult,
    TextKind,
)
from services.embed.backends import Backend, load_code, open_encoder, use_threads
from services.embed.encoder import Encoder, Vectors
from services.embed.int8.faster import FasterBulk
from services.embed.late import LateInteraction, LatePair
from services.embed.tokens import TextTokenizer
from services.embed.weights import AUTO, ModelFiles, fingerprint, resolve
from services.runtime.handlers import Context, Environment, Handlers
from services.runtime.models.batcher import Batcher, BatchLimits, Lane, watch_health
from services.runtime.models.checkpoint import ModelMissing
from services.runtime.models.device import Precision, batches_at_once
from services.runtime.models.resting import Resting, rest_when_idle
from services.runtime.models.tokens import Ids

_TOKENIZE_AT_ONCE = 64
"""Texts between two looks at cancellation and at the queue."""

_AT_ONCE_CHARACTERS = 2000
"""A request so short is tokenized in the event loop: in a tenth of a millisecond, where a thread's turn costs more."""

_AT_ONCE_TOKENS = 64
"""A query so short that comes alone is computed there too."""

_MUCH_TOKENS = 4096
"""When so many wait for the bulk lane, it is worth half a second to become faster at them."""

_MOST_TOKENS_ON_A_CPU = 2048
"""Of a batch: fewer make fp32 a tenth slower, more are no faster and take more memory."""

_CANARY = "The quick brown fox jumps over the lazy dog."


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[services.embed]`."""

    model: Annotated[str, Meta(description="`auto`, a folder, or an id in the local cache")] = AUTO
    backend: Annotated[Backend, Meta(description="torch, or onnx: far less memory, on the CPU")] = Backend.TORCH
    precision: Annotated[Precision, Meta(description="auto, fp32, bf16 (torch) or int8")] = Precision.AUTO
    workers: Annotated[int, Meta(ge=1, description="Processes of the pool, as many as the kernel started")] = 1
    batches: Annotated[int, Meta(ge=0, description="Batches computed at once in a process; 0: by its cores")] = 0
    threads: Annotated[int, Meta(ge=1, description="Threads of one batch; more than 1 for large models only")] = 1
    max_tokens: Annotated[int, Meta(ge=8, description="Read at most so many tokens of a text")] | None = None
    query_prefix: Annotated[str, Meta(description="Instead of the model's own")] | None = None
    passage_prefix: Annotated[str, Meta(description="Instead of the model's own")] | None = None
    batch_ms: Annotated[float, Meta(ge=0, description="Work in one batch of passages; 0: by the device")] = 0
    max_waiting_tokens: Annotated[int, Meta(ge=1, description="Tokens that may wait in each lane")] = 1_000_000
    health_every_s: Annotated[float, Meta(gt=0, description="Idle time after which the model is tried")] = 30
    unload_after_s: Annotated[
        float,
        Meta(ge=0, description="Idle time after which its memory is given back until it is needed again; 0: never"),
    ] = 300


class Loaded(msgspec.Struct, frozen=True):
    """A model that has answered."""

    files: ModelFiles
    fingerprint: str
    tokenizer: TextTokenizer
    encoder: Encoder
    canary: Ids
    canary_vector: Vectors


def load(settings: Settings, device: str) -> Loaded:
    """Read, load and warm up the model of `settings`.  Blocks.

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
    encoder = _encoder(files, settings, device)
    encoder.warm_up(files.max_tokens)
    canary = tokenizer.encode([_CANARY], TextKind.QUERY).ids[0]
    return Loaded(files, fingerprint(files), tokenizer, encoder, canary, encoder.compute([canary])[0])


def _encoder(files: ModelFiles, settings: Settings, device: str) -> Encoder:
    # Two batches on a core each are a third faster than one batch on both, and none waits where a core is taken away.
    return open_encoder(files, settings.backend, device=device, precision=settings.precision, threads=settings.threads)


def rehearse(root: Path, settings: Mapping[str, Any]) -> None:
    """Of the model its code alone: it would be in memory twice."""
    with contextlib.suppress(ModelMissing, ValueError):
        load_code(resolve(str(settings.get("model", AUTO))), Backend(settings.get("backend", Backend.TORCH)))


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the model has answered."""
    try:
        settings = msgspec.convert(env.settings, Settings)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"settings of embed: {error}") from None
    by_torch = settings.backend is Backend.TORCH
    device = (env.mode or "cpu") if by_torch else "cpu"
    loaded = await trio.to_thread.run_sync(load, settings, device)
    # A query alone is computed in this thread: with more threads than it is worth, it would wait for them to wake.
    use_threads(settings.backend, settings.threads)
    precision = loaded.encoder.precision.value
    files, tokenizer, mark = loaded.files, loaded.tokenizer, loaded.fingerprint
    canary, canary_vector = loaded.canary, loaded.canary_vector

    def load_again() -> Encoder:
        # Somebody waits: the canary stands for warming up, and for reading all weights to compare their fingerprint.
        encoder = _encoder(files, settings, device)
        if not alike(encoder.compute([canary])[0], canary_vector):
            raise ModelMissing(f"the model in {files.folder} is not what it was at the start", field="model")
        return encoder

    encoder = Resting(loaded.encoder, load_again)
    # From here on `encoder` alone holds the weights, so that it can let them go.
    del loaded
    on_gpu = encoder.device == "cuda"
    # On a GPU a query may have to wait for a batch.
    batch_ms = settings.batch_ms or (80 if on_gpu else 400)
    limits = BatchLimits(target_s=batch_ms / 1000, max_waiting_tokens=settings.max_waiting_tokens)
    if on_gpu:
        limits = msgspec.structs.replace(limits, first_tokens=16384)
    else:
        limits = msgspec.structs.replace(limits, max_tokens=_MOST_TOKENS_ON_A_CPU)
    # Not where its failure may be a hang.
    here = None if on_gpu else encoder
    batcher: Batcher[Ids] = Batcher(
        encoder.width, limits, verb="embedded",
        at_once=here, at_once_tokens=_AT_ONCE_TOKENS, at_once_ready=lambda: not encoder.rests,
    )  # fmt: skip
    at_once = batches_at_once(encoder.device, processes=settings.workers, threads=settings.threads)
    for _ in range(settings.batches or at_once):
        env.background.start_soon(batcher.run, encoder)
    if not on_gpu:
        # A query waits for no batch of passages, but shares the processors with them.
        env.background.start_soon(batcher.run, encoder, Lane.PROMPT)
    late: Batcher[LatePair] = Batcher(1, limits, verb="compared")
    env.background.start_soon(late.run, LateInteraction(encoder.borrow, encoder.device))

    async def watch() -> None:
        every_s = settings.health_every_s
        await watch_health(batcher, canary, canary_vector, alike, every_s=every_s, rests=lambda: encoder.rests)

    env.background.start_soon(watch)
    if settings.unload_after_s:
        env.background.start_soon(rest_when_idle, (batcher, late), encoder, settings.unload_after_s)
    model = EmbedModel(
        model=files.name,
        fingerprint=mark,
        dimensions=encoder.width,
        max_tokens=files.max_tokens,
        device=encoder.device,
        precision=precision,
    )
    faster = FasterBulk(encoder.peek, tokenizer)
    env.info(model=model.model, fingerprint=model.fingerprint, device=model.device, precision=model.precision)
    # Queries have a thread of their own here too, or they would wait for the tokens of a bulk request.
    lanes = {kind: trio.CapacityLimiter(1) for kind in TextKind}
    handlers = Handlers()

    @handlers.handle(EmbedTexts)
    async def embed_texts(params: EmbedTexts, ctx: Context) -> EmbedResult:
        if bool(params.texts) is bool(params.tokens):
            raise InvalidParams("exactly one of `texts` and `tokens` is needed, and not empty", field="texts")
        lane = Lane.PROMPT if params.kind is TextKind.QUERY else Lane.BULK
        batcher.admit(lane, len(params.texts) + len(params.tokens))
        ids: list[Ids] = tokenizer.check(params.tokens)
        truncated: list[int] = []
        for start in range(0, len(params.texts), _TOKENIZE_AT_ONCE):
            texts = params.texts[start : start + _TOKENIZE_AT_ONCE]
            if sum(map(len, texts)) <= _AT_ONCE_CHARACTERS:
                tokens = tokenizer.encode(texts, params.kind)
            else:
                tokens = await trio.to_thread.run_sync(tokenizer.encode, texts, params.kind, limiter=lanes[params.kind])
            ids.extend(tokens.ids)
            truncated.extend(start + index for index in tokens.truncated)
        if lane is Lane.BULK and batcher.waiting_tokens + sum(map(len, ids)) >= _MUCH_TOKENS:
            faster.begin(env.background)
        vectors = await batcher.compute(ids, lane)
        return EmbedResult(
            vectors=pack(vectors.astype(np.float32, copy=False)),
            fingerprint=mark,
            truncated=truncated,
            tokens=sum(len(each) for each in ids),
        )

    @handlers.handle(EmbedModelParams)
    async def embed_model(params: EmbedModelParams, ctx: Context) -> EmbedModel:
        loaded = encoder.peek()
        return model if loaded is None else msgspec.structs.replace(model, precision=loaded.precision.value)

    @handlers.handle(EmbedMaxSim)
    async def embed_maxsim(params: EmbedMaxSim, ctx: Context) -> MaxSimResult:
        late.admit(Lane.PROMPT, len(params.texts))

        def tokenize() -> list[LatePair]:
            query = tokenizer.encode([params.query], TextKind.QUERY).ids[0]
            return [LatePair(query, ids) for ids in tokenizer.encode(params.texts, TextKind.PASSAGE).ids]

        pairs = await trio.to_thread.run_sync(tokenize, limiter=lanes[TextKind.QUERY])
        scores = await late.compute(pairs, Lane.PROMPT)
        return MaxSimResult(scores=scores[:, 0].tolist())

    yield handlers


def alike(left: Vectors, right: Vectors) -> bool:
    """Whether two unit vectors are of the same text."""
    return float(left @ right) > 0.99
