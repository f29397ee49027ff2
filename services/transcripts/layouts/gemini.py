"""Session files of the Gemini CLI: one JSON object with all messages, or since 2026 a line for each.

A line with the id of the message before replaces it, for it is rewritten as its tools answer; `$rewindTo` goes back
to before a message. Also the API's own form, `{role, parts}`, in which the CLI keeps what `/chat save` is told to.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from proto.ops.transcripts import Block
from services.transcripts.layouts import Layout, Step, said, seconds
from services.transcripts.messages import ASSISTANT, TOOL_RESULT, Message, tool_result, tool_use
from services.transcripts.providers.gemini import NAME as PROVIDER
from services.transcripts.providers.gemini import content, part_blocks
from services.transcripts.providers.wire import Json, child, compact, count, records, text, usage

AGENT = "gemini-cli"

_NOTICES = frozenset({"info", "error", "warning", "about", "help", "stats"})


class Gemini(Layout, kw_only=True):
    """`head` is the last message so far, `before` what stood before each."""

    name: ClassVar[str] = "gemini"

    session: str = ""
    head: str = ""
    before: dict[str, str] = msgspec.field(default_factory=dict)
    held: list[Step] = msgspec.field(default_factory=list)
    held_id: str = ""

    def read(self, record: Json) -> list[Step] | None:
        if _is_session(record):
            steps = self.flush()
            self.session, self.head, self.before = text(record, "sessionId"), "", {}
            for message in records(record, "messages"):
                steps += self._message(message) or []
            return steps
        if "type" not in record and "sessionId" in record:
            self.session = text(record, "sessionId")
            return []
        if "$set" in record:
            return []
        if isinstance(record.get("$rewindTo"), str):
            steps = self.flush()
            self.head = self.before.get(record["$rewindTo"], self.head)
            return steps
        return self._message(record)

    def _message(self, record: Json) -> list[Step] | None:
        kind, id_ = text(record, "type"), text(record, "id")
        if kind in _NOTICES:
            return []
        if kind not in ("user", "gemini") or not id_:
            return None
        if id_ == self.held_id:
            self.held, self.held_id = [], ""
        steps = self.flush()
        self.before[id_] = self.head
        self.held_id = id_
        blocks, thoughts = content(record.get("content"))
        at = seconds(record.get("timestamp"))
        if kind == "user":
            if blocks:
                self.held = [self._said(id_, Message(role="user", content=blocks, at=at), self.head)]
            return steps
        calls = list(records(record, "toolCalls"))
        blocks += (tool_use(text(call, "id"), text(call, "name"), call.get("args")) for call in calls)
        if not blocks:
            return steps
        tokens = child(record, "tokens")
        sent, answered, total, cached = (count(tokens, of) for of in ("input", "output", "total", "cached"))
        message = Message(
            role=ASSISTANT,
            content=blocks,
            thinking=[*thoughts, *records(record, "thoughts")],
            reply=True,
            at=at,
            model=text(record, "model"),
            usage=usage(sent, answered, total, cache_read_input_tokens=cached),
        )
        self.held = [self._said(id_, message, self.head)]
        if results := [block for call in calls for block in _results(call)]:
            told = Message(role="tool", content=results, at=at)
            self.held.append(self._said(f"{id_}/results", told, self.held[0].keys[0]))
        return steps

    def _said(self, id_: str, message: Message, after: str) -> Step:
        return said(message, f"{self.session}/{id_}", after, PROVIDER, AGENT)

    def in_hand(self) -> list[Step]:
        return self.held

    def flush(self) -> list[Step]:
        steps: list[Step] = [*self.held]
        if self.held:
            self.head = self.held[-1].keys[0]
        self.held, self.held_id = [], ""
        return steps


def _is_session(record: Json) -> bool:
    if "sessionId" not in record or not isinstance(record.get("messages"), list):
        return False
    return all("type" in message and "id" in message for message in records(record, "messages"))


def _results(call: Json) -> list[Block]:
    """What a call came to; nothing where it has not ended."""
    failed = text(call, "status") in ("error", "cancelled")
    blocks = [block for part in records(call, "result") for block in part_blocks(part)]
    for index, block in enumerate(blocks):
        if block.type == TOOL_RESULT:
            blocks[index] = tool_result(text(call, "id") or block.tool_result_id, block.tool_output, is_error=failed)
    if not blocks and (given := call.get("result")):
        blocks = [tool_result(text(call, "id"), compact(given), is_error=failed)]
    return blocks
