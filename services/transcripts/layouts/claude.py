"""Session files of Claude Code: a tree of records (`uuid`, `parentUuid`), in one JSONL file per session.

One model message is several records with the same `message.id`, one content block each, and results of parallel tool
calls may come between them. They are combined as the API received them: one message with all its calls, then one with
all results. Records without a message (snapshots, progress) are skipped. After a compaction, the session continues
below the record that `logicalParentUuid` names.

The output of the agent's command (`--output-format stream-json`) is read too. Its records have `session_id`, and follow
each other without naming their predecessors; those of a sub-agent name the call that started it.

A message that the user types while the agent works appears in the queue (`queue-operation`). It is delivered as a
record of its own, as an attachment (`queued_command`), or without any: see `Queue`.
"""

from __future__ import annotations

import re
from typing import ClassVar

import msgspec

from services.transcripts.layouts import Layout, Step, passed, said, seconds, titled
from services.transcripts.layouts.copied import Copied, copied, restore
from services.transcripts.layouts.queued import Queued, digest_of, text_of
from services.transcripts.messages import ASSISTANT, IMAGE, TOOL_RESULT, TOOL_USE, Call, Message, TitleKind
from services.transcripts.providers import anthropic, wire
from services.transcripts.providers.wire import Json, child, records, text

AGENT = "claude-code"

_OTHERS = frozenset({"system", "progress", "attachment", "file-history-snapshot"})
_TITLES = {
    "custom-title": (TitleKind.OWN, "customTitle"),
    "agent-name": (TitleKind.NAME, "agentName"),
    "ai-title": (TitleKind.GENERATED, "aiTitle"),
    "summary": (TitleKind.SUMMARY, "summary"),
}
_NOTIFICATION = "<task-notification>"
_WITHDRAWN = re.compile("cancel|discard|edit|clear|drop|withdr")
"""Reasons for which a message leaves the queue without reaching the model."""


class Queue(msgspec.Struct, kw_only=True):
    """Messages that the user typed while the agent worked.

    `waiting` have not reached the model yet. `due` were taken from the queue, and are placed before the next model
    message unless a record delivers them first. `placed` are digests of those that were placed without a record: if
    the next message of the user is the same, it is one of them.
    """

    waiting: list[Queued] = msgspec.field(default_factory=list)
    due: list[Queued] = msgspec.field(default_factory=list)
    placed: list[str] = msgspec.field(default_factory=list)

    def change(self, operation: str, reason: str, message: Queued) -> None:
        match operation:
            case "enqueue":
                self.waiting.append(message)
            case "dequeue" | "remove":
                named = (index for index, each in enumerate(self.waiting) if each.digest == message.digest)
                first = 0 if self.waiting and message.digest == digest_of("") else None
                if (index := next(named, first)) is not None:
                    taken = self.waiting.pop(index)
                    if not _WITHDRAWN.search(reason):
                        self.due.append(taken)
            case "popAll":
                # The user takes them back to edit them.
                self.waiting = []

    def delivered(self, text: str) -> bool:
        """Remove the messages that a record with this text delivers. Returns True if it repeats one that is placed."""
        placed, self.placed = self.placed, []
        for held in (self.due, self.waiting):
            if found := [each for each in held if each.is_in(text)]:
                held[:] = [each for each in held if each not in found]
                return False
        return digest_of(text) in placed

    def take(self, *, at_end: bool = False) -> list[Step]:
        """Return the messages to place now; at the end of the file, also those that still wait."""
        ready, self.due = self.due, []
        if at_end:
            ready, self.waiting = [*ready, *self.waiting], []
        self.placed += (each.digest for each in ready if each.step is not None)
        return [each.step for each in ready if each.step is not None]


class Claude(Layout, kw_only=True):
    """The layout state.

    `spoken` is the pending model message with the id `said_id`, `results` are the results of its calls, and `passing`
    are later records without a message, or from the queue. `head` is the last record of the main conversation, and
    `project` its folder.
    """

    name: ClassVar[str] = "claude"
    is_linked: ClassVar[bool] = True

    said_id: str = ""
    spoken: Step | None = None
    results: Step | None = None
    passing: list[Step] = msgspec.field(default_factory=list)
    queue: Queue = msgspec.field(default_factory=Queue)
    head: str = ""
    project: str = ""
    number: int = 0
    side_heads: dict[str, str] = msgspec.field(default_factory=dict)

    def read(self, record: Json) -> list[Step] | None:
        if "parentUuid" not in record and "session_id" in record:
            record = self._linked(record)
        kind, key = text(record, "type"), text(record, "uuid")
        message = child(record, "message")
        if key and record.get("isSidechain") is not True:
            self.project = text(record, "cwd") or self.project
        steps = self._read(record, kind, key, message)
        if key and steps is not None and record.get("isSidechain") is not True:
            self.head = key
        return steps

    def _read(self, record: Json, kind: str, key: str, message: Json) -> list[Step] | None:
        if kind in _TITLES:
            return self._title(record, *_TITLES[kind])
        if kind == "queue-operation":
            queued = self._queued(record, record.get("content"))
            self.queue.change(text(record, "operation"), text(record, "reason"), queued)
            return []
        if kind == "attachment" and text(given := child(record, "attachment"), "type") == "queued_command":
            return self._command(record, given.get("prompt"))
        if not kind:
            return self._about(record)
        if kind not in ("user", ASSISTANT):
            known = kind in _OTHERS or (kind and (key or "sessionId" in record))
            return self._pass(record) if known else None
        if not key or "content" not in message:
            return None
        if (copy := copied(record)) is not None:
            return self._copied(record, message, copy)
        if text(message, "model") == "<synthetic>":
            # The agent's own notice, for example that the API failed; not from a model.
            return self._pass(record)
        return self._assistant(record, message) if kind == ASSISTANT else self._user(record, message)

    def _about(self, record: Json) -> list[Step] | None:
        """Read the files beside sessions: an index with titles, and descriptions of sub-agents."""
        if "agentType" in record:
            return []
        if not any("sessionId" in entry for entry in records(record, "entries")):
            return None
        fields = (("customTitle", TitleKind.OWN), ("summary", TitleKind.SUMMARY))
        return [
            titled(kind, title, AGENT, text(entry, "sessionId"))
            for entry in records(record, "entries")
            for field, kind in fields
            if (title := text(entry, field))
        ]

    def _linked(self, record: Json) -> Json:
        """Return a record of the command's output in the form of session files."""
        session, branch = text(record, "session_id"), text(record, "parent_tool_use_id")
        self.project = text(record, "cwd") or self.project
        linked = {**record, "sessionId": session, "isSidechain": bool(branch), "cwd": self.project}
        if text(record, "type") in ("user", ASSISTANT):
            self.number += 1
            key = text(record, "uuid") or f"{session}#{self.number}"
            before = self.side_heads.get(branch, "") if branch else self.head
            linked |= {"uuid": key, "parentUuid": before or None}
            if branch:
                self.side_heads[branch] = key
        else:
            linked.pop("uuid", None)
        return linked

    def _title(self, record: Json, kind: TitleKind, field: str) -> list[Step]:
        leaf = text(record, "leafUuid")
        # A summary may be that of another session.
        session = "" if leaf else text(record, "sessionId")
        return [titled(kind, text(record, field), AGENT, session, leaf)] if leaf or session else []

    def _queued(self, record: Json, content: object) -> Queued:
        """Return a message of the queue; the agent's own notes have no step."""
        message = anthropic.message({"role": "user", "content": content})
        message.at = seconds(record.get("timestamp"))
        spoken = text_of(message)
        digest = digest_of(spoken)
        is_empty = not any(block.text or block.type == IMAGE for block in message.content)
        if is_empty or spoken.startswith(_NOTIFICATION):
            return Queued(digest=digest, step=None)
        session = text(record, "sessionId")
        key = text(record, "uuid") or f"{session}/queued/{text(record, 'timestamp')}/{digest}"
        step = said(message, key, "", anthropic.NAME, AGENT, project=self.project, session=session)
        return Queued(digest=digest, step=step)

    def _command(self, record: Json, prompt: object) -> list[Step]:
        """Read an attachment that delivers a message of the queue."""
        message = self._queued(record, prompt)
        step = message.step
        if step is None:
            return self._pass(record)
        self.queue.delivered(text_of(step.messages[0]))
        if not text(record, "uuid"):
            self.queue.due.append(message)
            return []
        step.after, step.side = _after(record), record.get("isSidechain") is True
        if not self._held():
            return [step]
        # More results of the model's calls may come.
        self.passing.append(step)
        return []

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
        if not self._held():
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
        if self.queue.due and not self.spoken.side:
            queued = _in_a_row(self.queue.take(), self.spoken.after)
            self.spoken.after = queued[-1].keys[0] if queued else self.spoken.after
            steps += queued
        return steps

    def _copied(self, record: Json, given: Json, copy: Copied) -> list[Step]:
        message = anthropic.message(given)
        message.at = seconds(record.get("timestamp"))
        if message.role == ASSISTANT:
            wire.replied(message, given, "", None)
        return [*self.flush(), restore(_step(record, message), copy)]

    def _user(self, record: Json, given: Json) -> list[Step]:
        message = anthropic.message({"role": "user", "content": given["content"]})
        message.at = seconds(record.get("timestamp"))
        step = _step(record, message)
        answered = {block.tool_result_id for block in message.content if block.type == TOOL_RESULT}
        if self.spoken is None or not answered or not answered <= _called(self.spoken):
            is_typed = not (answered or step.side or record.get("isMeta") is True)
            if is_typed and self.queue.delivered(text_of(message)):
                return [*self.flush(), passed(step.keys[0], step.after, agent=AGENT, session=step.session)]
            return [*self.flush(), step]
        if self.results is None:
            self.results = step
            step.after = self.spoken.keys[0]
        elif step.keys[0] not in self.results.keys:
            self.results.keys += step.keys
            self.results.messages[0].content += message.content
        return []

    def in_hand(self) -> list[Step]:
        queued = [each.step for each in (*self.queue.due, *self.queue.waiting) if each.step is not None]
        return [*self._held(), *self.passing, *queued]

    def _held(self) -> list[Step]:
        return [step for step in (self.spoken, self.results) if step is not None]

    def finish(self) -> list[Step]:
        steps = self.flush()
        return [*steps, *_in_a_row(self.queue.take(at_end=True), self.head)]

    def flush(self) -> list[Step]:
        held, passing = self._held(), self.passing
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
        branch=text(record, "gitBranch"),
        session=text(record, "sessionId"),
        side=record.get("isSidechain") is True,
    )


def _in_a_row(steps: list[Step], after: str) -> list[Step]:
    """Let each of these follow the one before, and the first the record `after`."""
    for step in steps:
        step.after, after = after, step.keys[0]
    return steps


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
