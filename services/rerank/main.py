"""The service `rerank`: loads a cross-encoder, warms it up, and serves `rerank_pairs` and `rerank_model`.

A machine without a model is not an error: the service is ready and says so, and searches return their fused order. The
kernel starts as many processes as the setting `workers` says, and they share one queue of calls.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import trio
from msgspec import Meta

from proto.errors import Unavailable
from proto.host import extras
from proto.ops.rerank import Ranked, RerankModel, RerankModelParams, RerankPairs, RerankResult
from services.rerank.checkpoint import AUTO, NONE, Pair, PairTokenizer, is_judge, resolve
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.shared.models import gpu
from services.shared.models.batcher import Batcher, BatchLimits, Lane, Rows, watch_health
from services.shared.models.checkpoint import Checkpoint, ModelMissing
from services.shared.models.device import ModelSettings, batches_at_once, require_device

if TYPE_CHECKING:
    # It loads torch, which is not needed without a model.
    from services.rerank.model import CrossEncoder

_CANARY = ("What do sea stars grow back?", "A sea star can grow back an arm that it has lost.")

_SAME_SCORE = 0.05
"""Rounding changes a score by less; a broken model by more."""

NO_MODEL = (
    "no reranking model on this machine: `linckia models` lists some, `linckia models get NAME` downloads one and "
    '`linckia models use NAME` selects it; or set `rerank = "maxsim"` of [services.retrieve], which needs none'
)


class RerankSettings(ModelSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `[services.rerank]`."""

    model: Annotated[str, Meta(description="`auto`, a folder, an id in the local cache, or `none`")] = AUTO
    max_tokens: Annotated[int, Meta(ge=16, description="Read at most this many tokens of a query and its text")] = 512
    batch_ms: Annotated[float, Meta(gt=0, description="Work in one batch, which a search may have to wait for")] = 100
    max_waiting_tokens: Annotated[int, Meta(ge=1, description="Tokens that may wait in each lane")] = 200_000


class Loaded(msgspec.Struct, frozen=True):
    """A model that has been warmed up."""

    files: Checkpoint
    tokenizer: PairTokenizer
    encoder: CrossEncoder
    canary: Pair
    canary_score: Rows
    tokens_per_s: float


def load(settings: RerankSettings, device: str) -> Loaded | None:
    """Read, load and warm up the model of `settings`; None if it is `none`, or `auto` finds none. Blocks.

    Raises:
        ModelMissing: it is not on this machine, or its form is not supported.
        OperationError: `device` is `cuda` without a GPU.
    """
    files = resolve(settings.model, max_tokens=settings.max_tokens)
    if files is None:
        return None
    import torch

    from services.rerank.model import CrossEncoder

    require_device(device)
    torch.set_num_threads(settings.threads)
    tokenizer: PairTokenizer
    encoder: CrossEncoder
    if is_judge(files):
        from services.rerank.judge import Judge, JudgeTokenizer

        tokenizer = JudgeTokenizer(files)
        encoder = Judge(files, device=device, precision=settings.precision)
    else:
        tokenizer = PairTokenizer(files)
        encoder = CrossEncoder(files, device=device, precision=settings.precision)
    tokens_per_s = encoder.warm_up(files.max_tokens)
    canary = tokenizer.encode(_CANARY[0], [_CANARY[1]]).pairs[0]
    return Loaded(files, tokenizer, encoder, canary, encoder.compute([canary])[0], tokens_per_s)


def warm_up() -> None:
    """Import the code of the model that `auto` finds; without a model, this saves a second and 20 MB."""
    with contextlib.suppress(ModelMissing):
        prepare({})


def prepare(settings: Mapping[str, Any]) -> None:
    """Import only the model's code, if there is one: its weights would be in memory twice."""
    if extras.is_installed(extras.TORCH) and (
        (model := settings.get("model", AUTO)) not in (AUTO, NONE) or resolve(model) is not None
    ):
        importlib.import_module("transformers")


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service; ready once the model has computed scores, or is known to be missing."""
    settings = env.settings_as(RerankSettings)
    if not extras.is_installed(extras.TORCH) and resolve(settings.model) is not None:
        command = extras.command_for(extras.TORCH)
        env.info(model="none", remedy=command)
        yield Handlers(
            WithoutModel(f"cross-encoders need torch, which is not installed: run `{command}`, then restart")
        )
        return
    loaded = await trio.to_thread.run_sync(load, settings, env.mode or "cpu")
    if loaded is None:
        env.info(model="none", **({} if settings.model == NONE else {"remedy": "linckia models"}))
        yield Handlers(WithoutModel(NO_MODEL))
        return
    encoder = loaded.encoder
    env.info(model=loaded.files.name, device=encoder.device, precision=encoder.precision.value)
    if encoder.device == "cuda":
        env.background.start_soon(gpu.watch, env)
    yield Handlers(RerankService(env.background, settings, loaded))


class RerankService:
    """The operations of `rerank` with a model; `background` runs the batches and the health checks."""

    def __init__(self, background: trio.Nursery, settings: RerankSettings, loaded: Loaded) -> None:
        self._loaded = loaded
        encoder, target_s = loaded.encoder, settings.batch_ms / 1000
        limits = BatchLimits(
            target_s=target_s,
            first_tokens=max(1, int(loaded.tokens_per_s * target_s)),
            max_waiting_tokens=settings.max_waiting_tokens,
        )
        self._batcher: Batcher[Pair] = Batcher(encoder.width, limits, verb="ranked")
        at_once = batches_at_once(encoder.device, processes=settings.workers, threads=settings.threads)
        self._runners = settings.batches or at_once
        # Searches have their own tokenizing thread, or they would wait for the tokens of a bulk request.
        self._limiters = {lane: trio.CapacityLimiter(1) for lane in Lane}
        for _ in range(self._runners):
            background.start_soon(self._batcher.run, encoder)
        health = partial(watch_health, every_s=settings.health_every_s)
        background.start_soon(health, self._batcher, loaded.canary, loaded.canary_score, alike)

    @handles(RerankPairs)
    async def rerank_pairs(self, params: RerankPairs, ctx: Context) -> RerankResult:
        lane = Lane.BULK if params.bulk else Lane.PROMPT
        self._batcher.admit(lane, len(params.texts))
        encode = partial(self._loaded.tokenizer.encode, params.query, params.texts)
        found = await trio.to_thread.run_sync(encode, limiter=self._limiters[lane])
        scores: list[float] = (await self._batcher.compute(found.pairs, lane))[:, 0].tolist()
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        return RerankResult(
            ranked=[Ranked(index=index, score=scores[index]) for index in order[: params.limit]],
            model=self._loaded.files.name,
            truncated=found.truncated,
            query_truncated=found.query_truncated,
            tokens=sum(map(len, found.pairs)),
        )

    @handles(RerankModelParams)
    async def rerank_model(self, params: RerankModelParams, ctx: Context) -> RerankModel:
        files, encoder = self._loaded.files, self._loaded.encoder
        return RerankModel(
            available=True,
            model=files.name,
            max_tokens=files.max_tokens,
            device=encoder.device,
            precision=encoder.precision.value,
            tokens_per_s=self._batcher.tokens_per_s * self._runners,
        )


class WithoutModel:
    """The operations of `rerank` without a model, or without the library that computes it."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @handles(RerankPairs)
    async def rerank_pairs(self, params: RerankPairs, ctx: Context) -> RerankResult:
        raise Unavailable(self._reason)

    @handles(RerankModelParams)
    async def rerank_model(self, params: RerankModelParams, ctx: Context) -> RerankModel:
        return RerankModel(available=False, reason=self._reason)


def alike(left: Rows, right: Rows) -> bool:
    """True if two scores are of the same pair."""
    return bool(abs(left[0] - right[0]) < _SAME_SCORE)
