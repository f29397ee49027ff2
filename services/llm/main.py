"""The service `llm`: the only one that may contact a language model, and only the one named in the settings.

Without a model it is ready all the same and says so, and nothing is sent anywhere. After two successive timeouts, the
model is not asked for a while, so that not every search has to wait for a timeout.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import trio

from proto.errors import InvalidParams, Timeout, Unavailable
from proto.ops import llm as ops
from services.llm import prompts
from services.runtime.handlers import Context, Environment, Handlers, handles

if TYPE_CHECKING:
    from services.llm.endpoint import Endpoint

NOT_CONFIGURED = "no language model is configured; set `url` and `model` of [llm] in linckia.toml"

TOO_LATE, PAUSE_S = 2, 15.0
"""Circuit breaker: number of successive timeouts, and for how long the model is then not asked."""


class LlmService:
    """The operations of `llm`.

    Args:
        endpoint: None if there is no usable endpoint; `model` says why.
    """

    def __init__(self, endpoint: Endpoint | None, model: ops.LlmModelResult) -> None:
        self._endpoint = endpoint
        self._model = model
        self._late = 0
        self._paused_until = -math.inf

    @handles(ops.LlmModel)
    async def model(self, params: ops.LlmModel, ctx: Context) -> ops.LlmModelResult:
        return self._model

    @handles(ops.LlmRefineSearch)
    async def refine_search(self, params: ops.LlmRefineSearch, ctx: Context) -> ops.Refinement:
        answer = await self._ask(prompts.REFINE, prompts.search_material(params.query, params.candidates))
        return prompts.refinement(answer, params.candidates, self._model.model)

    @handles(ops.LlmSuggestLinks)
    async def suggest_links(self, params: ops.LlmSuggestLinks, ctx: Context) -> ops.SuggestedLinks:
        answer = await self._ask(prompts.LINK, prompts.link_material(params.pairs))
        return ops.SuggestedLinks(links=prompts.links(answer, params.pairs), model=self._model.model)

    async def _ask(self, instruction: str, material: str) -> str:
        if self._endpoint is None:
            raise Unavailable(self._model.problem or NOT_CONFIGURED)
        left_s = self._paused_until - trio.current_time()
        if left_s > 0:
            raise Unavailable(
                f"the model did not respond in time recently; the next attempt is in {left_s:.0f} s",
                retry_after_ms=int(left_s * 1000),
            )
        try:
            answer = await self._endpoint.ask(instruction, material)
        except Timeout:
            self._late += 1
            if self._late >= TOO_LATE:
                self._paused_until = trio.current_time() + PAUSE_S
            raise
        self._late = 0
        return answer


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service, which is ready at once; the endpoint is contacted with the first request."""
    endpoint: Endpoint | None = None
    model = ops.LlmModelResult(configured=False)
    if env.settings.get("url") or env.settings.get("model"):
        # These imports take a sixth of a second, and are not needed without a model.
        from services.llm.endpoint import Endpoint, LlmSettings

        try:
            settings = env.settings_as(LlmSettings)
            endpoint = Endpoint(settings)
            model = ops.LlmModelResult(
                configured=True,
                protocol=settings.protocol,
                model=settings.model,
                host=endpoint.host,
                timeout_ms=int(settings.timeout_s * 1000),
            )
        except InvalidParams as error:
            # Each search reports the problem; ending the process would only restart it with the same settings.
            model = ops.LlmModelResult(configured=True, problem=error.failure.message)
    env.info(model=model.model or "none", protocol=model.protocol, host=model.host, problem=model.problem)
    async with contextlib.nullcontext() if endpoint is None else endpoint.client:
        yield Handlers(LlmService(endpoint, model))
