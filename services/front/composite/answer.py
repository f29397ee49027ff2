"""The results of composite tools, encoded to JSON once, step by step.

The result of a step is encoded when the step ends, so that its size is known before the next one runs.  This bounds the
whole result, and nothing is truncated silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from proto.errors import Failure, OperationError
from proto.json_types import JsonObject
from proto.operation import Operation
from services.front.excerpt import Excerpt
from services.front.protocol.failures import as_data, message_of

MAX_BYTES = 32 * 1024 * 1024
"""Longest result; half of the longest message, because text and structured content both contain it."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Composed(msgspec.Struct, frozen=True):
    """The result of `tools/call`, with its parts encoded.

    `structured` is a JSON object.  `blocks` is a JSON list of content; None stands for the object as one text block.
    """

    structured: bytes | None
    blocks: bytes | None = None
    is_error: bool = False

    def encoded(self, tail: bytes) -> bytes:
        """Return the result as JSON; `tail` holds further members (`,"name":…`)."""
        blocks = self.blocks
        if blocks is None:
            blocks = b'[{"type":"text","text":%b}]' % _encode((self.structured or b"").decode())
        structured = b"" if self.structured is None else b',"structuredContent":%b' % self.structured
        return b'{"content":%b%b,"isError":%b%b}' % (blocks, structured, b"true" if self.is_error else b"false", tail)

    def wire(self) -> JsonObject:
        """Return the result as decoded JSON."""
        decoded: JsonObject = _decode(self.encoded(b""))
        return decoded

    def plain(self) -> object:
        """Return the content alone, for callers that are not MCP clients."""
        return _decode(self.structured if self.structured is not None else self.blocks or b"null")


def as_json(value: object) -> Any:
    """Return a result in JSON's types, for the next step: bytes as base64, keys as text."""
    return msgspec.to_builtins(value, str_keys=True)


def direct(operation: Operation[object], value: object) -> Composed:
    """Return the result of a single step, as the operation itself would return it."""
    if operation.is_content and isinstance(value, Mapping):
        structured = value.get("structuredContent")
        return Composed(
            structured=None if structured is None else bytes(sized(structured)),
            blocks=bytes(sized(value.get("content", []))),
            is_error=value.get("isError") is True,
        )
    encoded = bytes(sized(value))
    wraps = operation.wraps_result and not isinstance(value, Excerpt)
    return Composed(b'{"result":%b}' % encoded if wraps else encoded)


def composed(value: object, *, is_error: bool = False) -> Composed:
    """Return an object as the result; `Raw` values in it are JSON already."""
    return Composed(_encode(value), is_error=is_error)


def sized(value: object, already: int = 0) -> Raw:
    """Encode the value to JSON.

    Raises:
        OperationError: together with the `already` bytes before it, it exceeds `MAX_BYTES`.
    """
    data = _encode(value)
    if already + len(data) > MAX_BYTES:
        raise OperationError(
            f"the result is {len(data)} bytes long; with the {already} before it, that exceeds the {MAX_BYTES} bytes "
            "that one answer may hold; ask for less (limit, offset and length, fewer steps)"
        )
    return Raw(data)


def failed(failure: Failure) -> JsonObject:
    """Return a failure as the result of a step: as a sentence, and as data for programs."""
    return {"error": message_of(failure), "failure": as_data(failure)}
