"""The calls of one service: which wait, which are in flight, and what happens to them when a generation dies.

Each call is answered exactly once. A call that was delivered to a generation that died is sent again only if its
operation is idempotent or it has an idempotency key; otherwise it fails with `MaybeExecuted`.

If the service itself may have caused the death (it was not killed from outside), the calls that were in flight become
*suspects*. Each is sent again with exclusive use of a process for a while, so that a request that kills its service is
identified and refused as `Quarantined`. One suspect is tried at a time, in a pool as many as half of its instances. A
call is not convicted if it was not alone, or if the service also dies with nothing in flight, for example because of
its background work.

A service may be a pool of several instances, each supervised separately. A call goes to the least loaded one available.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from kernel.chronicle.isolation import isolated, report
from kernel.router.generation import Generation, Instance, Limits, Loads, RoutedCall, ServiceState
from kernel.router.leaving import NEXT_S, Leaving
from kernel.router.ports import Cause
from kernel.router.quarantine import QUARANTINE_S, Quarantine
from proto import errors
from proto.errors import Executed, Failure, LinckiaError
from proto.operation import Access
from proto.origin import Origin
from proto.wire.channel import LinkClosed, ProtocolViolation
from proto.wire.frames import MAX_LEFT_MS, Call, Cancel, Fault, Progress, Return, Unfinished

REPLAYS_AFTER_CRASH = 1
"""A call whose generation crashed is sent once more. A second crash, with the call alone, convicts it."""

REPLAYS_AFTER_KILL = 3
"""A kill from outside is no evidence against in-flight calls. The limit keeps repeated kills from replaying them
forever."""

ALONE_S = 2.0
"""How long a suspect has the process to itself: a call that kills does so soon, and others are waiting."""

OF_ITSELF_S = 60.0
"""For this long after a crash with nothing in flight, crashes are no evidence against the calls in flight."""

_ASLEEP = (ServiceState.RESTING, ServiceState.DRAINING)
_COMING = (ServiceState.WAITING, ServiceState.STARTING)


class Lane:
    """All calls to one service, in its `instances` (by default one, with the service's name).

    Args:
        wake: called with the name of an instance that is needed while it rests or is about to.
        start: starts a background task.
        leaving: the withdrawn calls of all lanes that have not ended.
    """

    def __init__(
        self,
        service: str,
        limits: Limits,
        instances: Sequence[str] = (),
        *,
        leaving: Leaving,
        wake: Callable[[str], None],
        start: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self.service = service
        self._start_resting = wake
        self._limits = limits
        self._last_id = 0
        self.instances = {name: Instance(name) for name in instances or (service,)}
        """Instances by name, starting with the service's own."""
        self._loads = Loads(self.instances.values())
        self._states = collections.Counter(each.state for each in self.instances.values())
        """Number of instances in each state."""
        self._unhurried = dict.fromkeys(self.instances)
        """Instances whose first start has not been given priority."""
        self.in_flight = 0
        self._queue: collections.deque[RoutedCall] = collections.deque()
        self._suspects: collections.deque[RoutedCall] = collections.deque()
        self._tried: set[RoutedCall] = set()
        """Suspects in flight."""
        self._start = start
        self._quarantine = Quarantine()
        self._died_of_itself_at = -math.inf
        self._leaving = leaving
        self._removed = ""
        self._growing = False
        """Whether `_grow` runs."""
        self.calls = 0
        self.replays = 0
        self.failures: collections.Counter[str] = collections.Counter()

    def was_used(self, instance: str) -> bool:
        """Return whether this process has had or made a client's call since the last check."""
        live = self.instances[instance]
        calls = () if live.generation is None else live.generation.calls.values()
        used = live.used or any(call.for_client for call in calls)
        live.used = False
        return used

    def idle_since(self, instance: str) -> float | None:
        """Return the time since which it has neither had nor made calls; None if it has any, or calls are queued."""
        live = self.instances[instance]
        makes_calls = live.generation is not None and live.generation.made
        return None if live.in_flight or makes_calls or self.queued else live.busy_at

    def was_busy(self, instance: str, *, for_client: bool = False) -> None:
        """Note that it has just made a call, or received a reply to one; a front's calls are for its clients."""
        live = self.instances[instance]
        live.busy_at = trio.current_time()
        live.used = live.used or for_client

    @property
    def queued(self) -> int:
        return len(self._queue) + len(self._suspects)

    @property
    def is_removed(self) -> bool:
        return bool(self._removed)

    def remove(self, why: str) -> None:
        """Refuse further calls, and fail those that wait; calls in flight may finish."""
        self._removed = why
        self._fail_waiting()

    def revive(self, limits: Limits) -> None:
        """Take calls again, although the process of the removed service may still be ending."""
        self._removed, self._limits = "", limits

    def submit(self, call: RoutedCall) -> None:
        """Send the call now, or queue it.

        Raises LinckiaError, and never calls `done`, if neither is possible: the service is failed or stopped, the queue
        is full, or the request is quarantined.
        """
        if (error := self._refusal(call)) is not None:
            self.failures[error.kind.value] += 1
            raise call.op.failure(error)
        self.calls += 1
        if self._leaving.calls and (before := self._leaving.before(call)):
            self._start(partial(self._queue_after, before, call))
            return
        self._queue_now(call)

    def _queue_now(self, call: RoutedCall) -> None:
        self._queue.append(call)
        self._pump()
        self._limit_wait(call)
        self._wake()
        if self._queue and self._unhurried:
            self._hurry()

    async def _queue_after(self, before: Sequence[RoutedCall], call: RoutedCall) -> None:
        """Queue a call once earlier ones have ended, so that a client that looks sees what has become of them."""
        for each in before:
            await self._leaving.over(each, within_s=NEXT_S)
        if call.withdrawn:
            return
        if (error := self._unavailable(call)) is not None:
            self._finish(call, error)
        else:
            self._queue_now(call)

    def _hurry(self) -> None:
        """Have instances that were never READY start before other services, since somebody waits for this one."""
        for name in list(self._unhurried):
            if self.instances[name].state in _COMING:
                del self._unhurried[name]
                self._start_resting(name)

    def _refusal(self, call: RoutedCall) -> LinckiaError | None:
        if self._quarantine.kept and (left_s := self._quarantine.left_s(call)):
            return errors.Quarantined(
                f"this {call.op.name} request was in flight when two generations of service {self.service} crashed; "
                f"it is refused for another {left_s:.0f} s",
                executed=Executed.NO,
                retry_after_ms=int(left_s * 1000),
            )
        if (error := self._unavailable(call)) is not None or self.queued < self._limits.queue:
            return error
        return errors.Overloaded(
            f"service {self.service} has {self.in_flight} calls in flight and {self.queued} waiting; try again shortly",
            retry_after_ms=100,
        )

    def late(self, call: RoutedCall, executed: Executed) -> LinckiaError:
        """Return the failure of a call whose deadline passed without a reply."""
        self.failures["timeout"] += 1
        text = f"{call.op.name}: no answer from service {call.op.service} within {call.limit_s:.3g} s"
        return call.op.failure(errors.Timeout(text, executed=executed))

    def withdraw(self, call: RoutedCall, reason: str) -> Executed:
        """Remove the call from the queue, or cancel it. `done` will not be called. Returns whether it may have run."""
        call.withdrawn = True
        if call.frame_id and call.generation is not None:
            # It keeps its slot until the handler reports that it has stopped, so that the limit on calls in flight
            # holds.
            self._post(call.generation, Cancel(call.frame_id, reason))
            self._leaving.add(call)
            return Executed.MAYBE
        waiting = self._suspects if call in self._suspects else self._queue
        if call in waiting:
            waiting.remove(call)
        return call.executed

    def up(self, generation: Generation) -> None:
        generation.takes_calls = True
        instance = self.instances[generation.service]
        instance.generation = generation
        self._unhurried.pop(instance.name, None)
        self._loads.update(instance)
        self._pump()

    def draining(self, generation: Generation) -> None:
        """Send it no more calls."""
        generation.takes_calls = False
        self._loads.update(self.instances[generation.service])

    def state(self, instance: str, state: ServiceState, reason: str, retry_at: float | None) -> None:
        live = self.instances[instance]
        self._states[live.state] -= 1
        self._states[state] += 1
        live.state, live.reason, live.retry_at = state, reason, retry_at
        if state in (ServiceState.FAILED, ServiceState.STOPPED, ServiceState.BACKOFF):
            self._fail_waiting()
        self._wake()

    def down(self, generation: Generation, cause: Cause) -> None:
        self.instances[generation.service].tries_until = -math.inf
        lost, generation.calls = list(generation.calls.values()), {}
        self.in_flight -= len(lost)
        self._tried.difference_update(lost)
        self.draining(generation)
        again: list[RoutedCall] = []
        if not lost and cause.accuses:
            self._died_of_itself_at = trio.current_time()
        for call in lost:
            call.frame_id = 0
            if call.withdrawn:
                self._leaving.ended(call)
                continue
            if (error := self._after_death(call, cause, alone=len(lost) == 1)) is None:
                again.append(call)
            else:
                self._finish(call, error)
        # They have waited longest, so they go to the front.
        self._suspects.extend(call for call in again if call.suspect)
        self._queue.extendleft(reversed([call for call in again if not call.suspect]))
        for call in again:
            self._limit_wait(call)
        if self._removed:
            self._fail_waiting()
        # Another instance may be free to take them now.
        self._pump()
        self._wake()

    def _after_death(self, call: RoutedCall, cause: Cause, *, alone: bool) -> LinckiaError | None:
        call.deaths += 1
        text = f"service {self.service} died ({cause.text or cause.kind}) while serving {call.op.name}"
        if not call.is_repeatable():
            if call.op.access is Access.READ:
                return errors.Unavailable(text)
            return errors.MaybeExecuted(text)
        if cause.accuses:
            of_itself = trio.current_time() - self._died_of_itself_at < OF_ITSELF_S
            if call.suspect and alone and not of_itself:
                self._quarantine.convict(call)
                return errors.Quarantined(
                    f"{text}, for the second time; this request is refused for {QUARANTINE_S / 60:.0f} minutes",
                    retry_after_ms=int(QUARANTINE_S * 1000),
                )
            call.suspect = True
        if call.deaths > (REPLAYS_AFTER_CRASH if cause.accuses else REPLAYS_AFTER_KILL):
            return errors.Unavailable(
                f"{text}, for the {call.deaths}th time; it was not sent again", executed=call.executed
            )
        self.replays += 1
        return None

    def frame(self, generation: Generation, frame: Return | Fault | Unfinished | Progress) -> None:
        call = generation.calls.get(frame.id)
        if call is None:
            # The frame may have crossed a cancellation or a death.
            if frame.id > self._last_id:
                raise ProtocolViolation(f"{type(frame).__name__} of call {frame.id}, which was never made")
            return
        match frame:
            case Return(body=body):
                self._release(generation, call)
                self._finish(call, body)
            case Fault(failure=failure):
                self._release(generation, call)
                self._finish(call, errors.from_failure(call.of_all_times(failure)))
            case Unfinished(begun=begun, failure=failure):
                # The service is ending by itself.
                self.draining(generation)
                self._release(generation, call)
                self._not_done(call, begun=begun, failure=failure)
            case Progress():
                call.progressed = frame
                if call.progress is not None and not call.withdrawn:
                    with isolated("progress of", call.op.name):
                        call.progress(frame)

    def _not_done(self, call: RoutedCall, *, begun: bool, failure: Failure) -> None:
        """Handle a call that an ending generation did not finish: send it again if it was not begun or is
        repeatable."""
        failure = call.of_all_times(failure)
        call.deaths += begun
        if begun and not (call.is_repeatable() and call.deaths <= REPLAYS_AFTER_KILL):
            self._finish(call, errors.from_failure(failure))
        elif not call.withdrawn:
            self.replays += 1
            self._queue.appendleft(call)
            if self._removed:
                self._fail_waiting()
            self._pump()
            self._limit_wait(call)
            self._wake()

    def _release(self, generation: Generation, call: RoutedCall) -> None:
        del generation.calls[call.frame_id]
        if self._leaving.calls:
            self._leaving.ended(call)
        self.in_flight -= 1
        call.frame_id = 0
        instance = self.instances[generation.service]
        self._loads.update(instance)
        if call.suspect:
            self._tried.discard(call)
            instance.tries_until = -math.inf
        instance.busy_at = trio.current_time()
        self._pump()

    def _finish(self, call: RoutedCall, outcome: bytes | LinckiaError) -> None:
        if isinstance(outcome, LinckiaError):
            self.failures[outcome.kind.value] += 1
            outcome = call.op.failure(outcome)
        if not call.withdrawn:
            call.withdrawn = True
            try:
                call.done(outcome)
            except Exception as defect:  # noqa: BLE001  # a defect in one reply must not end the kernel
                report(defect, "the reply to", call.op.name)

    def _pump(self) -> None:
        now = trio.current_time()
        while self.queued:
            instance = self._loads.least(self._limits.in_flight)
            if instance is None or (generation := instance.taking) is None:
                return
            if self._suspects and self._may_try_suspect(instance):
                call = self._suspects.popleft()
            elif self._queue:
                call = self._queue.popleft()
            else:
                return
            if call.deadline <= now:
                late = f"{call.op.name}: the deadline passed before service {self.service} took it"
                self._finish(call, errors.Timeout(late, executed=call.executed))
                continue
            instance.used = instance.used or call.for_client
            self._send(call, generation, now)
            if call.suspect:
                instance.tries_until = now + ALONE_S
                self._start(self._end_trial)

    def _may_try_suspect(self, instance: Instance) -> bool:
        """Return whether the instance may get a suspect: up to half of a pool may have one each, since one at a time
        would take too long after many deaths."""
        if len(self._tried) >= max(1, self._loads.accepting // 2):
            return False
        return not any(call.generation is instance.generation for call in self._tried)

    def _limit_wait(self, call: RoutedCall) -> None:
        """Have the call fail if no instance becomes READY in time."""
        if self._limits.wait_s is not None and call in self._queue and not self._is_up():
            self._start(partial(self._expire, call, self._limits.wait_s, call.deaths))

    async def _expire(self, call: RoutedCall, wait_s: float, deaths: int) -> None:
        await trio.sleep(wait_s)
        if self._is_up() or call.deaths != deaths or call not in self._queue:
            return
        self._queue.remove(call)
        first = next(iter(self.instances.values()))
        why = f" ({first.state}: {first.reason})" if first.reason else ""
        text = f"service {self.service} was not ready within {wait_s:g} s{why}"
        self._finish(call, errors.Unavailable(text, executed=call.executed))

    def _is_up(self) -> bool:
        return self._loads.accepting > 0

    async def _end_trial(self) -> None:
        await trio.sleep(ALONE_S)
        self._pump()

    def _wake(self) -> None:
        """Wake one more resting instance, unless every call has an idle instance, or one that is starting."""
        asleep = next((state for state in _ASLEEP if self._states[state]), None)
        if asleep is None or self._removed:
            return
        coming = sum(self._states[state] for state in _COMING)
        if self.queued + max(0, self.in_flight - self._loads.accepting) <= coming:
            return
        if self._limits.grow_after_s is None or not (self._loads.accepting or coming):
            self._wake_one(asleep)
        elif not self._growing:
            self._growing = True
            self._start(self._grow)

    def _wake_one(self, asleep: ServiceState) -> None:
        # An instance that is still draining takes longer than one that has ended.
        self._start_resting(next(each.name for each in self.instances.values() if each.state is asleep))

    async def _grow(self) -> None:
        """While calls have to share instances, wake one more whenever some have waited for too long.

        A process may take many calls at once and compute them one after the other, so calls that were sent wait too:
        calls that are as old as that, beyond one for each instance.
        """
        patience_s = self._limits.grow_after_s or 0.0
        try:
            while not self._removed and self.queued + self.in_flight > self._loads.accepting:
                await trio.sleep(patience_s)
                asleep = next((state for state in _ASLEEP if self._states[state]), None)
                coming = sum(self._states[state] for state in _COMING)
                # Calls that were sent stay where they are, so an idle instance is what one more would be.
                is_idle = self._loads.least(1) is not None
                if asleep is not None and not is_idle and self._waited(patience_s) > self._loads.accepting + coming:
                    self._wake_one(asleep)
        finally:
            self._growing = False

    def _waited(self, patience_s: float) -> int:
        """Count the calls that came at least `patience_s` ago."""
        before = trio.current_time() - patience_s
        sent = (call for each in self.instances.values() if each.generation for call in each.generation.calls.values())
        every = itertools.chain(self._queue, self._suspects, sent)
        return sum(call.deadline - call.limit_s <= before for call in every)

    def _send(self, call: RoutedCall, generation: Generation, now: float) -> None:
        self._last_id += 1
        call.frame_id, call.generation, call.sent_at = self._last_id, generation, now
        generation.calls[call.frame_id] = call
        self.in_flight += 1
        self._loads.update(self.instances[generation.service])
        if call.suspect:
            self._tried.add(call)
        origin = call.origin
        frame = Call(
            id=call.frame_id,
            op=call.op.name,
            params=call.params,
            left_ms=max(1, int(min((call.deadline - now) * 1000, MAX_LEFT_MS))),
            # Services learn neither where a client is nor what mandate it gave.
            origin=Origin(origin.caller, origin.session, "", origin.grant, origin.key, origin.trace),
            generation=generation.number,
            progress=call.progress is not None,
        )
        self._post(generation, frame)

    def _post(self, generation: Generation, frame: Call | Cancel) -> None:
        if not generation.takes_calls or generation.channel is None:
            return
        generation.stirred()
        try:
            generation.channel.post(frame)
        except LinkClosed:
            # The supervisor also notices the death and calls `down`, which decides what happens to the calls.
            self.draining(generation)

    def _unavailable(self, call: RoutedCall) -> errors.Unavailable | None:
        """Return why waiting would be in vain, or None if it would not."""
        if self._removed:
            return errors.Unavailable(self._removed, executed=call.executed)
        if not all(each.is_hopeless(call.deadline) for each in self.instances.values()):
            return None
        first = min(self.instances.values(), key=lambda each: math.inf if each.retry_at is None else each.retry_at)
        wait = None if first.retry_at is None else max(0.0, first.retry_at - trio.current_time())
        when = "" if wait is None else f"; the next start is tried in {wait:.1f} s"
        return errors.Unavailable(
            f"service {first.name} is {first.state}: {first.reason}{when}",
            retry_after_ms=None if wait is None else int(wait * 1000),
            executed=call.executed,
        )

    def _fail_waiting(self) -> None:
        for waiting in (self._queue, self._suspects):
            for call in list(waiting):
                if (error := self._unavailable(call)) is not None:
                    waiting.remove(call)
                    self._finish(call, error)
