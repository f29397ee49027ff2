"""Searching turns: the conditions put to the search, and its hits as turns with the conversation that led to them."""

from __future__ import annotations

import datetime
import re
import sqlite3
from collections.abc import Sequence

from msgspec.structs import replace

from proto.errors import InvalidParams
from proto.ops.retrieve import Filter, Hit
from proto.ops.transcripts import Instant, LineageTurn, TranscriptHit, TranscriptsSearch
from services.transcripts.answers import told
from services.transcripts.messages import read_text
from services.transcripts.store import forest

DEFAULT_TOP_K = 5
MAX_TOP_K = 1000
CANDIDATES = 50
PER_CONVERSATION = 8
"""Hits to ask for, for each conversation that is wanted: most have a few turns on one subject."""

CHARS_PER_TOKEN = 4
"""Of English text and code, by every tokenizer in common use."""

_TURN_CHARS = 110
"""What a turn's hash, role and punctuation come to."""

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def wanted(params: TranscriptsSearch) -> int:
    """How many results."""
    return min(params.top_k, MAX_TOP_K) if params.top_k > 0 else DEFAULT_TOP_K


def filters(params: TranscriptsSearch) -> list[Filter]:
    """The conditions that `params` states.

    Raises:
        InvalidParams: a time that cannot be read.
    """
    found = [
        Filter(field=name, any_of=[value]) for name in ("role", "agent", "project") if (value := getattr(params, name))
    ]
    if params.since is not None:
        found.append(Filter(field="at", at_least=seconds(params.since, "since")))
    if params.until is not None:
        found.append(Filter(field="at", at_most=seconds(params.until, "until")))
    return found


def seconds(value: Instant, name: str) -> float:
    """Unix seconds; a date means its beginning, or for `until` its end.  Raises InvalidParams."""
    if not isinstance(value, str):
        return float(value)
    try:
        moment = datetime.datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        if name == "until" and _DATE.fullmatch(value):
            moment += datetime.timedelta(days=1) - datetime.timedelta(microseconds=1)
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise InvalidParams(
            f"parameter `{name}`: {value[:80]!r} is no time; give RFC 3339 (2026-01-17T12:00:00Z), a date"
            " (2026-01-17), or Unix seconds",
            field=name,
        ) from None


def one_each(hits: Sequence[Hit]) -> list[Hit]:
    """The best hit of each conversation."""
    best: dict[object, Hit] = {}
    for hit in hits:
        best.setdefault(hit.group_metadata.get("root"), hit)
    return list(best.values())


def results(db: sqlite3.Connection, hits: Sequence[Hit], limit: int, max_tokens: int | None) -> list[TranscriptHit]:
    """Hits as results, of `max_tokens` where that is given; one whose node is gone is left out.

    Only for `writing.written`.
    """
    found: list[TranscriptHit] = []
    for hit in hits:
        node = forest.find(db, hit.group)
        if node is None:
            continue
        rows = forest.lineage(db, node.node_id, "hash, role, content")
        # What is to be cut must be text, and no JSON.
        path = told(rows) if max_tokens is None else [_turn(*row) for row in rows]
        found.append(
            TranscriptHit(
                hash=node.hash, score=hit.score, role=node.role, preview=path[-1].text, depth=len(path), lineage=path
            )
        )
        if len(found) == limit:
            break
    return found if max_tokens is None else within(found, max_tokens)


def _turn(digest: bytes, role: str, content: bytes) -> LineageTurn:
    return LineageTurn(hash=digest.hex(), role=role, text=read_text(forest.read_blocks(content)))


def within(found: Sequence[TranscriptHit], max_tokens: int) -> list[TranscriptHit]:
    """As many results as fit: of each the oldest turns are cut first, of the hit itself its end; one at least."""
    left = max_tokens * CHARS_PER_TOKEN
    kept: list[TranscriptHit] = []
    for hit in found:
        frame = _TURN_CHARS * (len(hit.lineage) + 1)
        # The turn itself is answered twice.
        room = left - frame - 2 * len(hit.preview)
        if room < 0 and kept:
            break
        own = hit.preview if room >= 0 else cut(hit.preview, max(0, left - frame) // 2)
        lineage: list[LineageTurn] = []
        room = max(0, room)
        for turn in reversed(hit.lineage[:-1]):
            text = cut(turn.text, room)
            room -= len(text)
            lineage.append(replace(turn, text=text))
        lineage.reverse()
        kept.append(replace(hit, preview=own, lineage=[*lineage, replace(hit.lineage[-1], text=own)]))
        left -= frame + 2 * len(own) + sum(len(turn.text) for turn in lineage)
        if left <= 0:
            break
    return kept


def cut(text: str, room: int) -> str:
    """At most `room` characters of `text`, with a sign that it went on."""
    if len(text) <= room:
        return text
    return f"{text[: max(0, room - 1)].rstrip()}…" if room > 0 else ""
