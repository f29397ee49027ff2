"""The cluster driver: connects to Ray, and places services on nodes as the kernel asks (`proto.wire.cluster`).

    python -m services.cluster.driver CONFIG_FD CONTROL_FD

It ends when the cluster cannot be reached, since a Ray driver cannot change clusters; the kernel starts it again. Ray's
calls block, for a minute or more if the head is gone, so each runs in a thread that may be abandoned.
"""

from __future__ import annotations

import datetime
import functools
import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import ray
import trio

from proto.wire.cluster import (
    MAX_PACKET_BYTES,
    DriverConfig,
    Ended,
    Failed,
    FromDriver,
    Kill,
    Lost,
    Node,
    Nodes,
    Prepare,
    Prepared,
    Signal,
    Start,
    Started,
    ToDriver,
)
from services.cluster.certificates import Authority, kernel_name, public_key, seal
from services.cluster.node import Join, NodeActor
from services.runtime.privileges import KernelGone, die_with

LOOK_S = 1.0
"""Interval between two looks at the nodes."""

ANSWER_S = 2.5
"""How long the head may take to list the nodes. With `LOOK_S`, a hung head is noticed within four seconds."""

KNOCK_S = 0.5
"""Interval between connections to the head, which tell at once that its process is gone."""

NODE_ID = "ray.io/node-id"
"""Label that Ray gives each node."""

CALLS_AT_ONCE = 4
"""Threads of an actor: one that waits for the end of the service, and some for signals."""

T = TypeVar("T")

_log = logging.getLogger("linckia.cluster")


class Unreachable(Exception):
    """The cluster cannot be reached; the message says why."""


class _Placed:
    """A process of a service on a node."""

    def __init__(self, actor: Any, name: str, request: str, certificate: str, authority: str) -> None:
        self.actor = actor
        self.name = name
        self.request = request
        self.certificate = certificate
        self.authority = authority


class Driver:
    """The connection to Ray. `run` must be called once."""

    def __init__(self, config: DriverConfig, control: trio.socket.SocketType) -> None:
        self._config = config
        self._control = control
        self._placed: dict[int, _Placed] = {}
        self._scopes: dict[int, trio.CancelScope] = {}
        self._sending = trio.Lock()
        self._authority = Authority(_now())

    async def run(self) -> None:
        """Serve until the kernel or the cluster is gone. Raises Unreachable."""
        try:
            await _in_thread(
                functools.partial(
                    ray.init, address=self._config.address, namespace="linckia", log_to_driver=True,
                    logging_level=logging.WARNING,
                )
            )  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise Unreachable(_line(error)) from None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            nursery.start_soon(self._knock)
            while packet := await self._control.recv(MAX_PACKET_BYTES):
                self._accept(msgspec.msgpack.decode(packet, type=ToDriver), nursery)
            nursery.cancel_scope.cancel()

    async def _send(self, message: FromDriver) -> None:
        async with self._sending:
            await self._control.send(msgspec.msgpack.encode(message))

    def _accept(self, message: ToDriver, nursery: trio.Nursery) -> None:
        match message:
            case Prepare():
                nursery.start_soon(self._attempt, message.id, self._prepare, message)
            case Start():
                nursery.start_soon(self._attempt, message.id, self._start, message)
            case Signal(id=number) if number in self._placed:
                self._placed[number].actor.signal.remote(message.number)
            case Kill(id=number):
                self._release(number)
            case _:
                return

    def _release(self, number: int) -> None:
        if (scope := self._scopes.get(number)) is not None:
            scope.cancel()
        if (placed := self._placed.pop(number, None)) is not None:
            ray.kill(placed.actor)

    async def _attempt(self, number: int, step: Callable[[Any], Any], message: Prepare | Start) -> None:
        with trio.CancelScope() as scope:
            self._scopes[number] = scope
            try:
                await step(message)
            except (ray.exceptions.RayError, OSError, ValueError, TypeError) as error:
                self._release(number)
                scope.cancel()
                with trio.CancelScope(shield=True):
                    await self._send(Failed(id=number, error=_line(error)))
            finally:
                self._scopes.pop(number, None)

    async def _prepare(self, message: Prepare) -> None:
        now = _now()
        if self._authority.is_due(now):
            self._authority = Authority(now)
        authority, wanted = self._authority, message.resources
        options: dict[str, Any] = {
            "num_cpus": wanted.num_cpus, "num_gpus": wanted.num_gpus, "resources": wanted.resources,
            "max_restarts": 0, "max_concurrency": CALLS_AT_ONCE,
        }  # fmt: skip
        if wanted.memory_bytes:
            options["memory"] = wanted.memory_bytes
        labels = dict(wanted.labels)
        if message.avoid:
            labels[NODE_ID] = f"!in({','.join(message.avoid)})"
        if labels:
            options["label_selector"] = labels
        actor = ray.remote(**options)(NodeActor).remote()
        try:
            request = await _result(actor.request.remote())
            certificate = authority.for_node(request, message.name, now)
            node = await _result(actor.place.remote())
        except BaseException:
            ray.kill(actor)
            raise
        self._placed[message.id] = _Placed(actor, message.name, request, certificate, authority.pem)
        own = authority.for_kernel(message.name, now)
        await self._send(
            Prepared(id=message.id, node=node, certificate=own.certificate, key=own.key, authority=own.authority)
        )

    async def _start(self, message: Start) -> None:
        if (placed := self._placed.get(message.id)) is None:
            raise OSError("its node is gone")
        join = Join(
            launch=msgspec.json.encode(message.launch), env=message.env, url=message.url,
            server_name=kernel_name(placed.name), certificate=placed.certificate, authority=placed.authority,
        )  # fmt: skip
        sealed = seal(msgspec.msgpack.encode(join), public_key(placed.request))
        pid = await _result(placed.actor.start.remote(sealed))
        await self._send(Started(id=message.id, pid=pid))
        try:
            code, last_words = await _result(placed.actor.wait.remote())
        except ray.exceptions.RayError as error:
            await self._send(Ended(id=message.id, last_words=_line(error)))
        else:
            how = {"signal": -code} if code < 0 else {"code": code}
            await self._send(Ended(id=message.id, last_words=last_words, **how))
        self._release(message.id)

    async def _look(self) -> None:
        """Report the nodes regularly. Raises Unreachable if the head does not answer."""
        host = ray.util.get_node_ip_address()
        while True:
            with trio.move_on_after(ANSWER_S) as waiting:
                found = await _in_thread(ray.nodes)
            if waiting.cancelled_caught:
                raise Unreachable(f"the head of the cluster does not answer within {ANSWER_S:g} s")
            await self._send(Nodes(nodes=[_node(each) for each in found if each["Alive"]], host=host))
            await trio.sleep(LOOK_S)

    async def _knock(self) -> None:
        """Raise Unreachable once nobody listens at the head's address."""
        address = ray.get_runtime_context().gcs_address
        host, _, port = address.rpartition(":")
        # A client (`ray://`) does not know the address.
        while port.isdigit():
            try:
                with trio.fail_after(ANSWER_S):
                    await (await trio.open_tcp_stream(host.strip("[]"), int(port))).aclose()
            except (OSError, trio.TooSlowError) as error:
                raise Unreachable(f"the head of the cluster at {address} is gone: {error}") from None
            await trio.sleep(KNOCK_S)


def _node(found: dict[str, Any]) -> Node:
    resources: dict[str, float] = found.get("Resources", {})
    return Node(
        id=found["NodeID"], address=found["NodeManagerAddress"], num_cpus=resources.get("CPU", 0.0),
        num_gpus=resources.get("GPU", 0.0), memory_bytes=int(resources.get("memory", 0)),
    )  # fmt: skip


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _line(error: BaseException) -> str:
    """Return an error in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


async def _result(reference: Any) -> Any:
    return await _in_thread(functools.partial(ray.get, reference))


async def _in_thread(call: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=_threads)


_threads = trio.CapacityLimiter(10_000)
"""Each placed service keeps one thread waiting for its end."""


async def _main(config: DriverConfig, fd: int) -> None:
    control = trio.socket.from_stdlib_socket(socket.socket(fileno=fd))
    try:
        await Driver(config, control).run()
    except* Unreachable as group:
        why = str(group.exceptions[0])
        _log.warning("%s", why)
        await control.send(msgspec.msgpack.encode(Lost(why=why)))


def main(argv: list[str]) -> None:
    """Run the driver; never returns, since a Ray driver's orderly end may wait for a head that is gone."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    with os.fdopen(int(argv[0]), "rb") as file:
        config = msgspec.json.decode(file.read(), type=DriverConfig)
    try:
        die_with(config.parent_pid, "cluster")
        trio.run(_main, config, int(argv[1]))
    except KernelGone:
        os._exit(0)
    except BaseException:  # noqa: BLE001  # reported here, since the process ends without its usual report
        _log.exception("the cluster driver ends with an error")
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
