"""The optional last stage of a search (`sonar` to users): refinement of the results by a language model.

The model may reorder the notes, describe the intent of the query and the relevance of the best notes, and choose the
type of a missing link. It cannot add or remove notes. If it fails, times out or returns nonsense, the result of the
previous stages is returned with the reason. If no model is configured, none is called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import trio

from proto.errors import LinckiaError
from proto.operation import Params
from proto.ops import llm
from proto.ops.retrieve import Hit, Pair, SearchResult
from services.knowledge.operations.notes import Gap, SearchHit, SearchMetadata
from services.knowledge.search import passages
from services.knowledge.search.gaps import NoteContent
from services.runtime.handlers import Context

R = TypeVar("R")

SONAR = "sonar"
"""The stage's name."""

READ = 20
"""Number of notes, or pairs of notes, in a prompt; a small model can read this many in time."""

READ_CHARS = 700

_FIRST_WAIT_S = 0.25
_SILENT_FOR_S = 5.0
_MARGIN_S = 0.25
"""Extra time for `llm` to report a timeout itself."""


class Refiner:
    """The refinement stage, shared by all searches."""

    def __init__(self) -> None:
        # Cached for the life of the process, because the settings do not change while the kernel runs.
        self._model: llm.LlmModelResult | None = None
        self._began = trio.current_time()

    async def _known(self, ctx: Context) -> llm.LlmModelResult | None:
        """Return the configured model; None if `llm` does not reply in time."""
        if self._model is None:
            with contextlib.suppress(LinckiaError):
                self._model = await ctx.call(llm.LlmModel(), timeout_s=_FIRST_WAIT_S)
        return self._model

    async def refined(
        self, query: str, kept: Sequence[Hit], found: SearchResult, ctx: Context
    ) -> tuple[list[SearchHit], SearchMetadata]:
        """Convert `kept` to search hits, refined if a model replies in time.  Never raises a LinckiaError."""
        hits = [passages.hit(each, query, found.source) for each in kept]
        plain = SearchMetadata(
            query=query, sonar_enabled=False, intent=None, analysis=None, stages=found.stages, degraded=found.degraded
        )

        def lacking(reason: str) -> SearchMetadata:
            return msgspec.structs.replace(plain, degraded=[*found.degraded, f"{SONAR}: {reason}"])

        model = await self._known(ctx)
        if model is None:
            silent = trio.current_time() - self._began > _SILENT_FOR_S
            return hits, lacking("unknown whether a model is configured, `llm` is unavailable") if silent else plain
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
        metadata = plain if said.order else lacking("the model returned no order")
        return ordered(hits, said), msgspec.structs.replace(
            metadata,
            sonar_enabled=True,
            intent=said.intent,
            analysis=said.analysis,
            stages=[*found.stages, SONAR],
        )

    async def linked(
        self, pairs: Sequence[Pair], plain: list[Gap], contents: Mapping[str, NoteContent | None], ctx: Context
    ) -> list[Gap]:
        """Return `plain`, the gaps of these pairs, with the model's link types and reasons if it replies in time."""
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
            ctx.log("warning", f"notes_gaps: {SONAR}: {error.failure.message}")
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
    """Return `hits` in the model's order, followed by those it left out.  Scores decrease from first to last."""
    placed = [each for each in said.order if each.index < len(hits)]
    chosen = {each.index for each in placed}
    rest = [hit for index, hit in enumerate(hits) if index not in chosen]
    falling = sorted((hit.score for hit in hits), reverse=True)
    least = min((each.score for each in placed if each.score is not None), default=None)
    answer: list[SearchHit] = []
    for position, each in enumerate(placed):
        hit = hits[each.index]
        context = f"{hit.context} — {each.context}" if each.context else hit.context
        # If the model gave no scores, assign the existing scores in its order.
        score = falling[position] if each.score is None else each.score
        answer.append(msgspec.structs.replace(hit, score=score, context=context))
    for position, hit in enumerate(rest, start=len(placed)):
        score = falling[position] if least is None else min(1.0, max(0.0, hit.score)) * least
        answer.append(msgspec.structs.replace(hit, score=score))
    return answer


def _candidate(id_: str, contents: Mapping[str, NoteContent | None]) -> llm.Candidate:
    content = contents.get(id_)
    if content is None:
        return llm.Candidate(id=id_)
    return llm.Candidate(id=id_, title=content.title, text=content.text[:READ_CHARS])
