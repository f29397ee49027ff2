"""Sessions that editors keep in databases: Cursor's chats and Zed's threads.

Cursor stores each message apart (a bubble); the model's are one for each text and tool call. Not read: context, diffs,
checkpoints, attached files, and the terminal agent's chats (`~/.cursor/chats`), whose form is not documented.

A thread of Zed is one document. The tokens of a prompt's last request are stated with the prompt. Not read: images,
mentions apart from their names, and the time of single messages, which Zed does not store.
"""

from __future__ import annotations

from typing import ClassVar

from services.transcripts.layouts import Step
from services.transcripts.layouts.sessions import Sessions, replied, results, when
from services.transcripts.messages import Message, text_block, tool_result, tool_use
from services.transcripts.operations.conversations import Block
from services.transcripts.providers import anthropic
from services.transcripts.providers.wire import Json, child, compact, count, items, records, text, usage


class Cursor(Sessions, kw_only=True):
    """The state of a chat of Cursor."""

    name: ClassVar[str] = "cursor"

    def message(self, given: Json, record: Json) -> list[Step] | None:
        kind, id_ = given.get("type"), text(given, "bubbleId")
        if kind not in (1, 2):
            return None
        at = when(given.get("createdAt")) or when(child(given, "timingInfo").get("clientRpcSendTime"))
        blocks = [text_block(said)] if (said := text(given, "text", "rawText")) else []
        if kind == 1:
            return self.say(Message(role="user", content=blocks, at=at), id_)
        figures = child(given, "tokenCount")
        spent = usage(count(figures, "inputTokens"), count(figures, "outputTokens"))
        called = child(given, "toolFormerData")
        outputs: list[Block] = []
        if called:
            call, name = text(called, "toolCallId") or id_, text(called, "name")
            blocks.append(tool_use(call, name, called.get("rawArgs") or called.get("params")))
            failed, output = text(called, "status") == "error", called.get("result") or called.get("error")
            outputs = [tool_result(call, compact(output), is_error=failed)] if output else []
        message = replied(blocks, usage=spent, model=text(child(given, "modelInfo"), "modelName"), at=at)
        thought = child(given, "thinking")
        message.thinking = [{"type": "thinking", "thinking": text(thought, "text")}] if text(thought, "text") else []
        steps = self.say(message, id_)
        for answer in results(outputs, at):
            steps += self.say(answer, f"{id_}/results")
        return steps


class Zed(Sessions, kw_only=True):
    """The state of a thread of Zed; `spent` are the tokens of the last prompt, and `is_told` if a reply has them."""

    name: ClassVar[str] = "zed"

    spent: Json | None = None
    is_told: bool = False

    def message(self, given: Json, record: Json) -> list[Step] | None:
        if asked := child(given, "User"):
            self.spent, self.is_told = anthropic.tokens(child(record, "tokens")), False
            return self.say(Message(role="user", content=_texts(asked)), text(asked, "id"))
        if "Agent" in given and isinstance(given["Agent"], dict):
            return self._agent(given["Agent"])
        if text(given, "role") in ("user", "assistant") and "segments" in given:
            return self._old(given)
        return [] if "Resume" in given else None

    def _agent(self, given: Json) -> list[Step]:
        thinking = [thought for part in records(given, "content") if (thought := child(part, "Thinking"))]
        outputs = [
            tool_result(id_, _result(answer), is_error=answer.get("is_error") is True)
            for id_, answer in child(given, "tool_results").items()
            if isinstance(answer, dict)
        ]
        return self._replied(_texts(given), outputs, thinking)

    def _old(self, given: Json) -> list[Step]:
        """Read a message of versions before 0.3."""
        blocks = [
            text_block(text(part, "text"))
            for part in records(given, "segments")
            if text(part, "type") == "text" and text(part, "text")
        ]
        if text(given, "role") == "user":
            return self.say(Message(role="user", content=blocks))
        blocks += (
            tool_use(text(each, "id"), text(each, "name"), each.get("input")) for each in records(given, "tool_uses")
        )
        outputs = [
            tool_result(text(each, "tool_use_id"), _result(each), is_error=each.get("is_error") is True)
            for each in records(given, "tool_results")
        ]
        return self._replied(blocks, outputs, [])

    def _replied(self, blocks: list[Block], outputs: list[Block], thinking: list[Json]) -> list[Step]:
        message = replied(blocks, usage=None if self.is_told or not blocks else self.spent)
        message.thinking = thinking
        steps = self.say(message, is_counted=self.is_told and bool(self.spent))
        self.is_told = self.is_told or bool(blocks)
        for answer in results(outputs):
            steps += self.say(answer)
        return steps


def _texts(given: Json) -> list[Block]:
    blocks: list[Block] = []
    for part in records(given, "content"):
        if said := text(part, "Text"):
            blocks.append(text_block(said))
        elif mention := child(part, "Mention"):
            blocks.append(text_block(text(mention, "content") or compact(mention.get("uri"))))
        elif call := child(part, "ToolUse"):
            blocks.append(tool_use(text(call, "id"), text(call, "name"), call.get("input", call.get("raw_input"))))
    return blocks


def _result(answer: Json) -> str:
    given = answer.get("content")
    if isinstance(given, str):
        return given
    parts = [given] if isinstance(given, dict) else items(answer, "content")
    said = [text(part, "Text", "text") for part in parts if isinstance(part, dict)]
    return "\n".join(each for each in said if each) or compact(answer.get("output") or "")
