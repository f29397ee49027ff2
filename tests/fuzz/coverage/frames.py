"""Frames of a service: single, in parts, and what a body is read as."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from proto.errors import Internal
from proto.operation import operation_of
from proto.wire import frames
from proto.wire.channel import Channel, Link, ProtocolViolation
from tests.fuzz.frames.hostile import VIOLATIONS, Hostile
from tests.unit.router.ops import Say

SEEDS = [b"".join(each)[:4000] for each in VIOLATIONS.values()] + list(Hostile(15).stream(40, violations=0))


def read(data: bytes) -> None:
    """As one message in each direction, and as many: a byte of length before each."""
    for reader in (frames.from_service, frames.from_kernel, frames.decode):
        try:
            frame = reader(data)
        except msgspec.DecodeError:
            continue
        # A frame that can be read can be passed on, and is read alike there.
        assert frames.encode(frames.decode(frames.encode(frame))) == frames.encode(frame)
        _reached(frame)
    # It reads nothing from its link here.
    channel = Channel(cast("Link", None), frames.from_service)
    while data:
        size = data[0] + 1
        message, data = data[1:size], data[size:]
        try:
            channel._accept(message)
        except ProtocolViolation:
            return


def _reached(frame: frames.AnyFrame) -> None:
    """A branch for each kind, since what the decoder does is seen by no coverage of Python code."""
    match frame:
        case frames.Return():
            _body(frame.body)
        case frames.Call():
            assert frame.left_ms >= 0
        case frames.Fault():
            assert frame.failure.kind
        case frames.Event():
            assert len(frame.topic) <= 256
        case frames.Hello():
            assert frame.protocol >= 0
        case frames.Ready():
            assert len(frame.info) <= frames.INFO_ENTRIES
        case frames.Progress():
            assert frame.total is None or frame.total <= 1e300
        case frames.Log():
            assert frame.level
        case frames.Pong():
            assert frame.in_flight >= 0
        case frames.Part():
            assert frame.stream >= 0
        case _:
            assert isinstance(frame, frames.Cancel | frames.Ping | frames.Drain | frames.Bye | frames.ByeAck)


def _body(body: bytes) -> None:
    operation: Any = operation_of(Say)
    for written in (False, True):
        try:
            value = frames.plain(operation, body, written=written)
            msgspec.json.encode(value)
            frames.typed(operation, body)
        except Internal:
            continue
