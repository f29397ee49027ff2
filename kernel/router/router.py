"""The router: passes every call of a client, operator or service to the service that owns the operation.

It is the supervisor's `GenerationSink` and everyone's `Dispatcher`. It never decodes a body that it passes from one
service to another. Calls made while serving a call inherit its trace and its permission to ask the client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import trio
from msgspec import structs

from kernel.chronicle.isolation import isolated, run_isolated
from kernel.router.approvals import Gate
from kernel.router.generation import (
    MAX_DECODED_BYTES,
    MAX_QUESTION_BYTES,
    Client,
    FrontClient,
    FrontRequests,
    Generation,
    Limits,
    RoutedCall,
    ServiceState,
    Undecoded,
    Waiting,
    answering,
    served,
)
from kernel.router.lane import Lane
from kernel.router.leaving import Leaving
from kernel.router.ports import Cause, LocalHandler
from kernel.router.record import KERNEL, AuditLog, CallLog, record, take_key
from kernel.router.take_over import TakenOver
from proto import errors, mcp
from proto.approvals import Rules
from proto.errors import Cancelled, Executed, Forbidden, Internal, LinckiaError
from proto.grants import Grant
from proto.operation import CLIENT, OPERATOR, Access, Operation, Params, operation_of
from proto.ops import Table
from proto.origin import Origin
from proto.target import described
from proto.wire import frames
from proto.wire.channel import ProtocolViolation
from proto.wire.frames import AnyFrame, Call, Event, Fault, Progress, Return
from proto.wire.front import TO_FRONTS

R = TypeVar("R")


class Router:
    """Routes calls; `run` must be running in a nursery.

    Args:
        limits: limits of each service, by its name.
        pools: names of the instances of services with several processes.
        read_only: whether clients may call only operations that read. The operator may still call others, although
            nobody may write to the roots.
        audit: records changes and refusals, if given.
        fronts: services that act for clients: they may call as clients, and receive events that clients subscribe to.
        rules: which calls of clients wait for an approval.
    """

    def __init__(
        self,
        table: Table,
        limits: Mapping[str, Limits],
        pools: Mapping[str, Sequence[str]] | None = None,
        *,
        fronts: Container[str] = (),
        read_only: bool = False,
        audit: AuditLog | None = None,
        rules: Rules | None = None,
    ) -> None:
        self._audit = audit
        self._gate = Gate(rules, self.call) if rules else None
        self.calls = CallLog()
        self._fronts = fronts
        self._read_only = read_only
        self.table = table
        """Replaced as a whole when operations are added or removed."""
        self.leaving = Leaving()
        self.lanes = {name: self._new_lane(name, limit, (pools or {}).get(name, ())) for name, limit in limits.items()}
        """Lanes by service."""
        # Also by instance, since the supervisor knows only instances.
        self._lanes = {**self.lanes, **{name: lane for lane in self.lanes.values() for name in lane.instances}}
        self._removed: dict[str, str] = {}
        """By service: why calls of its former operations fail."""
        self._up: set[Generation] = set()
        self._own: dict[str, LocalHandler] = {}
        self.taken_over = TakenOver(self._record, self._lane_of, self.leaving)
        self._nursery: trio.Nursery | None = None
        self._start_resting: Callable[[str], None] = lambda instance: None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the nursery in which kernel operations run when services call them."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def _new_lane(self, service: str, limits: Limits, instances: Sequence[str] = ()) -> Lane:
        return Lane(service, limits, instances, wake=self._wake, start=self._start, leaving=self.leaving)

    def wake_with(self, start: Callable[[str], None]) -> None:
        """Set the function that starts a resting instance. It is called when calls need one, even while it is
        ending."""
        self._start_resting = start

    def add(self, service: str, limits: Limits) -> None:
        """Route calls to another service, with one process. Its operations must then be put into `table`."""
        self._removed.pop(service, None)
        if (lane := self.lanes.get(service)) is not None:
            lane.revive(limits)
        else:
            lane = self._new_lane(service, limits)
            self.lanes[service] = self._lanes[service] = lane

    def remove(self, service: str, why: str) -> None:
        """Fail calls to a service that wait, and all further ones. Its operations must be removed from `table`."""
        self._removed[service] = why
        self.lanes[service].remove(why)

    def gone(self, service: str) -> None:
        if (lane := self.lanes.get(service)) is not None and lane.is_removed:
            del self.lanes[service], self._lanes[service]

    def _wake(self, instance: str) -> None:
        self._start_resting(instance)

    def serve_local(self, handlers: Mapping[type[Params[Any]], LocalHandler]) -> None:
        """Register the kernel's handlers for its own operations, by their parameters."""
        self._own |= {operation_of(params).name: handler for params, handler in handlers.items()}

    def lane(self, service: str) -> Lane:
        """Return the lane of a service, or of the service to which an instance belongs."""
        return self._lanes[service]

    async def call(
        self,
        operation: Operation[Any],
        params: Params[Any],
        *,
        origin: Origin,
        timeout_s: float | None = None,
        client_requests: Client | None = None,
        written: bool = False,
    ) -> object:
        """See `services.runtime.dispatch.Dispatcher.call`. A result of more than `MAX_DECODED_BYTES` is `Undecoded`."""
        limit_s = operation.deadline_ms / 1000 if timeout_s is None else timeout_s
        waiting = Waiting(client_requests)
        call = RoutedCall(
            op=operation,
            params=b"",
            origin=structs.replace(origin, key="", trace=origin.trace or frames.new_trace()),
            deadline=trio.current_time() + limit_s,
            limit_s=limit_s,
            done=waiting.done,
            progress=None if client_requests is None else waiting.progress,
            client_requests=client_requests,
            target=described(params),
            span=self.calls.new_span(),
            parent_span=frames.parent_span(origin.trace),
        )

        async def work() -> object:
            self._admit(call, origin.grant)
            if origin.key:
                take_key(call, origin.key)
            if operation.service == KERNEL:
                return await self._answer_own(call, params)
            call.params = frames.pack_body(params)
            if len(call.params) > frames.MAX_MESSAGE_BYTES:
                too_large = f"{operation.name}: parameters of more than {frames.MAX_MESSAGE_BYTES} bytes"
                raise errors.InvalidParams(too_large)
            if self._gate is not None and self._gate.holds(call):
                await self._gate.approved(call)
            outcome = await self._outcome(call, waiting)
            if isinstance(outcome, LinckiaError):
                raise outcome
            if len(outcome) > MAX_DECODED_BYTES:
                return Undecoded(outcome)
            return frames.plain(operation, outcome, written=written)

        return await self._recorded(call, work)

    async def _outcome(self, call: RoutedCall, waiting: Waiting) -> bytes | LinckiaError:
        """Return a service's reply to a call made in this process."""
        lane = self._lane_of(call.op)
        lane.submit(call)
        executed = Executed.MAYBE
        try:
            with trio.move_on_at(call.deadline):
                await waiting.finished.wait()
        finally:
            if not waiting.finished.is_set():
                executed = lane.withdraw(call, "withdrawn by the caller")
                with trio.CancelScope(shield=True):
                    await self.leaving.over(call)
        return lane.late(call, executed) if waiting.outcome is None else waiting.outcome

    def _record(self, call: RoutedCall, outcome: object) -> None:
        """Record the outcome of a call for the operator and, if it concerns it, in the audit log."""
        record(self._audit, call, outcome)
        self.calls.note(call, outcome)

    async def _recorded(self, call: RoutedCall, work: Callable[[], Awaitable[R]]) -> R:
        """Return or raise the outcome of `work`, after recording it."""
        outcome: object = Cancelled(f"{call.op.name}: withdrawn by the caller")
        try:
            outcome = result = await work()
        except LinckiaError as error:
            outcome = error
            raise
        finally:
            self._record(call, outcome)
        return result

    async def _answer_own(self, call: RoutedCall, params: Params[Any], *, kept: tuple[type, ...] = ()) -> object:
        """Return the result of one of the kernel's own operations as plain data, in which values of the `kept` types
        stay as they are. Raises LinckiaError."""
        try:
            with trio.move_on_at(call.deadline):
                found = await self._own[call.op.name](params, call.origin.caller)
                return msgspec.to_builtins(found, builtin_types=kept)
            raise errors.Timeout(f"{call.op.name}: not done within {call.limit_s:.3g} s")
        except LinckiaError as error:
            raise call.op.failure(error) from error.__cause__

    async def _answer_own_for_service(self, call: RoutedCall, parent: RoutedCall | None) -> bytes:
        """Like `_answer_own`, for a service's call made while serving `parent`; returns a body. Raises LinckiaError."""
        served.set(parent)
        answering.set(call)
        if len(call.params) > MAX_DECODED_BYTES:
            raise errors.InvalidParams(f"{call.op.name}: parameters of more than {MAX_DECODED_BYTES} bytes")
        try:
            params = frames.read_body(call.params, call.op.params)
            params.check()
        except msgspec.DecodeError as error:
            raise errors.InvalidParams(f"{call.op.name}: {error}") from None
        if self._gate is not None and self._gate.holds(call):
            await self._gate.approved(call)
        return frames.pack_body(await self._answer_own(call, params, kept=(bytes,)))

    def up(self, generation: Generation) -> None:
        lane = self._lanes[generation.service]
        if lane.service in self._fronts and generation.channel is not None:
            generation.client = FrontClient(generation.channel)
        self._up.add(generation)
        lane.up(generation)

    def draining(self, generation: Generation) -> None:
        self._lanes[generation.service].draining(generation)

    def was_used(self, service: str) -> bool:
        return self._lanes[service].was_used(service)

    def idle_since(self, service: str) -> float | None:
        return self._lanes[service].idle_since(service)

    def state(self, service: str, state: ServiceState, reason: str, retry_at: float | None) -> None:
        self._lanes[service].state(service, state, reason, retry_at)

    def down(self, generation: Generation, cause: Cause) -> None:
        self._up.discard(generation)
        made, generation.made = generation.made, {}
        for call in made.values():
            executed = self._called_off(call, f"service {generation.service} died")
            lost = f"{call.op.name}: service {generation.service}, which had called it, died"
            self._record(call, Cancelled(lost, executed=executed))
        for scope in generation.asks.values():
            scope.cancel()
        generation.asks.clear()
        if generation.client is not None:
            generation.client.gone()
        self._lanes[generation.service].down(generation, cause)

    def frame(self, generation: Generation, frame: AnyFrame) -> None:
        if isinstance(frame, Return | Fault | frames.Unfinished | Progress):
            asked = generation.client is not None and generation.client.answered(frame)
            if not asked:
                self._lanes[generation.service].frame(generation, frame)
            return
        match frame:
            case Event():
                self._publish(frame, generation)
            case _ if generation not in self._up:
                # It is about to end, and was never announced as READY.
                return
            case Call():
                self._from_service(generation, frame)
            case frames.Cancel(id=call_id):
                self._withdraw(generation, call_id, late=frame.reason == frames.DEADLINE)
                if (scope := generation.asks.get(call_id)) is not None:
                    scope.cancel()
            case frames.Log():
                call = generation.serving(frame.call)
                if call is not None and call.client_requests is not None:
                    with isolated("a client's log"):
                        call.client_requests.log(frame.level, generation.service, frame.message)

    def _withdraw(self, generation: Generation, call_id: int, *, late: bool) -> None:
        """Cancel a service's call; if its deadline passed, report to the service whether the call may have run."""
        if (call := generation.made.pop(call_id, None)) is None:
            return
        generation.forget(call_id)
        held = call.holding is not None
        executed = self._called_off(call, f"withdrawn by service {generation.service}")
        if late:
            nobody = errors.Timeout(f"{call.op.name}: it was not approved in time", executed=executed)
            outcome: LinckiaError = nobody if held else self._lane_of(call.op).late(call, executed)
        else:
            outcome = Cancelled(f"{call.op.name}: withdrawn by the caller", executed=executed)
        self._record(call, outcome)
        if call not in self.leaving:
            generation.answer(call_id, outcome)
            return

        async def answer() -> None:
            await self.leaving.over(call)
            generation.answer(call_id, outcome)

        self._start(answer)

    def _called_off(self, call: RoutedCall, reason: str) -> Executed:
        """Withdraw a call, which may still wait for its approval. Returns whether it may have run."""
        if call.holding is None:
            return self._lane_of(call.op).withdraw(call, reason)
        call.withdrawn = True
        call.holding.cancel()
        return Executed.NO

    def _from_service(self, generation: Generation, frame: Call) -> None:
        if frame.id in generation.made or frame.id in generation.asks:
            raise ProtocolViolation(f"call number {frame.id} is already used by an unanswered call")
        operation = self.table.by_name.get(frame.op) or self.table.get(frame.op)
        call = None if operation is None else self._routed(generation, frame, operation)
        try:
            generation.admit(frame)
            if call is not None:
                self._pass_on(generation, frame, call)
            elif frame.op == frames.ASK_CLIENT:
                self._ask_client(generation, frame)
            else:
                raise self._unknown(frame.op)
        except LinckiaError as error:
            if call is not None:
                self._record(call, error)
            generation.answer(frame.id, error)

    def _unknown(self, name: str) -> LinckiaError:
        """Return the failure of a call of an operation that does not exist, or no longer."""
        if (why := self._removed.get(name.partition(".")[0])) is not None:
            return errors.Unavailable(why, executed=Executed.NO)
        return errors.UnknownOperation(f"unknown operation {name!r}")

    def _routed(self, generation: Generation, frame: Call, operation: Operation[object]) -> RoutedCall:
        """Return a service's call in its own name, or a front's call for the client or caller it serves."""
        lane = self._lanes[generation.service]

        def done(outcome: bytes | LinckiaError) -> None:
            self._record(generation.made.pop(frame.id), outcome)
            lane.was_busy(generation.service)
            generation.answer(frame.id, outcome)

        parent = generation.serving(frame.parent)
        of_front = generation.client is not None
        names = (CLIENT, parent.origin.caller if parent is not None else CLIENT) if of_front else ()
        given = frame.origin
        caller = given.caller if given.caller in names else lane.service
        client_requests = parent.client_requests if parent is not None else None
        if caller == CLIENT and generation.client is not None:
            client_requests = FrontRequests(generation.client, frame.id)
        # The grant is that of the call being served, which no service can widen. A front names the grant of its other
        # calls. Other services have their own grant: everything they may call in their own name.
        own = given.grant if of_front else Grant(lane.service)
        inherited = parent.origin.grant if parent is not None else None
        # Only a front may name a client's session. Calls made while serving it inherit it.
        session = given.session if of_front else parent.origin.session if parent is not None else ""
        grant = own if parent is None or (of_front and inherited is None) else inherited
        return RoutedCall(
            op=operation,
            params=frame.params,
            origin=Origin(caller, session, given.peer if of_front else "", grant, trace=given.trace),
            deadline=trio.current_time() + frame.left_ms / 1000,
            limit_s=frame.left_ms / 1000,
            done=done,
            progress=(lambda said: generation.post(Progress(frame.id, said.done, said.total, said.message)))
            if frame.progress
            else None,
            client_requests=client_requests,
            target=frame.target,
            maker=generation,
            for_client=caller == CLIENT or (parent is not None and parent.for_client),
            span=self.calls.new_span(),
            parent_span=parent.span if parent is not None else frames.parent_span(given.trace),
        )

    def _pass_on(self, generation: Generation, frame: Call, call: RoutedCall) -> None:
        if generation.client is not None and frame.origin.caller != call.origin.caller:
            raise Forbidden(f"{generation.service} may not call as {frame.origin.caller}")
        # What a service calls to serve a client is its own business, within the grant that comes with the call.
        self._admit(call, call.origin.grant if generation.client is not None else None)
        if frame.origin.key:
            take_key(call, frame.origin.key)
        if call.op.service == KERNEL:
            own = partial(self._answer_own_for_service, call, generation.serving(frame.parent))
            self._answer_itself(generation, frame, partial(self._recorded, call, own))
            return
        lane = self._lane_of(call.op)
        # Even if the call fails at once: the service's work is not finished.
        self._lanes[generation.service].was_busy(generation.service, for_client=generation.client is not None)
        generation.made[frame.id] = call
        try:
            if self._gate is not None and self._gate.holds(call):
                call.holding = trio.CancelScope()
                self._start(partial(self._gate.submit, call, call.holding, lane.submit))
            else:
                lane.submit(call)
        except LinckiaError:
            del generation.made[frame.id]
            raise

    def _admit(self, call: RoutedCall, grant: Grant | None) -> None:
        """Raise Forbidden if the caller, or a client with this grant, may not make the call."""
        operation, caller = call.op, call.origin.caller
        if not operation.admits(caller) and not (caller == CLIENT and operation.admits_sync(grant)):
            who = caller if caller in (CLIENT, OPERATOR) else f"service {caller}"
            raise Forbidden(f"{operation.name} may not be called by {who}")
        if self._read_only and caller == CLIENT and operation.access is not Access.READ:
            raise Forbidden(f"{operation.name} makes changes, and this kernel is read-only (`read_only`)")
        if grant is not None and (refusal := operation.refusal(grant)):
            raise Forbidden(refusal)

    def _ask_client(self, generation: Generation, frame: Call) -> None:
        parent = generation.serving(frame.parent)
        if parent is None or parent.client_requests is None:
            raise errors.Unavailable("the call being served was not made by a client that can be asked")
        if len(frame.params) > MAX_QUESTION_BYTES:
            raise errors.InvalidParams(f"a question to a client is {MAX_QUESTION_BYTES} bytes long at most")
        self._answer_itself(generation, frame, partial(parent.client_requests.ask, frame.params))

    def _answer_itself(self, generation: Generation, call: Call, work: Callable[[], Awaitable[bytes]]) -> None:
        """Answer a service's call with the outcome of `work`, in a task."""
        scope = trio.CancelScope()

        async def answer() -> None:
            outcome: bytes | LinckiaError = Internal(f"{call.op} failed in the kernel; its log has the details")
            with scope, isolated(f"{call.op} for service {generation.service}"):
                try:
                    outcome = await work()
                except LinckiaError as error:
                    outcome = error
            if scope.cancelled_caught:
                outcome = Cancelled(f"{call.op} was cancelled by its caller", executed=Executed.MAYBE)
            if generation.asks.pop(call.id, None) is not None:
                generation.answer(call.id, outcome)

        self._start(answer)
        generation.asks[call.id] = scope

    def _lane_of(self, operation: Operation[Any]) -> Lane:
        lane = self._lanes.get(operation.service)
        if lane is None:
            owner = f"service {operation.service}, which owns {operation.name},"
            if (why := self._removed.get(operation.service)) is not None:
                raise errors.Unavailable(why, executed=Executed.NO)
            raise errors.Unavailable(f"{owner} is not part of this system")
        return lane

    def _publish(self, event: Event, sender: Generation) -> None:
        between_fronts = event.topic.startswith(TO_FRONTS)
        if between_fronts and sender.client is None:
            # No other service may send events about clients' sessions.
            return
        for each in self._up:
            meant = each is not sender if between_fronts else event.topic.startswith(mcp.PREFIX)
            if each.client is not None and meant:
                each.post(event)

    def _start(self, task: Callable[[], Awaitable[None]]) -> None:
        if self._nursery is None:
            raise errors.Unavailable("the kernel is ending")
        self._nursery.start_soon(run_isolated, "a task of the router", task)
