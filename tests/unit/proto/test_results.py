"""A service may answer anything; its caller gets what the operation declares, or a failure that says who did not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from proto.errors import Executed, Internal
from proto.operation import Access, Operation, Params, operation, operation_of
from proto.wire import frames
from tests.fuzz.frames.hostile import BROKEN_TEXT, DEEP


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """So many, and of what."""

    n: int
    of: Any = None


@operation("results.count", service="counter", access=Access.WRITE, idempotent=True, deadline_s=1)
class Count(Params[Counted], frozen=True, kw_only=True):
    """Count."""


@operation("results.look", service="counter", access=Access.READ, deadline_s=1)
class Look(Params[Counted], frozen=True, kw_only=True):
    """Count and change nothing."""


COUNT: Operation[Counted] = operation_of(Count)

GOOD = frames.pack_body(Counted(n=1))


def packed(value: object) -> bytes:
    return bytes(frames.pack_body(value))


BAD = {
    "another type": packed([1]),
    "nothing": b"",
    "nil": packed(None),
    "a missing member": packed({"of": 1}),
    "a member of another type": packed({"n": "1"}),
    "text that is no UTF-8": b"\x82\xa1n\x01\xa2of" + BROKEN_TEXT,
    "text that is no UTF-8 where it is not looked at": b"\x82\xa1n\x01\xa1x" + BROKEN_TEXT,
    "endless depth": b"\x82\xa1n\x01\xa2of" + DEEP,
    "an unknown extension": packed(msgspec.msgpack.Ext(7, b"")),
    "an unknown extension inside": packed({"n": 1, "of": msgspec.msgpack.Ext(7, b"")}),
    "no msgpack": b"\xc1",
    "two values": packed({"n": 1}) * 2,
    "an extension that is cut off": b"\xc7",
    "no JSON": packed(frames.Written(b"{n:1}")),
    "JSON and more": packed(frames.Written(b'{"n":1}{"n":1}')),
    "JSON of another type": packed(frames.Written(b'{"n":"1"}')),
    "JSON on lines": packed(frames.Written(b'{"n":\n1}')),
    "JSON on lines of an old machine": packed(frames.Written(b'{"n":\r1}')),
    "JSON that is no UTF-8 where it is not looked at": packed(frames.Written(b'{"n":1,"x":"\xff"}')),
    "JSON of endless depth": packed(frames.Written(b'{"n":1,"of":' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_an_invalid_result_is_a_failure_that_names_service_and_operation(body: bytes) -> None:
    for written in (False, True):
        with pytest.raises(Internal, match=r"results.count: service counter returned an invalid result: ") as caught:
            frames.plain(COUNT, body, written=written)
        assert caught.value.failure.executed is Executed.MAYBE


def test_an_invalid_result_is_a_failure_for_a_calling_service_too() -> None:
    with pytest.raises(Internal, match="service counter"):
        frames.typed(COUNT, BAD["a member of another type"])
    assert frames.typed(COUNT, GOOD) == Counted(n=1)
    assert frames.typed(COUNT, frames.pack_body(frames.Written(b'{"n":2}'))) == Counted(n=2)


def test_an_invalid_result_of_a_read_never_counts_as_maybe_executed() -> None:
    with pytest.raises(Internal) as caught:
        frames.plain(operation_of(Look), b"\xc0")
    assert caught.value.failure.executed is Executed.NO


def test_result_is_plain_data_or_the_json_that_it_came_as() -> None:
    assert frames.plain(COUNT, GOOD) == {"n": 1, "of": None}
    body = frames.pack_body(frames.Written(b'{"n":1}'))
    assert frames.plain(COUNT, body) == {"n": 1}
    as_written = frames.plain(COUNT, body, written=True)
    assert isinstance(as_written, Raw)
    assert bytes(as_written) == b'{"n":1}'
