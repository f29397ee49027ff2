"""What a hostile service sends: messages that break the protocol, by name, and a stream of both kinds from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import msgspec

from proto.wire import frames

_encode = msgspec.msgpack.Encoder().encode

BROKEN_TEXT = b"\xa2\xff\xfe"
"""A msgpack string that is no UTF-8."""

DEEP = b"\x91" * 100_000 + b"\xc0"
"""A msgpack array in an array in an array …"""


def message(*fields: object) -> bytes:
    """A frame, by its fields; the tag first."""
    return _encode(fields)


def call(number: int, op: str, params: object, **changes: object) -> bytes:
    """A service's call."""
    origin: dict[str, object] = {"caller": "", "session": "", "peer": "", "grant": None, "key": "", "trace": ""}
    origin |= {name: changes.pop(name) for name in origin if name in changes}
    fields = {"left_ms": 1000, "origin": tuple(origin.values()), "generation": 1, "parent": None, **changes}
    return message(3, number, op, _encode(params), *fields.values())


HEAD = message(4, 1, b"")
"""A return that lacks its body."""

VIOLATIONS: dict[str, list[bytes]] = {
    "nothing": [b""],
    "no msgpack": [b"\xc1\xff\x00garbage"],
    "no array": [_encode({"id": 1})],
    "bytes after its end": [message(15) + b"\x00"],
    "an array that claims four thousand million members": [b"\xdd\xff\xff\xff\xff\x04"],
    "unknown tag": [message(99, 1)],
    "a tag that is text": [message("4", 1, 1)],
    "a frame of the kernel's own: ping": [message(12, 1)],
    "a frame of the kernel's own: drain": [message(14, 1000)],
    "a frame of the kernel's own: bye acknowledged": [message(16)],
    "a second hello": [message(1, frames.PROTOCOL, "speaker", 1, 1, [])],
    "a second ready": [message(2, {})],
    "text that is no UTF-8": [b"\x93\x0b\xa4info" + BROKEN_TEXT],
    "a failure that is no UTF-8": [b"\x93\x05\x01\x82\xa4kind\xa8internal\xa7message" + BROKEN_TEXT],
    "a body that is too deep": [b"\x93\x04\x01" + DEEP],
    "an event that is too deep": [b"\x93\x0a\xa1x" + DEEP],
    "a number that is text": [message(4, "1", b"\x01")],
    "a number below zero": [message(4, -1, b"\x01")],
    "a number beyond all": [message(4, 2**63, b"\x01")],
    "a return without a body": [message(4, 1)],
    "a return of a call that was never made": [message(4, 2**40, b"\x01")],
    "a body that is no bytes": [message(4, 1, 1)],
    "a body of values without end": [b"\x93\x04\x01\xdd\x00\x01\x00\x00" + bytes(1 << 16)],
    "a fault of an unknown kind": [message(5, 1, {"kind": "x", "message": ""})],
    "a fault with a code beyond all": [message(5, 1, {"kind": "internal", "message": "", "code": 2**40})],
    "a call without fields": [message(3, 1)],
    "a call of an endless name": [call(1, "x" * 1000, {})],
    "a call with a trace for the log": [call(1, "test.say", {}, trace="00-x\nkernel: all is well")],
    "a call with less than no time": [call(1, "test.say", {}, left_ms=-1)],
    "a call with more than all time": [call(1, "test.say", {}, left_ms=2**62)],
    "two calls of one number": [call(9, "test.say", {"text": "wait"})] * 2,
    "progress that is no number": [message(8, 1, math.nan)],
    "progress without end": [message(8, 1, math.inf)],
    "progress of an endless text": [message(8, 1, 1.0, None, "x" * 1_000_000)],
    "a log line of no level": [message(11, "loud", "x")],
    "an endless log line": [message(11, "info", "x" * 1_000_000)],
    "a pong with endless info": [message(13, 1, 0, {"x": "y" * 1_000_000})],
    "a pong with much info": [message(13, 1, 0, {str(n): "" for n in range(10_000)})],
    "a pong of minus one call": [message(13, 1, -1, {})],
    "an event of an endless topic": [message(10, "x" * 1000, {})],
    "a part in parts": [message(17, 99, False, message(17, 2, False, b"x"))],
    "parts that begin with no frame": [message(17, 99, False, b"\xc1")],
    "parts of a frame that has no body": [message(17, 99, False, message(11, "info", "x"))],
    "parts of a frame that has its body": [message(17, 99, False, message(4, 1, b"x"))],
    "a body that ends with its frame": [message(17, 99, True, HEAD)],
    "more streams than there may be": [message(17, 100 + n, False, HEAD) for n in range(frames.MAX_STREAMS + 1)],
    "a frame with one field too many": [message(15, 0)],
    "a failure with a field too many": [message(5, 1, {"kind": "internal", "message": "", "x": 1})],
    "a failure of an endless text": [message(5, 1, {"kind": "internal", "message": "x" * 100_000})],
    "a word after bye": [message(15), message(15)],
}
"""After its hello and ready: each must end its sender, and nothing else."""

_OPERATIONS = ("test.say", "test.write", "test.relay", "test.secret", "kernel_stop", "no.such", "", frames.ASK_CLIENT)


class Hostile:
    """Messages without end, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 0
        self._begun: set[int] = set()

    def stream(self, count: int, violations: float) -> Iterator[bytes]:
        """`count` messages, of which this share is meant to break the protocol."""
        whole = list(VIOLATIONS.values())
        while count > 0:
            lot = self._random.choice(whole) if self._random.random() < violations else [self.lawful()]
            if len(lot) == 1 and self._random.random() < violations / 2:
                lot = [self._mutated(lot[0])]
            yield from lot
            count -= len(lot)

    def lawful(self) -> bytes:
        """A frame that may be sent, whatever nonsense is in it."""
        pick = self._random.choice
        number = self._random.choice((0, 1, 2, 3, 5, 8, 13))
        value = self._value()
        # It is its reader's alone to understand.
        body = pick((_encode(value), _encode(value), b"", BROKEN_TEXT, DEEP[:500]))
        self._number += 1
        return pick((
            lambda: message(4, number, body),
            lambda: message(5, number, {"kind": pick(("internal", "timeout", "operation")), "message": "x"}),
            lambda: call(self._number, pick(_OPERATIONS), value, parent=pick((None, number)), progress=True),
            lambda: call(self._number, "test.say", {"text": "x"}, left_ms=pick((0, 1, 2**31 - 1))),
            lambda: call(self._number, frames.ASK_CLIENT, {"method": "ping", "params": {}}, parent=number),
            lambda: message(8, number, self._random.random(), pick((None, -1.0)), pick((None, "half"))),
            lambda: message(9, pick((number, self._number - 1)), "x"),
            lambda: message(10, pick(("mcp.resource_updated", "mcp.x", "")), body),
            lambda: message(11, pick(("debug", "emergency")), "x" * self._random.randrange(50), pick((None, number))),
            lambda: message(13, number, number, {"x": "y"}),
            lambda: self._part(number, body),
        ))()  # fmt: skip

    def _part(self, stream: int, data: bytes) -> bytes:
        """The first or the last of a stream."""
        if stream in self._begun:
            self._begun.remove(stream)
            return message(17, stream, True, data)
        self._begun.add(stream)
        return message(17, stream, False, message(4, stream, b""))

    def _value(self, depth: int = 0) -> object:
        pick = self._random.randrange(8 if depth < 4 else 6)
        scalars = (None, True, 2**64 - 1, -1.5, "text", b"\xff\xfe")
        if pick < len(scalars):
            return scalars[pick]
        many = [self._value(depth + 1) for _ in range(self._random.randrange(4))]
        return many if pick == 6 else {str(n): value for n, value in enumerate(many)}

    def _mutated(self, whole: bytes) -> bytes:
        """The same with some bytes changed, or its end cut off."""
        data = bytearray(whole)
        for _ in range(self._random.randrange(1, 4)):
            if data:
                data[self._random.randrange(len(data))] = self._random.randrange(256)
        return bytes(data[: self._random.randrange(len(data) + 1)]) if self._random.random() < 0.3 else bytes(data)
