"""Session files of the Gemini CLI: one JSON object with all messages, or since 2026 one line per message.

A line with a known message id replaces that message, which is rewritten when its tools answer. `$set` with `messages`
replaces all of them, for example when a session is resumed. `$rewindTo` returns to the point before a message. The
API's own form, `{role, parts}`, in which the CLI stores `/chat save`, is read too.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from services.transcripts.layouts import Layout, Step, counted, said, seconds, titled
from services.transcripts.layouts.copied import Copied, copied, restore
from services.transcripts.messages import (
    ASSISTANT,
    TOOL_RESULT,
    Call,
    Message,
    TitleKind,
    tool_result,
    tool_use,
)
from services.transcripts.operations.conversations import Block
from services.transcripts.providers.gemini import NAME as PROVIDER
from services.transcripts.providers.gemini import content, part_blocks
from services.transcripts.providers.wire import Json, child, compact, count, records, text, usage

AGENT = "gemini-cli"

HELD = 64
"""Messages that are held back; one that is rewritten after more than that is stored twice and counted once."""

_TOKENS = (("input", "tool"), ("output", "thoughts"))
_NOTICES = frozenset({"info", "error", "warning", "about", "help", "stats"})


class PendingMessage(msgspec.Struct, kw_only=True):
    """A message that may be rewritten: the messages that it yields, and the `tokens` that it used."""

    id: str
    steps: list[Step]
    calls: list[Call]


class Gemini(Layout, kw_only=True):
    """The layout state.

    `head` is the last message so far, `before` the predecessor of each message, and `held` the last messages.
    """

    name: ClassVar[str] = "gemini"

    session: str = ""
    head: str = ""
    before: dict[str, str] = msgspec.field(default_factory=dict)
    held: list[PendingMessage] = msgspec.field(default_factory=list)

    def read(self, record: Json) -> list[Step] | None:
        if _is_session(record):
            self.session = text(record, "sessionId")
            return [*self._begin(record), *self._title(record)]
        if "type" not in record and "sessionId" in record:
            self.session = text(record, "sessionId")
            return self._title(record)
        if "$set" in record:
            fields = child(record, "$set")
            self.session = text(fields, "sessionId") or self.session
            steps = self._begin(fields) if isinstance(fields.get("messages"), list) else []
            return [*steps, *self._title(fields)]
        if isinstance(record.get("$rewindTo"), str):
            steps = self.flush()
            self.head = self.before.get(record["$rewindTo"], self.head)
            return steps
        return self._message(record)

    def _begin(self, record: Json) -> list[Step]:
        """Replace all previous messages of a session."""
        named = {text(message, "id") for message in records(record, "messages")}
        steps: list[Step] = []
        if all(held.id in named for held in self.held):
            self.held = []
        else:
            steps = self.flush()
        self.head, self.before = "", {}
        for message in records(record, "messages"):
            steps += self._message(message) or []
        return steps

    def _title(self, record: Json) -> list[Step]:
        summary = text(record, "summary")
        return [titled(TitleKind.SUMMARY, summary, AGENT, self.session)] if summary and self.session else []

    def _message(self, record: Json) -> list[Step] | None:
        kind, id_ = text(record, "type"), text(record, "id")
        if kind in _NOTICES or (kind == "user" and "sessionId" in record and "messageId" in record):
            # The latter is the list of prompts beside the sessions.
            return []
        if kind not in ("user", "gemini", "model") or not id_:
            return None
        held = self._user(record, id_) if kind == "user" else self._model(record, id_)
        if (copy := copied(record)) is not None:
            held = self._copied(record, id_, held, copy)
        for index, each in enumerate(self.held):
            if each.id == id_:
                self.held[index] = held
                return []
        self.held.append(held)
        return self._release() if len(self.held) > HELD else []

    def _user(self, record: Json, id_: str) -> PendingMessage:
        blocks, _ = content(record.get("content"))
        message = Message(role="user", content=blocks, at=seconds(record.get("timestamp")))
        return PendingMessage(id=id_, steps=[self._said(id_, message)] if blocks else [], calls=[])

    def _model(self, record: Json, id_: str) -> PendingMessage:
        blocks, thoughts = content(record.get("content"))
        at = seconds(record.get("timestamp"))
        calls = list(records(record, "toolCalls"))
        blocks += (tool_use(text(call, "id"), text(call, "name"), call.get("args")) for call in calls)
        tokens, model = child(record, "tokens"), text(record, "model")
        # `input` excludes tool results, and `output` excludes thoughts.
        sent, answered = (count(tokens, of) + count(tokens, more) for of, more in _TOKENS)
        spent = usage(sent, answered, count(tokens, "total"), cache_read_input_tokens=count(tokens, "cached"))
        held = PendingMessage(id=id_, steps=[], calls=[])
        if spent:
            held.calls.append(Call(key=f"gemini\0{self.session}\0{id_}", model=model, usage=spent))
        if not blocks:
            return held
        message = Message(
            role=ASSISTANT,
            content=blocks,
            thinking=[*thoughts, *records(record, "thoughts")],
            reply=True,
            at=at,
            model=model,
            usage=spent,
        )
        held.steps.append(self._said(id_, message))
        held.steps[0].calls = held.calls
        if results := [block for call in calls for block in _results(call)]:
            held.steps.append(self._said(f"{id_}/results", Message(role="tool", content=results, at=at)))
        return held

    def _copied(self, record: Json, id_: str, held: PendingMessage, copy: Copied) -> PendingMessage:
        """Return the turns that a record repeats: its own, and those of its calls' results."""
        role, at = "user" if text(record, "type") == "user" else ASSISTANT, seconds(record.get("timestamp"))
        first = Message(role=role, content=[], reply=role == ASSISTANT, at=at, model=text(record, "model"))
        first.content = held.steps[0].messages[0].content if held.steps else []
        results = held.steps[1].messages[0].content if len(held.steps) > 1 else []
        steps = [restore(self._said(id_, first), copy)]
        for number, each in enumerate(copy.then):
            blocks = [block for block in results if block.tool_result_id in each.ids]
            message = Message(role="tool", content=blocks, at=at)
            steps.append(restore(self._said(f"{id_}/results/{number}", message), each))
        return PendingMessage(id=id_, steps=[step for step in steps if step.messages[0].content], calls=[])

    def _said(self, id_: str, message: Message) -> Step:
        return said(message, f"{self.session}/{id_}", "", PROVIDER, AGENT, session=self.session)

    def _release(self) -> list[Step]:
        """Return the steps of the oldest held message."""
        held = self.held.pop(0)
        self.before[held.id] = self.head
        for step in held.steps:
            step.after = self.head
            self.head = step.keys[-1]
        if held.calls and not held.steps:
            return [counted(self.head, AGENT, self.session, held.calls)]
        return held.steps

    def in_hand(self) -> list[Step]:
        return [step for held in self.held for step in held.steps]

    def flush(self) -> list[Step]:
        steps: list[Step] = []
        while self.held:
            steps += self._release()
        return steps


def _is_session(record: Json) -> bool:
    if "sessionId" not in record or not isinstance(record.get("messages"), list):
        return False
    return all("type" in message and "id" in message for message in records(record, "messages"))


def _results(call: Json) -> list[Block]:
    """Return the result of a call; empty if it has not ended."""
    failed = text(call, "status") in ("error", "cancelled")
    blocks = [block for part in records(call, "result") for block in part_blocks(part)]
    for index, block in enumerate(blocks):
        if block.type == TOOL_RESULT:
            blocks[index] = tool_result(text(call, "id") or block.tool_result_id, block.tool_output, is_error=failed)
    if not blocks and (given := call.get("result")):
        blocks = [tool_result(text(call, "id"), compact(given), is_error=failed)]
    return blocks
