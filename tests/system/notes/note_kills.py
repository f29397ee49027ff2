"""Notes are written, ingested, embedded, linked and searched while the services that do it are killed at random.

`torment` does that on a real kernel and returns its observations; `audit` then compares everything that is stored with
the files: no note is lost, none is there twice, each vector belongs to its text, each link is in the graph.
"""

from __future__ import annotations

import base64
import random
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import trio

from services.shared.text.cutting import embedded_text
from tests.system.running import RunningKernel, connection, wait_until

VICTIMS = ("knowledge", "retrieve", "embed", "graph")
SEARCHERS = 3
CANDIDATES = 50
"""Number of candidates in a search: a reranker with random weights leaves a found note somewhere among them."""

_MAY_FAIL = frozenset({"unavailable", "overloaded", "timeout"})
"""Said failures: no answer at all, and nothing that could be taken for one."""

_SAME_TEXT = 0.99
"""Least cosine of two vectors of one text: batches of other sizes round differently, and long ones more coarsely. Any
two sections of different notes or editions are below 0.95."""

_WORDS = (
    "anchor bakery camel diesel embassy fossil guitar harbour igloo jungle kettle lantern monsoon nickel orchard "
    "pepper quarry radar saddle tunnel umbrella velvet walnut xylophone yoghurt zeppelin arrow bishop candle "
    "desert engine feather glacier helmet insect jewel keyboard ladder marble needle oxygen planet queen rocket "
    "sugar theatre uniform volcano wheel apron bridge cheese dentist elephant factory garlic hammer island jacket "
    "kitchen lemon mirror notary opera piano rabbit stadium ticket union violin whisky yacht airport butcher "
    "carpet doctor election football grammar"
)


def note(n: int, count: int, edition: int = 0) -> str:
    """A note of three sections, found by `word{n}` and, in this edition alone, by `edition{n}x{edition}`."""
    source = random.Random(f"{n} {edition}")

    def about() -> str:
        return ", ".join(source.sample(_WORDS.split(), 12))

    return (
        f"# Note {n}\n\n{about()}: word{n} is seen in edition{n}x{edition}, beside [[n{(n + 1) % count}]].\n\n"
        f"## Habits\n\nIt lives by {about()}, number {n}.\n\n"
        f"## Arms\n\nOf {about()} it has lost {n % 5}, says {n}.\n"
    )


@dataclass
class Seen:
    """Observations made during the kills."""

    searches: int = 0
    degraded: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    editions: dict[int, int] = field(default_factory=dict)


async def torment(
    kernel: RunningKernel,
    root: Path,
    *,
    notes: int,
    kills: int,
    seed: int = 0,
    victims: Sequence[str] = VICTIMS,
    pause_s: float = 0.3,
    reranks: bool = False,
) -> Seen:
    """Write `notes` notes below `root` and edit some, search them, and kill each of `victims` so often meanwhile.

    Args:
        pause_s: at most, between a victim's return and the next kill.
        reranks: whether a cross-encoder, with any weights, reranks the results.
    """
    seen = Seen()
    dice = random.Random(seed)
    known: set[int] = set()
    done = trio.Event()

    async def write() -> None:
        numbers = list(range(notes))
        dice.shuffle(numbers)
        steps = kills * len(victims)
        for step in range(steps + 1):
            for n in numbers[notes * step // (steps + 1) : notes * (step + 1) // (steps + 1)]:
                (root / f"n{n}.md").write_text(note(n, notes))
                seen.editions[n] = 0
            for n in dice.sample(sorted(seen.editions), min(3, len(seen.editions))):
                seen.editions[n] += 1
                (root / f"n{n}.md").write_text(note(n, notes, seen.editions[n]))
            await trio.sleep(pause_s / 2)

    async def search(chance: random.Random) -> None:
        async with connection(kernel.data_dir) as line:
            while not done.is_set():
                if not seen.editions:
                    await trio.sleep(0.01)
                    continue
                n = chance.choice(sorted(seen.editions))
                was_known = n in known
                asked = {"query": f"word{n}", "limit": CANDIDATES if reranks else 20}
                answer = await line.call("notes_search", asked)
                seen.searches += 1
                if answer.failure is not None:
                    _failed(seen, answer.failure)
                elif _judge(seen, n, answer.result, must_be_there=was_known, reranks=reranks):
                    known.add(n)

    async def kill() -> None:
        order = [victim for victim in victims for _ in range(kills)]
        dice.shuffle(order)
        for victim in order:
            await trio.sleep(dice.uniform(0.0, pause_s))
            await trio.to_thread.run_sync(kernel.kill, victim)
            seen.kills[victim] += 1

    async with trio.open_nursery() as nursery:
        for n in range(SEARCHERS):
            nursery.start_soon(search, random.Random(seed + n))
        async with trio.open_nursery() as work:
            work.start_soon(write)
            work.start_soon(kill)
        done.set()
    return seen


def _judge(seen: Seen, n: int, result: dict[str, Any], *, must_be_there: bool, reranks: bool) -> bool:
    """Record errors in a successful answer; return whether the note was found."""
    ids = [hit["id"] for hit in result["results"]]
    metadata = result["metadata"]
    seen.degraded += bool(metadata["degraded"])
    # Ignore numbers, to count reasons by kind.
    seen.reasons.update(re.sub(r"\d+", "n", reason) for reason in metadata["degraded"])
    if len(set(ids)) != len(ids):
        seen.wrong.append(f"word{n}: twice in {ids}")
    if ids and "vector" not in metadata["stages"] and not metadata["degraded"]:
        seen.wrong.append(f"word{n}: no vectors, and nothing said: {metadata}")
    if ids and reranks and "rerank" not in metadata["stages"] and not metadata["degraded"]:
        seen.wrong.append(f"word{n}: not reranked, and nothing said: {metadata}")
    if f"n{n}" in ids:
        return True
    if not metadata["degraded"]:
        # A file that was written within the last second may not have been seen yet; one that was found before has.
        if must_be_there:
            seen.wrong.append(f"word{n}: not found any more, and nothing said: {metadata}")
    elif must_be_there and not any("index" in reason or "words" in reason for reason in metadata["degraded"]):
        seen.wrong.append(f"word{n}: not found any more, for no reason that explains it: {metadata}")
    return False


def _failed(seen: Seen, failure: dict[str, Any]) -> None:
    seen.failures[failure["kind"]] += 1
    if failure["kind"] not in _MAY_FAIL:
        seen.wrong.append(f"a search failed with {failure}")


def audit(
    kernel: RunningKernel, notes: int, editions: dict[int, int], *, sample: int = 60, reranks: bool = False
) -> list[str]:
    """What of the stored is not as the files are, once all work is done; empty where everything is."""
    kernel.wait_ready()
    done = kernel.call("knowledge_ingest", {}, timeout_s=120)
    wrong = [] if (done["notes"], done["failed"]) == (notes, []) else [f"ingest ends with {done}"]
    wait_until(lambda: not kernel.call("notes_status")["graph_pending"], 60)
    stats = kernel.call("graph_stats")
    if (stats["nodes"], stats["edges"]) != (notes, notes):
        wrong.append(f"the graph has {stats}")
    status = kernel.call("retrieve_status", {"collection": "notes"})
    if (status["groups"], status["vectors"], status["vectors_waiting"]) != (notes, status["items"], 0):
        wrong.append(f"the search has {status}")
    ids = kernel.call("retrieve_groups", {"collection": "notes"})["ids"]
    if sorted(ids) != sorted(f"n{n}" for n in range(notes)):
        wrong.append(f"the search has {len(ids)} groups, not the notes")
    # A reranker that was late is left alone for some seconds, as the answers say.
    wait_until(lambda: not kernel.call("notes_search", {"query": "word0"})["metadata"]["degraded"], 60)
    for n in random.Random(0).sample(range(notes), min(40, notes)):
        for word in (f"word{n}", f"edition{n}x{editions[n]}"):
            found = kernel.call("notes_search", {"query": word, "limit": CANDIDATES if reranks else 20})
            ids = [hit["id"] for hit in found["results"]]
            reranked = "rerank" in found["metadata"]["stages"]
            if ids.count(f"n{n}") != 1 or found["metadata"]["degraded"] or reranked is not reranks:
                wrong.append(f"{word}: {found}")
    return wrong + _wrong_vectors(kernel, sample)


def _wrong_vectors(kernel: RunningKernel, sample: int) -> list[str]:
    """Items whose stored vector is not that of their text, by embedding some of them again."""
    path = kernel.data_dir / "services" / "retrieve" / "notes.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        rows = db.execute(
            "SELECT items.item_id, title, heading, text, vector FROM items JOIN groups USING (group_id) "
            "LEFT JOIN vectors USING (item_id) ORDER BY items.item_id"
        ).fetchall()
    if missing := [row[0] for row in rows if row[4] is None]:
        return [f"{len(missing)} of {len(rows)} items have no vector"]
    chosen = random.Random(1).sample(rows, min(sample, len(rows)))
    texts = [embedded_text(title, heading, text) for _, title, heading, text, _ in chosen]
    dtype, shape, data = kernel.call("embed_texts", {"texts": texts, "kind": "passage"}, timeout_s=60)["vectors"]
    again = np.frombuffer(base64.b64decode(data), dtype=dtype).reshape(shape)
    wrong = []
    for row, vector in zip(chosen, again, strict=True):
        stored = np.frombuffer(row[4], dtype="<f2").astype(np.float32)
        if float(stored @ vector) < _SAME_TEXT:
            wrong.append(f"item {row[0]}: its vector is not of its text (cosine {float(stored @ vector):.3f})")
    return wrong
