"""What the kernel holds of bodies is bounded, for each service and for all together."""

from __future__ import annotations

import pytest

from kernel.router import generation
from kernel.router.generation import Generation, HeldBytes, RoutedCall
from proto.errors import Overloaded
from proto.operation import operation_of
from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import Channel, Link
from proto.wire.frames import Call, Fault, Part, Return
from tests.memory_link import memory_link
from tests.unit.router.ops import Put

HEAD = frames.encode(Return(1, b""))


class Observed(Generation):
    """A generation that remembers that it has to end."""

    is_ended = False

    def held_too_much(self, most: int) -> None:
        self.is_ended = True


def observed(held: HeldBytes, name: str) -> tuple[Observed, Link]:
    ours, theirs = memory_link()
    made = Observed(name, 1, held=held)
    made.channel = Channel(ours)
    made.channel.gathered = held.make_room
    held.generations.add(made)
    return made, theirs


def called(number: int, size: int) -> Call:
    return Call(number, "test.put", bytes(size), 1000, Origin(""), 1)


async def receive(made: Generation, theirs: Link, *parts: Part) -> None:
    """As many parts, and one whole frame after them."""
    assert made.channel is not None
    for part in parts:
        theirs.try_send(frames.encode(part))
    theirs.try_send(frames.encode(frames.Bye()))
    await made.channel.receive()


async def test_service_for_which_most_is_held_is_ended() -> None:
    held = HeldBytes(280_000)
    (large, to_large), (small, to_small) = observed(held, "large"), observed(held, "small")
    piece = Part(1, False, bytes(frames.PART_BYTES))
    await receive(small, to_small, Part(1, False, HEAD), piece)
    await receive(large, to_large, Part(1, False, HEAD), piece, piece, piece)
    assert [large.is_ended, small.is_ended] == [False, False]
    await receive(small, to_small, Part(2, False, HEAD), Part(2, False, bytes(frames.PART_BYTES)))
    assert [large.is_ended, small.is_ended] == [True, False]


async def test_calls_count_until_they_are_answered() -> None:
    held = HeldBytes(200_000)
    (one, _), (other, _) = observed(held, "one"), observed(held, "other")
    one.admit(called(1, 150_000))
    with pytest.raises(Overloaded):
        other.admit(called(1, 100_000))
    # Small calls pass, however much is held.
    other.admit(called(2, 1000))
    one.answer(1, b"x")
    other.admit(called(1, 100_000))
    assert one.held_bytes == 0


async def test_large_result_is_dropped_if_there_is_no_room_for_it() -> None:
    held = HeldBytes(200_000)
    (one, _), (other, to_other) = observed(held, "one"), observed(held, "other")
    one.admit(called(1, 150_000))
    other.admit(called(1, 10))
    other.answer(1, bytes(100_000))
    message = to_other.try_receive()
    assert message is not None
    dropped = frames.decode(message)
    assert isinstance(dropped, Fault)
    assert dropped.failure.kind == "overloaded"
    assert dropped.failure.executed == "maybe"


async def test_one_service_waits_for_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "MAX_ASKED_BYTES", 100_000)
    one, _ = observed(HeldBytes(), "one")
    one.admit(called(1, 60_000))
    with pytest.raises(Overloaded, match="too large"):
        one.admit(called(2, 60_000))
    one.forget(1)
    one.admit(called(2, 60_000))


@pytest.mark.parametrize(
    ("params", "repeatable"),
    [
        (frames.encode({"text": "x"}), True),
        (frames.encode({"text": "x", "if_match": None}), True),
        (frames.encode({"text": "x", "if_match": "abc"}), False),
        (frames.encode({"text": [[]] * 1000}), True),
        (frames.encode({"text": "x" * generation.MAX_SEARCHED_BYTES}), False),
        (b"\xc1", False),
    ],
    ids=["not given", "null", "given", "not looked at", "too large to look", "garbage"],
)
def test_whether_a_call_may_be_repeated_is_found_without_decoding_all_of_it(params: bytes, repeatable: bool) -> None:
    call = RoutedCall(
        op=operation_of(Put), params=params, origin=Origin(""), deadline=0, limit_s=0, done=lambda outcome: None
    )
    assert call.is_repeatable() is repeatable
