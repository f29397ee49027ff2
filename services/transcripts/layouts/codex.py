"""Session files of the Codex CLI: the items of the Responses API in order, one per line.

Since 2025 every line is `{timestamp, type, payload}`; before that, the items stood alone, below a line that describes
the session. After a compaction, the history that the model sees restarts in the same session. A rollback returns to the
start of the turns that it removes. A forked session begins with its parent's records.

A message of the user is an item and an event (`user_message`), in any order, or in some versions only one of them. An
event without its item, as of a message that was typed while the agent worked, is placed before the next model message.

Token counts come as events that may appear anywhere after the call's first item, and are repeated when the screen is
refreshed: see `codex_usage`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from services.transcripts.layouts import Layout, Step, counted, said, seconds, titled
from services.transcripts.layouts.codex_usage import Meter
from services.transcripts.layouts.copied import FIELD, Copied, copied, restore
from services.transcripts.layouts.queued import Queued, digest_of, text_of
from services.transcripts.messages import ASSISTANT, Call, Message, Title, TitleKind, text_block
from services.transcripts.providers import openai, responses
from services.transcripts.providers.wire import Json, child, count, records, text

AGENT = "codex"

_LINES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted", "token_usage_record"})
_MAX_UNCOUNTED = 64
_AROUND = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions")
"""How messages begin that the agent sends in the user's name."""
_COPIED_S = 2.0
"""Within this time of a sub-agent's start, replies are copies of its parent's."""
_REQUEST = "## My request for Codex:"
"""What editors put between the context that they add and the message."""
_MAX_LINES = 50
"""Lines of an item that may be the message of an event: editors add context before it."""


class Codex(Layout, kw_only=True):
    """The layout state.

    `head` is the last message so far, and `turns` is where each of the user's turns began. `uncounted` are replies
    whose tokens are not known yet, and `early` are calls stated before their reply. `typed` are events without their
    item so far, `heard` are digests of items without their event, each with those of its lines, and `placed` are
    digests of the events that were placed. `is_sub` is True until a sub-agent, which `began` then, replies.
    """

    name: ClassVar[str] = "codex"

    session: str = ""
    number: int = 0
    head: str = ""
    turns: list[str] = msgspec.field(default_factory=list)
    spoken: Step | None = None
    uncounted: list[str] = msgspec.field(default_factory=list)
    early: list[Call] = msgspec.field(default_factory=list)
    typed: list[Queued] = msgspec.field(default_factory=list)
    heard: list[list[str]] = msgspec.field(default_factory=list)
    placed: list[str] = msgspec.field(default_factory=list)
    meter: Meter = msgspec.field(default_factory=Meter)
    is_sub: bool = False
    began: float | None = None
    provider: str = openai.NAME
    model: str = ""
    project: str = ""
    branch: str = ""

    def read(self, record: Json) -> list[Step] | None:
        kind, at = text(record, "type"), seconds(record.get("timestamp"))
        if not kind or not isinstance(record.get("payload"), dict):
            return self._bare(record, at)
        if kind not in _LINES and not self.session:
            return None
        payload = child(record, "payload")
        match kind:
            case "session_meta":
                self._meta(payload, record.get("timestamp"))
                if name := text(payload, "thread_name"):
                    return [titled(TitleKind.OWN, name, AGENT, text(payload, "id"))]
            case "turn_context":
                self.model = text(payload, "model") or self.model
                self.project = self.project or text(payload, "cwd")
            case "response_item":
                if (copy := copied(record)) is not None:
                    return self._copied(payload, at, copy)
                return self._item(payload, at)
            case "compacted":
                return self._compacted(payload, at)
            case "event_msg" if FIELD in record:
                # Shown by the agent; its item is a copy.
                return []
            case "event_msg":
                return self._event(payload, at)
            case "token_usage_record":
                return self._spent(self.meter.recorded(payload))
        # Each version adds kinds of lines; none of these contains messages.
        return []

    def _bare(self, record: Json, at: float | None) -> list[Step] | None:
        if "type" not in record:
            if (name := text(record, "thread_name")) and "id" in record:
                return [titled(TitleKind.OWN, name, AGENT, text(record, "id"))]
            if "instructions" in record and "id" in record:
                self._meta(record, record.get("timestamp"))
                return []
            return [] if record.get("record_type") == "state" else None
        if responses.message(record) is None and record["type"] not in ("reasoning", "ghost_snapshot"):
            return None
        return self._item(record, at)

    def _meta(self, payload: Json, at: object) -> None:
        id_ = text(payload, "id")
        source = child(payload, "source")
        is_sub = "subagent" in source or text(payload, "thread_source") == "subagent"
        spawn = child(child(source, "subagent"), "thread_spawn")
        parent = text(payload, "forked_from_id") or text(spawn, "parent_thread_id")
        self.meter.begin(id_, parent, is_fork=is_sub)
        if self.session and id_ != self.session:
            # A record of the parent, in a forked session.
            return
        self.session, self.is_sub = id_, is_sub
        self.began = seconds(payload.get("timestamp")) or seconds(at)
        self.project = text(payload, "cwd") or self.project
        self.branch = text(child(payload, "git"), "branch")
        self.provider = text(payload, "model_provider") or self.provider
        self.system = text(payload, "instructions") or text(child(payload, "base_instructions"), "text")

    def _copied(self, item: Json, at: float | None, copy: Copied) -> list[Step]:
        message = responses.message(item)
        if message is None:
            return []
        if self.spoken is not None and self.spoken.copies == copy.turn:
            if not copy.rest:
                self.spoken.messages[0].extend(message)
            return []
        steps = self.flush()
        message.at, message.reply = at, copy.role == ASSISTANT or (not copy.role and message.role == ASSISTANT)
        if copy.role in ("", "user") and message.role == "user" and not _is_around(message):
            self.turns.append(self.head)
        self.spoken = restore(self._said(message), copy)
        return steps

    def _item(self, item: Json, at: float | None) -> list[Step]:
        message = responses.message(item)
        if message is None:
            return []
        message.at = at
        if message.role == ASSISTANT:
            before = self._place() if self.typed else []
            if self.spoken is not None and self.spoken.copies:
                before += self.flush()
            self.heard = []
            message.reply = self.meter.is_fresh = True
            if self.is_sub and at is not None and self.began is not None and at > self.began + _COPIED_S:
                self.is_sub = False
            if self.spoken is None:
                self.spoken = self._said(message)
                self.spoken.calls, self.early = self.early, []
                if self.spoken.calls:
                    message.usage = self.spoken.calls[0].usage
                else:
                    self.uncounted = [*self.uncounted[1 - _MAX_UNCOUNTED :], self.spoken.keys[0]]
            else:
                self.spoken.messages[0].extend(message)
            return before
        if message.role == "user" and self._is_placed(message):
            return []
        steps = self.flush()
        if message.role == "user" and not _is_around(message):
            self.turns.append(self.head)
        step = self._said(message)
        self.head = step.keys[0]
        if self.is_sub and message.role == "user" and not _is_around(message):
            # The latest before its first reply: the parent's messages may come first.
            step.titles = [Title(kind=TitleKind.TASK, text=text_of(message))]
        return [*steps, step]

    def _typed(self, said: str, at: float | None) -> None:
        """Note an event with a message of the user."""
        if not said.strip() or said.lstrip().startswith(_AROUND):
            return
        digest = digest_of(said)
        for index, digests in enumerate(self.heard):
            if digest in digests:
                del self.heard[index]
                return
        message = Message(role="user", content=[text_block(said)], at=at)
        self.typed.append(Queued(digest=digest, step=self._said(message)))

    def _is_placed(self, message: Message) -> bool:
        """Note an item with a message of the user. Returns True if its event was placed."""
        said = text_of(message)
        placed, self.placed = self.placed, []
        for index, each in enumerate(self.typed):
            if each.is_in(said):
                del self.typed[index]
                return False
        digests = [digest_of(said)]
        if digests[0] in placed:
            return True
        if "\n" in said:
            parts = (said.rpartition(_REQUEST)[2], *said.splitlines()[-_MAX_LINES:])
            digests += (digest_of(part) for part in parts if part.strip())
        self.heard.append(digests)
        return False

    def _place(self) -> list[Step]:
        """Return the messages whose items did not come, after the last message so far."""
        steps = self.flush()
        typed, self.typed = self.typed, []
        for each in typed:
            if each.step is not None:
                each.step.after = self.head
                self.turns.append(self.head)
                self.head = each.step.keys[0]
                self.placed.append(each.digest)
                steps.append(each.step)
        return steps

    def _compacted(self, payload: Json, at: float | None) -> list[Step]:
        steps = self.flush()
        self.head, self.turns, self.placed = "", [], []
        history = list(records(payload, "replacement_history"))
        if not history and (summary := text(payload, "message")):
            steps += self._item({"type": "message", "role": "user", "content": summary}, at)
        before = self.uncounted
        for item in history:
            steps += self._item(item, at)
        steps += self.flush()
        # Repeated replies are not separate calls.
        repeated = [key for key in self.uncounted if key not in before]
        self.uncounted, self.heard = before, []
        return [*steps, *(counted(key, AGENT, self.session, []) for key in repeated)]

    def _event(self, payload: Json, at: float | None) -> list[Step]:
        match payload.get("type"):
            case "user_message":
                self._typed(text(payload, "message"), at)
            case "token_count":
                return self._spent(self.meter.counted(payload))
            case "thread_name_updated":
                return [titled(TitleKind.OWN, text(payload, "thread_name"), AGENT, self.session)]
            case "thread_rolled_back":
                steps = self.flush()
                for _ in range(min(count(payload, "num_turns"), len(self.turns))):
                    self.head = self.turns.pop()
                return steps
        return []

    def _spent(self, call: Call | None) -> list[Step]:
        """Count a call together with the pending reply, the uncounted earlier ones, or the next one."""
        if call is None:
            return []
        call.model = self.model
        waiting, self.uncounted = self.uncounted, []
        steps: list[Step] = []
        if self.spoken is not None and not self.spoken.copies:
            spoken = self.spoken
            spoken.calls.append(call)
            spoken.messages[0].usage = spoken.messages[0].usage or call.usage
            waiting = [key for key in waiting if key not in spoken.keys]
        elif waiting:
            steps.append(counted(waiting.pop(), AGENT, self.session, [call]))
        else:
            self.early.append(call)
        # Several replies of one call, with tool results in between.
        return [*steps, *(counted(key, AGENT, self.session, []) for key in waiting)]

    def _said(self, message: Message) -> Step:
        self.number += 1
        key = f"{self.session}#{self.number}"
        return said(
            message,
            key,
            self.head,
            self.provider,
            AGENT,
            model=self.model,
            project=self.project,
            branch=self.branch,
            system=self.system,
            session=self.session,
        )

    def in_hand(self) -> list[Step]:
        held = (self.spoken, *(each.step for each in self.typed))
        return [step for step in held if step is not None]

    def flush(self) -> list[Step]:
        step, self.spoken = self.spoken, None
        if step is None:
            return []
        if not step.messages[0].content:
            # Thinking alone is not a message, but its tokens count.
            self.uncounted = [key for key in self.uncounted if key not in step.keys]
            return [counted(self.head, AGENT, self.session, step.calls)] if step.calls else []
        self.head = step.keys[0]
        return [step]

    def finish(self) -> list[Step]:
        steps = self._place()
        return [*steps, counted(self.head, AGENT, self.session, self.early)] if self.early else steps


def _is_around(message: Message) -> bool:
    return bool(message.content) and message.content[0].text.lstrip().startswith(_AROUND)
