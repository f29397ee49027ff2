"""The router: every call of a client, an operator or a service, to whichever service owns the operation.

It is the supervisor's `GenerationSink` and everyone's `Dispatcher`.  It never decodes a body that it passes from one
service to another; traces and the right to ask the client go from a call to the calls made while serving it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import trio

from kernel.edge import Edge, contained
from kernel.ports import Cause, ServiceState
from kernel.router.call import RoutedCall, Waiting
from kernel.router.client import FrontClient
from kernel.router.instance import Limits
from kernel.router.lane import Lane
from kernel.router.living import Living
from kernel.router.own import LocalHandler, OwnOperations, told
from kernel.router.record import KERNEL, AuditLog, Records
from proto import errors, frames, grants, mcp
from proto.channel import Channel, ProtocolViolation
from proto.dispatch import ClientRequests
from proto.errors import Cancelled, Executed, Forbidden, Internal, LinckiaError
from proto.frames import AnyFrame, Call, Event, Fault, Progress, Return
from proto.front import TO_FRONTS
from proto.grants import Grant
from proto.operation import CLIENT, OPERATOR, Access, Operation, Params
from proto.ops import Table
from proto.target import described

MAX_QUESTION_BYTES = 1024 * 1024
"""Of a service to a client; the kernel reads them."""

_question = frames.reader(frames.Question)


class Router:
    """Routes calls; `run` must be running in a nursery.

    Args:
        limits: of each service, by its name.
        pools: the instances of services that are several processes.
        read_only: whether clients may only call what reads. The operator may go on: the roots are closed to all.
        audit: where changes and refusals are recorded, if anywhere.
        fronts: services that speak for clients: they may call as such, and are told of what clients subscribe to.
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
    ) -> None:
        self._records = Records(audit)
        self._fronts = fronts
        self._read_only = read_only
        self._table = table
        self.lanes = {
            name: Lane(name, limit, (pools or {}).get(name, ()), wake=self._wake, start=self._start)
            for name, limit in limits.items()
        }
        """By service."""
        # By instance as well, since that is what the supervisor knows.
        self._lanes = dict(self.lanes)
        for name, instances in (pools or {}).items():
            self._lanes.update(dict.fromkeys(instances, self.lanes[name]))
        self._living: dict[tuple[str, int], Living] = {}
        self._own = OwnOperations()
        self._nursery: trio.Nursery | None = None
        self._start_resting: Callable[[str], None] | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps the nursery in which the kernel's own operations run when a service calls them."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def wake_with(self, start: Callable[[str], None]) -> None:
        """Have `start` start an instance that rests: called where calls want it, also while it is still ending."""
        self._start_resting = start

    def _wake(self, instance: str) -> None:
        if self._start_resting is not None:
            self._start_resting(instance)

    def serve_local(self, name: str, handler: LocalHandler) -> None:
        """The kernel itself answers operation `name` (declared with service `kernel`)."""
        self._own.serve(name, handler)

    def lane(self, service: str) -> Lane:
        """The lane of a service, or of the service that an instance is of."""
        return self._lanes[service]

    def operation(self, name: str) -> Operation[Any]:
        """The operation of that name. Raises UnknownOperation."""
        return self._table.find(name)

    async def call(
        self,
        operation: Operation[Any],
        params: Params[Any],
        *,
        caller: str = "client",
        timeout_s: float | None = None,
        trace: str | None = None,
        client_requests: ClientRequests | None = None,
        written: bool = False,
    ) -> object:
        """See `proto.dispatch.Dispatcher.call`."""
        trace = trace or frames.new_trace()
        # The kernel's own work for a client is held to that client's grant.
        grant = grants.current.get()
        call = partial(
            self._call, operation, params, caller, grant, timeout_s, trace, client_requests, written=written
        )  # fmt: skip
        tell = partial(self._records.put, operation, caller, grant=grant, target=described(params), trace=trace)
        return await told(tell, operation, call)

    async def _call(
        self,
        operation: Operation[Any],
        params: Params[Any],
        caller: str,
        grant: Grant | None,
        timeout_s: float | None,
        trace: str,
        client_requests: ClientRequests | None,
        *,
        written: bool,
    ) -> object:
        self._admit(operation, caller, grant)
        limit_s = operation.deadline_ms / 1000 if timeout_s is None else timeout_s
        if operation.service == KERNEL:
            return await self._own.call(operation, params, caller, limit_s)
        lane = self._lane_of(operation)
        body = frames.pack_body(params)
        if len(body) > frames.MAX_MESSAGE_BYTES:
            raise errors.InvalidParams(f"{operation.name}: parameters of more than {frames.MAX_MESSAGE_BYTES} bytes")
        waiting = Waiting(client_requests)
        routed = RoutedCall(
            operation,
            body,
            caller=caller,
            trace=trace,
            deadline=trio.current_time() + limit_s,
            limit_s=limit_s,
            done=waiting.done,
            progress=None if client_requests is None else waiting.progress,
            client_requests=client_requests,
            grant=grant,
        )
        lane.submit(routed)
        try:
            with trio.move_on_at(routed.deadline):
                await waiting.finished.wait()
        finally:
            delivered = waiting.finished.is_set() or lane.withdraw(routed, "withdrawn by the caller")
        if waiting.outcome is None:
            lane.failures["timeout"] += 1
            late = f"{operation.name}: no answer from service {operation.service} within {limit_s:.3g} s"
            raise operation.failure(errors.Timeout(late, executed=Executed.MAYBE if delivered else Executed.NO))
        return waiting.result(operation, written=written)

    def up(self, hello: frames.Hello, channel: Channel) -> None:
        lane = self._lanes[hello.service]
        living = Living(hello.service, hello.generation, channel, lane)
        if lane.service in self._fronts:
            living.client = FrontClient(channel)
        self._living[hello.service, hello.generation] = living
        lane.up(hello.service, hello.generation, channel)

    def draining(self, service: str, generation: int) -> None:
        self._lanes[service].draining(service, generation)

    def was_used(self, service: str) -> bool:
        return self._lanes[service].was_used(service)

    def idle_since(self, service: str) -> float | None:
        if any(living.made for living in self._living.values() if living.service == service):
            return None
        return self._lanes[service].idle_since(service)

    def state(self, service: str, state: ServiceState, reason: str, retry_at: float | None) -> None:
        self._lanes[service].state(service, state, reason, retry_at)

    def down(self, service: str, generation: int, cause: Cause) -> None:
        if (dead := self._living.pop((service, generation), None)) is not None:
            for lane, call in dead.made.values():
                delivered = lane.withdraw(call, f"service {service} died")
                executed = Executed.MAYBE if delivered else Executed.NO
                lost = Cancelled(f"{call.op.name}: service {service}, which had called it, died", executed=executed)
                self._records.routed(call, lost)
            for scope in dead.asks.values():
                scope.cancel()
            dead.asks.clear()
            if dead.client is not None:
                dead.client.gone()
        self._lanes[service].down(service, generation, cause)

    def frame(self, service: str, generation: int, frame: AnyFrame) -> None:
        living = self._living.get((service, generation))
        if isinstance(frame, Return | Fault | frames.Unfinished | Progress):
            asked = living is not None and living.client is not None and living.client.answered(frame)
            if not asked:
                self._lanes[service].frame(service, generation, frame)
            return
        match frame:
            case Event():
                self._publish(frame, living)
            case Call() if living is not None:
                self._from_service(living, frame)
            case frames.Cancel(id=call_id) if living is not None:
                self._withdraw(living, call_id, late=frame.reason == frames.DEADLINE)
                if (scope := living.asks.pop(call_id, None)) is not None:
                    scope.cancel()
            case frames.Log() if living is not None:
                call = living.serving(frame.call)
                if call is not None and call.client_requests is not None:
                    with Edge("a client's log"):
                        call.client_requests.log(frame.level, service, frame.message)
            case _:
                # Before it was ready.
                return

    def _withdraw(self, living: Living, call_id: int, *, late: bool) -> None:
        """A service wants no answer to its call any more; where its time is up, it is told what may have been done."""
        lane, call = living.made.pop(call_id, (None, None))
        if lane is None or call is None:
            return
        delivered = lane.withdraw(call, f"withdrawn by service {living.service}")
        executed = Executed.MAYBE if delivered else Executed.NO
        if late:
            lane.failures["timeout"] += 1
            text = f"{call.op.name}: no answer from service {call.op.service} within {call.limit_s:.3g} s"
            timeout = call.op.failure(errors.Timeout(text, executed=executed))
            self._records.routed(call, timeout)
            living.answer(call_id, timeout)
        else:
            self._records.routed(call, Cancelled(f"{call.op.name}: withdrawn by the caller", executed=executed))

    def _from_service(self, living: Living, call: Call) -> None:
        if call.id in living.made or call.id in living.asks:
            raise ProtocolViolation(f"a call of number {call.id}, which another has that is not answered")
        parent = living.serving(call.parent)
        try:
            living.admit(call)
            if call.op == frames.ASK_CLIENT:
                self._ask_client(living, call, parent.client_requests if parent is not None else None)
            else:
                self._pass_on(living, call, parent)
        except LinckiaError as error:
            self._record_refusal(living, call, error)
            living.answer(call.id, error)

    def _record_refusal(self, living: Living, call: Call, error: LinckiaError) -> None:
        """A call that went no further; whose name it was to be in is not settled."""
        if (operation := self._table.get(call.op)) is not None:
            caller = call.caller if living.client is not None and call.caller == CLIENT else living.lane.service
            grant = living.grant_of(call, living.serving(call.parent))
            self._records.put(
                operation, caller, error, grant=grant, target=call.target, peer=call.peer, trace=call.trace
            )

    def _pass_on(self, living: Living, call: Call, parent: RoutedCall | None) -> None:
        operation = self._table.get(call.op)
        if operation is None:
            raise errors.UnknownOperation(f"unknown operation {call.op!r}")
        caller = living.caller_of(call, parent)
        grant = living.grant_of(call, parent)
        # What a service calls to serve a client is its own concern, within the grant that goes with the call.
        self._admit(operation, caller, grant if living.client is not None else None)
        if operation.service == KERNEL:
            serve = partial(self._own.call_for, call, operation, caller, grant)
            tell = partial(
                self._records.put, operation, caller, grant=grant, target=call.target, peer=call.peer, trace=call.trace
            )
            self._answer_itself(living, call, partial(told, tell, operation, serve))
            return
        lane = self._lane_of(operation)
        client_requests = parent.client_requests if parent is not None else None
        if caller == CLIENT and living.client is not None:
            client_requests = living.client.requests(call.id)
        # Also where it fails at once: what it wanted to do is still to be done.
        living.lane.was_busy(living.service)

        def done(outcome: bytes | LinckiaError) -> None:
            living.made.pop(call.id, None)
            self._records.routed(routed, outcome)
            living.lane.was_busy(living.service)
            living.answer(call.id, outcome)

        def progress(frame: Progress) -> None:
            living.post(Progress(call.id, frame.done, frame.total, frame.message))

        routed = RoutedCall(
            operation,
            call.params,
            caller=caller,
            trace=call.trace,
            deadline=trio.current_time() + call.left_ms / 1000,
            done=done,
            limit_s=call.left_ms / 1000,
            progress=progress if call.progress else None,
            client_requests=client_requests,
            # A client's session is for its front alone to name; what is called while serving it is of the same.
            session=call.session if living.client is not None else parent.session if parent is not None else "",
            grant=grant,
            target=call.target,
            peer=call.peer if living.client is not None else "",
            for_client=caller == CLIENT or (parent is not None and parent.for_client),
        )
        living.made[call.id] = (lane, routed)
        try:
            lane.submit(routed)
        except LinckiaError:
            del living.made[call.id]
            raise

    def _admit(self, operation: Operation[Any], caller: str, grant: Grant | None) -> None:
        """Raises Forbidden where the caller, or a client of this grant, may not call it."""
        if not operation.admits(caller):
            who = caller if caller in (CLIENT, OPERATOR) else f"service {caller}"
            raise Forbidden(f"{operation.name} may not be called by {who}")
        if self._read_only and caller == CLIENT and operation.access is not Access.READ:
            raise Forbidden(f"{operation.name} changes something, and this kernel is read-only (`read_only`)")
        if grant is not None and (refusal := operation.refusal(grant)):
            raise Forbidden(refusal)

    def _ask_client(self, living: Living, call: Call, client_requests: ClientRequests | None) -> None:
        if client_requests is None:
            raise errors.Unavailable("the call being served was not made by a client that can be asked")
        question = _as_question(call.params)
        self._answer_itself(living, call, partial(client_requests.ask, question.method, question.params))

    def _answer_itself(self, living: Living, call: Call, work: Callable[[], Awaitable[object]]) -> None:
        """Answer a service's call with what `work` comes to, in a task."""
        scope = trio.CancelScope()

        async def answer() -> None:
            outcome: bytes | LinckiaError = Internal(f"{call.op} failed in the kernel; its log has the details")
            with scope, Edge(f"{call.op} for service {living.service}"):
                try:
                    outcome = frames.pack_body(await work())
                except LinckiaError as error:
                    outcome = error
            if living.asks.pop(call.id, None) is not None:
                living.answer(call.id, outcome)

        self._start(answer)
        living.asks[call.id] = scope

    def _lane_of(self, operation: Operation[Any]) -> Lane:
        lane = self._lanes.get(operation.service)
        if lane is None:
            owner = f"service {operation.service}, which owns {operation.name},"
            raise errors.Unavailable(f"{owner} is not part of this system")
        return lane

    def _publish(self, event: Event, sender: Living | None) -> None:
        between_fronts = event.topic.startswith(TO_FRONTS)
        if between_fronts and (sender is None or sender.client is None):
            # Of clients' sessions no other service has anything to say.
            return
        for living in self._living.values():
            meant = living is not sender if between_fronts else event.topic.startswith(mcp.PREFIX)
            if living.client is not None and meant:
                living.post(event)

    def _start(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        if self._nursery is None:
            raise errors.Unavailable("the kernel is ending")
        self._nursery.start_soon(contained, "a task of the router", task, *args)


def _as_question(params: bytes) -> frames.Question:
    if len(params) > MAX_QUESTION_BYTES:
        raise errors.InvalidParams(f"a question to a client is {MAX_QUESTION_BYTES} bytes long at most")
    try:
        question: frames.Question = _question(params)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"no question to a client: {error}") from None
    return question
