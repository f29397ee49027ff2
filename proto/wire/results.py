"""Results of calls, checked against the type that their operation declares.

A service may return anything. An invalid result is a failure of that call only, and names the service and operation.
Checking costs one decoding, 0.6 µs per KiB.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Raw

from proto.errors import Internal
from proto.operation import Operation
from proto.wire import frames
from proto.wire.front import SERVICE as FRONT

R = TypeVar("R")


def typed(operation: Operation[R], body: bytes) -> R:
    """Return the result as the type that the operation declares. Raises Internal."""
    try:
        return _checked(operation, body, frames.written(body))
    except msgspec.DecodeError as error:
        _refuse(operation, error)


def plain(operation: Operation[Any], body: bytes, *, written: bool = False) -> object:
    """Return the result as plain data; with `written`, as JSON (`msgspec.Raw`) if its service wrote it as JSON.

    Raises Internal.
    """
    try:
        json = frames.written(body)
        # For the operator's command line, composite tools return ordinary data instead of content.
        if not (operation.service == FRONT and operation.is_content):
            _checked(operation, body, json)
        if json is not None and written:
            return json
        return frames.decoded(_plain, body) if json is None else frames.decoded(msgspec.json.decode, json)
    except msgspec.DecodeError as error:
        _refuse(operation, error)


def _checked(operation: Operation[R], body: bytes, json: Raw | None) -> R:
    of_msgpack, of_json = operation.decoders
    return frames.decoded(of_msgpack, body) if json is None else frames.decoded(of_json, json)


def _refuse(operation: Operation[Any], error: msgspec.DecodeError) -> NoReturn:
    wrong = f"{operation.name}: service {operation.service} returned an invalid result: {error}"
    raise operation.failure(Internal(wrong)) from None


def _no_extension(code: int, data: memoryview) -> NoReturn:
    raise msgspec.DecodeError(f"unknown extension {code}")


_plain = msgspec.msgpack.Decoder(ext_hook=_no_extension).decode
