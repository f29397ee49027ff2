"""The router: every call of a client, an operator or a service, to whichever service owns the operation.

It is the supervisor's `GenerationSink` and everyone's `Dispatcher`.  It never decodes a body that it passes from one
service to another; deadlines, traces and the right to ask the client go from a call to the calls made while serving
it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import trio
from msgspec import Raw

from kernel.ports import Cause, ClientRequests, ServiceState
from kernel.router.call import RoutedCall, Waiting, current_session, new_trace
from kernel.router.lane import Lane, Limits
from proto import errors, frames
from proto.channel import Channel
from proto.errors import Executed, Forbidden, Internal, LinckiaError
from proto.frames import AnyFrame, Call, Event, Fault, Item, Progress, Return
from proto.link import LinkClosed
from proto.operation import Operation, Params
from proto.ops import Table

WINDOW = 64
"""Streamed items under way to a client's call, where they are gathered as they come."""

KERNEL = "kernel"
"""The service name of operations that the kernel itself answers."""

LocalHandler = Callable[[Any, str], Awaitable[object]]
"""A kernel operation: parameters and caller to result."""

_log = logging.getLogger("linckia.router")


class Router:
    """Routes calls; `run` must be running in a nursery.

    Args:
        limits: of each service, by its name.
        pools: the instances of services that are several processes; the others have one of their own name.
    """

    def __init__(
        self, table: Table, limits: Mapping[str, Limits], pools: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._table = table
        self.lanes = {
            name: Lane(name, limit, (pools or {}).get(name, ()), wake=self._wake) for name, limit in limits.items()
        }
        """By service."""
        # By instance as well, since that is what the supervisor knows.
        self._lanes = dict(self.lanes)
        for name, instances in (pools or {}).items():
            self._lanes.update(dict.fromkeys(instances, self.lanes[name]))
        self._channels: dict[tuple[str, int], Channel] = {}
        # Calls made by services, by the service's generation and its own number for the call.
        self._made: dict[tuple[str, int], dict[int, tuple[Lane, RoutedCall]]] = {}
        self._asks: dict[tuple[str, int, int], trio.CancelScope] = {}
        self._local: dict[str, LocalHandler] = {}
        self._subscribers: list[tuple[str, Callable[[Event], object]]] = []
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
        self._local[name] = handler

    def lane(self, service: str) -> Lane:
        """The lane of a service, or of the service that an instance is of."""
        return self._lanes[service]

    def operation(self, name: str) -> Operation[Any]:
        """The operation of that name. Raises UnknownOperation."""
        return self._table.find(name)

    # ---- Dispatcher -----------------------------------------------------------------------------------------------

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
        """See `kernel.ports.Dispatcher.call`."""
        if not operation.admits(caller):
            raise Forbidden(f"{operation.name} may not be called by {caller}")
        limit_s = operation.deadline_ms / 1000 if timeout_s is None else timeout_s
        if operation.service == KERNEL:
            return await self._call_local(operation, params, caller, limit_s)
        lane = self._lane_of(operation)
        body = frames.pack_body(params)
        if len(memoryview(body)) > frames.MAX_MESSAGE_BYTES:
            raise errors.InvalidParams(f"{operation.name}: parameters of more than {frames.MAX_MESSAGE_BYTES} bytes")
        waiting = Waiting(lambda: lane.grant(routed, 1), client_requests)
        routed = RoutedCall(
            operation,
            body,
            caller=caller,
            trace=trace or new_trace(),
            deadline=trio.current_time() + limit_s,
            credit=WINDOW if operation.stream else 0,
            done=waiting.done,
            item=waiting.item,
            progress=None if client_requests is None else waiting.progress,
            client_requests=client_requests,
            session=current_session.get(),
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

    def subscribe(self, topic: str, receive: Callable[[Event], Awaitable[None] | None]) -> Callable[[], None]:
        """See `kernel.ports.Dispatcher.subscribe`; an awaitable that `receive` returns is run in the router's
        nursery."""

        def deliver(event: Event) -> None:
            pending = receive(event)
            if pending is not None and self._nursery is not None:
                self._nursery.start_soon(_await, pending)

        entry = (topic, deliver)
        self._subscribers.append(entry)
        return lambda: self._subscribers.remove(entry)

    # ---- GenerationSink -------------------------------------------------------------------------------------------

    def up(self, hello: frames.Hello, channel: Channel) -> None:
        self._channels[hello.service, hello.generation] = channel
        self._lanes[hello.service].up(hello.service, hello.generation, channel)

    def draining(self, service: str, generation: int) -> None:
        self._lanes[service].draining(service, generation)

    def was_used(self, service: str) -> bool:
        return self._lanes[service].was_used(service)

    def idle_since(self, service: str) -> float | None:
        if any(calls for (name, _), calls in self._made.items() if name == service):
            return None
        return self._lanes[service].idle_since(service)

    def state(self, service: str, state: ServiceState, reason: str, retry_at: float | None) -> None:
        self._lanes[service].state(service, state, reason, retry_at)

    def down(self, service: str, generation: int, cause: Cause) -> None:
        self._channels.pop((service, generation), None)
        for lane, call in self._made.pop((service, generation), {}).values():
            lane.withdraw(call, f"service {service} died")
        for key in [key for key in self._asks if key[:2] == (service, generation)]:
            self._asks.pop(key).cancel()
        self._lanes[service].down(service, generation, cause)

    def frame(self, service: str, generation: int, frame: AnyFrame) -> None:
        match frame:
            case Return() | Fault() | Item() | Progress():
                self._lanes[service].frame(service, generation, frame)
            case Call():
                self._from_service(service, generation, frame)
            case frames.Cancel(id=call_id):
                self._cancel_made(service, generation, call_id)
            case frames.Credit(id=call_id, n=n):
                made = self._made.get((service, generation), {}).get(call_id)
                if made is not None:
                    made[0].grant(made[1], n)
            case Event():
                self._publish(frame)
            case frames.Log():
                self._relay_log(service, generation, frame)
            case _:
                _log.warning("service %s sent an unexpected %s", service, type(frame).__name__)

    # ---- calls of services ----------------------------------------------------------------------------------------

    def _from_service(self, service: str, generation: int, call: Call) -> None:
        parent = self._lanes[service].find(service, generation, call.parent)
        client_requests = parent.client_requests if parent is not None else None
        try:
            if call.op == frames.ASK_CLIENT:
                self._ask_client(service, generation, call, client_requests)
            else:
                self._pass_on(service, generation, call, parent)
        except LinckiaError as error:
            self._answer(service, generation, call.id, error)

    def _pass_on(self, service: str, generation: int, call: Call, parent: RoutedCall | None) -> None:
        operation = self._table.get(call.op)
        if operation is None:
            raise errors.UnknownOperation(f"unknown operation {call.op!r}")
        caller = self._lanes[service].service
        if not operation.admits(caller):
            raise Forbidden(f"{operation.name} may not be called by service {caller}")
        if operation.service == KERNEL:
            self._start(self._serve_local_for, service, generation, call, operation)
            return
        lane = self._lane_of(operation)
        made = self._made.setdefault((service, generation), {})

        # Also where it fails at once: what it wanted to do is still to be done.
        self._lanes[service].was_busy(service)

        def done(outcome: Raw | LinckiaError) -> None:
            made.pop(call.id, None)
            self._lanes[service].was_busy(service)
            self._answer(service, generation, call.id, outcome)

        routed = RoutedCall(
            operation,
            Raw(bytes(call.params)),
            caller=caller,
            trace=call.trace,
            deadline=trio.current_time() + call.left_ms / 1000,
            credit=call.credit,
            done=done,
            item=lambda body: self._post(service, generation, Item(call.id, body)),
            progress=(lambda p: self._post(service, generation, Progress(call.id, p.done, p.total, p.message)))
            if call.progress
            else None,
            client_requests=parent.client_requests if parent is not None else None,
            for_client=parent is not None and parent.for_client,
        )
        made[call.id] = (lane, routed)
        try:
            lane.submit(routed)
        except LinckiaError:
            del made[call.id]
            raise

    def _cancel_made(self, service: str, generation: int, call_id: int) -> None:
        made = self._made.get((service, generation), {}).pop(call_id, None)
        if made is not None:
            lane, call = made
            lane.withdraw(call, f"withdrawn by service {service}")
        scope = self._asks.pop((service, generation, call_id), None)
        if scope is not None:
            scope.cancel()

    def _ask_client(self, service: str, generation: int, call: Call, client_requests: ClientRequests | None) -> None:
        if client_requests is None:
            raise errors.Unavailable("the call being served was not made by a client that can be asked")
        request = msgspec.msgpack.decode(call.params, type=dict[str, Any])
        scope = self._asks[service, generation, call.id] = trio.CancelScope()

        async def ask() -> None:
            outcome: Raw | LinckiaError = Internal("the question was withdrawn")
            with scope:
                try:
                    outcome = frames.pack_body(await client_requests.ask(request["method"], request["params"]))
                except LinckiaError as error:
                    outcome = error
            if self._asks.pop((service, generation, call.id), None) is not None:
                self._answer(service, generation, call.id, outcome)

        self._start(ask)

    async def _serve_local_for(self, service: str, generation: int, call: Call, operation: Operation[Any]) -> None:
        outcome: Raw | LinckiaError
        try:
            params = msgspec.msgpack.decode(call.params, type=operation.params)
            outcome = frames.pack_body(await self._call_local(operation, params, service, call.left_ms / 1000))
        except msgspec.DecodeError as error:
            outcome = errors.InvalidParams(f"{operation.name}: {error}")
        except LinckiaError as error:
            outcome = error
        self._answer(service, generation, call.id, outcome)

    async def _call_local(self, operation: Operation[Any], params: Params[Any], caller: str, limit_s: float) -> object:
        handler = self._local.get(operation.name)
        if handler is None:
            raise errors.UnknownOperation(f"the kernel does not answer {operation.name!r}")
        try:
            with trio.move_on_after(limit_s):
                return msgspec.to_builtins(await handler(params, caller))
            raise errors.Timeout(f"{operation.name}: not done within {limit_s:.3g} s")
        except LinckiaError as error:
            raise operation.failure(error) from error.__cause__

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _lane_of(self, operation: Operation[Any]) -> Lane:
        lane = self._lanes.get(operation.service)
        if lane is None:
            raise errors.Unavailable(
                f"service {operation.service}, which owns {operation.name}, is not part of this system"
            )
        return lane

    def _answer(self, service: str, generation: int, call_id: int, outcome: Raw | LinckiaError) -> None:
        if isinstance(outcome, LinckiaError):
            self._post(service, generation, Fault(call_id, outcome.failure))
        else:
            self._post(service, generation, Return(call_id, outcome))

    def _post(self, service: str, generation: int, frame: Return | Fault | Item | Progress) -> None:
        channel = self._channels.get((service, generation))
        if channel is None:
            return
        try:
            channel.post(frame)
        except LinkClosed:
            _log.debug(
                "service %s generation %d is gone; the answer to its call %d is dropped", service, generation, frame.id
            )

    def _publish(self, event: Event) -> None:
        for pattern, deliver in list(self._subscribers):
            if pattern == event.topic or (pattern.endswith("*") and event.topic.startswith(pattern[:-1])):
                deliver(event)

    def _relay_log(self, service: str, generation: int, frame: frames.Log) -> None:
        call = self._lanes[service].find(service, generation, frame.call)
        if call is not None and call.client_requests is not None:
            call.client_requests.log(frame.level, frame.logger or service, frame.message)

    def _start(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        if self._nursery is None:
            raise errors.Unavailable("the kernel is ending")
        self._nursery.start_soon(task, *args)


async def _await(pending: Awaitable[None]) -> None:
    await pending
