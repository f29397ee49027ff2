"""Sessions of GitHub Copilot: event logs of its CLI, and chats of its extension for VS Code.

The CLI writes one event per line (`{type, data, id, timestamp}`). Tokens of answers are stated with each message; those
of requests only when the session ends, and then for each model. Not read: hooks, permissions, plans, checkpoints,
partial output of tools, attachments, and the branch of the repository.

A chat of the extension is a list of requests, each with its response. Tool calls and their results are read from the
rounds in `toolCallRounds`, or else from the parts of the response. Not read: attached files, edits, confirmations,
follow-up questions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from services.transcripts.layouts import Step
from services.transcripts.layouts.sessions import Sessions, replied, results, when
from services.transcripts.messages import Message, TitleKind, text_block, tool_result, tool_use
from services.transcripts.operations.conversations import Block
from services.transcripts.providers.wire import Json, child, compact, count, records, text, usage


class CopilotCli(Sessions, kw_only=True):
    """The layout state; `answered` are the tokens of answers by model, since the session began or was resumed."""

    name: ClassVar[str] = "copilot-cli"

    answered: dict[str, int] = msgspec.field(default_factory=dict)
    runs: int = 0

    def read(self, record: Json) -> list[Step] | None:
        kind, data = text(record, "type"), record.get("data")
        if not isinstance(data, dict) or "." not in kind or ("id" not in record and "timestamp" not in record):
            return None
        at = when(record.get("timestamp"))
        self.agent = self.name
        match kind:
            case "session.start" | "session.resume":
                context = child(data, "context")
                self.answered, self.runs = {}, self.runs + 1
                described = {
                    "id": data.get("sessionId"),
                    "project": context.get("cwd"),
                    "created": data.get("startTime"),
                }
                return self.begin({**described, "model": data.get("selectedModel")})
            case "session.model_change":
                self.model = text(data, "newModel") or self.model
            case "session.title_changed":
                return self.title(text(data, "title"))
            case "session.shutdown":
                self._shut(child(data, "modelMetrics"))
            case "user.message":
                spoken = [text_block(said)] if (said := text(data, "content")) else []
                return self.say(Message(role="user", content=spoken, at=at), text(record, "id"))
            case "assistant.message":
                return self._replied(data, text(record, "id"), at)
            case "tool.execution_complete":
                return self._answered(data, text(record, "id"), at)
        return []

    def message(self, given: Json, record: Json) -> list[Step] | None:
        return None

    def _replied(self, data: Json, id_: str, at: float | None) -> list[Step]:
        blocks = [text_block(said)] if (said := text(data, "content")) else []
        blocks += (
            tool_use(text(call, "toolCallId"), text(call, "name"), call.get("arguments"))
            for call in records(data, "toolRequests")
        )
        self.model = text(data, "model") or self.model
        answered = count(data, "outputTokens")
        self.answered[self.model] = self.answered.get(self.model, 0) + answered
        message = replied(blocks, usage=usage(0, answered), at=at)
        if thought := text(data, "reasoningText"):
            message.thinking = [{"type": "thinking", "thinking": thought}]
        return self.say(message, id_)

    def _answered(self, data: Json, id_: str, at: float | None) -> list[Step]:
        failed = data.get("success") is False
        given = child(data, "result")
        output = text(child(data, "error"), "message") if failed else ""
        output = output or text(given, "content", "detailedContent") or (compact(given) if given else "")
        block = tool_result(text(data, "toolCallId"), output, is_error=failed)
        return self.say(Message(role="tool", content=[block], at=at), id_)

    def _shut(self, metrics: Json) -> None:
        """Count what the messages do not state: the tokens of the requests."""
        for model in metrics:
            figures = child(child(metrics, model), "usage")
            rest = max(0, count(figures, "outputTokens") - self.answered.get(model, 0))
            spent = usage(
                count(figures, "inputTokens"), rest,
                cache_read_input_tokens=count(figures, "cacheReadTokens"),
                cache_creation_input_tokens=count(figures, "cacheWriteTokens"),
            )  # fmt: skip
            if spent:
                self.spend(f"run/{self.runs}/{model}", spent, model)
        self.answered = {}


class CopilotChat(Sessions, kw_only=True):
    """A chat of the extension; each message is a request with its response."""

    name: ClassVar[str] = "copilot-chat"

    def begin(self, session: Json, kind: TitleKind = TitleKind.GENERATED) -> list[Step]:
        return super().begin(session, TitleKind.OWN)

    def message(self, given: Json, record: Json) -> list[Step] | None:
        asked, id_ = given.get("message"), text(given, "requestId")
        if not isinstance(asked, dict | str) or not isinstance(given.get("response", []), list | None):
            return None
        words = asked if isinstance(asked, str) else text(asked, "text")
        at = when(given.get("timestamp"))
        steps = self.say(Message(role="user", content=[text_block(words)] if words else [], at=at), id_)
        metadata = child(child(given, "result"), "metadata")
        rounds = list(records(metadata, "toolCallRounds"))
        spoken = list(_rounds(rounds, child(metadata, "toolCallResults")) if rounds else _parts(given))
        replies = [message for message in spoken if message.role != "tool"]
        model = text(given, "modelId").rpartition("/")[2]
        for message in spoken:
            message.at = at
            message.model = model if message in replies else ""
        if replies:
            replies[-1].usage = _tokens(given, metadata)
        is_stated = bool(replies and replies[-1].usage)
        for index, message in enumerate(spoken):
            is_counted = is_stated and not message.usage
            steps += self.say(message, f"{id_}/{index}" if id_ else "", is_counted=is_counted)
        return steps


def _tokens(given: Json, metadata: Json) -> Json | None:
    stated = child(child(given, "result"), "usage")
    answered = count(metadata, "outputTokens", "completionTokens") or count(stated, "completionTokens")
    return usage(count(metadata, "promptTokens") or count(stated, "promptTokens"), answered)


def _rounds(rounds: list[Json], outputs: Json) -> Iterator[Message]:
    for each in rounds:
        calls = list(records(each, "toolCalls"))
        blocks = [text_block(said)] if (said := text(each, "response")) else []
        blocks += (tool_use(text(call, "id"), text(call, "name"), call.get("arguments")) for call in calls)
        message = replied(blocks)
        thought = child(each, "thinking")
        message.thinking = [thought] if thought else []
        yield message
        answers = ((text(call, "id"), child(outputs, text(call, "id"))) for call in calls)
        yield from results([tool_result(id_, _output(given)) for id_, given in answers if given])


def _output(given: Json) -> str:
    parts = [part["value"] for part in records(given, "content") if isinstance(part.get("value"), str)]
    return "\n".join(parts) or compact(given)


def _parts(given: Json) -> Iterator[Message]:
    """Yield the messages of a response without rounds: texts, and calls with what they returned."""
    blocks: list[Block] = []
    outputs: list[Block] = []
    words = ""
    for part in records(given, "response"):
        kind, value = text(part, "kind"), part.get("value", part.get("content"))
        if kind == "toolInvocationSerialized":
            blocks += [text_block(words)] if words.strip() else []
            words, id_ = "", text(part, "toolCallId")
            blocks.append(tool_use(id_, text(part, "toolId", "toolName"), _arguments(part)))
            if output := part.get("resultDetails"):
                outputs.append(tool_result(id_, compact(output)))
        elif kind in ("", "text", "markdownContent"):
            if outputs:
                yield replied(blocks)
                yield from results(outputs)
                blocks, outputs = [], []
            words += value if isinstance(value, str) else text(value, "value") if isinstance(value, dict) else ""
    yield replied([*blocks, *([text_block(words)] if words.strip() else [])])
    yield from results(outputs)


def _arguments(part: Json) -> object:
    specific = child(part, "toolSpecificData")
    command = child(specific, "commandLine")
    if command or "rawInput" in specific:
        return {"command": text(command, "original")} if command else specific["rawInput"]
    message = part.get("invocationMessage")
    said = message if isinstance(message, str) else text(child(part, "invocationMessage"), "value")
    return {"message": said} if said else None
