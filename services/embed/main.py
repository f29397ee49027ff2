"""The service `embed`: loads one model, warms it up, and serves `embed_texts` and `embed_model`.

It is ready only after real forward passes, and ends itself if the model fails. Without an installed model it is ready
too: its calls fail and name the command, and it uses the model once it is installed. One process has one model; the
kernel starts as many processes as the setting `workers` says, and they share one queue of calls.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import trio

from proto.errors import InvalidParams, OperationError, Unavailable
from proto.host import extras
from proto.host.durable import replace_file
from proto.names import module
from proto.ops.embed import (
    MODEL_MISSING,
    EmbedMaxSim,
    EmbedModel,
    EmbedModelParams,
    EmbedResult,
    EmbedTexts,
    MaxSimResult,
    TextKind,
)
from services.embed.backends import (
    Backend,
    is_tried,
    onnx_is_here,
    open_encoder,
    openvino_is_worth_it,
    stored_trial,
    try_torch,
)
from services.embed.projection import projected
from services.embed.samples import COMPARED
from services.embed.serving import EmbedSettings, Loaded, Serving
from services.embed.weights import AUTO, resolve, supports
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.shared.models import gpu
from services.shared.models.checkpoint import ModelMissing
from services.shared.models.folders import NotInstalled

LOOK_AGAIN_S = 2.0
"""Least time between two looks for a model that is not installed."""

TRIAL_AFTER_S = 90.0
"""Idle time after which torch is tried, if it never was: nobody should have to wait for that."""

MAX_EARLIER = 8
"""Number of previously used models that are remembered."""


class ModelChoice(msgspec.Struct, frozen=True):
    """A model as named in the settings."""

    model: str
    max_tokens: int | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    dimensions: int | None = None


def load(settings: EmbedSettings, device: str, folder: Path) -> Loaded:
    """Read, load and warm up the model of `settings`. Blocks.

    Args:
        folder: holds the graph of the backend `onnx`, and measurements.

    Raises:
        ModelMissing: it is not on this machine, or its form is not supported.
        OperationError: `device` is `cuda` without a GPU, or the backend is not installed or lacks the precision.
    """
    files = resolve(
        settings.model,
        query_prefix=settings.query_prefix,
        passage_prefix=settings.passage_prefix,
        max_tokens=settings.max_tokens,
        dimensions=settings.dimensions,
    )
    # Two batches with a core each are a third faster than one batch on both, and neither stalls if a core is taken
    # away.
    backend, precision, threads = settings.backend, settings.precision, settings.threads
    encoder = open_encoder(files, backend, device=device, precision=precision, threads=threads, folder=folder)
    return Loaded.of(files, projected(files, encoder))


def earlier_models(folder: Path) -> dict[str, ModelChoice]:
    """Return the most recently used models, by fingerprint."""
    try:
        return msgspec.json.decode((folder / "earlier.json").read_bytes(), type=dict[str, ModelChoice])
    except (OSError, msgspec.MsgspecError):
        return {}


def remember(folder: Path, settings: EmbedSettings, loaded: Loaded) -> None:
    """Remember which model this was, for when another one is used: its vectors are searched until the other model has
    as many."""
    model = loaded.files.name if settings.model == AUTO else settings.model
    chosen = ModelChoice(
        model, settings.max_tokens, settings.query_prefix, settings.passage_prefix, settings.dimensions
    )
    known = earlier_models(folder)
    if known.get(loaded.fingerprint) != chosen:
        known.pop(loaded.fingerprint, None)
        kept = dict([*known.items(), (loaded.fingerprint, chosen)][-MAX_EARLIER:])
        with contextlib.suppress(OSError):
            replace_file(folder / "earlier.json", msgspec.json.encode(kept))


def prepare(settings: Mapping[str, Any]) -> None:
    """Import only the model's code, unless the zygote has: its weights would be in memory twice."""
    with contextlib.suppress(ModelMissing, ValueError):
        files = resolve(str(settings.get("model", AUTO)))
        if not supports(files.config):
            if extras.is_installed(extras.TORCH):
                importlib.import_module("transformers")
            return
        backend = Backend(settings.get("backend", Backend.AUTO))
        if backend in (Backend.AUTO, Backend.FASTEST) and openvino_is_worth_it():
            importlib.import_module(module("services.embed.openvino_encoder"))
        elif backend in (Backend.AUTO, Backend.FASTEST, Backend.ONNX) and onnx_is_here():
            importlib.import_module(module("services.embed.onnx_encoder"))


def unused_gpu() -> dict[str, str]:
    """Return the command that makes use of the GPU, if there is one that only lacks torch."""
    unused = extras.gpu_present() and not extras.is_installed(extras.TORCH)
    return {"remedy": extras.command_for(extras.TORCH)} if unused else {}


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service; ready once the model has computed vectors, or is known to be missing."""
    settings = env.settings_as(EmbedSettings)
    device = (env.mode or "cpu") if settings.backend not in (Backend.ONNX, Backend.OPENVINO) else "cpu"
    try:
        loaded = await trio.to_thread.run_sync(load, settings, device, env.data_dir)
    except NotInstalled as missing:
        yield Handlers(WithoutModel(env, settings, device, missing))
        return
    yield Handlers(serve(env, settings, device, loaded))


def serve(env: Environment, settings: EmbedSettings, device: str, loaded: Loaded) -> EmbedService:
    """Start what belongs to a loaded model, and return its operations."""
    remember(env.data_dir, settings, loaded)
    service = EmbedService(env, settings, loaded, device)
    model = service.serving.model
    env.info(
        note="", model=model.model, fingerprint=model.fingerprint, device=model.device, precision=model.precision,
        backend=loaded.encoder.backend, **({"remedy": ""} | unused_gpu()),
    )  # fmt: skip
    if model.device == "cuda":
        env.background.start_soon(gpu.watch, env)
    if is_tried(settings.backend, settings.precision) and loaded.encoder.backend == "onnx":
        env.background.start_soon(service.try_torch, env.data_dir)
    return service


class WithoutModel:
    """The operations of `embed` while its model is not installed: each fails at once and names the command.

    Calls look for the model again, at most every `LOOK_AGAIN_S`, so that it is used once it is installed.
    """

    def __init__(self, env: Environment, settings: EmbedSettings, device: str, missing: NotInstalled) -> None:
        self._env = env
        self._settings = settings
        self._device = device
        self._service: EmbedService | None = None
        self._looking = trio.Lock()
        self._is_missing(missing, missing.remedy)

    @handles(EmbedTexts)
    async def embed_texts(self, params: EmbedTexts, ctx: Context) -> EmbedResult:
        return await (await self._found()).embed_texts(params, ctx)

    @handles(EmbedModelParams)
    async def embed_model(self, params: EmbedModelParams, ctx: Context) -> EmbedModel:
        return await (await self._found()).embed_model(params, ctx)

    @handles(EmbedMaxSim)
    async def embed_maxsim(self, params: EmbedMaxSim, ctx: Context) -> MaxSimResult:
        return await (await self._found()).embed_maxsim(params, ctx)

    async def _found(self) -> EmbedService:
        """Return the operations with the model. Raises Unavailable if it is still missing.

        Cancellation: the loading thread is awaited, and the next call uses its result.
        """
        async with self._looking:
            if self._service is None and trio.current_time() >= self._look_at:
                await self._look()
            if self._service is None:
                raise Unavailable(self._why, data={MODEL_MISSING: self._remedy})
            return self._service

    async def _look(self) -> None:
        try:
            loaded = await trio.to_thread.run_sync(load, self._settings, self._device, self._env.data_dir)
        except OperationError as error:
            # It may be incomplete, or of an unsupported form.
            self._is_missing(error, error.remedy if isinstance(error, NotInstalled) else "")
        else:
            self._service = serve(self._env, self._settings, self._device, loaded)

    def _is_missing(self, error: OperationError, remedy: str) -> None:
        self._why, self._remedy = str(error), remedy
        self._look_at = trio.current_time() + LOOK_AGAIN_S
        self._env.info(model="none", note=self._why, remedy=remedy)


class EmbedService:
    """The operations of `embed`, for the current model and for earlier ones that still have vectors."""

    def __init__(self, env: Environment, settings: EmbedSettings, loaded: Loaded, device: str) -> None:
        self._env = env
        self._settings = settings
        self._device = device
        self._last_call = trio.current_time()
        self.serving = Serving(env.background, settings, loaded)
        self._earlier: dict[str, Serving] = {}
        self._opening = trio.Lock()

    async def try_torch(self, folder: Path) -> None:
        """Run `backends.try_torch` once per model and processor, after a long idle time."""
        loaded = self.serving.loaded
        if stored_trial(loaded.files, folder) is not None:
            return
        # Each call postpones it, without having to wake this task: most processes end earlier.
        while (rests_at := self._last_call + TRIAL_AFTER_S) > trio.current_time():  # noqa: ASYNC110
            await trio.sleep_until(rests_at)
        texts = loaded.tokenizer.encode(COMPARED, TextKind.PASSAGE).ids
        with contextlib.suppress(OSError):
            await trio.to_thread.run_sync(try_torch, loaded.files, loaded.encoder, texts, folder)

    @handles(EmbedTexts)
    async def embed_texts(self, params: EmbedTexts, ctx: Context) -> EmbedResult:
        if bool(params.texts) is bool(params.tokens):
            raise InvalidParams("exactly one of `texts` and `tokens` is required, and must not be empty", field="texts")
        self._last_call = trio.current_time()
        return await (await self._model(params.fingerprint)).embed(params)

    @handles(EmbedModelParams)
    async def embed_model(self, params: EmbedModelParams, ctx: Context) -> EmbedModel:
        return self.serving.model

    @handles(EmbedMaxSim)
    async def embed_maxsim(self, params: EmbedMaxSim, ctx: Context) -> MaxSimResult:
        self._last_call = trio.current_time()
        return await self.serving.max_sim(params)

    async def _model(self, fingerprint: str) -> Serving:
        """Return the current model, or an earlier one, which is loaded again.

        Cancellation: the loading thread is awaited, and the next call uses its result.

        Raises:
            OperationError: it is unknown, or no longer available.
        """
        if fingerprint in ("", self.serving.model.fingerprint):
            return self.serving
        async with self._opening:
            if fingerprint not in self._earlier:
                loaded = await trio.to_thread.run_sync(self._load_earlier, fingerprint)
                self._earlier[fingerprint] = Serving(self._env.background, self._settings, loaded)
            return self._earlier[fingerprint]

    def _load_earlier(self, fingerprint: str) -> Loaded:
        folder = self._env.data_dir
        if (chosen := earlier_models(folder).get(fingerprint)) is None:
            raise OperationError(f"the model {fingerprint} is not in use, and its location is unknown")
        settings = msgspec.structs.replace(self._settings, **msgspec.structs.asdict(chosen))
        try:
            loaded = load(settings, self._device, folder)
        except (ModelMissing, OSError) as error:
            # This process may no longer have access to its folder.
            raise OperationError(f"the model {fingerprint} was used before but cannot be loaded: {error}") from None
        if loaded.fingerprint != fingerprint:
            raise OperationError(f"{chosen.model} was the model {fingerprint}, but is {loaded.fingerprint} now")
        return loaded
