"""The service `llm`: the one that may speak to a language model, and only to the one that the settings name.

Without one it is ready all the same, says so, and nothing is sent anywhere. A model that was too slow twice in a row is
not asked for a while, so that not every search waits for its time-out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from proto.errors import InvalidParams, Timeout, Unavailable
from proto.ops.llm import (
    LlmModel,
    LlmModelResult,
    LlmRefineSearch,
    LlmSuggestLinks,
    Refinement,
    SuggestedLinks,
)
from services.llm import answers, prompts
from services.runtime.handlers import Context, Environment, Handlers, handles

if TYPE_CHECKING:
    from services.llm.endpoint import Endpoint, Settings

NOT_CONFIGURED = "no language model is configured; set `url` and `model` of [llm] in linckia.toml"

_MAX_KEY_BYTES = 16 * 1024


class Pause:
    """A circuit breaker: after `TOO_LATE` time-outs in a row the model is not asked for `PAUSE_S`."""

    TOO_LATE = 2
    PAUSE_S = 15.0

    def __init__(self) -> None:
        self._late = 0
        self._until = -float("inf")

    def check(self) -> None:
        """Raises Unavailable while it lasts."""
        left_s = self._until - trio.current_time()
        if left_s > 0:
            raise Unavailable(
                f"it did not answer in time a moment ago; it is asked again in {left_s:.0f} s",
                retry_after_ms=int(left_s * 1000),
            )

    def answered(self) -> None:
        self._late = 0

    def too_late(self) -> None:
        self._late += 1
        if self._late >= self.TOO_LATE:
            self._until = trio.current_time() + self.PAUSE_S


def _settings(env: Environment) -> Settings:
    from services.llm.endpoint import Settings

    try:
        settings = msgspec.convert(env.settings, Settings)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"settings of llm: {error}") from None
    for name in ("url", "model"):
        if not getattr(settings, name):
            raise InvalidParams(f"settings of llm: `{name}` is missing; both `url` and `model` are needed", field=name)
    return settings


def read_key(settings: Settings) -> str:
    """The key, from where the settings say; empty where they say nothing.

    Raises:
        InvalidParams: it is not there.
    """
    if settings.key_env and settings.key_file:
        raise InvalidParams("settings of llm: `key_env` and `key_file` are both set; leave one of them")
    if settings.key_env:
        key = os.environ.get(settings.key_env, "").strip()
        if not key:
            raise InvalidParams(
                f"settings of llm: the environment variable {settings.key_env} (`key_env`) is empty or not set",
                field="key_env",
            )
    elif settings.key_file:
        try:
            with Path(settings.key_file).expanduser().open("rb") as file:
                key = file.read(_MAX_KEY_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidParams(f"settings of llm: `key_file` cannot be read: {error}", field="key_file") from None
    else:
        return ""
    if not key or not key.isprintable() or not key.isascii():
        raise InvalidParams("settings of llm: the key is empty, or holds what no HTTP header can")
    return key


class LlmService:
    """The operations of `llm`.

    Args:
        endpoint: None where there is none to ask; `model` says why.
    """

    def __init__(self, endpoint: Endpoint | None, model: LlmModelResult) -> None:
        self._endpoint = endpoint
        self._model = model
        self._pause = Pause()

    @handles(LlmModel)
    async def model(self, params: LlmModel, ctx: Context) -> LlmModelResult:
        return self._model

    @handles(LlmRefineSearch)
    async def refine_search(self, params: LlmRefineSearch, ctx: Context) -> Refinement:
        answer = await self._ask(prompts.REFINE, prompts.search_material(params.query, params.candidates))
        return answers.refinement(answer, params.candidates, self._model.model)

    @handles(LlmSuggestLinks)
    async def suggest_links(self, params: LlmSuggestLinks, ctx: Context) -> SuggestedLinks:
        answer = await self._ask(prompts.LINK, prompts.link_material(params.pairs))
        return SuggestedLinks(links=answers.links(answer, params.pairs), model=self._model.model)

    async def _ask(self, instruction: str, material: str) -> str:
        if self._endpoint is None:
            raise Unavailable(self._model.problem or NOT_CONFIGURED)
        self._pause.check()
        try:
            answer = await self._endpoint.ask(instruction, material)
        except Timeout:
            self._pause.too_late()
            raise
        self._pause.answered()
        return answer


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready at once; the endpoint is contacted with the first request."""
    if not env.settings.get("url") and not env.settings.get("model"):
        env.info(model="none")
        yield Handlers(LlmService(None, LlmModelResult(configured=False)))
        return
    # The imports take a sixth of a second; without a model they are not needed.
    from services.llm.endpoint import open_endpoint

    try:
        settings = _settings(env)
        opened = open_endpoint(settings, read_key(settings))
    except InvalidParams as error:
        # Each search reports the problem; ending the process would only restart it with the same settings.
        reason = error.failure.message
        env.info(model="none", problem=reason)
        yield Handlers(LlmService(None, LlmModelResult(configured=True, problem=reason)))
        return
    async with opened as endpoint:
        model = LlmModelResult(
            configured=True,
            protocol=settings.protocol,
            model=settings.model,
            host=endpoint.host,
            timeout_ms=int(settings.timeout_s * 1000),
        )
        env.info(model=model.model, protocol=model.protocol, host=model.host)
        yield Handlers(LlmService(endpoint, model))
