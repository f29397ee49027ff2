"""Router and supervisor under everything at once: services that come, lie, hang, grow, die and drain, one that rests,
one in a crash loop, a pool, a front whose clients have grants, clients, and an operator.

A state machine of Hypothesis over memory links and a mock clock. Trio runs in a thread of its own, and each step is
carried out in it and waits until all that it began has come to rest.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
import trio.testing
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kernel.router.generation import Limits, ServiceState
from proto.errors import LinckiaError, OperationError
from proto.grants import Grant
from proto.operation import Params, operation_of
from proto.origin import Origin
from proto.wire.channel import LinkClosed
from proto.wire.frames import Fault, read_body
from tests.fuzz.frames.hostile import VIOLATIONS, Hostile, call
from tests.fuzz.frames.memory import FRAIL_RETRY_S, MORE, POOL, Defects, Kernel, kernel, said
from tests.fuzz.frames.test_violations import Client
from tests.unit.router.ops import Frail, Put, Relay, Say, Write
from tests.unit.supervisor.stage import MIB, Actor

LIMITS = Limits(in_flight=3, queue=4)
SERVICES = (*POOL, "relay", *MORE)
GRANTS = (
    None,
    Grant("all"),
    Grant("reader", read_only=True),
    Grant("elsewhere", surfaces=("files",)),
    Grant("a", roots=("/a",)),
)
DOWN = (ServiceState.DRAINING, ServiceState.STOPPED)

T = TypeVar("T")


class Running:
    """The kernel of one run, in a thread of its own."""

    def __init__(self) -> None:
        self.clock = trio.testing.MockClock()
        self.failure: BaseException | None = None
        self.kernel: Kernel
        self._token: trio.lowlevel.TrioToken
        self._begun = threading.Event()
        self._end: trio.Event
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._begun.wait()

    def _run(self) -> None:
        try:
            trio.run(self._main, clock=self.clock)
        except BaseException as error:  # noqa: BLE001  # told by `end`, in the test's own thread
            self.failure = error
        finally:
            self._begun.set()

    async def _main(self) -> None:
        self._token, self._end = trio.lowlevel.current_trio_token(), trio.Event()
        async with kernel(LIMITS, more=True) as self.kernel, trio.open_nursery() as self.clients:
            self._begun.set()
            await self._end.wait()
            self.clients.cancel_scope.cancel()
            # The orderly end has its own times.
            self.clock.autojump_threshold = 0

    def step(self, action: Callable[[], Awaitable[T]]) -> T:
        async def settled() -> T:
            done = await action()
            await trio.testing.wait_all_tasks_blocked()
            return done

        return trio.from_thread.run(settled, trio_token=self._token)

    def end(self) -> None:
        if self.failure is None:
            trio.from_thread.run_sync(self._end.set, trio_token=self._token)
        self._thread.join(60)
        if self.failure is not None:
            raise AssertionError("the kernel did not live") from self.failure


def own_grant(service: str) -> Grant | None:
    """The grant of a call that a service makes while it serves none; a front names that of its client."""
    return None if service == "front" else Grant(service)


class Asked:
    """A call of a client."""

    def __init__(self, params: Params[Any], timeout_s: float) -> None:
        self.params = params
        self.timeout_s = timeout_s
        self.scope = trio.CancelScope()
        self.answers: list[object] = []

    async def run(self, k: Kernel) -> None:
        with self.scope:
            try:
                operation = operation_of(self.params)
                self.answers.append(
                    await k.router.call(
                        operation,
                        self.params,
                        origin=Origin("client"),
                        timeout_s=self.timeout_s,
                        client_requests=Client(),
                    )
                )
            except LinckiaError as error:
                self.answers.append(error)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.defects = Defects().__enter__()
        self.running = Running()
        self.k.acted.holds = True
        self.asked: list[Asked] = []
        self.stopped: dict[str, int] = {}
        self.numbers = 100
        self.owed: Counter[tuple[int, int]] = Counter()
        self.granted: dict[str, tuple[Grant | None, bool]] = {}
        """By the text of a call: the grant that it has to be delivered with, and whether a front made it."""

    @property
    def k(self) -> Kernel:
        return self.running.kernel

    def actor(self, service: str) -> Actor | None:
        """The service's process, if it takes calls."""
        actor = self.k.acted.stage.actor(service)
        return None if actor.ended.is_set() or actor.pid not in self.k.acted.held else actor

    def send(self, service: str, *messages: bytes) -> None:
        async def post() -> None:
            if (actor := self.actor(service)) is not None:
                for message in messages:
                    try:
                        actor.link.try_send(message)
                    except LinkClosed:
                        return

        self.running.step(post)

    # Clients.

    @rule(
        kind=st.sampled_from([Say, Write, Put, Relay, Frail]),
        text=st.sampled_from("abc"),
        timeout_s=st.sampled_from([0.5, 5.0, 60.0]),
    )
    def ask(self, kind: type[Params[Any]], text: str, timeout_s: float) -> None:
        one = Asked(kind(text=text), timeout_s)

        async def begin() -> None:
            self.running.clients.start_soon(one.run, self.k)

        self.asked.append(one)
        failed = kind is Frail and self.k.supervisor.state("frail") is ServiceState.FAILED
        self.running.step(begin)
        if failed and self.k.supervisor.state("frail") is ServiceState.FAILED:
            # Not in vain until its time is up, unless the next try comes sooner.
            assert one.answers or timeout_s > FRAIL_RETRY_S

    @precondition(lambda self: self.asked)
    @rule(pick=st.randoms(use_true_random=False))
    def cancel(self, pick: Any) -> None:
        async def cancel() -> None:
            pick.choice(self.asked).scope.cancel()

        self.running.step(cancel)

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        async def wait() -> None:
            self.running.clock.jump(seconds)

        self.running.step(wait)

    # Services.

    @rule(service=st.sampled_from(SERVICES), ill=st.booleans(), all_of_them=st.booleans())
    def answer(self, service: str, ill: bool, all_of_them: bool) -> None:
        async def answer() -> None:
            if (actor := self.actor(service)) is None:
                return
            held = self.k.acted.held[actor.pid]
            for number in list(held) if all_of_them else list(held)[:1]:
                frame = held.pop(number)
                failed = Fault(number, OperationError("it failed").failure)
                actor.channel.post(failed if ill else said(frame))

        self.running.step(answer)

    @rule(
        service=st.sampled_from(SERVICES),
        op=st.sampled_from(["test.say", "test.secret", "test.write", "no.such"]),
        as_part=st.booleans(),
    )
    def service_calls(self, service: str, op: str, as_part: bool) -> None:
        self.numbers += 1
        number, text = self.numbers, f"call {self.numbers}"
        actor = self.actor(service)
        if actor is not None:
            held = self.k.acted.held[actor.pid]
            parent = next(iter(held), None) if as_part else None
            self.granted[text] = (held[parent].origin.grant if parent is not None else own_grant(service), False)
            self.owed[actor.pid, number] += 1
            self.send(service, call(number, op, {"text": text}, left_ms=2000, parent=parent))

    @rule(
        op=st.sampled_from(["test.say", "test.write", "test.put", "test.relay", "test.secret"]),
        grant=st.sampled_from(GRANTS),
        service=st.sampled_from(["front", "relay"]),
    )
    def calls_for_a_client(self, op: str, grant: Grant | None, service: str) -> None:
        self.numbers += 1
        number, text = self.numbers, f"call {self.numbers}"
        actor = self.actor(service)
        if actor is not None:
            # Only the front may name callers; names from any other service are ignored.
            self.granted[text] = (grant, True) if service == "front" else (own_grant(service), False)
            self.owed[actor.pid, number] += 1
            named = {"caller": "client" if service == "front" else service, "grant": grant}
            self.send(service, call(number, op, {"text": text}, left_ms=2000, **named))

    @rule(service=st.sampled_from(SERVICES), seed=st.integers(0, 2**16))
    def says_anything(self, service: str, seed: int) -> None:
        self.send(service, *Hostile(seed).stream(5, violations=0))

    @rule(service=st.sampled_from(SERVICES), which=st.sampled_from(sorted(VIOLATIONS)))
    def breaks_the_protocol(self, service: str, which: str) -> None:
        self.send(service, *VIOLATIONS[which])

    @rule(service=st.sampled_from(SERVICES), number=st.sampled_from([9, 11]))
    def dies(self, service: str, number: int) -> None:
        async def die() -> None:
            self.k.acted.stage.actor(service).die(number=number)

        self.running.step(die)

    @rule(service=st.sampled_from(SERVICES))
    def hangs(self, service: str) -> None:
        actor = self.actor(service)
        if actor is not None:
            self.k.acted.deaf.add(actor.pid)

    @rule(service=st.sampled_from(SERVICES), memory=st.sampled_from([101 * MIB, 200 * MIB]))
    def grows(self, service: str, memory: int) -> None:
        actor = self.actor(service)
        if actor is not None:
            actor.memory = memory

    @rule(refuses=st.booleans())
    def no_process_can_be_started(self, refuses: bool) -> None:
        self.k.acted.stage.refuses = "no process can be made" if refuses else None

    @rule(service=st.sampled_from(SERVICES))
    def leaves(self, service: str) -> None:
        self.send(service, b"\x91\x0f")

    # The operator.

    @rule(service=st.sampled_from(SERVICES))
    def stop(self, service: str) -> None:
        async def stop() -> None:
            self.k.supervisor.stop(service)
            self.stopped[service] = self.k.supervisor.generation(service)

        self.running.step(stop)

    @rule(service=st.sampled_from(SERVICES))
    def start(self, service: str) -> None:
        async def start() -> None:
            self.stopped.pop(service, None)
            self.k.supervisor.start(service)

        self.running.step(start)

    @rule(service=st.sampled_from(SERVICES))
    def restart(self, service: str) -> None:
        async def restart() -> None:
            self.stopped.pop(service, None)
            self.k.supervisor.restart(service)

        self.running.step(restart)

    # What holds at every moment.

    @invariant()
    def kernel_lives_and_finds_no_defect(self) -> None:
        assert self.running.failure is None
        assert self.defects.found == []

    @invariant()
    def no_call_is_answered_twice(self) -> None:
        assert all(len(one.answers) <= 1 for one in self.asked)
        for pid, received in self.k.acted.received.items():
            numbers = Counter(frame.id for frame in received)
            assert all(numbers[number] <= 1 for owner, number in self.owed if owner == pid)

    @invariant()
    def call_is_delivered_with_its_clients_grant_and_never_beyond_it(self) -> None:
        for frame in self.k.acted.delivered:
            text = read_body(frame.params, Any)
            text = text.get("text") if isinstance(text, dict) else None
            if text in self.granted:
                grant, of_front = self.granted[text]
                assert frame.origin.grant == grant
                assert grant is None or not of_front or not self.k.router.table[frame.op].refusal(grant)
        self.k.acted.delivered.clear()

    @invariant()
    def no_service_has_more_calls_than_it_takes(self) -> None:
        for service in SERVICES:
            assert 0 <= self.k.router.lane(service).instances[service].in_flight <= LIMITS.in_flight
            assert self.k.router.lane(service).queued <= LIMITS.queue + len(SERVICES) * LIMITS.in_flight

    @invariant()
    def what_a_person_stopped_stays_so(self) -> None:
        for service, generation in self.stopped.items():
            assert self.k.supervisor.state(service) in DOWN
            assert self.k.supervisor.generation(service) == generation

    def teardown(self) -> None:
        try:
            self.no_process_can_be_started(refuses=False)
            for service in SERVICES:
                self.start(service)
            # Advance the clock past the deadline of every call.
            for _ in range(16):
                self.time_passes(4.0)
                # The deadline of a service's call is for who serves it to keep.
                for service in SERVICES:
                    self.answer(service, ill=False, all_of_them=True)
            assert [one.params for one in self.asked if len(one.answers) != 1 and not one.scope.cancel_called] == []
            self.owed_is_paid()
            self.kernel_lives_and_finds_no_defect()
        finally:
            self.running.end()
            self.defects.__exit__()

    def owed_is_paid(self) -> None:
        """A service that lives has had an answer to each call that it made."""
        alive = {actor.pid for actor in self.k.acted.alive()}
        for pid, number in self.owed:
            if pid in alive:
                assert number in {frame.id for frame in self.k.acted.received[pid]}


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=10, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
