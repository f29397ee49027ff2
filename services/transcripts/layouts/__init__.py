"""The file formats in which agents store their conversations, one module per layout.

A layout reads records one after the other and produces messages, each with the record that it follows. It holds back
messages that may still grow, because agents write one model message as several records. Its state between records is
small and stored with the file's position, so that an import resumes where it stopped.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from services.shared import date_ranges
from services.transcripts.messages import Call, Message, Title, TitleKind, Turn
from services.transcripts.providers.wire import Json


class Step(Turn, kw_only=True):
    """Consecutive messages, the first of which follows the record `after`; empty at the beginning of a conversation.

    `keys` name the records that the messages are made of: a successor of any of these follows the last message. A step
    without messages stands for records without content that others may follow.
    """

    after: str
    keys: list[str]


def said(
    message: Message,
    key: str,
    after: str,
    provider: str,
    agent: str,
    *,
    model: str = "",
    project: str = "",
    branch: str = "",
    system: str = "",
    session: str = "",
    side: bool = False,
) -> Step:
    """Return the step for one message made of one or more records."""
    return Step(
        messages=[message],
        keys=[key],
        after=after,
        provider=provider,
        agent=agent,
        model=model or message.model,
        project=project,
        branch=branch,
        system=system,
        session=session,
        side=side,
    )


def passed(key: str, after: str, *, agent: str = "", session: str = "", side: bool = False) -> Step:
    """Return the step for a record without messages."""
    return Step(messages=[], provider="", after=after, keys=[key], agent=agent, session=session, side=side)


def titled(kind: TitleKind, text: str, agent: str, session: str, after: str = "") -> Step:
    """Return the step for a title of a session, or else of the conversation that the record `after` is part of."""
    title = Title(kind=kind, text=text)
    return Step(messages=[], provider="", after=after, keys=[], agent=agent, session=session, titles=[title])


def counted(after: str, agent: str, session: str, calls: list[Call], *, project: str = "") -> Step:
    """Return the step for tokens that the log states after the message `after`."""
    return Step(
        messages=[],
        provider="",
        after=after,
        keys=[],
        agent=agent,
        session=session,
        project=project,
        calls=calls,
        counted=True,
    )


class Layout(msgspec.Struct, kw_only=True):
    """The state of a file between its records."""

    name: ClassVar[str]
    is_linked: ClassVar[bool] = False
    """True if records name their predecessors, so that a missing name indicates damage."""

    system: str = ""

    def read(self, record: Json) -> list[Step] | None:
        """Return the steps that are final after this record; None if the layout does not recognise the record."""
        # Each layout implements this.
        raise NotImplementedError

    def flush(self) -> list[Step]:
        """Release and return the pending messages."""
        return []

    def in_hand(self) -> list[Step]:
        """Return the pending messages without releasing them."""
        return []

    def finish(self) -> list[Step]:
        """Return the remaining messages at the end of the file."""
        return self.flush()


def seconds(given: object) -> float | None:
    """Convert a time in RFC 3339 or seconds to Unix seconds; None if it is neither."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    if not isinstance(given, str):
        return None
    try:
        return date_ranges.instant(given)
    except ValueError:
        return None
