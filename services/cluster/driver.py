"""The cluster driver: connects to Ray, and places services on nodes as the kernel asks (`proto.wire.cluster`), and
mounted servers as their adapters ask.

    python -m services.cluster.driver CONFIG_FD CONTROL_FD

It ends when the cluster cannot be reached, since a Ray driver cannot change clusters; the kernel starts it again. Ray's
calls block, for a minute or more if the head is gone, so each runs in a thread that may be abandoned.
"""

from __future__ import annotations

import datetime
import functools
import hmac
import logging
import os
import socket
import struct
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
    Hello,
    Kill,
    Lost,
    Node,
    Nodes,
    Prepare,
    Prepared,
    Run,
    Signal,
    Silent,
    Start,
    Started,
    ToDriver,
    socket_of,
)
from services.cluster.certificates import Authority, kernel_name, public_key, seal
from services.cluster.node import SERVICE, Join
from services.cluster.reserving import KEPT_S, Reservation
from services.runtime.privileges import KernelGone, die_with
from services.runtime.told import told

LOOK_S = 1.0
"""Interval between two looks at the nodes."""

ANSWER_S = 2.5
"""How long the head may take to list the nodes. With `LOOK_S`, a hung head is noticed within four seconds."""

KNOCK_S = 0.5
"""Interval between connections to the head, which tell at once that its process is gone."""

AVOID_S = 60.0
"""Time for which nothing is placed on a node to which a link broke, as Ray notices only later that it is gone."""

SHOWN_ID = 8
"""Number of digits of a node's id that are shown."""

_PEER = struct.Struct("3i")
"""What the system says of the other end of a socket: its process, user and group (unix(7))."""

T = TypeVar("T")

_log = logging.getLogger("linckia.cluster")


class Unreachable(Exception):
    """The cluster cannot be reached; the message says why."""


class _Placed:
    """A process on a node."""

    def __init__(self, actor: Any, node: str, name: str, request: str, certificate: str, authority: str) -> None:
        self.actor = actor
        self.node = node
        self.name = name
        self.request = request
        self.certificate = certificate
        self.authority = authority


class Driver:
    """The connection to Ray. `run` must be called once."""

    def __init__(self, config: DriverConfig, control: trio.socket.SocketType) -> None:
        self.config = config
        self.authority = Authority(_now())
        self.connected = trio.Event()
        self._kernel = Client(self, control)
        self._clients: set[Client] = set()
        """Adapters of mounted servers."""
        self._avoided: dict[str, float] = {}
        """Ids of nodes to which a link of theirs broke, and when."""
        self._reserved: dict[str, Reservation] = {}
        """By the service of the adapter that could not wait for it."""
        self._nursery: trio.Nursery | None = None
        self.is_reachable = True

    async def run(self) -> None:
        """Serve until the kernel or the cluster is gone. Raises Unreachable."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            # They may come while the cluster is being connected, and wait for that.
            await nursery.start(self._accept)
            await self._connect()
            nursery.start_soon(self._look)
            nursery.start_soon(self._knock)
            await self._kernel.serve()
            nursery.cancel_scope.cancel()

    async def _connect(self) -> None:
        try:
            await _in_thread(
                functools.partial(
                    ray.init, address=self.config.address, namespace="linckia", log_to_driver=True,
                    logging_level=logging.WARNING,
                )
            )  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise Unreachable(_line(error)) from None
        self.connected.set()

    async def _accept(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            await listener.bind(socket_of(self.config.secret))
            listener.listen(socket.SOMAXCONN)
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    control, _ = await listener.accept()
                    if _is_ours(control):
                        nursery.start_soon(self._serve, control)
                    else:
                        control.close()

    async def _serve(self, control: trio.socket.SocketType) -> None:
        """Serve an adapter, whose first message must have the secret."""
        with control:
            try:
                hello = msgspec.msgpack.decode(await control.recv(MAX_PACKET_BYTES), type=Hello)
                if hmac.compare_digest(hello.secret.encode(), self.config.secret.encode()):
                    await self._serve_adapter(Client(self, control, hello.service))
            except* (OSError, msgspec.DecodeError, msgspec.ValidationError) as group:
                _log.warning("an adapter: %s", _line(group.exceptions[0]))

    async def _serve_adapter(self, client: Client) -> None:
        await self.connected.wait()
        self._clients.add(client)
        try:
            await client.serve()
        finally:
            self._clients.discard(client)

    def reserve(self, message: Prepare, service: str) -> Reservation:
        """Return a process on a node: the one that an earlier start of the service could not wait for, or a new one."""
        found = self._reserved.pop(service, None)
        if found is not None and found.error is None and found.resources == message.resources:
            return found
        if found is not None:
            found.release()
        assert self._nursery is not None
        found = Reservation(message.resources, [*message.avoid, *self._avoid()], _result)
        self._nursery.start_soon(found.run)
        return found

    def give_back(self, found: Reservation, service: str) -> None:
        """Keep a process for the next start of the service of an adapter that could not wait for it, or end it."""
        if not self.is_reachable:
            return
        if not service or found.error is not None or service in self._reserved:
            found.release()
        else:
            found.kept_until = trio.current_time() + KEPT_S
            self._reserved[service] = found

    def _ready(self) -> list[str]:
        """Return the services with a process on a node that waits for them."""
        for service, found in tuple(self._reserved.items()):
            if found.error is not None or trio.current_time() > found.kept_until:
                self._reserved.pop(service).release()
        return sorted(service for service, found in self._reserved.items() if found.done.is_set())

    def _avoid(self) -> list[str]:
        """Return the nodes on which nothing is placed for now."""
        now = trio.current_time()
        self._avoided = {node: at for node, at in self._avoided.items() if now - at < AVOID_S}
        return list(self._avoided)

    def avoid(self, node: str) -> None:
        """Place nothing on a node for a while."""
        self._avoided[node] = trio.current_time()

    def renew_authority(self) -> Authority:
        """Return the authority, a new one if it is due."""
        now = _now()
        if self.authority.is_due(now):
            self.authority = Authority(now)
        return self.authority

    async def _look(self) -> None:
        """Report the nodes regularly. Raises Unreachable if the head does not answer."""
        while True:
            with trio.move_on_after(ANSWER_S) as waiting:
                found = await _in_thread(ray.nodes)
            if waiting.cancelled_caught:
                self.is_reachable = False
                raise Unreachable(f"the head of the cluster does not answer within {ANSWER_S:g} s")
            alive = [self._node(each) for each in found if each["Alive"]]
            await self._kernel.send(Nodes(nodes=alive, ready=self._ready()))
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
                self.is_reachable = False
                raise Unreachable(f"the head of the cluster at {address} is gone: {error}") from None
            await trio.sleep(KNOCK_S)

    def _node(self, found: dict[str, Any]) -> Node:
        resources: dict[str, float] = found.get("Resources", {})
        return Node(
            id=found["NodeID"], name=shown(found["NodeID"], found["NodeManagerAddress"]),
            num_cpus=resources.get("CPU", 0.0), num_gpus=resources.get("GPU", 0.0),
            memory_bytes=int(resources.get("memory", 0)),
            runs=sorted(each.service for each in self._clients if each.runs_on(found["NodeID"])),
        )  # fmt: skip


class Client:
    """The kernel, or an adapter of a mounted server, and what it has placed."""

    def __init__(self, driver: Driver, control: trio.socket.SocketType, service: str = "") -> None:
        self.service = service
        self._driver = driver
        self._control = control
        self._placed: dict[int, _Placed] = {}
        self._scopes: dict[int, trio.CancelScope] = {}
        self._unwanted: set[int] = set()
        """What it has asked to end."""
        self._sending = trio.Lock()

    def runs_on(self, node: str) -> bool:
        """Return whether something that it has placed runs on a node."""
        return any(each.node == node for each in self._placed.values())

    async def serve(self) -> None:
        """Do what it asks until it is gone; what it has placed ends with that."""
        async with trio.open_nursery() as nursery:
            try:
                while packet := await self._control.recv(MAX_PACKET_BYTES):
                    self._accept(msgspec.msgpack.decode(packet, type=ToDriver), nursery)
            finally:
                nursery.cancel_scope.cancel()
                # Ray's calls may block without a head, and all ends with the driver anyway.
                for number in tuple(self._placed) if self._driver.is_reachable else ():
                    self._release(number)

    async def send(self, message: FromDriver) -> None:
        async with self._sending:
            await self._control.send(msgspec.msgpack.encode(message))

    def _accept(self, message: ToDriver, nursery: trio.Nursery) -> None:
        match message:
            case Prepare():
                nursery.start_soon(self._attempt, message.id, self._prepare, message)
            case Start() | Run():
                nursery.start_soon(self._attempt, message.id, self._start, message)
            case Signal(id=number) if number in self._placed:
                self._placed[number].actor.signal.remote(message.number)
            case Silent(id=number) if number in self._placed:
                self._driver.avoid(self._placed[number].node)
            case Kill(id=number):
                self._unwanted.add(number)
                self._release(number)
            case _:
                return

    def _release(self, number: int) -> None:
        if (scope := self._scopes.get(number)) is not None:
            scope.cancel()
        if (placed := self._placed.pop(number, None)) is not None:
            ray.kill(placed.actor)

    async def _attempt(self, number: int, step: Callable[[Any], Any], message: Prepare | Start | Run) -> None:
        with trio.CancelScope() as scope:
            self._scopes[number] = scope
            try:
                await step(message)
            except (ray.exceptions.RayError, OSError, ValueError, TypeError) as error:
                self._release(number)
                scope.cancel()
                with trio.CancelScope(shield=True):
                    await self.send(Failed(id=number, error=_line(error)))
            finally:
                self._scopes.pop(number, None)
                self._unwanted.discard(number)

    async def _prepare(self, message: Prepare) -> None:
        found = await self._reserved(message)
        now, authority = _now(), self._driver.renew_authority()
        self._placed[message.id] = _Placed(
            found.actor, found.node, message.name, found.request,
            authority.for_node(found.request, message.name, now), authority.pem,
        )  # fmt: skip
        own = authority.for_kernel(message.name, now)
        host = self._driver.config.host or ray.util.get_node_ip_address()
        await self.send(
            Prepared(
                id=message.id, node=found.node, node_name=shown(found.node, found.address), host=host,
                certificate=own.certificate, key=own.key, authority=own.authority,
            )
        )  # fmt: skip

    async def _reserved(self, message: Prepare) -> Reservation:
        """Return a process that has started on a node. One that an adapter could not wait for starts later."""
        found = self._driver.reserve(message, self.service)
        try:
            await found.done.wait()
            if found.error is not None:
                raise found.error
        except BaseException:
            self._driver.give_back(found, "" if message.id in self._unwanted else self.service)
            raise
        return found

    async def _start(self, message: Start | Run) -> None:
        if (placed := self._placed.get(message.id)) is None:
            raise OSError("its node is gone")
        if isinstance(message, Start):
            module, told, env = SERVICE, msgspec.json.encode(message.launch), message.env
        else:
            module, told, env = message.module, message.program, {}
        join = Join(
            module=module, launch=told, env=env, url=message.url, server_name=kernel_name(placed.name),
            certificate=placed.certificate, authority=placed.authority,
        )  # fmt: skip
        sealed = seal(msgspec.msgpack.encode(join), public_key(placed.request))
        pid = await _result(placed.actor.start.remote(sealed))
        await self.send(Started(id=message.id, pid=pid))
        try:
            code, last_words = await _result(placed.actor.wait.remote())
        except ray.exceptions.RayError as error:
            await self.send(Ended(id=message.id, last_words=_line(error)))
        else:
            how = {"signal": -code} if code < 0 else {"code": code}
            await self.send(Ended(id=message.id, last_words=last_words, **how))
        self._release(message.id)


def shown(node: str, address: str) -> str:
    """Return how a node is shown: one machine may run several."""
    return f"{address}/{node[:SHOWN_ID]}"


def _is_ours(control: trio.socket.SocketType) -> bool:
    """Return whether a process of this user has connected: everybody can find the address."""
    _, uid, _ = _PEER.unpack(control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(uid == os.getuid())


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
    config = told(int(argv[0]), DriverConfig)
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
