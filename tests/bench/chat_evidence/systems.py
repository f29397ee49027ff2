"""The ways of finding turns that are compared: Linckia's search, and rivals made of its parts or of SQLite's."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import apsw
import numpy as np
import trio

from proto.ops.embed import EmbedModel, EmbedModelParams, EmbedResult, EmbedTexts, TextKind
from proto.ops.retrieve import Filter, Group, Item, RetrieveSearch, Surroundings, Value
from services.retrieve.index.vectors import Matrix
from services.retrieve.local_collection import LocalCollection
from services.retrieve.ranking.fusion import reciprocal_rank
from services.retrieve.ranking.queries import Patience
from services.retrieve.ranking.search import search
from services.retrieve.vector_outbox import VectorFeed
from services.transcripts.feed import AROUND, pieces
from services.transcripts.search import CANDIDATES, TURNS
from tests.bench.chat_evidence.conversations import History
from tests.bench.parts.models import InProcessEmbedder

LIMIT = 10
DEPTH = 100
"""Turns of each rival's list that reciprocal ranks read."""

IN = "of"
"""Metadata with the conversations of a turn."""

Search: TypeAlias = Callable[[str, str], Awaitable[list[str]]]
"""Takes a question and a conversation, empty for all. Returns turns, best first."""


class Embedder:
    """The model; it keeps the vectors of passages for the rival that compares them itself."""

    def __init__(self) -> None:
        self.model = InProcessEmbedder()
        self.vectors: dict[str, Matrix] = {}

    async def passages(self, params: EmbedTexts) -> EmbedResult:
        result = await self.model.passages(params)
        self.vectors |= dict(zip(params.texts, _matrix(result), strict=True))
        return result

    async def query(self, params: EmbedTexts, timeout_s: float) -> EmbedResult:
        return await self.model.query(params, timeout_s)


def _matrix(result: EmbedResult) -> Matrix:
    found: Matrix = np.frombuffer(result.vectors.data, dtype=result.vectors.dtype).astype(np.float32)
    return found.reshape(result.vectors.shape)


async def _unasked(params: EmbedModelParams) -> EmbedModel:
    raise AssertionError("the vectors name their model")


class Systems:
    """All systems over the same turns.

    Args:
        folder: where the collection is stored.
    """

    def __init__(self, folder: Path, history: History) -> None:
        self.embedder = Embedder()
        self.turns = [turn.id for turn in history.turns]
        self._history = history
        self._conversations: dict[str, list[str]] = {}
        for conversation, sessions in history.conversations.items():
            for session in sessions:
                self._conversations.setdefault(session, []).append(conversation)
        self._collection = LocalCollection("turns", folder, trio.CapacityLimiter(4))
        self._words = apsw.Connection(":memory:")
        self._numbers = {turn: number for number, turn in enumerate(self.turns)}
        self._matrix: Matrix = np.empty((0, 0), np.float32)
        self._owners = np.empty(0, np.int64)
        """The turn of each row of the matrix, by its number."""

    @property
    def all(self) -> Mapping[str, Search]:
        """The systems by name; the last one is Linckia's search of conversations."""
        return {
            "words (SQLite FTS5, BM25, porter)": self.by_words,
            "vectors (cosine)": self.by_vectors,
            "reciprocal ranks of both (k = 60)": self.by_ranks,
            "Linckia, each turn by itself": self._linckia(None),
            "Linckia": self._linckia(AROUND),
        }

    async def fill(self) -> None:
        """Store all turns and their vectors."""
        await self._collection.load()
        await self._collection.words.check()
        groups = self._groups()
        for start in range(0, len(groups), 512):
            await self._collection.put(groups[start : start + 512])
        feed = VectorFeed(self._collection, self.embedder.passages, _unasked)
        while due := await feed.take():
            await feed.deliver(due)
        self._words.execute("CREATE VIRTUAL TABLE turn USING fts5(text, tokenize='porter unicode61')")
        self._words.execute("CREATE TABLE part(conversation, turn, PRIMARY KEY(conversation, turn)) WITHOUT ROWID")
        rows = [(self._numbers[turn.id], turn.text) for turn in self._history.turns]
        parts = [
            (conversation, self._numbers[turn.id])
            for turn in self._history.turns
            for conversation in self._conversations[turn.session]
        ]
        with self._words:
            self._words.executemany("INSERT INTO turn(rowid, text) VALUES(?, ?)", rows)
            self._words.executemany("INSERT INTO part VALUES(?, ?)", parts)
        owned = [
            (self._numbers[group.id], self.embedder.vectors[item.text])
            for group in groups
            for item in group.items
            if item.text in self.embedder.vectors
        ]
        self._owners = np.array([number for number, _ in owned])
        self._matrix = np.stack([vector for _, vector in owned])

    def _groups(self) -> list[Group]:
        found: list[Group] = []
        for session, turns in self._history.sessions.items():
            before = ""
            for turn in turns:
                items = [
                    Item(key=f"{index:04}", text=text, embed=embedded)
                    for index, (text, embedded) in enumerate(pieces(turn.text))
                ]
                links: dict[str, Value] = {AROUND.whole: session, IN: [*self._conversations[session]]}
                found.append(
                    Group(id=turn.id, items=items, metadata=links | ({AROUND.follows: before} if before else {}))
                )
                before = turn.id
        return found

    def close(self) -> None:
        self._collection.close()
        self._words.close()

    def _linckia(self, around: Surroundings | None) -> Search:
        async def ask(question: str, conversation: str) -> list[str]:
            asked = RetrieveSearch(
                collection=self._collection.name,
                query=question,
                limit=LIMIT,
                candidates=CANDIDATES if around is None else TURNS,
                filters=[Filter(field=IN, any_of=[conversation])] if conversation else [],
                around=around,
            )
            result = await search(self._collection, asked, self.embedder.query, Patience(60.0), lambda: None)
            if result.degraded:
                raise AssertionError(result.degraded)
            return [hit.group for hit in result.hits]

        return ask

    async def by_words(self, question: str, conversation: str) -> list[str]:
        return [self.turns[number] for number, _ in self._find_words(question, conversation)]

    async def by_vectors(self, question: str, conversation: str) -> list[str]:
        return [self.turns[number] for number, _ in await self._find_vectors(question, conversation)]

    async def by_ranks(self, question: str, conversation: str) -> list[str]:
        fused = reciprocal_rank(
            self._find_words(question, conversation), await self._find_vectors(question, conversation)
        )
        best = sorted(fused, key=lambda number: (-fused[number], number))
        return [self.turns[number] for number in best]

    def _find_words(self, question: str, conversation: str) -> list[tuple[int, float]]:
        match = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", question))
        # The plus keeps SQLite from querying the index once per turn of the conversation.
        within = "AND +rowid IN (SELECT turn FROM part WHERE conversation=?)" if conversation else ""
        arguments = (match, conversation, DEPTH) if conversation else (match, DEPTH)
        sql = f"SELECT rowid, -rank FROM turn WHERE turn MATCH ? {within} ORDER BY rank LIMIT ?"
        return [(int(number), float(score)) for number, score in self._words.execute(sql, arguments)] if match else []

    async def _find_vectors(self, question: str, conversation: str) -> list[tuple[int, float]]:
        result = await self.embedder.query(EmbedTexts(texts=[question], kind=TextKind.QUERY), 60.0)
        matrix, owners = self._matrix, self._owners
        if conversation:
            admitted = self._rows_of(conversation)
            matrix, owners = matrix[admitted], owners[admitted]
        cosines = matrix @ _matrix(result)[0]
        best: dict[int, float] = {}
        for row in np.argsort(-cosines, kind="stable"):
            if len(best) == DEPTH:
                break
            best.setdefault(int(owners[row]), float(cosines[row]))
        return [*best.items()]

    def _rows_of(self, conversation: str) -> Sequence[int]:
        turns = self._words.execute("SELECT turn FROM part WHERE conversation=?", (conversation,))
        return np.flatnonzero(np.isin(self._owners, [number for (number,) in turns])).tolist()
