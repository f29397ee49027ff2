"""Session files of the Codex CLI: what went through the Responses API in order, one item a line.

Since 2025 every line is `{timestamp, type, payload}`; before, the items stood there bare, below a line that describes
the session. A compaction begins a new conversation, as it does for the model; a rollback goes back to where the turns
that it takes away began.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from services.transcripts.layouts import Layout, Step, said, seconds
from services.transcripts.messages import ASSISTANT, Message
from services.transcripts.providers import openai, responses
from services.transcripts.providers.wire import Json, child, count, records, text, usage

AGENT = "codex"

_LINES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_AROUND = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions")
"""How messages begin that the agent sends in the user's name."""


class Codex(Layout, kw_only=True):
    """`head` is the last message so far, `turns` where each of the user's turns began."""

    name: ClassVar[str] = "codex"

    session: str = ""
    number: int = 0
    head: str = ""
    turns: list[str] = msgspec.field(default_factory=list)
    spoken: Step | None = None
    provider: str = openai.NAME
    model: str = ""
    project: str = ""

    def read(self, record: Json) -> list[Step] | None:
        kind, at = text(record, "type"), seconds(record.get("timestamp"))
        if kind not in _LINES:
            return self._bare(record, at)
        payload = child(record, "payload")
        match kind:
            case "session_meta":
                self._meta(payload)
            case "turn_context":
                self.model = text(payload, "model") or self.model
                self.project = text(payload, "cwd") or self.project
            case "response_item":
                return self._item(payload, at)
            case "compacted":
                return self._compacted(payload, at)
            case "event_msg":
                return self._event(payload)
        return []

    def _bare(self, record: Json, at: float | None) -> list[Step] | None:
        if "type" not in record:
            if "instructions" in record and "id" in record:
                self._meta(record)
                return []
            return [] if record.get("record_type") == "state" else None
        if responses.message(record) is None and record["type"] not in ("reasoning", "ghost_snapshot"):
            return None
        return self._item(record, at)

    def _meta(self, payload: Json) -> None:
        self.session = text(payload, "id") or self.session
        self.project = text(payload, "cwd") or self.project
        self.provider = text(payload, "model_provider") or self.provider
        self.system = text(payload, "instructions") or text(child(payload, "base_instructions"), "text")

    def _item(self, item: Json, at: float | None) -> list[Step]:
        message = responses.message(item)
        if message is None:
            return []
        message.at = at
        if message.role == ASSISTANT:
            message.reply = True
            if self.spoken is None:
                self.spoken = self._said(message)
            else:
                self.spoken.messages[0].extend(message)
            return []
        steps = self.flush()
        if message.role == "user" and not _is_around(message):
            self.turns.append(self.head)
        step = self._said(message)
        self.head = step.keys[0]
        return [*steps, step]

    def _compacted(self, payload: Json, at: float | None) -> list[Step]:
        steps = self.flush()
        self.head, self.turns = "", []
        history = list(records(payload, "replacement_history"))
        if not history and (summary := text(payload, "message")):
            steps += self._item({"type": "message", "role": "user", "content": summary}, at)
        for item in history:
            steps += self._item(item, at)
        return steps

    def _event(self, payload: Json) -> list[Step]:
        match payload.get("type"):
            case "token_count" if self.spoken is not None:
                figures = child(child(payload, "info"), "last_token_usage")
                sent, answered, cached = (count(figures, f"{of}_tokens") for of in ("input", "output", "cached_input"))
                total = count(figures, "total_tokens")
                self.spoken.messages[0].usage = usage(sent, answered, total, cache_read_input_tokens=cached)
            case "thread_rolled_back":
                steps = self.flush()
                for _ in range(min(count(payload, "num_turns"), len(self.turns))):
                    self.head = self.turns.pop()
                return steps
        return []

    def _said(self, message: Message) -> Step:
        self.number += 1
        key = f"{self.session}#{self.number}"
        about = {"model": self.model, "project": self.project, "system": self.system}
        return said(message, key, self.head, self.provider, AGENT, **about)

    def in_hand(self) -> list[Step]:
        return [self.spoken] if self.spoken is not None else []

    def flush(self) -> list[Step]:
        step, self.spoken = self.spoken, None
        if step is None or not step.messages[0].content:
            # What was only thought is no message.
            return []
        self.head = step.keys[0]
        return [step]


def _is_around(message: Message) -> bool:
    return bool(message.content) and message.content[0].text.lstrip().startswith(_AROUND)
