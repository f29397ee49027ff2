"""Conversations that are written for an agent, and read again by the layout of its files."""

from __future__ import annotations

import datetime
import hashlib
import uuid
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import msgspec

from services.transcripts.layouts import Layout
from services.transcripts.layouts.claude import Claude
from services.transcripts.layouts.codex import Codex
from services.transcripts.layouts.gemini import Gemini
from services.transcripts.operations.carry import CarriedTurn, NewSession, Target, TranscriptConvert, TranscriptExport
from services.transcripts.operations.conversations import Block, Conversation, TranscriptList
from services.transcripts.writers import LEFT_OUT, Part, ReadTurn, Session, claude, codex, gemini
from tests.in_process import Bench
from tests.unit.transcripts.rig import Json

FORMATS: dict[str, tuple[ModuleType, type[Layout]]] = {
    "claude": (claude, Claude),
    "codex": (codex, Codex),
    "gemini": (gemini, Gemini),
}

NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC).timestamp()


def session(title: str = "Sea stars") -> Session:
    return Session(id=str(uuid.uuid4()), project="/home/u/sea", title=title, at=NOW)


def turn(number: int, role: str, *content: Block, at: float = 1_772_359_200.0, **more: Any) -> ReadTurn:
    hash_ = hashlib.sha256(str(number).encode()).hexdigest()
    return ReadTurn(hash=hash_, role=role, at=at, content=list(content), **more)


def records(agent: str, turns: Sequence[ReadTurn], to: Session | None = None) -> list[Json]:
    """The records of a session file, as they are on disk."""
    written = [turn for turn in turns if turn.role not in LEFT_OUT]
    made = FORMATS[agent][0].records(to or session(), Part(written))
    return [msgspec.json.decode(msgspec.json.encode(record)) for record in made]


def told(turns: Iterable[ReadTurn]) -> list[tuple[Any, ...]]:
    """Everything about turns but where they were stored."""
    return [
        (each.role, each.content, each.model, round(each.at, 6), each.thinking, each.usage, each.stop_reason)
        for each in turns
    ]


def read(agent: str, given: Sequence[Json], *, without_field: bool = False) -> list[tuple[Any, ...]]:
    """The same about the turns that the layout reads; its state is stored after each record."""
    kind = FORMATS[agent][1]
    layout: Layout = kind()
    steps = []
    for record in given:
        plain = {key: value for key, value in record.items() if not (without_field and key == "linckia")}
        steps += layout.read(plain) or []
        layout = msgspec.json.decode(msgspec.json.encode(layout), type=kind)
    steps += layout.finish()
    found = [(step.copies, message) for step in steps for message in step.messages]
    return [
        (each.role, each.content, each.model, round(each.at or 0, 6), each.thinking, each.usage, each.stop_reason)
        for _, each in found
    ]


async def listed(bench: Bench) -> list[Conversation]:
    found = await bench.call(TranscriptList(limit=200))
    return list(found.conversations)


async def stored(bench: Bench, one: Conversation) -> list[ReadTurn]:
    """The turns of a conversation, as an export has them."""
    found: dict[str, CarriedTurn] = {}
    after = 0
    while (page := await bench.call(TranscriptExport(after=after))).turns:
        found |= {each.turn.hash: each.turn for each in page.turns}
        after = page.next
    path: list[ReadTurn] = []
    name = one.hash
    while name:
        each = found[name]
        at = next((holder.at for holder in each.conversations if holder.name == one.id), each.at)
        path.append(
            ReadTurn(
                hash=name, role=each.role, at=at, content=each.content, model=each.model, stop_reason=each.stop_reason,
                usage=each.usage, thinking=each.thinking,
            )
        )  # fmt: skip
        name = each.parent_hash
    return path[::-1]


async def converted(bench: Bench, one: Conversation, to: Target, into: Session | None = None) -> str:
    """A conversation as the file that the service makes of it, in parts."""
    given = None if into is None else NewSession(id=into.id, project=into.project, at=into.at)
    text, after = "", 0
    while True:
        part = await bench.call(TranscriptConvert(about=one, hash=one.hash, to=to, session=given, after=after))
        text += part.text
        if part.next is None:
            return text
        after = part.next
