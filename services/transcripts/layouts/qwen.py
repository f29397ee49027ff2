"""Session files of Qwen Code: a tree of records (`uuid`, `parentUuid`), in one JSONL file per session.

A record has a message in the form of Google's API, `{role, parts}`. Not read: snapshots of files, telemetry, the
compressed history after a compaction (the messages that it sums up are read), and the branch of the repository.
"""

from __future__ import annotations

from typing import ClassVar

from services.transcripts.layouts import Layout, Step, passed, said, seconds, titled
from services.transcripts.messages import ASSISTANT, Message, TitleKind
from services.transcripts.providers import gemini
from services.transcripts.providers.wire import Json, child, count, text, usage

AGENT = "qwen-code"

_KINDS = {"user": "user", "assistant": ASSISTANT, "tool_result": "tool"}


class Qwen(Layout, kw_only=True):
    """The layout has no state: each record names its predecessor."""

    name: ClassVar[str] = "qwen"
    is_linked: ClassVar[bool] = True

    def read(self, record: Json) -> list[Step] | None:
        kind, key, session = text(record, "type"), text(record, "uuid"), text(record, "sessionId")
        if not key or not session or kind not in (*_KINDS, "system") or not is_qwen(record):
            return None
        after, side = text(record, "parentUuid"), record.get("isSidechain") is True
        payload = child(record, "systemPayload")
        steps: list[Step] = []
        if title := text(payload, "customTitle"):
            by = TitleKind.GENERATED if text(payload, "titleSource") == "auto" else TitleKind.OWN
            steps.append(titled(by, title, AGENT, session))
        blocks, thoughts = gemini.content(child(record, "message").get("parts"))
        if kind == "system" or not blocks:
            steps.append(passed(key, after, agent=AGENT, session=session, side=side))
            return steps
        message = Message(role=_KINDS[kind], content=blocks, thinking=thoughts, at=seconds(record.get("timestamp")))
        if kind == "assistant":
            message.reply, message.model = True, text(record, "model")
            message.usage = _tokens(child(record, "usageMetadata"))
        project = text(record, "cwd")
        return [said(message, key, after, gemini.NAME, AGENT, project=project, session=session, side=side)]


def is_qwen(record: Json) -> bool:
    """Return True if a record has the form of Qwen Code rather than Claude Code."""
    return isinstance(child(record, "message").get("parts"), list) or "systemPayload" in record


def _tokens(figures: Json) -> Json | None:
    sent, whole = count(figures, "promptTokenCount"), count(figures, "totalTokenCount")
    # Some models count thoughts as part of the answer, others apart from it; the total is right for both.
    answered = whole - sent if whole > sent else count(figures, "candidatesTokenCount")
    return usage(sent, answered, cache_read_input_tokens=count(figures, "cachedContentTokenCount"))
