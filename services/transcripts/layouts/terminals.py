"""Sessions of agents for the terminal: OpenCode, Goose, Amp and Aider.

OpenCode: a session has messages, and a message has parts; one message of the model may take several steps. Not read:
snapshots, patches, sub-tasks' descriptions, and messages that were undone but not removed.

Goose: messages with requests and responses of tools; tokens are known for the session as a whole. Not read: recipes,
extensions, confirmations. Files of versions before 1.10 (`*.jsonl`) do not name their session.

Amp: one document per thread. Not read: the state of the user's editor, threads that only Amp's server stores.

Aider: a Markdown file per project, which has headings for what the user wrote and quotes for what Aider said. Aider's
own words are not read, except for the model and the tokens. A heading of the fourth level in an answer of the model
looks like a question of the user's; Aider itself cannot tell either.
"""

from __future__ import annotations

from typing import ClassVar

from services.transcripts.layouts import Step
from services.transcripts.layouts.sessions import Sessions, replied, results, when
from services.transcripts.messages import Message, image, text_block, tool_result, tool_use
from services.transcripts.operations.conversations import Block
from services.transcripts.providers import anthropic
from services.transcripts.providers.wire import Json, child, compact, count, items, records, text, usage


class OpenCode(Sessions, kw_only=True):
    """The state of a session of OpenCode."""

    name: ClassVar[str] = "opencode"

    def begin(self, session: Json, *more: object) -> list[Step]:
        if text(session, "title").startswith(("New session - ", "Child session - ")):
            session = {**session, "title": ""}
        return super().begin(session)

    def message(self, given: Json, record: Json) -> list[Step] | None:
        role, id_ = text(given, "role"), text(given, "id")
        if role not in ("user", "assistant"):
            return None
        at = when(child(given, "time").get("created"))
        parts = list(records(record, "parts"))
        if role == "user":
            blocks = [block for part in parts if not part.get("synthetic") for block in _opencode_blocks(part)]
            return self.say(Message(role="user", content=blocks, at=at), id_)
        steps: list[Step] = []
        spent, model = _opencode_tokens(child(given, "tokens")), text(given, "modelID")
        taken = _opencode_steps(parts)
        for index, (blocks, outputs, thinking) in enumerate(taken):
            message = replied(blocks, model=model, at=at, usage=None if index else spent)
            message.thinking = thinking
            steps += self.say(message, f"{id_}/{index}", is_counted=bool(index and spent))
            for answer in results(outputs, at):
                steps += self.say(answer, f"{id_}/{index}/results")
        if spent and not taken:
            self.spend(id_, spent, model)
        return steps


def _opencode_steps(parts: list[Json]) -> list[tuple[list[Block], list[Block], list[Json]]]:
    """Return what each call of the model said and thought, and what its tools returned."""
    found: list[tuple[list[Block], list[Block], list[Json]]] = []
    current: tuple[list[Block], list[Block], list[Json]] = ([], [], [])
    for part in parts:
        match text(part, "type"):
            case "step-start":
                if current[0]:
                    found.append(current)
                    current = ([], [], [])
            case "reasoning":
                current[2].append({"type": "thinking", "thinking": text(part, "text")})
            case "tool":
                state = child(part, "state")
                id_ = text(part, "callID", "id")
                current[0].append(tool_use(id_, text(part, "tool"), state.get("input")))
                if (status := text(state, "status")) in ("completed", "error"):
                    output = text(state, "error") if status == "error" else text(state, "output")
                    current[1].append(tool_result(id_, output, is_error=status == "error"))
            case _:
                current[0].extend(_opencode_blocks(part))
    return [*found, current] if current[0] else found


def _opencode_blocks(part: Json) -> list[Block]:
    if text(part, "type") == "text" and text(part, "text"):
        return [text_block(text(part, "text"))]
    if text(part, "type") == "file":
        return [image(url=text(part, "url"), media_type=text(part, "mime"))]
    return []


def _opencode_tokens(figures: Json) -> Json | None:
    read, written = count(child(figures, "cache"), "read"), count(child(figures, "cache"), "write")
    return usage(
        count(figures, "input") + read + written, count(figures, "output") + count(figures, "reasoning"),
        cache_read_input_tokens=read, cache_creation_input_tokens=written,
    )  # fmt: skip


class Goose(Sessions, kw_only=True):
    """The state of a session of Goose."""

    name: ClassVar[str] = "goose"

    def read(self, record: Json) -> list[Step] | None:
        if "source" in record:
            return super().read(record)
        if "working_dir" in record and ("message_count" in record or "description" in record):
            return self.begin({"project": record["working_dir"], "agent": self.name})
        return self.message(record, record) if self.agent and "created" in record else None

    def message(self, given: Json, record: Json) -> list[Step] | None:
        role, id_, at = text(given, "role"), text(given, "id"), when(given.get("created"))
        if role not in ("user", "assistant") or not isinstance(given.get("content"), list):
            return None
        blocks: list[Block] = []
        outputs: list[Block] = []
        thinking: list[Json] = []
        for part in records(given, "content"):
            match text(part, "type"):
                case "text" if text(part, "text"):
                    blocks.append(text_block(text(part, "text")))
                case "image":
                    blocks.append(image(data=text(part, "data"), media_type=text(part, "mimeType")))
                case "toolRequest" | "frontendToolRequest":
                    call = child(child(part, "toolCall"), "value")
                    blocks.append(tool_use(text(part, "id"), text(call, "name"), call.get("arguments")))
                case "toolResponse":
                    outputs.append(_goose_result(part))
                case "thinking" | "redactedThinking":
                    thinking.append(part)
        steps: list[Step] = []
        for answer in results(outputs, at):
            steps += self.say(answer, f"{id_}/results" if id_ else "")
        if blocks and role == "user":
            steps += self.say(Message(role="user", content=blocks, at=at), id_)
        elif blocks:
            message = replied(blocks, at=at)
            message.thinking = thinking
            steps += self.say(message, id_)
        return steps


def _goose_result(part: Json) -> Block:
    given = child(part, "toolResult")
    value = given.get("value")
    content = value if isinstance(value, list) else items(child(given, "value"), "content")
    said = [text(each, "text") or text(child(each, "resource"), "text") for each in content if isinstance(each, dict)]
    failed = text(given, "status") == "error" or child(given, "value").get("isError") is True
    output = "\n".join(each for each in said if each) or text(given, "error") or compact(value or "")
    return tool_result(text(part, "id"), output, is_error=failed)


class Amp(Sessions, kw_only=True):
    """The state of a thread of Amp."""

    name: ClassVar[str] = "amp"

    def message(self, given: Json, record: Json) -> list[Step] | None:
        role, number = text(given, "role"), given.get("messageId")
        if role not in ("user", "assistant") or not isinstance(given.get("content"), list):
            return None
        id_ = str(number) if isinstance(number, int) else ""
        at = when(child(given, "meta").get("sentAt"))
        answers = [part for part in records(given, "content") if text(part, "type") == "tool_result"]
        rest = [part for part in records(given, "content") if text(part, "type") != "tool_result"]
        blocks, thinking = anthropic.content(rest)
        blocks = [block for block in blocks if block.text or block.type != "text"]
        steps: list[Step] = []
        for answer in results([_amp_result(part) for part in answers], at):
            steps += self.say(answer, f"{id_}/results" if id_ else "")
        if role == "user":
            return [*steps, *self.say(Message(role="user", content=blocks, at=at), id_)]
        message = replied(blocks, usage=_amp_tokens(child(given, "usage")), at=at)
        message.model, message.thinking = text(child(given, "usage"), "model"), thinking
        message.stop_reason = text(child(given, "state"), "stopReason")
        return [*steps, *self.say(message, id_)]


def _amp_result(part: Json) -> Block:
    run = child(part, "run")
    failed = text(run, "status") in ("error", "cancelled", "rejected-by-user")
    output = run.get("error" if failed and "error" in run else "result", part.get("content"))
    if isinstance(output, dict) and isinstance(output.get("output"), str):
        output = output["output"]
    elif isinstance(output, dict) and isinstance(output.get("message"), str):
        output = output["message"]
    return tool_result(text(part, "toolUseID", "tool_use_id"), compact(output or ""), is_error=failed)


def _amp_tokens(figures: Json) -> Json | None:
    read, written = count(figures, "cacheReadInputTokens"), count(figures, "cacheCreationInputTokens")
    return usage(
        count(figures, "inputTokens") + read + written, count(figures, "outputTokens"),
        cache_read_input_tokens=read, cache_creation_input_tokens=written,
    )  # fmt: skip


class Aider(Sessions, kw_only=True):
    """The state of one chat of Aider."""

    name: ClassVar[str] = "aider"

    def message(self, given: Json, record: Json) -> list[Step] | None:
        said = text(given, "text")
        if text(given, "role") == "user":
            return self.say(Message(role="user", content=[text_block(said)]))
        spent = usage(count(given, "sent"), count(given, "received"))
        return self.say(replied([text_block(said)], usage=spent, model=text(given, "model")))
