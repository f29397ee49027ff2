"""Conversations as the session files of agents, which resume them, and as documents; one module per format.

Each record holds what the agent's format has a place for, in a form that the agent's API accepts. Whatever reading it
back would not give is in the record's field `linckia` (`layouts.copied`), so that no turn is lost on the way back.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from services.transcripts.layouts.copied import FIELD, Copied, field
from services.transcripts.messages import ASSISTANT, IMAGE, Message, read_text
from services.transcripts.operations.conversations import Block

Json = dict[str, Any]

LEFT_OUT = frozenset({"system", "developer"})
"""Roles of turns that the other agent writes itself."""

EMPTY = "(no content)"
"""Stands for a message without any text, which APIs refuse."""

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Media types of images that all three agents send to their models."""

_NAME_CHARS = 64
_ODD = re.compile(r"[^a-zA-Z0-9_-]")


class ReadTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A stored turn with everything that is known about it; `at` is in Unix seconds."""

    hash: str
    role: str
    at: float
    content: list[Block]
    model: str = ""
    stop_reason: str = ""
    usage: Json | None = None
    thinking: list[Json] = []


@dataclass(frozen=True, slots=True)
class Session:
    """A session to write: its new id, working folder, title, and the time at which it is written, in Unix seconds."""

    id: str
    project: str
    title: str
    at: float


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive turns; `before` is the hash of the turn before them, and `is_last` is True if none follow."""

    turns: Sequence[ReadTurn]
    before: str = ""
    is_first: bool = True
    is_last: bool = True


def time_of(at: float) -> str:
    """Format Unix seconds as agents do, with milliseconds, or microseconds if they differ."""
    try:
        moment = datetime.datetime.fromtimestamp(at, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        moment = datetime.datetime.fromtimestamp(0, datetime.UTC)
    spec = "microseconds" if moment.microsecond % 1000 else "milliseconds"
    return moment.isoformat(timespec=spec).replace("+00:00", "Z")


def message_of(turn: ReadTurn) -> Message:
    """Return a stored turn as the message that its record has to give back."""
    return Message(
        role=turn.role,
        content=turn.content,
        thinking=turn.thinking,
        model=turn.model,
        stop_reason=turn.stop_reason,
        usage=turn.usage,
        at=turn.at,
    )


def marked(record: Json, copy: Copied) -> Json:
    """Return a record with the field that says which turn it repeats."""
    return {**record, FIELD: msgspec.to_builtins(copy)}


def copy_of(turn: ReadTurn, read: Message) -> Copied:
    """Return the field for a turn whose record is read as `read`."""
    return field(Copied(turn=turn.hash), read, message_of(turn))


def safe_name(name: str) -> str:
    """Return the name or the id of a tool call in a form that every API accepts; the same for the same name."""
    safe = _ODD.sub("_", name) or "unnamed"
    if len(safe) > _NAME_CHARS:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        safe = f"{safe[: _NAME_CHARS - 17]}_{digest}"
    return safe


def is_picture(block: Block) -> bool:
    """Return True for an image whose bytes can be sent to a model."""
    if block.type != IMAGE or block.media_type not in PICTURES or not block.image_base64:
        return False
    try:
        base64.b64decode(block.image_base64, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def is_linked(block: Block) -> bool:
    """Return True for an image that is named by its address."""
    return block.type == IMAGE and not block.image_base64 and block.image_url.startswith(("https://", "http://"))


def in_words(block: Block) -> str:
    """Return a block as text, for a place where the format only has texts."""
    if block.type == IMAGE:
        return f"[{block.media_type or 'image'}, not carried over]"
    return read_text([block])


def speaker(turn: ReadTurn) -> str:
    """Return `assistant` or `user`: formats have no other roles for turns."""
    return ASSISTANT if turn.role == ASSISTANT else "user"


def key_of(session: Session, hash_: str) -> str:
    """Return the id of the record for a turn."""
    return str(uuid.uuid5(uuid.UUID(session.id), hash_))
