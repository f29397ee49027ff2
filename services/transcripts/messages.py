"""A stored message, independent of its API: its text for reading and searching, its hash and its projection.

Its hash is the SHA-256 of the canonical JSON (RFC 8785) of the message and its parent's hash:

    sha256({"content": {"content": [blocks], "model": …, "provider": …, "role": …, "type": "message"}, "parent": …})

The frame has fixed keys, which are written directly in canonical order; tool arguments may contain anything, and are
encoded by the library. The projection leaves out who carried the message (model, provider, agent) and what agents
change each time they repeat it, so that a conversation is recognised by it.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import rfc8785

from services.shared.linear import without_spans
from services.transcripts.operations.conversations import Block

_encode = msgspec.json.Encoder().encode

PROJECTION_BYTES = 16

ASSISTANT = "assistant"

TEXT, IMAGE, TOOL_USE, TOOL_RESULT = "text", "image", "tool_use", "tool_result"


TAGS = (
    "system-reminder",
    "system_reminder",
    "command-name",
    "command-message",
    "command-contents",
    "local-command-stdout",
    "local-command-stderr",
    "local-command-caveat",
    "user-prompt-submit-hook",
    "task-notification",
    "ide_opened_file",
    "ide_selection",
    "ide_diagnostics",
    "environment_context",
    "environment_details",
    "user_instructions",
    "INSTRUCTIONS",
    "permissions instructions",
    "collaboration_mode",
    "session_context",
    "turn_aborted",
    "user_info",
    "open_files",
    "open_and_recently_viewed_files",
    "additional_data",
)
"""Tags whose content comes from the agent, not from the person or the model. If it were kept, unrelated turns would
look alike, and the real content would be harder to find."""

BARE_TAGS = ("command-args", "user_query", "user_shell_command")
"""Tags whose content comes from the person."""
_LINE_REST = re.compile(r"[ \t]*\n?")


@dataclass(slots=True)
class Message:
    """One message, before it has a place in a conversation.

    `thinking` is the model's thinking before the reply. It is stored apart from the content: APIs drop it from the
    history that is sent back, and a reply and its echo are one node. `model` is who said it, if known and different
    from the requested model. `reply` is True for a model's reply, False for a client's repetition.
    """

    role: str
    content: list[Block]
    thinking: list[dict[str, Any]] = field(default_factory=list)
    model: str = ""
    reply: bool = False
    stop_reason: str = ""
    usage: dict[str, Any] | None = None
    at: float | None = None

    def extend(self, more: Message) -> None:
        """Append the continuation of the same model message."""
        self.content += more.content
        self.thinking += more.thinking


class Call(msgspec.Struct, kw_only=True):
    """A model call as stated by a log.

    `key` is the same in every copy of the log. `session` is the one that made the call, if copies of it exist: a fork
    that was imported first gives it back.
    """

    key: str
    session: str = ""
    model: str
    usage: dict[str, Any]


class TitleKind(enum.IntEnum):
    """Who gave a conversation its title. The greatest kind wins; of one kind, the latest."""

    TASK = 1
    """The task of a sub-agent."""
    SUMMARY = 2
    GENERATED = 3
    NAME = 4
    """A name that an agent was given."""
    OWN = 5
    """By the user."""


class Title(msgspec.Struct, kw_only=True):
    """A title that a log states; an empty text withdraws an earlier one of its kind."""

    kind: TitleKind
    text: str


class Turn(msgspec.Struct, kw_only=True):
    """A request with its reply, or a piece of a conversation: messages in order.

    `session` names the conversation if the log does; if empty, the first user turn does. `side` marks a subagent's
    turn. `calls` are the tokens that the log states for the turn; if empty, the `usage` of its replies counts.
    `counted` means that the log states the tokens of the last message elsewhere. `titles` are the conversation's.
    `copies` is the hash of the stored turn that the only message repeats. `branch` is that of the project's repository.
    `reply_id`, `thread_id` and `follows` are names of an API that stores its conversations: those by which later turns
    continue this one, and the one that it continues.
    """

    provider: str
    messages: list[Message]
    model: str = ""
    agent: str = ""
    project: str = ""
    system: str = ""
    at: float | None = None
    session: str = ""
    side: bool = False
    calls: list[Call] = []
    counted: bool = False
    titles: list[Title] = []
    copies: str = ""
    branch: str = ""
    reply_id: str = ""
    thread_id: str = ""
    follows: str = ""

    @property
    def is_linked(self) -> bool:
        """True if the turn is part of a conversation that its API stores."""
        return bool(self.reply_id or self.thread_id or self.follows)


def text_block(text: str) -> Block:
    return Block(type=TEXT, is_error=False, text=text)


def tool_use(id_: str, name: str, arguments: object) -> Block:
    """Build a tool call; arguments that are not an object are stored under `input`."""
    if isinstance(arguments, str):
        # Truncated arguments, and those of a tool that takes plain text, are kept unchanged.
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            arguments = msgspec.json.decode(arguments) if arguments.strip() else None
    if arguments is not None and not isinstance(arguments, dict):
        arguments = {"input": arguments}
    return Block(type=TOOL_USE, is_error=False, tool_use_id=id_, tool_name=name, tool_input=arguments or None)


def tool_result(id_: str, output: str, *, is_error: bool = False) -> Block:
    return Block(type=TOOL_RESULT, is_error=is_error, tool_result_id=id_, tool_output=output)


def image(*, url: str = "", data: str = "", media_type: str = "") -> Block:
    """Build a block for an image or other medium, according to its media type; a data URL is taken apart."""
    if url.startswith("data:") and ";base64," in url:
        head, _, data = url.partition(";base64,")
        media_type, url = head.removeprefix("data:").partition(";")[0], ""
    return Block(type=IMAGE, is_error=False, image_url=url, image_base64=data, media_type=media_type)


def without_empty_text(blocks: Sequence[Block]) -> list[Block]:
    """Drop empty texts next to other blocks; clients add and omit them arbitrarily."""
    telling = [block for block in blocks if block.type != TEXT or block.text]
    return telling or list(blocks[:1])


def read_text(blocks: Iterable[Block]) -> str:
    """Return spoken text, tool output and tool calls as readable text."""
    parts = (block.text or block.tool_output or (call_text(block) if block.tool_name else "") for block in blocks)
    return "\n".join(part for part in parts if part)


def call_text(block: Block) -> str:
    """Return a tool call on one line."""
    arguments = "" if block.tool_input is None else msgspec.json.encode(block.tool_input).decode()
    return f"Tool call: {block.tool_name}({arguments})"


def spoken_text(blocks: Iterable[Block]) -> str:
    """Return spoken text and tool output, the text for semantic search."""
    return "\n".join(part for block in blocks if (part := block.text or block.tool_output))


def calls_text(blocks: Iterable[Block]) -> str:
    """Return the tool calls, which are found by words."""
    return "\n".join(call_text(block) for block in blocks if block.tool_name)


_FILES = ("file_path", "notebook_path", "path", "filename", "filePath", "target_file", "relative_workspace_path")
_PATCHED = re.compile(r"^\*\*\* (?:Update|Add|Delete) File: (.+)$", re.MULTILINE)
_CHANGE = re.compile(r'"change":\s?"([0-9a-z-]{1,64})"')

MAX_SHOWN = 20
"""Most files, and most changes, that are named for a turn."""


def files_of(blocks: Iterable[Block]) -> list[str]:
    """Return the files that the tool calls name, without repetitions."""
    found: dict[str, None] = {}
    for block in blocks:
        given = block.tool_input if isinstance(block.tool_input, dict) else {}
        found |= dict.fromkeys(path for name in _FILES if isinstance(path := given.get(name), str) and path)
        for patch in (given.get("input"), given.get("patch")):
            if isinstance(patch, str):
                found |= dict.fromkeys(map(str.strip, _PATCHED.findall(patch)))
    return list(found)[:MAX_SHOWN]


def changes_of(blocks: Iterable[Block]) -> list[str]:
    """Return the ids of changes that Linckia's own tools answered with (`changes_show` takes them)."""
    found = (each for block in blocks if block.tool_output for each in _CHANGE.findall(block.tool_output))
    return list(dict.fromkeys(found))[:MAX_SHOWN]


class Stripper:
    """Removes agent tags and their content; `more` names additional tags."""

    def __init__(self, more: Iterable[str] = ()) -> None:
        names = "|".join(map(re.escape, (*TAGS, *more)))
        self._opening = re.compile(rf"<({names})(?:\s[^<>]*)?>")
        self._bare = re.compile(rf"</?(?:{'|'.join(BARE_TAGS)})>")

    def __call__(self, text: str) -> str:
        """Return `text` without the tags; the same object if it has none."""
        if "</" not in text:
            return text
        return self._bare.sub("", without_spans(self._opening, text, _LINE_REST))


# Hash and projection


class OutOfRange(ValueError):
    """A number that JSON's canonical form cannot represent."""


def canonical_json(value: Any) -> bytes:
    """Encode as RFC 8785. Raises OutOfRange."""
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        # To JSON a number is a double, whatever it looks like.
        return rfc8785.dumps(_as_doubles(value))
    except rfc8785.CanonicalizationError as error:
        raise OutOfRange(str(error)) from None


def _as_doubles(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int():
            try:
                return float(value)
            except OverflowError:
                raise OutOfRange("a number is out of the range of JSON") from None
        case dict():
            return {key: _as_doubles(item) for key, item in value.items()}
        case list():
            return [_as_doubles(item) for item in value]
        case _:
            return value


def content_json(blocks: Sequence[Block]) -> bytes:
    """Return the canonical form of a message's content. Raises OutOfRange."""
    return b"[%b]" % b",".join(map(_block_json, blocks))


def _block_json(block: Block) -> bytes:
    if block.tool_input is None:
        return _encode(block)
    # The struct's fields are written in the order of their names; the arguments are inserted in their final form.
    changes: dict[str, Any] = {"tool_input": msgspec.Raw(canonical_json(block.tool_input))}
    return _encode(msgspec.structs.replace(block, **changes))


def canonical(content: bytes, *, role: str, model: str, provider: str, agent: str = "", parent: str = "") -> bytes:
    """Return the bytes that are hashed; `content` is already canonical."""
    agent_name = b'"agent_name":%b,' % _encode(agent) if agent else b""
    names = (_encode(model), _encode(provider), _encode(role))
    bucket = b'{%b"content":%b,"model":%b,"provider":%b,"role":%b,"type":"message"}' % (agent_name, content, *names)
    return b'{"content":%b,"parent":"%b"}' % (bucket, parent.encode())


def node_hash(canonical_form: bytes) -> bytes:
    return hashlib.sha256(canonical_form).digest()


def projection(parent: bytes, role: str, blocks: Sequence[Block], strip: Callable[[str], str]) -> bytes:
    """Return the name that identifies a repeated message after `parent` (a projection, or empty).

    Args:
        strip: removes text that agents add to messages on their own.
    """
    said: list[object] = [role]
    for block in blocks:
        text = strip(block.text)
        if block.text and not text.strip():
            continue
        arguments = None if block.tool_input is None else canonical_json(_telling(block.tool_input)).decode()
        image, call = (block.image_url, block.image_base64), (block.tool_use_id, block.tool_name, arguments)
        result = (block.tool_result_id, strip(block.tool_output), block.is_error)
        said.append((block.type, text, *image, *call, *result))
    return hashlib.sha256(parent + _encode(said)).digest()[:PROJECTION_BYTES]


def _telling(arguments: dict[str, Any]) -> dict[str, Any]:
    """Drop zero values: a streamed call has them, and the same call sent back omits them."""
    return {key: value for key, value in arguments.items() if value or (isinstance(value, float) and math.isnan(value))}
