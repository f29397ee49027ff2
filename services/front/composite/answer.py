"""What a composite tool answers: JSON that is made once, step by step, and handed on as it is.

A result is encoded when its step ends, so that its size is known before the next one runs: no answer grows without
bound, and none is cut in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from linckia.proto.errors import Failure, OperationError
from linckia.proto.json_types import JsonObject
from linckia.proto.operation import Operation
from linckia.services.front.excerpt import Excerpt
from linckia.services.front.protocol.failures import as_data, message_of

MAX_BYTES = 32 * 1024 * 1024
"""Of one answer; half of what a message may hold, since text and structured content both carry it."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Composed(msgspec.Struct, frozen=True):
    """The result of `tools/call`, all but put together.

    `structured` is a JSON object; `blocks`, a JSON list of content, is the object itself as text where it is None.
    """

    structured: bytes | None
    blocks: bytes | None = None
    is_error: bool = False

    def encoded(self, tail: bytes) -> bytes:
        """The result as JSON; `tail` holds further members (`,"name":…`)."""
        blocks = self.blocks
        if blocks is None:
            blocks = b'[{"type":"text","text":%b}]' % _encode((self.structured or b"").decode())
        structured = b"" if self.structured is None else b',"structuredContent":%b' % self.structured
        return b'{"content":%b%b,"isError":%b%b}' % (blocks, structured, b"true" if self.is_error else b"false", tail)

    def wire(self) -> JsonObject:
        """The same as decoded JSON."""
        decoded: JsonObject = _decode(self.encoded(b""))
        return decoded

    def plain(self) -> object:
        """What there is to read, for callers that are no MCP client."""
        return _decode(self.structured if self.structured is not None else self.blocks or b"null")


def as_json(value: object) -> Any:
    """A result as JSON has it, for the next step: bytes as base64, keys as text."""
    return msgspec.to_builtins(value, str_keys=True)


def direct(operation: Operation[object], value: object) -> Composed:
    """The result of a single step: what the operation itself would answer."""
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
    """An object as the answer; `Raw` values in it are JSON already."""
    return Composed(_encode(value), is_error=is_error)


def sized(value: object, already: int = 0) -> Raw:
    """The value as JSON.  Raises OperationError: with the `already` bytes of the answer, it would be longer than an
    answer may be."""
    data = _encode(value)
    if already + len(data) > MAX_BYTES:
        raise OperationError(
            f"the result is {len(data)} bytes long, which with the {already} before it is more than the {MAX_BYTES} "
            "that one answer may hold; ask for less of it (limit, offset and length, fewer steps)"
        )
    return Raw(data)


def failed(failure: Failure) -> JsonObject:
    """A failure as the result of a step: a sentence, and the same for programs."""
    return {"error": message_of(failure), "failure": as_data(failure)}
