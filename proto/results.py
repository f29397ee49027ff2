"""The result of a call as its caller gets it: checked against the type that its operation declares.

A service may answer anything. What does not fit is a failure of that call alone, which names the service and the
operation. Checking costs one decoding, 0.6 µs a KiB.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Raw

from linckia.proto import frames
from linckia.proto.errors import Internal
from linckia.proto.front import SERVICE as FRONT
from linckia.proto.operation import Operation

R = TypeVar("R")


def typed(operation: Operation[R], body: bytes) -> R:
    """The result as the type that the operation declares.  Raises Internal."""
    try:
        return _checked(operation, body, frames.written(body))
    except msgspec.DecodeError as error:
        _refuse(operation, error)


def plain(operation: Operation[Any], body: bytes, *, written: bool = False) -> object:
    """The result as plain data; with `written`, as JSON (`msgspec.Raw`) where its service wrote it as such.

    Raises Internal.
    """
    try:
        json = frames.written(body)
        # Composite tools answer the operator's command line ordinary data in place of content.
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
    wrong = f"{operation.name}: service {operation.service} answered what is no result: {error}"
    raise operation.failure(Internal(wrong)) from None


def _no_extension(code: int, data: memoryview) -> NoReturn:
    raise msgspec.DecodeError(f"the unknown extension {code}")


_plain = msgspec.msgpack.Decoder(ext_hook=_no_extension).decode
