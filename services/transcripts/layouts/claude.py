"""Session files of Claude Code: a tree of records, `uuid` by `parentUuid`, in one JSONL file a session.

One message of the model is several records of one `message.id`, a content block each, and the results of tools that ran
side by side may stand between them. They become what the API was sent: one message with all its calls, then one with
all their results. Records without a message (summaries, snapshots, progress) are passed over.
"""

from __future__ import annotations

from typing import ClassVar

from services.transcripts.layouts import Layout, Passed, Said, Step, seconds
from services.transcripts.messages import ASSISTANT, TOOL_RESULT, TOOL_USE, Message
from services.transcripts.providers import anthropic
from services.transcripts.providers.wire import Json, child, text

AGENT = "claude-code"

_OTHERS = frozenset({"summary", "system", "progress", "attachment", "file-history-snapshot", "queue-operation"})


class Claude(Layout, kw_only=True):
    """`spoken` is the model's message in hand, of the id `said_id`; `results` are those of its calls."""

    name: ClassVar[str] = "claude"

    said_id: str = ""
    spoken: Said | None = None
    results: Said | None = None

    def read(self, record: Json) -> list[Step] | None:
        kind, key, after = record.get("type"), text(record, "uuid"), text(record, "parentUuid")
        said = child(record, "message")
        if kind not in ("user", ASSISTANT):
            if not (kind in _OTHERS or (isinstance(kind, str) and (key or "sessionId" in record))):
                return None
            return self._pass(key, after)
        if not key or "content" not in said:
            return None
        if text(said, "model") == "<synthetic>":
            # The agent's own notice, that the API failed for one; no model said it.
            return self._pass(key, after)
        return self._assistant(record, said) if kind == ASSISTANT else self._user(record, said)

    def _pass(self, key: str, after: str) -> list[Step]:
        if not key:
            return []
        for held in (self.results, self.spoken):
            if held is not None and after in held.keys:
                held.keys.append(key)
                return []
        return [Passed(key, after)]

    def _assistant(self, record: Json, said: Json) -> list[Step]:
        id_, key = text(said, "id"), text(record, "uuid")
        message = anthropic.message({"role": ASSISTANT, "content": said["content"]})
        message.at = seconds(record.get("timestamp"))
        message.model = text(said, "model")
        message.reply = True
        message.stop_reason = text(said, "stop_reason")
        message.usage = anthropic.tokens(child(said, "usage"))
        held = self.spoken
        if held is not None and id_ and id_ == self.said_id:
            if key not in held.keys:
                held.keys.append(key)
                _extend(held.messages[0], message)
            return []
        steps = self.flush()
        self.said_id = id_
        self.spoken = _said(record, message)
        return steps

    def _user(self, record: Json, said: Json) -> list[Step]:
        message = anthropic.message({"role": "user", "content": said["content"]})
        message.at = seconds(record.get("timestamp"))
        answered = {block.tool_result_id for block in message.content if block.type == TOOL_RESULT}
        if self.spoken is not None and answered and answered <= _called(self.spoken):
            key = text(record, "uuid")
            if self.results is None:
                self.results = _said(record, message)
                self.results.after = self.spoken.keys[0]
            elif key not in self.results.keys:
                self.results.keys.append(key)
                self.results.messages[0].content += message.content
            return []
        return [*self.flush(), _said(record, message)]

    def in_hand(self) -> list[Said]:
        return [said for said in (self.spoken, self.results) if said is not None]

    def flush(self) -> list[Step]:
        held = self.in_hand()
        self.said_id, self.spoken, self.results = "", None, None
        steps: list[Step] = []
        for said in held:
            if said.messages[0].content:
                steps.append(said)
            else:
                # What was only thought is no message.
                steps += (Passed(key, said.after) for key in said.keys)
        return steps


def _said(record: Json, message: Message) -> Said:
    return Said(
        messages=[message],
        after=text(record, "parentUuid"),
        keys=[text(record, "uuid")],
        provider=anthropic.NAME,
        model=message.model,
        agent=AGENT,
        project=text(record, "cwd"),
    )


def _called(said: Said) -> set[str]:
    return {block.tool_use_id for block in said.messages[0].content if block.type == TOOL_USE}


def _extend(message: Message, more: Message) -> None:
    message.content += more.content
    message.thinking += more.thinking
    message.stop_reason = more.stop_reason or message.stop_reason
    message.usage = more.usage or message.usage
