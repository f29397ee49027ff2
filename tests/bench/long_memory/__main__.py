"""Recall@5 of evidence over ten months of sessions, by kind of question; synthetic (`sessions`).

All services run in this process with a clock that is set to each session's time: its turns are stored, and an agent
remembers each fact when it comes up. Then `everything_search` (conversations and memories) and `recall` are asked. A
question counts by the share of its evidence among the first five results; evidence is found by the turn that states it,
by a reply that repeats it, or by the memory. A question about a time is asked with that time, in words, as `since` and
`until`; the last rows show what is found without, and in the turns alone. The intervals are Wilson's at 95 %; a share
counts by its value.

Then facts that change are asked about, today and as of a day (`changes`): how often the memory that holds then is the
first, and how often nothing outdated is among the first five.

    scripts/bench long_memory [--seed N] [--show]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import trio

from proto.ops.retrieve import RetrieveStatus
from services.embed import main as embed
from services.memory import main as memory
from services.memory.operations import Recall, Remember, Remembered, UpdateMemory
from services.retrieve import main as retrieve
from services.transcripts import main as transcripts
from services.transcripts.operations.conversations import Corpus, SearchEverything
from services.transcripts.operations.intake import TranscriptRecord
from tests.bench.long_memory import changes
from tests.bench.long_memory.sessions import NOW, Fact, History, Question, Session, made
from tests.in_process import Bench, services_in_process

LIMIT = 5
KINDS = ("single", "updated", "multi-session", "temporal")
GOAL = 0.96
_SYSTEMS = ("everything_search", "recall", "everything, no times", "everything, turns only")


class Clock:
    """The time as the services see it, in Unix seconds."""

    def __init__(self) -> None:
        self.now = time.time()

    def patches(self) -> list[contextlib.AbstractContextManager[object]]:
        """Replace the time in the modules that stamp or compare memories and parse words."""
        clock = SimpleNamespace(time=lambda: self.now, time_ns=lambda: round(self.now * 1e9))
        modules = ("memory.writing", "memory.recall", "memory.main", "shared.times", "transcripts.search")
        return [mock.patch(f"services.{module}.time", clock) for module in modules]


async def take_in(bench: Bench, clock: Clock, history: History) -> None:
    """Store each session at its time, and remember its facts."""
    for session in history.sessions:
        clock.now = session.at.timestamp()
        await bench.call(recorded(session), caller="operator")
        for statement in session.statements:
            await bench.call(Remember(text=statement))
    clock.now = NOW.timestamp()
    for collection in ("transcripts", "memory"):
        await embedded(bench, collection)


async def embedded(bench: Bench, collection: str) -> None:
    """Wait until a collection has all its vectors."""
    with trio.fail_after(900):
        # The search says when its vectors are complete only if it is asked.
        while await waiting(bench, collection):  # noqa: ASYNC110
            await trio.sleep(0.05)


async def waiting(bench: Bench, collection: str) -> bool:
    """Return whether the search still lacks passages or vectors of a collection."""
    status = await bench.call(RetrieveStatus(collection=collection), caller="operator")
    return not status.groups or bool(status.vectors_waiting)


def recorded(session: Session) -> TranscriptRecord:
    """Return a session as its last exchange with a provider, which carries all turns."""
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(session.turns)]
    choice = {"index": 0, "finish_reason": "stop", "message": messages[-1]}
    return TranscriptRecord(
        provider="openai",
        at=session.at.timestamp(),
        request=json.dumps({"model": "m", "messages": messages[:-1]}).encode(),
        response=json.dumps({"model": "m", "choices": [choice]}).encode(),
    )


async def found(bench: Bench, system: str, question: Question) -> list[str]:
    """Return the texts found, best first."""
    period = question.period or None
    if system == "recall":
        asked = Recall(query=question.text, limit=LIMIT, since=period, until=period)
        return [one.text for one in (await bench.call(asked)).memories]
    if system.endswith("no times"):
        period = None
    corpora = [Corpus.TRANSCRIPTS] if system.endswith("turns only") else [Corpus.TRANSCRIPTS, Corpus.MEMORY]
    everything = SearchEverything(query=question.text, limit=LIMIT, corpora=corpora, since=period, until=period)
    return [hit.text for hit in (await bench.call(everything)).results]


def share(question: Question, texts: list[str]) -> float:
    """Return the share of the question's evidence that `texts` contain."""
    return statistics.mean(is_found(fact, texts) for fact in question.evidence)


def is_found(fact: Fact, texts: list[str]) -> bool:
    """Return whether `texts` contain the turn that states it, the reply that repeats it, or the memory."""
    return not {*fact.texts, fact.statement}.isdisjoint(texts)


def interval(mean: float, count: int) -> tuple[float, float]:
    """Return Wilson's interval at 95 % (Wilson, 1927)."""
    z = 1.96
    centre, scale = mean + z * z / (2 * count), 1 + z * z / count
    spread = z * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    return (centre - spread) / scale, (centre + spread) / scale


def cell(shares: list[float]) -> str:
    mean = statistics.mean(shares)
    low, high = interval(mean, len(shares))
    return f"{mean:.3f} [{low:.2f}, {high:.2f}]"


async def measured(history: History, *, show: bool) -> dict[tuple[str, str], list[float]]:
    """Return the shares of evidence found, by system and kind."""
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    clock = Clock()
    services = {
        "embed": embed.open_service, "retrieve": retrieve.open_service, "transcripts": transcripts.open_service,
        "memory": memory.open_service,
    }  # fmt: skip
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        for patch in clock.patches():
            stack.enter_context(patch)
        async with services_in_process(services, Path(folder)) as bench:
            begun = time.perf_counter()
            await take_in(bench, clock, history)
            print(f"stored and embedded in {time.perf_counter() - begun:.0f} s")
            for question in history.questions:
                for system in _SYSTEMS:
                    texts = await found(bench, system, question)
                    shares[system, question.kind].append(share(question, texts))
                    if show and system != _SYSTEMS[2] and share(question, texts) < 1:
                        missed = [
                            fact.statement for fact in question.evidence if not {*fact.texts, fact.statement} & {*texts}
                        ]
                        print(f"  {system} [{question.kind}] {question.text}\n    missed {missed}\n    found {texts}")
    return shares


async def changed(history: changes.Changes, *, is_linked: bool, show: bool) -> dict[str, list[float]]:
    """Return the marks by kind. With `is_linked`, the agent says which named memory a new one replaces."""
    marks: dict[str, list[float]] = defaultdict(list)
    clock = Clock()
    services = {"embed": embed.open_service, "retrieve": retrieve.open_service, "memory": memory.open_service}
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        for patch in clock.patches():
            stack.enter_context(patch)
        async with services_in_process(services, Path(folder)) as bench:
            ids: dict[changes.Statement, str] = {}
            for one in history.statements:
                clock.now = one.at.timestamp()
                if ids:
                    await embedded(bench, "memory")
                said: Remembered = await bench.call(Remember(text=one.text))
                ids[one] = said.id
                named = [other.id for other in said.may_replace]
                if one.follows is None:
                    marks["names none, if it replaces none"].append(not named)
                else:
                    is_named = ids[one.follows] in named
                    marks[f"names what it replaces, worded {one.wording}"].append(is_named)
                    if is_named and is_linked:
                        await bench.call(UpdateMemory(id=said.id, supersedes=[ids[one.follows]]))
                if show and (ids[one.follows] not in named if one.follows else named):
                    print(f"  {one.text} | {one.follows and one.follows.text} | {[o.text for o in said.may_replace]}")
            clock.now = NOW.timestamp()
            await embedded(bench, "memory")
            for asked in history.questions:
                found = await bench.call(Recall(query=asked.text, limit=LIMIT, as_of=asked.as_of))
                texts = [each.text for each in found.memories]
                marks[f"{asked.kind}: right one first"].append(texts[:1] == [asked.right.text])
                marks[f"{asked.kind}: none outdated"].append(asked.wrong.isdisjoint(texts))
    return marks


def print_changes(seed: int, *, show: bool) -> None:
    history = changes.made(seed)
    print(f"\n{len(history.statements)} statements of facts that change or add up, {len(history.questions)} questions")
    linked = trio.run(lambda: changed(history, is_linked=True, show=show))
    apart = trio.run(lambda: changed(history, is_linked=False, show=False))
    print(f"{'':45} {'agent says what is replaced':>28} {'says nothing':>20}")
    for name, some in linked.items():
        print(f"{name:45} {cell(some):>28} {cell(apart[name]):>20}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench long_memory", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="another history")
    parser.add_argument("--show", action="store_true", help="show each question whose evidence is not all found")
    arguments = parser.parse_args()
    history = made(arguments.seed)
    turns = sum(len(session.turns) for session in history.sessions)
    statements = sum(len(session.statements) for session in history.sessions)
    first = min(session.at for session in history.sessions)
    print(
        f"{len(history.sessions)} sessions since {first:%d %B %Y}, {turns} turns, {statements} statements, "
        f"{len(history.questions)} questions; seed {arguments.seed}"
    )
    shares = trio.run(lambda: measured(history, show=arguments.show))
    print(f"{'recall@5 of evidence':28} " + " ".join(f"{kind:>20}" for kind in (*KINDS, "all")))
    for system in _SYSTEMS:
        each = [shares[system, kind] for kind in KINDS]
        every = [one for some in each for one in some]
        print(f"{system:28} " + " ".join(f"{cell(some):>20}" for some in (*each, every)))
    print(f"goal: {GOAL}")
    print_changes(arguments.seed, show=arguments.show)


if __name__ == "__main__":
    main()
