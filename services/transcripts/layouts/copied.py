"""Turns that `linckia resume` wrote into a session file for another agent.

Each of their records has the field `linckia`, which agents ignore. It names the stored turn that the record repeats,
and holds whatever of it the format has no place for. If that turn is stored here, it is not stored again; what follows
continues it. Tokens of copies are not counted, since the calls belong to another session.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from services.transcripts.layouts import Step
from services.transcripts.messages import Message
from services.transcripts.operations.conversations import Block
from services.transcripts.providers.wire import Json

FIELD = "linckia"


class Copied(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The field's content: the hash of a turn, and what reading the record itself does not give.

    A record that continues a turn of several records has `rest`. `then` are turns that share the record, each with the
    ids of the tool results that it consists of.
    """

    turn: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    role: Annotated[str, Meta(max_length=64)] = ""
    content: list[Block] | None = None
    model: str | None = None
    at: float | None = None
    thinking: list[Json] = []
    usage: Json | None = None
    stop_reason: str = ""
    rest: bool = False
    ids: list[str] = []
    then: list[Copied] = []


def copied(record: Json) -> Copied | None:
    """Return the field of a record; None if it has none, or another program's."""
    try:
        return msgspec.convert(record[FIELD], Copied) if FIELD in record else None
    except msgspec.ValidationError:
        return None


def restore(step: Step, copy: Copied) -> Step:
    """Complete the step of a record by its field."""
    message = step.messages[0]
    step.copies, step.counted, step.calls = copy.turn, True, []
    message.role = copy.role or message.role
    message.content = message.content if copy.content is None else copy.content
    message.model = message.model if copy.model is None else copy.model
    message.at = message.at if copy.at is None else copy.at
    message.thinking, message.usage = copy.thinking, copy.usage
    message.stop_reason = copy.stop_reason
    step.model = message.model
    return step


def field(copy: Copied, read: Message, given: Message) -> Copied:
    """Complete the field of a record that is read as `read`, so that it is restored as `given`."""
    copy.role = given.role if read.role != given.role else ""
    copy.content = given.content if read.content != given.content else None
    copy.model = given.model if read.model != given.model else None
    copy.at = given.at if read.at != given.at else None
    copy.thinking, copy.usage, copy.stop_reason = given.thinking, given.usage, given.stop_reason
    return copy
