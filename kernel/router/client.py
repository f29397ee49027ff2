"""The way from a call to the client that made it, where a front speaks for that client: over the front's own link."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass

import msgspec
import trio

from proto import errors, frames
from proto.channel import Channel
from proto.frames import Call, Cancel, Fault, Level, Log, Progress, Return, Unfinished
from proto.json_types import JsonObject
from proto.link import LinkClosed

FIRST_ID = 1 << 40
"""Questions have numbers of their own, above those of all calls on the link."""

ANSWER_S = 24 * 3600.0
"""For a person to answer; the deadline of the call that asks is what ends it."""


class _Question:
    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Return | Fault | None = None


class FrontClient:
    """The clients of one generation of a front."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._ids = itertools.count(FIRST_ID)
        self._questions: dict[int, _Question] = {}

    def requests(self, call_id: int) -> FrontRequests:
        """The client end of the call that the front has this number for."""
        return FrontRequests(self, call_id)

    def answered(self, frame: Return | Fault | Unfinished | Progress) -> bool:
        """Whether the frame answers a question."""
        if isinstance(frame, Progress) or frame.id < FIRST_ID:
            return False
        if isinstance(frame, Unfinished):
            frame = Fault(frame.id, frame.failure)
        if (question := self._questions.get(frame.id)) is not None:
            question.answer = frame
            question.done.set()
        return True

    def gone(self) -> None:
        """The front is dead: no question will be answered."""
        failure = errors.Unavailable("the client's connection was lost before it answered").failure
        for number in list(self._questions):
            self.answered(Fault(number, failure))

    async def ask(self, call_id: int, method: str, params: JsonObject) -> JsonObject:
        """Raises LinckiaError."""
        number = next(self._ids)
        question = self._questions[number] = _Question()
        body = frames.pack_body(frames.Question(method, params))
        try:
            self.channel.post(
                Call(
                    id=number, op=frames.ASK_CLIENT, params=body, left_ms=int(ANSWER_S * 1000), trace="",
                    caller="kernel", generation=0, parent=call_id,
                )
            )  # fmt: skip
            await question.done.wait()
        except LinkClosed:
            raise errors.Unavailable("the client's connection was lost") from None
        finally:
            del self._questions[number]
            if question.answer is None:
                with contextlib.suppress(LinkClosed):
                    self.channel.post(Cancel(number))
        if isinstance(question.answer, Fault):
            raise errors.from_failure(question.answer.failure)
        assert question.answer is not None
        try:
            answer: JsonObject = frames.read_body(question.answer.body, JsonObject)
        except msgspec.DecodeError as error:
            raise errors.Internal(f"the client's answer to {method} cannot be read: {error}") from error
        return answer


@dataclass(frozen=True)
class FrontRequests:
    """`proto.dispatch.ClientRequests` for one call that a front makes for a client."""

    client: FrontClient
    call_id: int

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        """The router passes the call's own on; this is for that of calls made while it is served."""
        with contextlib.suppress(LinkClosed):
            self.client.channel.post(Progress(self.call_id, done, total, message))

    def log(self, level: Level, logger: str, message: str) -> None:
        with contextlib.suppress(LinkClosed):
            self.client.channel.post(Log(level, message, self.call_id, logger))

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        return await self.client.ask(self.call_id, method, params)
