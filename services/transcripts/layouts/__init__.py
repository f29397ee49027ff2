"""How agents write their conversations into files, a module for each layout.

A layout reads records one after the other and tells what was said, each message with the record that it follows. It
holds in hand what may still grow: agents write one message of a model as several records. Its state between records is
small, and is stored beside the file's position, so that an import goes on where it was.
"""

from __future__ import annotations

import datetime
from typing import ClassVar

import msgspec

from linckia.services.transcripts.messages import Call, Message, Turn
from linckia.services.transcripts.providers.wire import Json


class Step(Turn, kw_only=True):
    """Messages in a row, the first of which follows the record `after`; empty at the beginning of a conversation.

    `keys` name the records that they are made of: what follows any of these follows the last message. Without messages
    the records hold nothing that was said, and others may follow them.
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
    system: str = "",
    session: str = "",
    side: bool = False,
) -> Step:
    """A record, or several, that are one message."""
    return Step(
        messages=[message],
        keys=[key],
        after=after,
        provider=provider,
        agent=agent,
        model=model or message.model,
        project=project,
        system=system,
        session=session,
        side=side,
    )


def passed(key: str, after: str, *, agent: str = "", session: str = "", side: bool = False) -> Step:
    """A record that holds nothing that was said."""
    return Step(messages=[], provider="", after=after, keys=[key], agent=agent, session=session, side=side)


def counted(after: str, agent: str, session: str, calls: list[Call], *, project: str = "") -> Step:
    """What the log states late of the tokens of the message `after`."""
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
    """Whether records name those that they follow: a name that is missing is damage then."""

    system: str = ""

    def read(self, record: Json) -> list[Step] | None:
        """The steps that are certain after this record; None where the layout does not know the record."""
        # The base of the layouts: each has its own.
        raise NotImplementedError

    def flush(self) -> list[Step]:
        """The messages in hand, which are released."""
        return []

    def in_hand(self) -> list[Step]:
        """The same, left there."""
        return []

    def finish(self) -> list[Step]:
        """What is left where the file ends."""
        return self.flush()


def seconds(given: object) -> float | None:
    """Unix seconds of a time in RFC 3339 or in seconds; None where it is neither."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    if not isinstance(given, str):
        return None
    try:
        moment = datetime.datetime.fromisoformat(given)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
