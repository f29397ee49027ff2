"""Fills data directories fast: the services themselves store everything, in this process, with made-up vectors.

The vectors are marked with the model in use, so that a kernel that is started on them has nothing to compute.
"""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import apsw
import numpy as np
import trio

from proto.ops.documents.reading import CORPUS
from proto.ops.embed import (
    EmbedMaxSim,
    EmbedModel,
    EmbedModelParams,
    EmbedResult,
    EmbedTexts,
    MaxSimResult,
    pack,
)
from proto.ops.memory import COLLECTION
from proto.ops.retrieve import RetrieveStatus
from services.documents import main as documents
from services.documents.operations.adding import DocumentsAdd
from services.embed.main import load
from services.embed.serving import EmbedSettings, Loaded
from services.graph import main as graph
from services.memory import main as memory
from services.memory import memory_db
from services.memory.operations import CarriedSaid
from services.retrieve import main as retrieve
from services.runtime.database import Database, Kind
from services.runtime.handlers import Context, Environment, Handlers, OpenService
from services.transcripts import main as transcripts
from services.transcripts.operations.intake import TranscriptIngest
from tests.bench.parts.collections import DIMENSIONS, Corpus, fill_knowledge, fill_retrieve, notes_of
from tests.in_process import Bench, services_in_process

TURNS_EACH = 20
"""Turns of a conversation."""
_BATCH = 1000
_LIMIT_S = 3600.0


@functools.cache
def model() -> Loaded:
    """Load the model in use, which marks the vectors."""
    return load(EmbedSettings(), "cpu", Path(tempfile.gettempdir()))


def texts_of(count: int) -> Iterator[str]:
    """Yield texts of 40 words."""
    for texts, _ in Corpus(count).blocks():
        yield from texts


def fill_notes(data: Path, root: Path, count: int) -> None:
    """Make notes of one passage each."""
    paths = notes_of(count, 1)
    fill_knowledge(data / "services/knowledge/notes.db", str(root), paths)
    fill_retrieve(data / "services/retrieve/notes.db", Corpus(count), 1, model().fingerprint, (str(root), paths))


def fill_documents(data: Path, root: Path, count: int) -> None:
    """Add a folder of texts."""
    for number, text in enumerate(texts_of(count)):
        folder = root / f"folder-{number // _BATCH}"
        if number % _BATCH == 0:
            folder.mkdir(parents=True)
        (folder / f"document-{number}.txt").write_text(text)

    async def add(bench: Bench) -> None:
        await bench.call(DocumentsAdd(path=str(root), no_ignore=True), timeout_s=_LIMIT_S)

    trio.run(
        functools.partial(
            _fill, data, [root], {"graph": graph.open_service, "documents": documents.open_service}, add, CORPUS, count
        )
    )


def fill_chats(data: Path, root: Path, count: int) -> None:
    """Post conversations of 20 turns."""

    async def post(bench: Bench) -> None:
        turns, texts = [], []
        for number, text in enumerate(texts_of(count), 1):
            texts.append(text)
            if len(texts) == TURNS_EACH or number == count:
                turns.append(turn(texts))
                texts = []
            if len(turns) * TURNS_EACH >= _BATCH or number == count:
                body = json.dumps({"turns": turns}).encode()
                kept = await bench.call(TranscriptIngest(body=body, batch=True), timeout_s=_LIMIT_S)
                assert not kept.rejected, kept.errors[:1]
                turns = []

    trio.run(
        functools.partial(_fill, data, [root], {"transcripts": transcripts.open_service}, post, "transcripts", count)
    )


def turn(texts: list[str]) -> dict[str, object]:
    """Return a conversation whose last text is the reply."""
    messages = [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(texts)]
    choice = {"index": 0, "message": messages[-1], "finish_reason": "stop"}
    request = {"model": "m", "messages": messages[:-1]}
    return {"provider": "openai", "request": request, "response": {"model": "m", "choices": [choice]}}


def fill_memory(data: Path, root: Path, count: int) -> None:
    """Insert statements of the user; the service then gives them to the search."""
    path = data / "services/memory/memory.db"
    path.parent.mkdir(parents=True)
    database = Database(path, memory_db.SCHEMA, kind=Kind.SOURCE, keeps_keys=True)
    now_ns = time.time_ns()
    with contextlib.closing(database), database.transaction() as db:
        for number, text in enumerate(texts_of(count)):
            said = f"{text[:100]} {number}"
            told = CarriedSaid(at_ns=now_ns, text=said, source="", session="", client="")
            memory_db.insert(db, memory_db.Place("user"), said, [told], (), None)

    async def nothing(bench: Bench) -> None:
        """Insert nothing more."""

    trio.run(functools.partial(_fill, data, [root], {"memory": memory.open_service}, nothing, COLLECTION, count))


async def _fill(
    data: Path,
    roots: list[Path],
    services: Mapping[str, OpenService],
    act: Callable[[Bench], Awaitable[None]],
    collection: str,
    count: int,
) -> None:
    """Run services until all that `act` stores is indexed."""
    every: dict[str, OpenService] = {"retrieve": retrieve.open_service, "embed": _made_up, **services}
    for root in roots:
        root.mkdir(parents=True, exist_ok=True)
    async with services_in_process(every, data / "services", roots=roots) as bench:
        await act(bench)
        while True:
            status = await bench.call(RetrieveStatus(collection=collection))
            if status.groups >= count and not status.vectors_waiting and not _queued(data, services):
                break
            await trio.sleep(0.2)
        for name in reversed(every):
            await bench.finish(name)


def _queued(data: Path, services: Mapping[str, OpenService]) -> int:
    """Return how many rows wait in the outboxes of services."""
    found = 0
    for path in (path for name in services for path in (data / "services" / name).rglob("*.db")):
        with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE name GLOB '*outbox'")]
            found += sum(int(db.execute(f"SELECT count(*) FROM {name}").get) for name in tables)
    return found


@contextlib.asynccontextmanager
async def _made_up(env: Environment) -> AsyncIterator[Handlers]:
    """Serve `embed` with vectors that depend on the text alone."""
    handlers = Handlers()
    loaded = model()

    @handlers.handle(EmbedTexts)
    async def texts(params: EmbedTexts, ctx: Context) -> EmbedResult:
        seeds = (zlib.crc32(text.encode()) for text in params.texts)
        rows = [np.random.default_rng(seed).standard_normal(DIMENSIONS, dtype=np.float32) for seed in seeds]
        vectors = np.stack(rows)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return EmbedResult(vectors=pack(vectors), fingerprint=loaded.fingerprint)

    @handlers.handle(EmbedModelParams)
    async def described(params: EmbedModelParams, ctx: Context) -> EmbedModel:
        return EmbedModel(
            model="made up", fingerprint=loaded.fingerprint, dimensions=DIMENSIONS, max_tokens=256, device="cpu",
            precision="fp32",
        )  # fmt: skip

    @handlers.handle(EmbedMaxSim)
    async def scores(params: EmbedMaxSim, ctx: Context) -> MaxSimResult:
        return MaxSimResult(scores=[0.5] * len(params.texts))

    yield handlers


__all__ = ["fill_chats", "fill_documents", "fill_memory", "fill_notes", "turn"]
