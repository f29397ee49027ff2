"""Finds operations, tools of mounted servers among them, by the words and by the meaning of a task.

The words are `services.front.surfaces.finding`. The meaning of one of Linckia's own operations is what was learned
from requests for it (`services.front.surfaces.examples`), if `embed` has the model with which that was learned. For
tools of mounted servers, and with another model, it is the cosine of vectors that `embed` computes: of the task, and of
a short text for each operation. Both are added (a weighted sum; the vectors as standard scores, so that the weight does
not depend on the model), and tools whose whole server fits the task gain a little.

Vectors are computed once for each text, in the background, while searches go by words alone. So they do if `embed` is
down, slow, or has changed its model.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import mul
from typing import Final, NamedTuple, TypeAlias

import msgspec
import trio

from proto.errors import LinckiaError
from proto.operation import Operation, operation_of
from proto.ops.embed import EmbedResult, EmbedTexts, TextKind
from proto.wire.front import OWN
from services.front.surfaces.examples import fits
from services.front.surfaces.finding import Index, is_mounted, parameters_of, split_name
from services.front.surfaces.shapes import generalized
from services.front.surfaces.steps import Steps
from services.runtime.dispatch import Dispatcher

Embed = Callable[[EmbedTexts], Awaitable[EmbedResult]]
"""Calls `embed_texts`. Raises LinckiaError."""

Vector: TypeAlias = "array[float]"

PATIENCE_S: Final = 0.03
"""Time that a search waits for the vector of its task: an answer by words beats a late one."""

RETRY_S: Final = 10.0
"""Pause after `embed` could not compute the operations' vectors."""

_BATCH: Final = 32
_DESCRIPTION_CHARS: Final = 200
_PARAMETERS: Final = 12
_MOST: Final = 4_096
"""Vectors kept: 1.5 KB each."""

_GENERAL: Final = 0.7
"""Share of the generalized task (`shapes.generalized`) in the vector of a task."""

_OF_WORDS: Final = 0.65
"""Weight of the score by words, compared with a standard deviation of the cosine."""

_OF_LEARNED: Final = 0.7
"""Weight of a learned score, compared with a standard deviation of the cosine."""

_LIKELY: Final = 5.5
"""Score of the best operation below which perhaps none does the task: 95 of 100 tasks that one does reach it."""

_OF_SERVICE: Final = 0.3
"""Weight of how well the best tools of the same server fit."""

_BEST_OF_SERVICE: Final = 3
_UNRELATED: Final = (0.06, 0.08)
"""Mean and standard deviation of the cosines of unrelated texts, if `embed` does not state them."""

_RELATED: Final = 2.5
"""Standard score from which an operation counts as found by meaning alone."""

_log = logging.getLogger("linckia.service")


def text_of(operation: Operation[object]) -> str:
    """Return the text whose vector stands for an operation: name, beginning of the description, parameters."""
    described = " ".join(operation.description[: 4 * _DESCRIPTION_CHARS].split())[:_DESCRIPTION_CHARS]
    named = ", ".join(split_name(name[:64]) for name in list(parameters_of(operation.input_schema))[:_PARAMETERS])
    return f"{split_name(operation.name[:128])}: {described}{f' ({named})' if named else ''}"


class Ranking(NamedTuple):
    """Names of operations, best first, and whether the first one is likely to do the task."""

    names: list[str]
    is_likely: bool = True


class ToolVectors:
    """The vectors of texts, shared by all searches of a front; `run` computes the missing ones."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._by_text: dict[str, Vector] = {}
        self._wanted: dict[str, None] = {}
        self._changed = trio.Event()
        self.fingerprint = ""
        self.unrelated = _UNRELATED
        self.patience_s = PATIENCE_S

    async def run(self) -> None:
        """Compute wanted vectors until cancelled, in batches; after a failure, pause and try again."""
        while True:
            if not self._wanted:
                self._changed = trio.Event()
                await self._changed.wait()
            batch = list(self._wanted)[:_BATCH]
            try:
                vectors = await self._vectors(batch, TextKind.PASSAGE)
            except LinckiaError as error:
                _log.debug("tool search goes by words: %s", error)
                # The next search asks for them again, and knows which operations still exist.
                self._wanted.clear()
                await trio.sleep(RETRY_S)
                continue
            for text, vector in zip(batch, vectors, strict=True):
                self._wanted.pop(text, None)
                self._by_text[text] = vector
            for text in list(self._by_text)[: max(0, len(self._by_text) - _MOST)]:
                del self._by_text[text]

    def get(self, texts: Sequence[str]) -> list[Vector] | None:
        """Return the vectors of all texts; None if some are missing, which `run` then computes, or if there are more
        than are kept."""
        if len(texts) > _MOST:
            return None
        missing = [text for text in texts if text not in self._by_text]
        if missing:
            self._wanted.update(dict.fromkeys(missing))
            self._changed.set()
            return None
        return [self._by_text[text] for text in texts]

    async def of_task(self, words: str, *, mounted: bool) -> tuple[Vector, Vector] | None:
        """Return the vector of a task, and the one to compare with tools of `mounted` servers, if there are some; None
        if `embed` cannot give them in time."""
        texts = [words, generalized(words)] if mounted else [words]
        with trio.move_on_after(self.patience_s):
            try:
                first, *general = await self._vectors(texts, TextKind.QUERY)
            except LinckiaError:
                return None
            if not general:
                return first, first
            mixed = ((1 - _GENERAL) * a + _GENERAL * b for a, b in zip(first, general[0], strict=True))
            return first, array("f", mixed)
        return None

    async def _vectors(self, texts: Sequence[str], kind: TextKind) -> list[Vector]:
        result = await self._embed(EmbedTexts(texts=list(texts), kind=kind))
        if result.fingerprint != self.fingerprint:
            # Vectors of two models are never compared.
            self._by_text.clear()
            self.fingerprint = result.fingerprint
        self.unrelated = result.background or _UNRELATED
        numbers = array("f")
        numbers.frombytes(result.vectors.data)
        size = result.vectors.shape[1]
        return [numbers[at : at + size] for at in range(0, len(numbers), size)]


def embed_through(dispatcher: Dispatcher) -> Embed:
    """Return the function that calls `embed_texts` for the front itself."""

    async def embed(params: EmbedTexts) -> EmbedResult:
        return msgspec.convert(await dispatcher.call(operation_of(EmbedTexts), params, origin=OWN), EmbedResult)

    return embed


class ToolSearches:
    """The searches of a front, one for each surface."""

    def __init__(self, vectors: ToolVectors) -> None:
        self.vectors = vectors
        self._by_surface: dict[str, tuple[Index, ToolSearch]] = {}

    async def ranked(self, steps: Steps, words: str) -> Ranking:
        """Return the steps of a surface that fit the task."""
        index, search = self._by_surface.get(steps.surface, (None, None))
        if search is None or index is not steps.index:
            operations = {name: operation for ops in steps.ops.values() for name, operation in ops.items()}
            search = ToolSearch(operations, self.vectors, steps.index)
            self._by_surface[steps.surface] = steps.index, search
        return await search.found(words)


class ToolSearch:
    """Searches some operations. A new one is made when they change; the vectors stay."""

    def __init__(
        self, operations: Mapping[str, Operation[object]], vectors: ToolVectors | None, index: Index | None = None
    ) -> None:
        self._index = Index(operations) if index is None else index
        self.vectors = vectors
        self._operations = operations
        self._names = list(operations)
        self._mounted = [name for name, operation in operations.items() if is_mounted(operation)]
        self._services: dict[str, list[int]] = {}
        for number, operation in enumerate(operations.values()):
            if is_mounted(operation):
                self._services.setdefault(operation.service, []).append(number)

    async def ranked(self, words: str) -> list[str]:
        """Return the names of operations that fit the task, best first."""
        return (await self.found(words)).names

    async def found(self, words: str) -> Ranking:
        """Return what fits the task."""
        by_words = self._index.scores(words)
        by_meaning = await self._by_meaning(words)
        if by_meaning is None:
            return Ranking(self._index.ranked(words))
        scores = [by_meaning.get(name, 0.0) + _OF_WORDS * by_words.get(name, 0.0) for name in self._names]
        fused = scores.copy()
        for numbers in self._services.values():
            best = sorted((scores[number] for number in numbers), reverse=True)[:_BEST_OF_SERVICE]
            for number in numbers:
                fused[number] += _OF_SERVICE * sum(best) / len(best)
        found = [
            number
            for number, name in enumerate(self._names)
            if name in by_words or by_meaning.get(name, 0.0) >= _RELATED
        ]
        best_first = sorted(found, key=lambda number: -fused[number])
        is_likely = not best_first or fused[best_first[0]] >= _LIKELY
        return Ranking([self._names[number] for number in best_first], is_likely)

    async def _by_meaning(self, words: str) -> Mapping[str, float] | None:
        """Return the score of each operation by meaning; None if vectors are missing."""
        if self.vectors is None or not words.strip():
            return None
        task = await self.vectors.of_task(words, mounted=bool(self._mounted))
        if task is None:
            return None
        learned = fits(task[0], self.vectors.fingerprint)
        compared = self._names if learned is None else self._mounted
        # The model may have changed while the task's vector was computed; then these are missing.
        vectors = self.vectors.get([text_of(self._operations[name]) for name in compared])
        if vectors is None and learned is None:
            return None
        mean, deviation = self.vectors.unrelated
        scores = {
            name: (sum(map(mul, task[1], vector)) - mean) / (deviation or 1.0)
            for name, vector in zip(compared, vectors or (), strict=False)
        }
        if learned is not None:
            scores |= {
                name: _OF_LEARNED * learned.get(op.name, 0.0)
                for name, op in self._operations.items()
                if name not in scores and not is_mounted(op)
            }
        return scores
