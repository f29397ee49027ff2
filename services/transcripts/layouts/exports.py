"""Exports of chat programs and capture tools: whole conversations, or single messages.

A record is a conversation (`messages` in the form of either API, `mapping` of ChatGPT's export, `chat_messages` of
Claude's, `conversations` of fine-tuning sets, `contents` of Gemini's API), a captured `{request, response}`, or one
message; single messages form one conversation. Nodes of a Merkle DAG, as tapes stores and serves them, are a separate
layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from services.transcripts.layouts import Layout, Step, passed, said, seconds
from services.transcripts.messages import ASSISTANT, Message, Title, TitleKind, image, text_block
from services.transcripts.operations.conversations import Block
from services.transcripts.providers import Rejected, TurnPayload, anthropic, gemini, ollama, openai, turn_of
from services.transcripts.providers.wire import Json, Unreadable, child, items, records, text

_ROLES = {"human": "user", "gpt": ASSISTANT, "bot": ASSISTANT, "model": ASSISTANT, "chatgpt": ASSISTANT}
_ROLE_NAMES = frozenset({"user", ASSISTANT, "system", "developer", "tool", "function", *_ROLES})
_ANTHROPIC_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
_CONTENTS = ("contents", "clientHistory", "history")
"""Keys in requests to Gemini's API and in checkpoints of its CLI."""
_NO_TITLES = frozenset({"new chat", "new conversation", "untitled"})
"""What programs call conversations without a title."""
_HIDDEN = frozenset({"thoughts", "reasoning_recap", "user_editable_context", "model_editable_context"})


class Exports(Layout, kw_only=True):
    """The layout state; `head` is the last of the single messages."""

    name: ClassVar[str] = "export"

    number: int = 0
    head: str = ""

    def read(self, record: Json) -> list[Step] | None:
        if (wrapped := _wrapped(record)) is not None:
            found = [steps for each in wrapped if (steps := self.read(each)) is not None]
            return [step for steps in found for step in steps] if found else None
        if _is_foreign(record):
            return None
        if isinstance(record.get("mapping"), dict):
            return _entitled(list(_chatgpt(record, self._key())), record, "title")
        if isinstance(record.get("chat_messages"), list):
            return _entitled(list(_claude_ai(record, self._key())), record, "name", "title")
        if "request" in record:
            return self._captured(record)
        provider = _provider(record, record)
        messages = _messages(record, provider)
        if messages is not None:
            step = _step(record, _dated(messages, record), "", self._key() if messages else "", provider)
            step.system = anthropic.system(record.get("system"))
            return _entitled([step] if messages else [], record, "title", "name")
        if text(record, "role") in _ROLE_NAMES and ("content" in record or "tool_calls" in record or "parts" in record):
            return self._single(record, provider)
        return None

    def _key(self) -> str:
        self.number += 1
        return f"#{self.number}"

    def _captured(self, record: Json) -> list[Step] | None:
        payload = TurnPayload(
            provider=_provider(record, child(record, "request")),
            agent_name=text(record, "agent_name"),
            project=text(record, "project"),
            request=record["request"],
            response=record.get("response"),
        )
        try:
            turn = turn_of(payload)
        except (Rejected, Unreadable):
            return None
        _dated(turn.messages, record)
        return [Step(**msgspec.structs.asdict(turn), after="", keys=[self._key()])]

    def _single(self, record: Json, provider: str) -> list[Step]:
        message = gemini.api_message(record) if "parts" in record else _message(record, provider)
        message.at = _time(record)
        if not message.content:
            return []
        after, self.head = self.head, self._key()
        provider = gemini.NAME if "parts" in record else _provider(record, {"messages": [record]})
        return [_step(record, [message], after, self.head, provider)]


def _wrapped(record: Json) -> list[Json] | None:
    """Return the conversations in a record that contains several, or one with data about it; None for any other."""
    if isinstance(chat := record.get("chat"), dict) and isinstance(chat.get("messages"), list):
        return [{"title": record.get("title"), **chat}]
    for name in ("conversations", "chats", "data"):
        if any(_is_conversation(each) for each in records(record, name)):
            return list(records(record, name))
    return None


def _is_conversation(record: Json) -> bool:
    return isinstance(record.get("mapping"), dict) or any(
        isinstance(record.get(name), list) for name in ("chat_messages", "messages")
    )


def _is_foreign(record: Json) -> bool:
    """Return True for a conversation whose messages all have an unknown form; one without messages is known."""
    known: tuple[str, ...]
    if isinstance(record.get("mapping"), dict):
        nodes = (node for node in record["mapping"].values() if isinstance(node, dict))
        said, known = [child(node, "message") for node in nodes if node.get("message")], ("content", "author")
    elif isinstance(record.get("chat_messages"), list):
        said, known = items(record, "chat_messages"), ("text", "content")
    elif isinstance(record.get("messages"), list):
        said, known = items(record, "messages"), ("content", "text", "parts", "tool_calls", "function_call", "refusal")
    else:
        return False
    return bool(said) and not any(isinstance(each, dict) and any(name in each for name in known) for each in said)


def _entitled(steps: list[Step], record: Json, *fields: str) -> list[Step]:
    """Add a conversation's title to the step of its first message."""
    title = text(record, *fields)
    if title.strip() and title.strip().casefold() not in _NO_TITLES:
        for step in steps:
            if step.messages:
                step.titles = [Title(kind=TitleKind.OWN, text=title)]
                break
    return steps


def _step(record: Json, messages: list[Message], after: str, key: str, provider: str) -> Step:
    return Step(
        messages=messages,
        after=after,
        keys=[key],
        provider=provider,
        model=text(record, "model"),
        agent=text(record, "agent_name"),
        project=text(record, "project", "cwd"),
    )


def _dated(messages: list[Message], record: Json) -> list[Message]:
    """Give messages without a time the record's time."""
    for message in messages:
        message.at = message.at or _time(record)
    return messages


def _messages(record: Json, provider: str) -> list[Message] | None:
    """Return the messages of a conversation; None if the record is something else."""
    if isinstance(record.get("messages"), list):
        return [message for item in records(record, "messages") if (message := _message(item, provider)).content]
    for name in _CONTENTS:
        is_list = isinstance(record.get(name), list)
        if is_list and (name == "contents" or any("parts" in item for item in records(record, name))):
            return [message for item in records(record, name) if (message := gemini.api_message(item)).content]
    if isinstance(record.get("conversations"), list):
        return [
            Message(role=_role(text(item, "from", "role")), content=[text_block(text(item, "value", "content"))])
            for item in records(record, "conversations")
        ]
    return None


def _message(item: Json, provider: str) -> Message:
    read = {anthropic.NAME: anthropic.message, ollama.NAME: ollama.message}.get(provider, openai.message)
    if "role" not in item:
        by = text(item, "sender", "from").lower()
        if isinstance(is_user := item.get("isCreatedByUser"), bool):
            by = "user" if is_user else ASSISTANT
        item = {**item, "role": by}
    if item.get("content") is None and isinstance(item.get("text"), str):
        item = {**item, "content": item["text"]}
    message = read({**item, "role": _role(text(item, "role"))})
    message.at = _time(item)
    return message


def _role(given: str) -> str:
    return _ROLES.get(given, given or "user")


def _provider(record: Json, body: Json) -> str:
    """Detect the provider by fields that only one of them has."""
    if named := text(record, "provider"):
        return named
    if "contents" in body or any("parts" in item for name in _CONTENTS for item in records(body, name)):
        return gemini.NAME
    if "system" in body or text(body, "model").startswith("claude"):
        return anthropic.NAME
    for item in records(body, "messages"):
        for part in records(item, "content"):
            kind = text(part, "type")
            if kind in _ANTHROPIC_BLOCKS or (kind == "image" and "source" in part):
                return anthropic.NAME
    return openai.NAME


def _time(record: Json) -> float | None:
    for name in ("timestamp", "created_at", "create_time", "created"):
        if (found := seconds(record.get(name))) is not None:
            return found
    return None


def _claude_ai(record: Json, number: str) -> Iterator[Step]:
    """Read a conversation of Claude's data export; branches follow `parent_message_uuid` if present."""
    before = ""
    for index, item in enumerate(records(record, "chat_messages")):
        key = text(item, "uuid") or f"{number}/{index}"
        blocks, thinking = anthropic.content(item.get("content") or text(item, "text"))
        extracted = (text(attached, "extracted_content") for attached in records(item, "attachments"))
        blocks += (text_block(each) for each in extracted if each)
        after = text(item, "parent_message_uuid") or before
        before = key
        if not any(block.text or block.type != "text" for block in blocks):
            yield passed(key, after)
            continue
        role, model = _role(text(item, "sender")), text(record, "model")
        message = Message(role=role, content=blocks, thinking=thinking, at=_time(item), model=model)
        yield said(message, key, after, anthropic.NAME, "claude.ai", session=text(record, "uuid"))


def _chatgpt(record: Json, number: str) -> Iterator[Step]:
    """Read a conversation of ChatGPT's data export: a tree, parents before children."""
    mapping = {key: node for key, node in record["mapping"].items() if isinstance(node, dict)}
    session = text(record, "conversation_id", "id")
    conversation = session or number
    waiting = [(key, "") for key, node in reversed(mapping.items()) if text(node, "parent") not in mapping]
    seen: set[str] = set()
    while waiting:
        key, parent = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        node = mapping[key]
        named = [name for name in items(node, "children") if isinstance(name, str) and name in mapping]
        waiting += ((below, key) for below in reversed(named))
        at, after = f"{conversation}/{key}", f"{conversation}/{parent}" if parent else ""
        message = _chatgpt_message(child(node, "message"))
        if message is None:
            yield passed(at, after)
            continue
        yield said(message, at, after, openai.NAME, "chatgpt", session=session)


def _chatgpt_message(given: Json) -> Message | None:
    body = child(given, "content")
    if text(body, "content_type") in _HIDDEN:
        return None
    parts = body.get("parts")
    blocks = []
    for part in parts if isinstance(parts, list) else [text(body, "text", "result")]:
        item = part if isinstance(part, dict) else {"text": part}
        if url := text(item, "asset_pointer"):
            blocks.append(image(url=url))
        elif spoken := text(item, "text"):
            blocks.append(text_block(spoken))
    if not blocks:
        return None
    role, model = text(child(given, "author"), "role") or "user", text(child(given, "metadata"), "model_slug")
    return Message(role=role, content=blocks, model=model, at=_time(given))


class Nodes(Layout, kw_only=True):
    """`{hash, parent_hash, bucket, stop_reason, usage, project}`; parents come before their children."""

    name: ClassVar[str] = "nodes"

    def read(self, record: Json) -> list[Step] | None:
        bucket = child(record, "bucket")
        role, hash_, parent = text(bucket, "role"), text(record, "hash"), text(record, "parent_hash")
        if not hash_ or not role:
            return None
        usage, stop_reason = child(record, "usage"), text(record, "stop_reason")
        message = Message(
            role=role,
            content=_blocks(bucket),
            reply=role == ASSISTANT and bool(usage or stop_reason),
            stop_reason=stop_reason,
            usage=usage or None,
            at=seconds(record.get("created_at")),
        )
        after = f"node/{parent}" if parent else ""
        provider, agent, model = (text(bucket, of) for of in ("provider", "agent_name", "model"))
        return [said(message, f"node/{hash_}", after, provider, agent, model=model, project=text(record, "project"))]


def _blocks(bucket: Json) -> list[Block]:
    if spoken := text(bucket, "content"):
        return [text_block(spoken)]
    found: list[Block] = []
    for item in records(bucket, "content"):
        try:
            found.append(msgspec.convert({"is_error": False, **item}, Block))
        except msgspec.ValidationError:
            found.append(text_block(text(item, "text")))
    return found
