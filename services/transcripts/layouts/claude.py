"""Session files of Claude Code: a tree of records (`uuid`, `parentUuid`), in one JSONL file per session.

One model message is several records with the same `message.id`, one content block each, and results of parallel tool
calls may come between them. They are combined as the API received them: one message with all its calls, then one with
all results. Records without a message (summaries, snapshots, progress) are skipped. After a compaction, the session
continues below the record that `logicalParentUuid` names.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from linckia.services.transcripts.layouts import Layout, Step, passed, said, seconds
from linckia.services.transcripts.messages import ASSISTANT, TOOL_RESULT, TOOL_USE, Call, Message
from linckia.services.transcripts.providers import anthropic, wire
from linckia.services.transcripts.providers.wire import Json, child, text

AGENT = "claude-code"

_OTHERS = frozenset({"summary", "system", "progress", "attachment", "file-history-snapshot", "queue-operation"})


class Claude(Layout, kw_only=True):
    """The layout state.

    `spoken` is the pending model message with the id `said_id`, `results` are the results of its calls, and `passing`
    are later records without a message.
    """

    name: ClassVar[str] = "claude"
    is_linked: ClassVar[bool] = True

    said_id: str = ""
    spoken: Step | None = None
    results: Step | None = None
    passing: list[Step] = msgspec.field(default_factory=list)

    def read(self, record: Json) -> list[Step] | None:
        kind, key = text(record, "type"), text(record, "uuid")
        message = child(record, "message")
        if kind not in ("user", ASSISTANT):
            known = kind in _OTHERS or (kind and (key or "sessionId" in record))
            return self._pass(record) if known else None
        if not key or "content" not in message:
            return None
        if text(message, "model") == "<synthetic>":
            # The agent's own notice, for example that the API failed; not from a model.
            return self._pass(record)
        return self._assistant(record, message) if kind == ASSISTANT else self._user(record, message)

    def _pass(self, record: Json) -> list[Step]:
        key, after = text(record, "uuid"), _after(record)
        if not key:
            return []
        for held in (self.results, self.spoken):
            if held is not None and after in held.keys:
                held.keys.append(key)
                return []
        session, side = text(record, "sessionId"), record.get("isSidechain") is True
        step = passed(key, after, agent=AGENT, session=session, side=side)
        if not self.in_hand():
            return [step]
        self.passing.append(step)
        return []

    def _assistant(self, record: Json, given: Json) -> list[Step]:
        id_, key = text(given, "id"), text(record, "uuid")
        message = anthropic.message({"role": ASSISTANT, "content": given["content"]})
        message.at = seconds(record.get("timestamp"))
        wire.replied(message, given, text(given, "stop_reason"), anthropic.tokens(child(given, "usage")))
        held = self.spoken
        if held is not None and id_ and id_ == self.said_id:
            if key not in held.keys:
                held.keys.append(key)
                _extend(held.messages[0], message)
                held.calls = _calls(record, given, message) or held.calls
            return []
        steps = self.flush()
        self.said_id = id_
        self.spoken = _step(record, message)
        self.spoken.calls = _calls(record, given, message)
        return steps

    def _user(self, record: Json, given: Json) -> list[Step]:
        message = anthropic.message({"role": "user", "content": given["content"]})
        message.at = seconds(record.get("timestamp"))
        step = _step(record, message)
        answered = {block.tool_result_id for block in message.content if block.type == TOOL_RESULT}
        if self.spoken is None or not answered or not answered <= _called(self.spoken):
            return [*self.flush(), step]
        if self.results is None:
            self.results = step
            step.after = self.spoken.keys[0]
        elif step.keys[0] not in self.results.keys:
            self.results.keys += step.keys
            self.results.messages[0].content += message.content
        return []

    def in_hand(self) -> list[Step]:
        return [step for step in (self.spoken, self.results) if step is not None]

    def flush(self) -> list[Step]:
        held, passing = self.in_hand(), self.passing
        self.said_id, self.spoken, self.results, self.passing = "", None, None, []
        steps: list[Step] = []
        for step in held:
            if step.messages[0].content:
                steps.append(step)
                continue
            # Thinking alone is not a message, but its tokens count.
            steps += (passed(key, step.after, agent=AGENT, session=step.session, side=step.side) for key in step.keys)
            steps[-1].calls = step.calls
        return steps + passing


def _after(record: Json) -> str:
    return text(record, "parentUuid") or text(record, "logicalParentUuid")


def _step(record: Json, message: Message) -> Step:
    return said(
        message,
        text(record, "uuid"),
        _after(record),
        anthropic.NAME,
        AGENT,
        project=text(record, "cwd"),
        session=text(record, "sessionId"),
        side=record.get("isSidechain") is True,
    )


def _calls(record: Json, given: Json, message: Message) -> list[Call]:
    """Return the call that a record belongs to, counted once: forked sessions repeat it with the same time."""
    if not message.usage:
        return []
    id_ = text(given, "id")
    day = text(record, "timestamp")[:10]
    parts = (id_, text(record, "requestId"), day) if id_ else (text(record, "sessionId"), text(record, "uuid"))
    return [Call(key="\0".join(("claude", *parts)), model=message.model, usage=message.usage)]


def _called(step: Step) -> set[str]:
    return {block.tool_use_id for block in step.messages[0].content if block.type == TOOL_USE}


def _extend(message: Message, more: Message) -> None:
    message.extend(more)
    message.stop_reason = more.stop_reason or message.stop_reason
    message.usage = more.usage or message.usage
