"""What the layouts of sessions have in common whose messages are stored one after the other.

Agents rewrite the turn that is under way: its text grows, and results of tools are added to calls. The model's messages
after the user's last one are therefore held back, up to `HELD`; the others are final.

A record either comes from the agent's own file, or from `sources`, which finds the sessions in databases and folders:
first `{source, session}`, then `{source, message}` for each message, and `{source, usage}` if the tokens are known only
for the session as a whole (`counted` in its description).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from services.transcripts.layouts import Layout, Step, counted, said, seconds, titled
from services.transcripts.messages import ASSISTANT, TOOL_RESULT, Call, Message, TitleKind
from services.transcripts.operations.conversations import Block
from services.transcripts.providers import anthropic, gemini, openai
from services.transcripts.providers.wire import Json, child, text

HELD = 64
"""Messages that are held back; one that is rewritten after more than that is stored twice."""

_MILLISECONDS = 1e11
"""Numbers above this are milliseconds."""


class Sessions(Layout, kw_only=True):
    """The layout state: what is known of the session, its last message, and those that are held back."""

    name: ClassVar[str] = ""

    agent: str = ""
    session: str = ""
    project: str = ""
    model: str = ""
    at: float | None = None
    side: bool = False
    counted: bool = False
    """Whether tokens are known for the session as a whole."""
    head: str = ""
    number: int = 0
    held: list[Step] = msgspec.field(default_factory=list)

    def read(self, record: Json) -> list[Step] | None:
        if record.get("source") != self.name:
            return None
        if session := child(record, "session"):
            return self.begin(session)
        if isinstance(usage := record.get("usage"), dict):
            self.spend("session", usage, text(record, "model"))
            return []
        return self.message(child(record, "message"), record) if child(record, "message") else None

    def message(self, given: Json, record: Json) -> list[Step] | None:
        """Return the steps that are final after this message; None if it has an unknown form."""
        # Each layout implements this.
        raise NotImplementedError

    def begin(self, session: Json, kind: TitleKind = TitleKind.GENERATED) -> list[Step]:
        """Read the description of a session: its id, agent, project, model, time and title."""
        steps = self.flush()
        self.session = text(session, "id") or self.session
        self.agent = text(session, "agent") or self.agent or self.name
        self.project = text(session, "project") or self.project
        self.model = text(session, "model") or self.model
        self.at = when(session.get("created")) or self.at
        self.side = bool(session.get("side")) or self.side
        self.counted = bool(session.get("counted")) or self.counted
        return [*steps, *self.title(text(session, "title"), kind)]

    def title(self, title: str, kind: TitleKind = TitleKind.GENERATED) -> list[Step]:
        return [titled(kind, title, self.agent, self.session)] if title and self.session else []

    def say(self, message: Message, id_: str = "", *, is_counted: bool = False) -> list[Step]:
        """Add a message; `is_counted` if its tokens are stated elsewhere. Returns the steps that are final now."""
        if not message.content:
            if message.usage:
                self.spend(id_, message.usage, message.model)
            return []
        self.number += 1
        message.at = self.at if message.at is None else message.at
        model = message.model or self.model
        if message.role == ASSISTANT:
            message.reply, message.model = True, model
        key = f"{self.agent}/{self.session}/{id_ or self.number}" if self.session else f"#{self.number}"
        provider = provider_of(model)
        step = said(
            message, key, self.head, provider, self.agent,
            model=model, project=self.project, session=self.session, side=self.side,
        )  # fmt: skip
        step.counted = is_counted or self.counted
        self.head = key
        if message.role == "user" and not any(block.type == TOOL_RESULT for block in message.content):
            return [*self.flush(), step]
        self.held.append(step)
        return self._released(len(self.held) - HELD)

    def spend(self, id_: str, usage: Json, model: str = "") -> None:
        """Count tokens that belong to no message."""
        call = Call(key="\0".join((self.agent, self.session, id_)), model=model or self.model, usage=usage)
        self.held.append(counted(self.head, self.agent, self.session, [call], project=self.project))

    def _released(self, count: int) -> list[Step]:
        steps, self.held = self.held[: max(0, count)], self.held[max(0, count) :]
        return steps

    def flush(self) -> list[Step]:
        return self._released(len(self.held))

    def in_hand(self) -> list[Step]:
        return list(self.held)


def replied(blocks: list[Block], *, usage: Json | None = None, model: str = "", at: float | None = None) -> Message:
    """Return a message of the model."""
    return Message(role=ASSISTANT, content=blocks, usage=usage, model=model, at=at)


def results(blocks: list[Block], at: float | None = None) -> Iterator[Message]:
    """Yield the message with results of tools, if there are any."""
    if blocks:
        yield Message(role="tool", content=blocks, at=at)


def when(given: object) -> float | None:
    """Convert a time in RFC 3339, seconds or milliseconds to Unix seconds."""
    found = seconds(given)
    return found / 1000 if found is not None and found > _MILLISECONDS else found


def provider_of(model: str) -> str:
    """Return the provider whose form of messages a model has, by its name."""
    name = model.lower()
    if "claude" in name:
        return anthropic.NAME
    return gemini.NAME if "gemini" in name else openai.NAME
