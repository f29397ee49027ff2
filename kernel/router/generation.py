"""The processes of a service: each generation with the calls to it and those it makes, and what the router knows of an
instance across its generations. A call is here as well, since both refer to each other.

A front's generation also has the front's clients, which are asked over the front's own link.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import math
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import msgspec
import trio
from msgspec import structs

from proto import errors
from proto.errors import Executed, Failure, LinckiaError
from proto.operation import Access, Operation
from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import Channel, LinkClosed
from proto.wire.frames import Call, Cancel, Event, Fault, Level, Log, Progress, Return, Unfinished

CALLS_AT_ONCE = 1024
"""Maximum number of unanswered calls of one process."""

FIRST_ID = 1 << 40
"""Questions have their own numbers, above those of all calls on the link."""

ANSWER_S = 24 * 3600.0
"""Time for a person to answer. The deadline of the call that asks usually comes first."""

MAX_ASKED_BYTES = frames.MAX_MESSAGE_BYTES + 64 * 1024 * 1024
"""Total size of parameters of one process's unanswered calls: the largest allowed, and some smaller ones."""

MAX_HELD_BYTES = 1024 * 1024 * 1024
"""Total size of bodies that the kernel holds for all services: four of the largest."""

MAX_DECODED_BYTES = 64 * 1024
"""Largest body that the kernel decodes, which takes some milliseconds at most."""

served: ContextVar[RoutedCall | None] = ContextVar("served", default=None)
"""The call that a service was serving when it made the call that the kernel handles in this task."""

answering: ContextVar[RoutedCall | None] = ContextVar("answering", default=None)
"""The call of a service that the kernel itself handles in this task."""

MAX_QUESTION_BYTES = 1024 * 1024
"""Maximum size of a service's question to a client."""

MAX_SEARCHED_BYTES = 1024 * 1024
"""Largest body in which the kernel looks for single fields."""

_NULL = msgspec.Raw(frames.encode(None))

Done = Callable[[bytes | LinckiaError], None]
"""Called once, with the body of the result or with the failure."""


class ServiceState(enum.StrEnum):
    """State of a service. FAILED is a crash loop beyond its intensity; RESTING has no process until it is called."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    BACKOFF = "backoff"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"
    RESTING = "resting"


class Undecoded(msgspec.Struct, frozen=True):
    """A result too large for the kernel to decode, with its original body."""

    body: bytes


class Client(Protocol):
    """What a running call may request of its client. `progress` and `log` never block."""

    def progress(self, done: float, total: float | None, message: str | None) -> None: ...

    def log(self, level: Level, logger: str, message: str) -> None: ...

    async def ask(self, question: bytes) -> bytes:
        """Return the answer to a `frames.Question`, both as bodies. Raises LinckiaError."""


@cache
def _reads(names: tuple[str, ...]) -> Callable[[bytes], object]:
    """Return a decoder for only these fields of a body."""
    members = [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in names]
    return frames.reader(msgspec.defstruct("Members", members))


class RoutedCall(msgspec.Struct, eq=False, kw_only=True):
    """A call that is queued, in flight or refused. All callbacks are synchronous and never block."""

    op: Operation[Any]
    params: bytes
    origin: Origin
    """Who calls, as far as the maker of the call may say so."""
    deadline: float
    limit_s: float
    """Time that the caller allowed, from the call's arrival."""
    done: Done
    progress: Callable[[Progress], None] | None = None
    progressed: Progress | None = None
    """The latest progress, for a task that takes the call over."""
    client_requests: Client | None = None
    target: str = ""
    """What the call is about, as described by its maker (`proto.target`)."""
    maker: Generation | None = None
    """The generation that makes the call; None for the kernel itself."""
    for_client: bool = True
    """Whether a client waits for it, directly or through another service; services also make calls for themselves."""
    frame_id: int = 0
    """Its number on the link while in flight; otherwise 0."""
    generation: Generation | None = None
    """The generation to which it was last sent."""
    sent_at: float | None = None
    """Time at which it was last sent to a process, on trio's clock."""
    span: str = ""
    """Its own span id in the trace, and that of its caller ("" if the trace began with it)."""
    parent_span: str = ""
    deaths: int = 0
    """Number of generations that died with it in flight."""
    suspect: bool = False
    withdrawn: bool = False
    """Whether it is answered or no longer wanted, so that `done` must not be called again."""
    holding: trio.CancelScope | None = None
    """Scope of its wait for an approval, while it has not been submitted."""
    approval: str = ""
    """Id of the approval that it waited for; "" if it needed none."""
    decided_by: str = ""
    """Who approved or denied it."""
    held_s: float = 0.0
    """How long it waited for that."""

    @property
    def executed(self) -> Executed:
        """NO for a call that was never delivered, otherwise MAYBE."""
        return Executed.MAYBE if self.deaths else Executed.NO

    def of_all_times(self, failure: Failure) -> Failure:
        """Do not report a repeated write as not executed just because its last attempt did nothing."""
        if self.deaths and self.op.access is not Access.READ and failure.executed is Executed.NO:
            return structs.replace(failure, executed=Executed.MAYBE)
        return failure

    def is_repeatable(self) -> bool:
        """Return whether the call may be sent again although it may have been executed."""
        if self.origin.key:
            return True
        if not self.op.idempotent:
            return False
        if not self.op.once_with:
            return True
        if len(self.params) > MAX_SEARCHED_BYTES:
            return False
        try:
            given = _reads(tuple(self.op.once_with))(bytes(self.params))
        except msgspec.DecodeError:
            return False
        return all(getattr(given, name) in (msgspec.UNSET, _NULL) for name in self.op.once_with)


class Reports:
    """`Client` for a call made on behalf of a service, which wants its progress only."""

    def __init__(self, report: Callable[[Progress], None]) -> None:
        self._report = report

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._report(Progress(0, done, total, message))

    def log(self, level: Level, logger: str, message: str) -> None:
        """No-op: the service's own log has it."""

    async def ask(self, question: bytes) -> bytes:
        raise errors.Unavailable("no client is connected that can be asked")


class Waiting:
    """Receives replies for a caller in the kernel's own process, until its call ends."""

    def __init__(self, client_requests: Client | None) -> None:
        self.finished = trio.Event()
        self.outcome: bytes | LinckiaError | None = None
        self._client_requests = client_requests

    def done(self, outcome: bytes | LinckiaError) -> None:
        self.outcome = outcome
        self.finished.set()

    def progress(self, frame: Progress) -> None:
        if self._client_requests is not None:
            self._client_requests.progress(frame.done, frame.total, frame.message)


class FrontClient:
    """The clients of one generation of a front."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._ids = itertools.count(FIRST_ID)
        self._questions: dict[int, Waiting] = {}

    def answered(self, frame: Return | Fault | Unfinished | Progress) -> bool:
        """Return whether the frame belongs to a question; if it does, pass the answer on."""
        if isinstance(frame, Progress) or frame.id < FIRST_ID:
            return False
        if (question := self._questions.get(frame.id)) is not None:
            question.done(frame.body if isinstance(frame, Return) else errors.from_failure(frame.failure))
        return True

    def gone(self) -> None:
        """Note that the front is dead, so no question will be answered."""
        for question in self._questions.values():
            question.done(errors.Unavailable("the client's connection was lost before it answered"))

    async def ask(self, call_id: int, question: bytes) -> bytes:
        """See `Client.ask`."""
        number = next(self._ids)
        waiting = self._questions[number] = Waiting(None)
        try:
            self.channel.post(
                Call(
                    id=number, op=frames.ASK_CLIENT, params=question, left_ms=int(ANSWER_S * 1000),
                    origin=Origin("kernel"), generation=0, parent=call_id,
                )
            )  # fmt: skip
            await waiting.finished.wait()
        except LinkClosed:
            raise errors.Unavailable("the client's connection was lost") from None
        finally:
            del self._questions[number]
            if waiting.outcome is None:
                with contextlib.suppress(LinkClosed):
                    self.channel.post(Cancel(number))
        if isinstance(waiting.outcome, LinckiaError):
            raise waiting.outcome
        assert waiting.outcome is not None
        return waiting.outcome


@dataclass(frozen=True)
class FrontRequests:
    """`Client` for a call that a front makes for a client."""

    client: FrontClient
    call_id: int

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        """Send progress of calls made while serving this one. The router forwards the call's own progress."""
        with contextlib.suppress(LinkClosed):
            self.client.channel.post(Progress(self.call_id, done, total, message))

    def log(self, level: Level, logger: str, message: str) -> None:
        with contextlib.suppress(LinkClosed):
            self.client.channel.post(Log(level, message, self.call_id, logger))

    async def ask(self, question: bytes) -> bytes:
        return await self.client.ask(self.call_id, question)


class HeldBytes:
    """Counts the bytes of bodies that the kernel holds for all generations, and limits the total.

    These are bodies that have not arrived completely, parameters of unanswered calls, and replies that their caller has
    not read.
    """

    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self.most = most
        self.generations: set[Generation] = set()

    def exceeds(self, size: int = 0) -> bool:
        """Return whether the total plus `size` exceeds the limit."""
        return sum(each.held_bytes for each in self.generations) + size > self.most

    def make_room(self) -> None:
        """End the generation that holds the most, if the total exceeds the limit."""
        if self.exceeds():
            max(self.generations, key=lambda each: each.held_bytes).held_too_much(self.most)


class Generation:
    """One process of a service, from start to death.

    The supervisor creates and watches it. The router keeps its calls here: those to it and those it makes.
    """

    def __init__(self, service: str, number: int, mode: str = "", held: HeldBytes | None = None) -> None:
        self.held = held or HeldBytes()
        self.service = service
        """Name of the instance. Only the first instance of a pool has the name of the service."""
        self.number = number
        self.mode = mode
        self.channel: Channel | None = None
        """The kernel's end of its link, once it exists."""
        self.takes_calls = False
        """True from READY until it drains or its link is closed."""
        self.calls: dict[int, RoutedCall] = {}
        """Calls in flight to it, by their number on the link."""
        self.made: dict[int, RoutedCall] = {}
        """Its own calls to services, by the number it gave them."""
        self.asks: dict[int, trio.CancelScope] = {}
        """Its calls that the kernel itself handles, including questions to clients."""
        self._sizes: dict[int, int] = {}
        """Sizes of the parameters of `made` and `asks`."""
        self._asked_bytes = 0
        self.client: FrontClient | None = None
        """The clients for which a front speaks; set once the front is READY."""

    def stirred(self) -> None:
        """Note that it was sent something, so that it is watched closely."""

    @property
    def held_bytes(self) -> int:
        """Number of bytes that the kernel holds for it; see `HeldBytes`."""
        return self._asked_bytes + (self.channel.held_bytes if self.channel is not None else 0)

    def held_too_much(self, most: int) -> None:
        """End it: more than `most` bytes are held for all generations, and this one holds the most."""

    def serving(self, call_id: int | None) -> RoutedCall | None:
        """Return the call in flight to it with this number."""
        return None if call_id is None else self.calls.get(call_id)

    def admit(self, call: Call) -> None:
        """Record a call that it makes. Raises Overloaded if it has too many unanswered calls, or too large ones."""
        size = len(call.params)
        if len(self._sizes) >= CALLS_AT_ONCE or self._asked_bytes + size > MAX_ASKED_BYTES:
            text = f"service {self.service} has too many calls in flight, or too large ones"
            raise errors.Overloaded(text, retry_after_ms=100)
        if size > frames.PART_BYTES and self.held.exceeds(size):
            raise errors.Overloaded("the kernel has too many large calls in flight", retry_after_ms=100)
        self._sizes[call.id] = size
        self._asked_bytes += size

    def forget(self, call_id: int) -> None:
        """Note that it no longer waits for that call."""
        self._asked_bytes -= self._sizes.pop(call_id, 0)

    def answer(self, call_id: int, outcome: bytes | LinckiaError) -> None:
        """Send it the outcome of a call that it made."""
        self.forget(call_id)
        if not isinstance(outcome, LinckiaError):
            dropped = None
            if self.channel is not None and self.channel.is_behind:
                dropped = f"service {self.service} does not read its messages"
            elif len(outcome) > frames.PART_BYTES and self.held.exceeds(len(outcome)):
                dropped = "the kernel holds too many large results"
            if dropped is not None:
                outcome = errors.Overloaded(f"the result was dropped: {dropped}", executed=Executed.MAYBE)
        self.post(Fault(call_id, outcome.failure) if isinstance(outcome, LinckiaError) else Return(call_id, outcome))

    def post(self, frame: Return | Fault | Progress | Event) -> None:
        """Send the frame, or drop it if the link is closed."""
        self.stirred()
        if self.channel is not None:
            with contextlib.suppress(LinkClosed):
                self.channel.post(frame)


class Limits(msgspec.Struct, frozen=True):
    """Back-pressure limits of a service: calls in flight per instance, and calls that wait for a free slot.

    `wait_s` is how long a call waits for an instance to become READY; None: until its deadline. `grow_after_s` is how
    long calls wait before a further instance of a pool is woken; None: not at all.
    """

    in_flight: int
    queue: int
    wait_s: float | None = None
    grow_after_s: float | None = None


class Instance(msgspec.Struct, eq=False):
    """One process of the service, across its generations."""

    name: str
    generation: Generation | None = None
    """The latest generation that was READY; None before the first."""
    used: bool = False
    """Whether a client's call was sent to it, or made by it, since the last check."""
    tries_until: float = -math.inf
    """Exclusive-use deadline for a suspect call sent to it."""
    busy_at: float = -math.inf
    """Time at which it last had a call in flight, on trio's clock."""
    state: ServiceState = ServiceState.WAITING
    reason: str = "it has not been started yet"
    retry_at: float | None = None
    place: int = 0
    """Its place in the pool."""
    load: int | None = None
    """Its calls in flight as `Loads` knows them; None if it accepts no calls."""

    @property
    def in_flight(self) -> int:
        return 0 if self.generation is None else len(self.generation.calls)

    @property
    def taking(self) -> Generation | None:
        """The generation that accepts calls, if there is one."""
        return self.generation if self.generation is not None and self.generation.takes_calls else None

    def is_hopeless(self, deadline: float) -> bool:
        """Return whether this instance will not be available before the deadline."""
        if self.state in (ServiceState.FAILED, ServiceState.STOPPED):
            return True
        return self.state is ServiceState.BACKOFF and self.retry_at is not None and self.retry_at > deadline


class Loads:
    """Which instances of a pool accept calls, by their number of calls in flight; `update` must be called after each
    change of an instance.

    Each load has a bit mask with one bit for each instance, so finding the least loaded one takes as long for 1,000
    instances as for one.
    """

    def __init__(self, instances: Iterable[Instance]) -> None:
        self._instances = tuple(instances)
        for place, instance in enumerate(self._instances):
            instance.place = place
        self._masks: list[int] = [0]
        """By number of calls in flight: the instances that accept calls and have so many."""
        self.accepting = 0
        """Number of instances that accept calls."""

    def update(self, instance: Instance) -> None:
        """Note how many calls the instance has in flight, and whether it accepts more."""
        load = None if instance.taking is None else instance.in_flight
        before, bit = instance.load, 1 << instance.place
        if load == before:
            return
        if before is not None:
            self._masks[before] ^= bit
            self.accepting -= 1
        if load is not None:
            while len(self._masks) <= load:
                self._masks.append(0)
            self._masks[load] |= bit
            self.accepting += 1
        instance.load = load

    def least(self, below: int) -> Instance | None:
        """Return the first of the least loaded instances with fewer than `below` calls that accepts another call now.

        One that a suspect has to itself does not.
        """
        now = trio.current_time()
        for load, accepting in enumerate(self._masks[:below]):
            left = accepting
            while left:
                lowest = left & -left
                instance = self._instances[lowest.bit_length() - 1]
                if not load or instance.tries_until <= now:
                    return instance
                left ^= lowest
        return None
