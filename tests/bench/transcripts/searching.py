"""Searches among 100,000 turns, and the share of right hits with and without the text that agents add.

The first uses the service with the real search and random vectors, since a model would take an hour for this many; the
second uses the real model.
"""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import statistics
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import trio

from proto.ops.embed import (
    EmbedMaxSim,
    EmbedModel,
    EmbedModelParams,
    EmbedResult,
    EmbedTexts,
    MaxSimResult,
    pack,
)
from proto.ops.retrieve import RetrieveStatus
from services.embed import main as embed
from services.retrieve import main as retrieve
from services.runtime.handlers import Context, Environment, Handlers
from services.transcripts import main as transcripts
from services.transcripts.operations.conversations import TranscriptsSearch
from services.transcripts.operations.intake import TranscriptIngest
from tests.in_process import Bench, services_in_process

TURNS = 100_000
DIMENSIONS = 384
SEARCHES = 200

_SYLLABLES = ("ka", "to", "mi", "ra", "lo", "se", "nu", "pi", "va", "den", "gor", "lis", "mar", "tek", "sol", "bri")


def _vocabulary(count: int, chance: random.Random) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(chance.choice(_SYLLABLES) for _ in range(chance.randint(2, 4)))] = None
    return list(words)


@contextlib.asynccontextmanager
async def _made_up(env: Environment) -> AsyncIterator[Handlers]:
    """Serve `embed` with random vectors, the same for the same text."""
    handlers = Handlers()

    @handlers.handle(EmbedTexts)
    async def texts(params: EmbedTexts, ctx: Context) -> EmbedResult:
        vectors = np.stack(
            [
                np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIMENSIONS).astype(np.float32)
                for text in params.texts
            ]
        )
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return EmbedResult(vectors=pack(vectors), fingerprint="random:1")

    @handlers.handle(EmbedModelParams)
    async def model(params: EmbedModelParams, ctx: Context) -> EmbedModel:
        return EmbedModel(
            model="random",
            fingerprint="random:1",
            dimensions=DIMENSIONS,
            max_tokens=256,
            device="cpu",
            precision="fp32",
        )

    @handlers.handle(EmbedMaxSim)
    async def maxsim(params: EmbedMaxSim, ctx: Context) -> MaxSimResult:
        return MaxSimResult(scores=[0.5] * len(params.texts))

    yield handlers


def search(folder: Path) -> None:
    """Print p50 and p95 of complete searches with their lineages, compared with words alone in SQLite's FTS5."""
    trio.run(_search, folder)


async def _search(folder: Path) -> None:
    chance = random.Random(3)
    words = _vocabulary(20_000, chance)
    weights = [1 / (rank + 10) for rank in range(len(words))]

    def said(count: int) -> str:
        return " ".join(chance.choices(words, weights, k=count))

    services = {"retrieve": retrieve.open_service, "embed": _made_up, "transcripts": transcripts.open_service}
    peer = sqlite3.connect(":memory:")
    peer.execute("CREATE VIRTUAL TABLE turn USING fts5(text)")
    # This matches a machine without a cross-encoder.
    settings = {"retrieve": {"rerank": "off"}}
    async with services_in_process(services, folder, settings=settings) as bench:
        began = time.perf_counter()
        for _ in range(TURNS // 1000):
            turns = []
            for _ in range(50):
                texts = [said(40) for _ in range(20)]
                peer.executemany("INSERT INTO turn VALUES(?)", ((text,) for text in texts))
                turns.append(_turn(texts))
            await _post(bench, turns)
        print(f"{TURNS} turns kept in {time.perf_counter() - began:.0f} s", flush=True)
        await _indexed(bench, TURNS)
        print(f"found by meaning as well after {time.perf_counter() - began:.0f} s", flush=True)
        times, alone = [], []
        for _ in range(SEARCHES):
            query = said(5)
            began = time.perf_counter()
            found = await bench.call(TranscriptsSearch(query=query))
            times.append((time.perf_counter() - began) * 1000)
            assert found.count == 5
            assert not found.degraded, found.degraded
            began = time.perf_counter()
            asked = " OR ".join(query.split())
            peer.execute("SELECT rowid FROM turn WHERE turn MATCH ? ORDER BY rank LIMIT 5", (asked,)).fetchall()
            alone.append((time.perf_counter() - began) * 1000)
    print(f"the first search after that took {times[0]:.1f} ms")
    _show("search: words, meaning and lineages", times)
    _show("SQLite FTS5, words alone", alone)
    print(f"ratio of the medians: {statistics.median(times) / statistics.median(alone):.2f}")
    peer.close()


def _show(name: str, times: list[float]) -> None:
    print(f"{name:<44} p50 {statistics.median(times):7.1f} ms   p95 {statistics.quantiles(times, n=20)[18]:7.1f} ms")


def _turn(texts: list[str]) -> dict[str, Any]:
    messages = [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(texts)]
    choice = {"index": 0, "message": messages[-1], "finish_reason": "stop"}
    return {
        "provider": "openai",
        "request": {"model": "m", "messages": messages[:-1]},
        "response": {"model": "m", "choices": [choice]},
    }


async def _post(bench: Bench, turns: list[dict[str, Any]]) -> None:
    kept = await bench.call(TranscriptIngest(body=json.dumps({"turns": turns}).encode(), batch=True), timeout_s=60)
    assert not kept.rejected, kept.errors[:1]


async def _indexed(bench: Bench, turns: int) -> None:
    while True:
        status = await bench.call(RetrieveStatus(collection="transcripts"))
        if status.groups >= turns and not status.vectors_waiting:
            return
        await trio.sleep(0.5)


# Searches with and without the text that agents add

SUBJECTS = {
    "the deployment fails because the health check of the load balancer times out": "why does rolling out break",
    "postgres runs out of connections when the nightly report starts": "database refuses clients at night",
    "the login page shows a blank screen in Safari since the cookie change": "cannot sign in with Apple's browser",
    "we rotate the signing certificates every ninety days with a cron job": "how often are certificates replaced",
    "the image resizer leaks memory when a TIFF has many pages": "RAM grows while scaling pictures",
    "prices are rounded twice, so that totals are a cent off": "invoice sum is slightly wrong",
    "the search index has to be rebuilt after the tokenizer was upgraded": "reindex following new word splitting",
    "emails to customers land in spam because the DKIM record is missing": "mails are classified as junk",
    "the mobile app crashes on start when there is no network": "offline launch fails on the phone",
    "the CSV export must quote fields that hold semicolons": "separators inside of exported columns",
    "time zones are stored as offsets and break at daylight saving": "clock change shifts appointments by an hour",
    "the queue consumer acknowledges messages before they are processed": "jobs get lost when a worker dies",
    "feature flags are read at start only and need a restart": "toggling an option has no effect until reboot",
    "two users can book the same seat at the same moment": "race condition in reservations",
    "the dark theme has too little contrast for links": "hard to read hyperlinks at night mode",
    "uploads above two gigabytes fail behind the proxy": "large files are rejected",
    "the backup is encrypted with a key that nobody has": "cannot restore the saved data",
    "log files fill the disk since debug output was left on": "no space left because of tracing",
    "the recommendation model is trained on data with duplicates": "repeated samples bias suggestions",
    "the websocket reconnects in a tight loop when the token expires": "endless reconnection after the session ends",
}
_REMINDERS = (
    "This is a reminder that your todo list is currently empty. DO NOT mention this to the user explicitly. If you are"
    " working on tasks that would benefit from a todo list please use the TodoWrite tool to create one.",
    "Whenever you read a file, you should consider whether it would be considered malware. You CAN and SHOULD provide"
    " analysis of malware, what it is doing. But you MUST refuse to improve or augment the code.",
    "As you answer the user's questions, you can use the following context: the project is a web shop with a database,"
    " a search index, a queue, a mobile app, invoices, bookings, e-mails, backups and a recommendation model.",
)


def stripping(folder: Path) -> None:
    """Print the share of questions whose turn comes first, and among the first five."""
    with_, without = trio.run(_hit_rates, folder / "stripped", True), trio.run(_hit_rates, folder / "left", False)
    print(f"{'tags stripped':<44} first {with_[0]:.2f}   among five {with_[1]:.2f}")
    print(f"{'tags left in':<44} first {without[0]:.2f}   among five {without[1]:.2f}")


async def _hit_rates(folder: Path, strip: bool) -> tuple[float, float]:
    chance = random.Random(11)
    tag = "system-reminder" if strip else "what-the-agent-says"
    services = {"retrieve": retrieve.open_service, "embed": embed.open_service, "transcripts": transcripts.open_service}
    async with services_in_process(services, folder) as bench:
        turns = []
        for subject in SUBJECTS:
            around = "\n".join(f"<{tag}>\n{chance.choice(_REMINDERS)}\n</{tag}>" for _ in range(3))
            turns.append(_turn([f"{around}\n{subject}\n{around}", "I will look into it."]))
        # Unrelated turns with the same added text.
        for n in range(80):
            around = f"<{tag}>\n{chance.choice(_REMINDERS)}\n</{tag}>"
            turns.append(_turn([f"{around}\nPlease go on with step {n}.", f"Step {n} is done."]))
        await _post(bench, turns)
        await _indexed(bench, len(SUBJECTS) + 2 * 80 + 1)
        first = among = 0
        for subject, question in SUBJECTS.items():
            found = await bench.call(TranscriptsSearch(query=question))
            right = [subject in hit.preview for hit in found.results]
            first += right[:1] == [True]
            among += any(right)
    return first / len(SUBJECTS), among / len(SUBJECTS)
