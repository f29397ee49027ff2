"""The final comparison: everything in the ledger of the load must be in the quiet system."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path

import trio

from tests.chaos.clients import Client
from tests.chaos.load import Worker, document, tags_of
from tests.chaos.record import Record

REFUSED = 20
"""Refused documents of each worker that are looked up to verify their absence."""

NEWS_S = 60
"""Time in which a note's change becomes known even if the notifying frame was dropped."""


async def compare(worker: Worker, client: Client, kept: Container[str], *, news_s: float = NEWS_S) -> None:
    """Look for everything that was acknowledged in the quiet system, where every call must succeed.

    `kept` has the names of the existing resource sets and memories.
    """
    # The worker's own client may not have survived the storm.
    worker.client = client
    which, root, record = worker.which, worker.root, worker.record
    lost = record.lost
    if worker.task:
        await worker.have_a_task()
    if worker.task:
        lost.append(f"the task of {which} does not end: {worker.task}")
    for name, begins, ends, values in (
        (f"worker-{which}.yaml", "# kept\nvalue: ", "\n", worker.yaml),
        (f"tasked-{which}.yaml", "# kept\nvalue: ", "\n", worker.tasked),
        (f"text-{which}.txt", "", "\nkept\n", worker.text),
        (f"note-written-{which}.md", "# Written\n\n", "\n", worker.note),
    ):
        there = (root / name).read_text()
        if not (there.startswith(begins) and there.endswith(ends)):
            lost.append(f"{name} is {there!r}")
        else:
            worker.looks.compare(name, values, there.removeprefix(begins).removesuffix(ends), lost)
    if (edition := await worker.edition()) is None:
        lost.append(f"the plan of {which} cannot be read")
    else:
        worker.looks.compare("the plan", worker.plan, edition, lost)
    for name, value in worker.deleted.items():
        worker.looks.compare(name, value, "there" if (root / name).exists() else "gone", lost)
    if worker.at() not in worker.place.possible:
        worker.misplaced()
    lost += [f"memory {text!r}" for text in worker.memories if text not in kept]
    _settle(record, (text in kept for text in worker.maybe_memories))
    compare_lines(worker)
    tags = tags_of((root / f"tagged-{which}.md").read_text())
    lost += [f"{tag} of tagged-{which}.md" for tag in worker.tags if tag not in tags]
    _settle(record, (tag in tags for tag in worker.maybe_tags))
    record.late += worker.looks.seen.changed("tag", tags.__contains__)
    for sha, content in worker.documents.items():
        said = await document(client, sha)
        if not said.ok or content not in json.dumps(said.result, ensure_ascii=False):
            lost.append(f"document {sha}: {said.kind} {said.text[:200]}")
    uncertain = {sha: (await document(client, sha)).ok for sha in worker.maybe_documents}
    _settle(record, uncertain.values())
    record.late += worker.looks.seen.changed("document", uncertain.__getitem__)
    lost += [f"resource set {name}" for name in worker.sets if name not in kept]
    _settle(record, (name in kept for name in worker.maybe_sets))
    done = {(kind, name) for kind, name in worker.refused if kind in ("set", "memory") and name in kept}
    done |= {("tag", name) for kind, name in worker.refused if kind == "tag" and name in tags}
    documents = [name for kind, name in worker.refused if kind == "document"][:REFUSED]
    done |= {("document", name) for name in documents if (await document(client, name)).ok}
    record.wrong += [f"{kind} {name} is there, and was refused" for kind, name in sorted(done)]
    if worker.tags and not await _is_indexed(worker, client, news_s):
        lost.append(f"notes_tagged does not know {worker.tags[-1]}")


def compare_lines(worker: Worker) -> None:
    """Compare the appended lines with the answers; no line may be there twice."""
    path, record = worker.appended, worker.record
    there = Counter(path.read_text().splitlines() if path.exists() else ())
    for text, said in worker.lines.items():
        if said.ok and not there[text]:
            record.lost.append(f"{text!r} of {path.name}")
        if there[text] > 1 or (there[text] and said.not_done_for_sure):
            told = "ok" if said.ok else f"{said.kind}, executed: {said.executed}"
            record.wrong.append(f"{text!r} is there {there[text]} times; the client was told {told}")
    uncertain = [text for text, said in worker.lines.items() if not said.ok and not said.not_done_for_sure]
    _settle(record, (text in there for text in uncertain))


async def _is_indexed(worker: Worker, client: Client, within_s: float) -> bool:
    """Return True if the last tag is found within this time."""
    until = trio.current_time() + within_s
    while True:
        # Called as a step: a direct call returns all tags of the note, which is too long.
        step = {"op": "notes_tagged", "params": {"tags": worker.tags[-1:]}}
        found = await client.call("query", {"steps": [step]})
        if f"tagged-{worker.which}" in str(found.result):
            return True
        if trio.current_time() >= until:
            return False
        await trio.sleep(0.5)


def _settle(record: Record, done: Iterable[bool]) -> None:
    """Record whether uncertain writes had executed."""
    record.maybe.update("done" if each else "not done" for each in done)


def turns_of(data: Path) -> list[str]:
    """Return the text of every turn in the database."""
    database = sqlite3.connect(f"file:{data / 'services/transcripts/transcripts.db'}?mode=ro", uri=True)
    try:
        return [json.loads(content)[0]["text"] for (content,) in database.execute("SELECT content FROM node")]
    finally:
        database.close()


def compare_turns(data: Path, workers: list[Worker], record: Record) -> None:
    """Check that every acknowledged turn is in the database exactly once. The kernel has ended."""
    there = turns_of(data)
    known = set(there)
    record.lost += [f"turn {turn!r}" for worker in workers for turn in worker.turns if turn not in known]
    if len(known) != len(there):
        record.wrong.append(f"{len(there) - len(known)} turns are stored twice")
