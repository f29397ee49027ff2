"""The shapes of results that MCP allows a server to return, for the methods that clients use.

Only what the protocol defines is checked. Additional members, result types and content types that a newer revision may
bring are allowed, and so is `null` for an optional member, which many servers write. Nothing is changed: a result is
passed on as it was written, or not at all. Long texts are not decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw

Object: TypeAlias = dict[str, Raw]

_NONE: Final = Raw(b"")
_QUOTE, _BRACE = ord('"'), ord("{")


class _Contents(msgspec.Struct):
    """The contents of a resource."""

    uri: str
    text: Raw = _NONE
    blob: Raw = _NONE
    mime: str | None = msgspec.field(default=None, name="mimeType")


class _Block(msgspec.Struct):
    """A block of content of any type; the type decides which members it must have."""

    type: str
    text: Raw = _NONE
    data: Raw = _NONE
    mime: Raw = msgspec.field(default=_NONE, name="mimeType")
    uri: Raw = _NONE
    name: Raw = _NONE
    resource: Raw = _NONE


_TEXTS: Final = {
    "text": ("text",),
    "image": ("data", "mime"),
    "audio": ("data", "mime"),
    "resource_link": ("uri", "name"),
}
"""The members of a block that must be texts, by its type."""

_WRITTEN: Final = {"mime": "mimeType"}


class _Result(msgspec.Struct):
    """What all results have."""

    kind: str | None = msgspec.field(default=None, name="resultType")
    meta: Object | None = msgspec.field(default=None, name="_meta")


class _Asking(msgspec.Struct):
    """A result of the type `input_required`."""

    inputs: dict[str, Object] | None = msgspec.field(default=None, name="inputRequests")
    state: str | None = msgspec.field(default=None, name="requestState")


class _Called(_Result, kw_only=True):
    content: list[_Block] | msgspec.UnsetType = msgspec.UNSET
    failed: bool | None = msgspec.field(default=None, name="isError")
    structured: Raw = msgspec.field(default=_NONE, name="structuredContent")
    task: Raw = _NONE
    former: Raw = msgspec.field(default=_NONE, name="toolResult")


class _PromptMessage(msgspec.Struct):
    role: str
    content: _Block


class _Prompt(_Result, kw_only=True):
    messages: list[_PromptMessage]
    description: str | None = None


class _Read(_Result, kw_only=True):
    contents: list[_Contents]


class _Completion(msgspec.Struct):
    values: list[str]
    total: float | None = None
    more: bool | None = msgspec.field(default=None, name="hasMore")


class _Completed(_Result, kw_only=True):
    completion: _Completion


class _List(_Result):
    cursor: str | None = msgspec.field(default=None, name="nextCursor")


class _Tools(_List, kw_only=True):
    tools: list[Raw]


class _Prompts(_List, kw_only=True):
    prompts: list[Raw]


class _Resources(_List, kw_only=True):
    resources: list[Raw]


class _Templates(_List, kw_only=True):
    templates: list[Raw] = msgspec.field(name="resourceTemplates")


class _Error(msgspec.Struct):
    code: int
    message: str


class Disallowed(Exception):
    """A server's reply has not the form that the protocol requires; the message says where, and what would be right."""


_result = msgspec.json.Decoder(_Result)
_asking = msgspec.json.Decoder(_Asking)
_error = msgspec.json.Decoder(_Error)
_contents = msgspec.json.Decoder(_Contents)


def check(method: str, result: Raw, *, modern: bool) -> None:
    """Check the result of a request. Raises Disallowed.

    Args:
        modern: whether the server speaks a revision without a handshake, whose structured content may be any JSON.
    """
    shape = _SHAPES.get(method)
    try:
        found = _result.decode(result) if shape is None else shape.decode(result)
    except msgspec.ValidationError as error:
        # The members of a type that a newer revision defines are not known here.
        if (kind := _kind(result)) in (None, "complete"):
            raise Disallowed(_said("result", error)) from None
        found = _Result(kind=kind)
    if found.kind == "input_required":
        _decode(_asking, result, "result")
    elif shape is not None and found.kind in (None, "complete"):
        _CHECKS.get(type(found), _no_more)(found, modern)


def check_error(error: Raw) -> str:
    """Check an error and return its message. Raises Disallowed."""
    message: str = _decode(_error, error, "error").message
    return message


def _kind(result: Raw) -> str | None:
    try:
        return _result.decode(result).kind
    except msgspec.ValidationError:
        return None


def _no_more(found: Any, modern: bool) -> None:
    """All has been checked."""


def _check_call(found: _Called, modern: bool) -> None:
    if isinstance(found.content, msgspec.UnsetType):
        # Servers have left it out beside other members, and older revisions had none; clients understand both.
        if found.structured is _NONE and found.task is _NONE and found.former is _NONE:
            raise Disallowed("`result.content` is missing; it must be a list of blocks")
    else:
        _check_blocks("result.content", found.content)
    if not modern and found.structured is not _NONE and not _begins(found.structured, _BRACE) and _is(found.structured):
        raise Disallowed("`result.structuredContent`: expected an object")


def _check_prompt(found: _Prompt, modern: bool) -> None:
    for number, each in enumerate(found.messages):
        _check_block(f"result.messages[{number}].content", each.content)


def _check_read(found: _Read, modern: bool) -> None:
    for number, each in enumerate(found.contents):
        _check_contents(f"result.contents[{number}]", each)


_CHECKS: Final[dict[type, Callable[[Any, bool], None]]] = {
    _Called: _check_call,
    _Prompt: _check_prompt,
    _Read: _check_read,
}


def _check_blocks(where: str, blocks: Iterable[_Block]) -> None:
    for number, block in enumerate(blocks):
        if block.type != "text" or not _begins(block.text, _QUOTE):
            _check_block(f"{where}[{number}]", block)


def _check_block(where: str, block: _Block) -> None:
    for member in _TEXTS.get(block.type, ()):
        value = getattr(block, member)
        if not _begins(value, _QUOTE):
            name = _WRITTEN.get(member, member)
            problem = "is missing; it must be a text" if value is _NONE else "must be a text"
            raise Disallowed(f"`{where}.{name}` {problem} in a block of the type `{block.type}`")
    if block.type == "resource":
        if block.resource is _NONE:
            raise Disallowed(f"`{where}.resource` is missing; it must be an object")
        _check_contents(f"{where}.resource", _decode(_contents, block.resource, f"{where}.resource"))


def _check_contents(where: str, found: _Contents) -> None:
    if not (_begins(found.text, _QUOTE) or _begins(found.blob, _QUOTE)):
        raise Disallowed(f"`{where}` must have a text as `text` or `blob`")


def _begins(value: Raw, letter: int) -> bool:
    return value is not _NONE and memoryview(value)[0] == letter


def _is(value: Raw) -> bool:
    return bytes(value) != b"null"


def _decode(decoder: msgspec.json.Decoder[Any], value: Raw, where: str) -> Any:
    try:
        return decoder.decode(value)
    except msgspec.ValidationError as error:
        raise Disallowed(_said(where, error)) from None


def _said(where: str, error: msgspec.ValidationError) -> str:
    problem, _, path = str(error).partition(" - at `$")
    return f"`{where}{path.rstrip('`')}`: {problem[0].lower()}{problem[1:]}"


_SHAPES: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    method: msgspec.json.Decoder(shape)
    for method, shape in {
        "tools/call": _Called,
        "prompts/get": _Prompt,
        "resources/read": _Read,
        "completion/complete": _Completed,
        "tools/list": _Tools,
        "prompts/list": _Prompts,
        "resources/list": _Resources,
        "resources/templates/list": _Templates,
    }.items()
}
