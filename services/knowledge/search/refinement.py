"""llm.Refinement, the optional last stage of a search (`sonar` to users): a language model's view of the notes found.

It may put the notes in another order, state the intent of the query and the relevance of the best notes, and choose the
type of a missing link. It can neither add a note nor remove one. Where it fails, is late or answers nonsense, the
answer is that of the stages before it, with the reason; where no model is configured, none is called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import trio

from linckia.proto.errors import LinckiaError
from linckia.proto.operation import Params
from linckia.proto.ops import llm
from linckia.proto.ops.knowledge import Gap, SearchHit, SearchMetadata
from linckia.proto.ops.retrieve import Hit, Pair, SearchResult
from linckia.services.knowledge.search import passages
from linckia.services.knowledge.search.gaps import Content
from linckia.services.runtime.handlers import Context

R = TypeVar("R")

SONAR = "sonar"
"""Its name among the stages."""

READ = 20
"""Notes, or pairs of them, in a prompt: a small model reads so many in time."""

READ_CHARS = 700

_FIRST_WAIT_S = 0.25
_SILENT_FOR_S = 5.0
_MARGIN_S = 0.25
"""For `llm` to report a timeout itself, before this service does."""


class Refiner:
    """The stage, for all searches of a service."""

    def __init__(self) -> None:
        # The settings stand as long as the kernel does, so that one answer is enough for a process's life.
        self._model: llm.LlmModelResult | None = None
        self._began = trio.current_time()

    async def _known(self, ctx: Context) -> llm.LlmModelResult | None:
        """The model that the settings name; None where `llm` does not answer in time."""
        if self._model is None:
            with contextlib.suppress(LinckiaError):
                self._model = await ctx.call(llm.LlmModel(), timeout_s=_FIRST_WAIT_S)
        return self._model

    async def refined(
        self, query: str, kept: Sequence[Hit], found: SearchResult, ctx: Context
    ) -> tuple[list[SearchHit], SearchMetadata]:
        """`kept` of `found` as an answer, refined where a model does so in time.  Raises no LinckiaError."""
        hits = [passages.hit(each, query, found.source) for each in kept]
        plain = SearchMetadata(
            query=query, sonar_enabled=False, intent=None, analysis=None, stages=found.stages, degraded=found.degraded
        )

        def lacking(reason: str) -> SearchMetadata:
            return msgspec.structs.replace(plain, degraded=[*found.degraded, f"{SONAR}: {reason}"])

        model = await self._known(ctx)
        if model is None:
            silent = trio.current_time() - self._began > _SILENT_FOR_S
            return hits, lacking("whether there is one is not known, `llm` is down") if silent else plain
        if not model.configured or not hits:
            return hits, plain
        candidates = [
            llm.Candidate(id=hit.id, title=hit.preview, text=each.text if len(each.text) <= READ_CHARS else hit.snippet)
            for each, hit in zip(kept[:READ], hits, strict=False)
        ]
        try:
            said = await _ask(llm.LlmRefineSearch(query=query, candidates=candidates), model, ctx)
        except LinckiaError as error:
            return hits, lacking(error.failure.message)
        metadata = plain if said.order else lacking("the model put nothing in order")
        return ordered(hits, said), msgspec.structs.replace(
            metadata,
            sonar_enabled=True,
            intent=said.intent,
            analysis=said.analysis,
            stages=[*found.stages, SONAR],
        )

    async def linked(
        self, pairs: Sequence[Pair], plain: list[Gap], contents: Mapping[str, Content | None], ctx: Context
    ) -> list[Gap]:
        """`plain`, the gaps of these pairs, with the model's types and reasons where it gives them in time."""
        model = await self._known(ctx)
        if model is None or not model.configured or not pairs:
            return plain
        shown = [
            llm.Unlinked(first=_candidate(pair.first, contents), second=_candidate(pair.second, contents))
            for pair in pairs[:READ]
        ]
        try:
            said = await _ask(llm.LlmSuggestLinks(pairs=shown), model, ctx)
        except LinckiaError as error:
            ctx.log("warning", f"find_gaps: {SONAR}: {error.failure.message}")
            return plain
        gaps = list(plain)
        for link in said.links:
            pair, gap = pairs[link.index], plain[link.index]
            source, target = (pair.second, pair.first) if link.reversed else (pair.first, pair.second)
            reason, kind = link.reason or gap.reason, link.kind.value
            gaps[link.index] = msgspec.structs.replace(
                gap, source_id=source, target_id=target, reason=reason, suggested_link_type=kind
            )
        return gaps


async def _ask(params: Params[R], model: llm.LlmModelResult, ctx: Context) -> R:
    within_s = model.timeout_ms / 1000 + _MARGIN_S if model.timeout_ms else _SILENT_FOR_S
    return await ctx.call(params, timeout_s=within_s)


def ordered(hits: Sequence[SearchHit], said: llm.Refinement) -> list[SearchHit]:
    """All of `hits` in the model's order, those it left out after those it placed; scores fall from first to last."""
    placed = [each for each in said.order if each.index < len(hits)]
    chosen = {each.index for each in placed}
    rest = [hit for index, hit in enumerate(hits) if index not in chosen]
    falling = sorted((hit.score for hit in hits), reverse=True)
    least = min((each.score for each in placed if each.score is not None), default=None)
    answer: list[SearchHit] = []
    for position, each in enumerate(placed):
        hit = hits[each.index]
        context = f"{hit.context} — {each.context}" if each.context else hit.context
        # A model that gave an order alone: the scores that there are, put along it.
        score = falling[position] if each.score is None else each.score
        answer.append(msgspec.structs.replace(hit, score=score, context=context))
    for position, hit in enumerate(rest, start=len(placed)):
        score = falling[position] if least is None else min(1.0, max(0.0, hit.score)) * least
        answer.append(msgspec.structs.replace(hit, score=score))
    return answer


def _candidate(id_: str, contents: Mapping[str, Content | None]) -> llm.Candidate:
    content = contents.get(id_)
    if content is None:
        return llm.Candidate(id=id_)
    return llm.Candidate(id=id_, title=content.title, text=content.text[:READ_CHARS])
