"""The servers of a mount: one for all clients, or one for each; and the fate of calls when one dies.

A server that all clients share, and that is a process here, takes the adapter with it: the kernel then starts the next
generation and decides about the calls in flight. While it is silent, calls may go to further processes
(`extra_instances`). All others are replaced here. A request that the server certainly has
not acted on is then sent again, and so is one that changes nothing or may be repeated, once. For all others, the client
learns that they may have been executed. If the server keeps state, nothing is sent again.
"""

from __future__ import annotations

import logging
import math
import re
from typing import Final

import msgspec
import trio

from proto.errors import (
    InvalidParams,
    LinckiaError,
    MaybeExecuted,
    OperationError,
    Overloaded,
    Timeout,
    Unavailable,
)
from proto.mounts import ACTIVITY, CHANGE, READ, UPDATED, MountRequest, MountResourceUpdated
from proto.ops.mounts import MountsPut
from proto.wire.frames import Written
from proto.wire.launch import EXIT_OUT_OF_MEMORY, EXIT_PROGRAM_KILLED
from services.mounts.instance import Instance, Limits, StartFailed
from services.mounts.link import subscriptions
from services.mounts.link.connections import Connect
from services.mounts.link.exchange import what_is_called
from services.mounts.link.liveness import Behind
from services.mounts.link.peer import BadReply, Lost, NoReply
from services.mounts.offers.definitions import definitions_of
from services.mounts.process.environment import AdapterSettings
from services.mounts.remembered import Remembered
from services.runtime.ending import EXIT_FAILED, ProgramEnded
from services.runtime.handlers import Context, Environment

COALESCE_S: Final = 0.1
"""Servers often report several changed lists at once."""
SOON_S, LONGEST_COALESCE_S = 1.0, 10.0
"""A server that reports a change so soon after its lists were read is asked less and less often: some report one
whenever they are asked."""

PUT_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses before the definitions are sent again, if the registry cannot be reached; the last one repeats."""

FLUSH_S: Final = 1.0

BEHIND_RETRY_MS: Final = 10_000
"""When a call may be tried again that was not sent to a silent server."""

SHARED: Final = ""
SPARE: Final = "\0"
"""Key of the server that was started for its lists, until a client takes it."""
EXTRA: Final = "\0extra"
"""Begin of the keys of processes beside the shared one, for calls that would wait behind it."""
WITH_HANDSHAKE: Final = "\0handshake"
"""End of the keys of second connections, for clients with a handshake."""
SUBSCRIBING: Final = frozenset({"resources/subscribe", "resources/unsubscribe"})

_log = logging.getLogger("linckia.mount")


_FROM_OUTSIDE: Final = re.compile(r"the server was ended by SIG(KILL|TERM|INT|HUP|QUIT)\b")
_MEMORY: Final = "memory: "


def _ended_by(cause: str) -> ProgramEnded:
    """Return the error with which the adapter ends because the shared server has ended."""
    if _FROM_OUTSIDE.match(cause):
        return ProgramEnded(cause, EXIT_PROGRAM_KILLED)
    return ProgramEnded(cause, EXIT_OUT_OF_MEMORY if cause.startswith(_MEMORY) else EXIT_FAILED)


def _unreadable(bad: BadReply, kind: str, request: MountRequest) -> LinckiaError:
    """Return the failure of a call that the server has answered, with a reply that cannot be read."""
    what = f"the server's reply to {what_is_called(request)} cannot be read: {bad}"
    return OperationError(what) if kind == READ else MaybeExecuted(what)


class Starting:
    """A server that is being started."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.failure = ""


class Servers:
    """All servers of one mount.

    Attributes:
        mount: its name.

    Args:
        connects: ways to connect, in the order in which they are tried.
        is_local: whether the server is a process here.
    """

    def __init__(
        self,
        env: Environment,
        settings: AdapterSettings,
        connects: list[Connect],
        limits: Limits,
        remembered: Remembered,
        *,
        is_local: bool,
    ) -> None:
        self.mount = settings.mount
        self._env = env
        self._settings = settings
        self._connects = connects
        self._limits = limits
        self._remembered = remembered
        self._is_local = is_local
        self._dies_with = is_local and settings.is_shared
        # Assumed of a server without a handshake, until a handshake fails.
        self._has_two_kinds = True
        self._extra_keys = tuple(f"{EXTRA}{number}" for number in range(settings.extra_instances))
        self._instances: dict[str, Instance] = {}
        self._starting: dict[str, Starting] = {}
        self._opening = trio.Lock()
        self._changed = trio.Event()
        self._lister: Instance | None = None
        self._listening: dict[Instance, subscriptions.Listening] = {}

    async def open(self) -> None:
        """Start the first server. Raises StartFailed."""
        if self._settings.stateful:
            # Whatever the server kept ended with the process that served it before.
            self._remembered.lose()
        await self._start(SHARED if self._settings.is_shared else SPARE)
        self._env.background.start_soon(self._send_definitions)
        self.show()

    async def close(self) -> None:
        """End all servers in order."""
        instances = list(self._instances.values())
        for instance in instances:
            instance.close()
        for instance in instances:
            await instance.ended.wait()

    # Calls

    async def call(self, kind: str, request: MountRequest, ctx: Context) -> Written:
        """Serve a client's request. Raises LinckiaError."""
        has_retried = False
        while True:
            first = self._shared(request) if self._settings.is_shared else ctx.session
            instance = await self._get(first, with_handshake=self._with_handshake(request))
            if self._settings.stateful:
                if self._remembered.tell(ctx.session):
                    raise OperationError(
                        "the server was restarted since your last call, and its state is lost; nothing was done."
                        " Calls from now on reach the new server"
                    )
                self._remembered.used(ctx.session)
            try:
                reply = await self._on(instance, request, ctx)
            except Lost as lost:
                await self._after(lost, kind, request, instance, has_retried=has_retried)
                has_retried = True
            except Behind as behind:
                if behind.begun:
                    raise Timeout(str(behind)) from None
                if self._extra_keys and self._shared(request) != SHARED:
                    continue
                raise Unavailable(str(behind), retry_after_ms=BEHIND_RETRY_MS) from None
            except BadReply as bad:
                raise _unreadable(bad, kind, request) from None
            else:
                return reply
            finally:
                if instance.is_extra:
                    self._close_extras()
                self.show()

    def _shared(self, request: MountRequest) -> str:
        """Return the key of the process for a request to a server that all clients share.

        It is another than the shared one while that is silent, and if such a process waits for an answer of a client.
        """
        if not self._extra_keys or request.method in SUBSCRIBING:
            return SHARED
        if request.answers:
            asking = (key for key in self._extra_keys if key in self._instances and self._instances[key].is_parked)
            return next(asking, SHARED)
        for key in (SHARED, *self._extra_keys):
            instance = self._instances.get(key)
            if instance is None or not (instance.is_dying or instance.liveness.is_silent):
                return key
        return SHARED

    def _close_extras(self) -> None:
        """End the processes beside the shared one that are not in use, unless that is silent."""
        shared = self._instances.get(SHARED)
        if shared is None or shared.liveness.is_silent:
            return
        for key in self._extra_keys:
            extra = self._instances.get(key)
            if extra is not None and not (extra.in_use or extra.is_parked):
                extra.close()

    def _with_handshake(self, request: MountRequest) -> bool:
        """Whether a request should reach the server over a connection with a handshake, as its client has.

        A server elsewhere can have one of each kind, and some servers behave differently on them. Subscriptions last
        longer than a client's connection, so they all use the first one.
        """
        can = self._has_two_kinds and not self._is_local
        return can and not request.modern and request.method not in SUBSCRIBING

    async def _on(self, instance: Instance, request: MountRequest, ctx: Context) -> Written:
        match request.method:
            case "resources/subscribe" | "resources/unsubscribe":
                return await subscriptions.change(
                    instance, request, ctx, self._remembered, self._listening.get(instance)
                )
            case _:
                return await instance.call(request, ctx)

    async def _after(
        self, lost: Lost, kind: str, request: MountRequest, instance: Instance, *, has_retried: bool
    ) -> None:
        """Return if a call whose server died may be made again. Raises LinckiaError otherwise."""
        what = what_is_called(request)
        if self._settings.stateful:
            raise MaybeExecuted(f"{lost}; its state is lost, and {what} was not repeated")
        if self._dies_with and not instance.is_extra:
            # This process ends, and the kernel decides.
            await trio.sleep_forever()
        if has_retried or (lost.begun and kind == CHANGE):
            if lost.begun:
                raise MaybeExecuted(f"{lost}; {what} was not repeated")
            raise Unavailable(f"{lost}; {what} did not reach the server")

    # Servers

    async def _get(self, first: str, *, with_handshake: bool) -> Instance:
        while True:
            key = f"{first}{WITH_HANDSHAKE}" if with_handshake and self._has_two_kinds else first
            if (instance := self._instances.get(key)) is not None:
                if not instance.is_dying:
                    return instance
                await instance.removed.wait()
                continue
            if SPARE in self._instances and key == first:
                self._instances[key] = self._instances.pop(SPARE)
                continue
            if key not in self._starting:
                async with self._opening:
                    if key in self._starting or key in self._instances:
                        continue
                    if key not in self._extra_keys:
                        await self._make_room()
                    self._begin(key)
            try:
                await self._start(key)
            except StartFailed as error:
                if key in self._extra_keys:
                    _log.warning("no process beside the silent one can be started: %s", error)
                    self._extra_keys = ()
                    first = SHARED
                    continue
                if key != first:
                    self._has_two_kinds = False
                    continue
                raise Unavailable(str(error)) from None

    async def _make_room(self) -> None:
        """End servers that are unused for longest, while there are too many. Raises Overloaded."""
        while len(self._instances) + len(self._starting) >= self._settings.max_instances:
            idle = [
                (each.used_at, key)
                for key, each in self._instances.items()
                if not (each.in_use or each.is_parked or each.is_dying)
            ]
            if not idle:
                raise Overloaded(
                    f"all {self._settings.max_instances} servers of mcp.{self._settings.mount} are busy"
                    " (`max_instances`); try again later"
                )
            instance = self._instances[min(idle)[1]]
            instance.close()
            await instance.removed.wait()

    def _begin(self, key: str) -> Starting:
        starting = self._starting[key] = Starting()
        self._env.background.start_soon(self._run, key, starting)
        return starting

    async def _start(self, key: str) -> None:
        """Start a server, or wait until it has started. Raises StartFailed."""
        starting = self._starting.get(key)
        if starting is None and key in self._instances:
            return
        starting = starting or self._begin(key)
        await starting.done.wait()
        if starting.failure:
            raise StartFailed(starting.failure)

    async def _run(self, key: str, starting: Starting) -> None:
        """Start a server and wait for its end. Raises ProgramEnded if the adapter ends with it."""
        try:
            instance = await self._started(with_handshake=key.endswith(WITH_HANDSHAKE))
        except StartFailed as error:
            starting.failure = str(error)
            return
        finally:
            del self._starting[key]
            if starting.failure:
                starting.done.set()
        instance.is_extra = key in self._extra_keys
        if instance.is_extra or key.endswith(WITH_HANDSHAKE):
            await self._run_second(key, instance, starting)
            return
        self._instances[key] = instance
        self._has_two_kinds = self._has_two_kinds and instance.greeting.modern
        self._lister = instance
        self._changed.set()
        self._env.info(server=instance.greeting.title, protocol=instance.greeting.version, pid=str(instance.pid or ""))
        self._listening[instance] = listening = subscriptions.Listening(instance, self._remembered)
        self._env.background.start_soon(listening.run)
        starting.done.set()
        await instance.ended.wait()
        listening.close()
        self._listening.pop(instance, None)
        try:
            await self._ended(instance)
        finally:
            instance.removed.set()

    async def _run_second(self, key: str, instance: Instance, starting: Starting) -> None:
        """Wait for the end of a second connection to a server elsewhere, the one with a handshake, or of a process
        beside the shared one."""
        if instance.greeting.modern and not instance.is_extra:
            self._has_two_kinds = False
            instance.close()
        else:
            self._instances[key] = instance
        starting.done.set()
        await instance.ended.wait()
        if self._instances.get(key) is instance:
            del self._instances[key]
        if not instance.was_closed and not self._env.ending.is_set():
            _log.warning("a server ended: %s", instance.cause)
        instance.removed.set()

    async def _started(self, *, with_handshake: bool) -> Instance:
        """Return a server that has started. Raises StartFailed."""
        state = self._remembered.state
        failure = StartFailed("there is no way to connect")
        for connect in self._connects:
            for legacy in (True,) if state.legacy or with_handshake else (False, True):
                instance = Instance(connect, self._limits, self, strict=state.asks and self._settings.is_shared)
                try:
                    await self._env.background.start(instance.run, legacy)
                except StartFailed as error:
                    failure = error
                    if instance.speaks_otherwise:
                        break
                    if legacy or not (instance.pid and instance.ended_while_greeting):
                        raise
                    # Some servers end when they are asked anything but `initialize`.
                    continue
                if state.legacy == instance.greeting.modern and not with_handshake:
                    state.legacy = not instance.greeting.modern
                    self._remembered.save()
                return instance
        raise failure

    async def _ended(self, instance: Instance) -> None:
        key = next((key for key, each in self._instances.items() if each is instance), None)
        if key is None or self._env.ending.is_set():
            return
        del self._instances[key]
        if self._settings.stateful:
            self._remembered.lose(None if self._settings.is_shared else [key])
        if self._dies_with:
            self._env.ends_because = instance.cause
            with trio.move_on_after(FLUSH_S):
                if self._settings.stateful:
                    # The calls fail with a message, which must get out.
                    await instance.wait_unused()
                await self._env.outgoing.channel.flush()
            raise _ended_by(instance.cause)
        if not instance.was_closed:
            _log.warning("a server ended: %s", instance.cause)
        if self._lister is instance:
            self._lister = next(iter(self._instances.values()), None)

    # What servers report

    def on_list_changed(self, instance: Instance, which: str) -> None:
        self._lister = instance
        self._changed.set()

    def on_updated(self, uri: str) -> None:
        self._env.publish(UPDATED, MountResourceUpdated(mount=self._settings.mount, uri=uri))

    def on_look(self) -> None:
        self._env.info(**{ACTIVITY: self._activity()})
        if self._extra_keys:
            self._close_extras()

    def on_asks(self) -> None:
        if not self._remembered.state.asks:
            self._remembered.state.asks = True
            self._remembered.save()
            _log.warning('the server asks clients: from now on it serves one at a time; `share = "client"` avoids that')

    def show(self) -> None:
        """Say whether the adapter may end while it is not called."""
        busy = self._remembered.state.subscriptions or any(each.is_parked for each in self._instances.values())
        self._env.info(rests="no" if busy else "yes")

    def _activity(self) -> str:
        """Return what the server does that gives the least sign of life."""
        count = len(self._instances)
        found = [activity for each in self._instances.values() if (activity := each.liveness.activity()) is not None]
        if not found:
            return ""
        return f"{max(found).text}{f' ({len(found)} of {count} processes)' if count > 1 else ''}"

    async def _send_definitions(self) -> None:
        """Send what the server offers to the registry, now and after each change."""
        pause_s, read_at = COALESCE_S, -math.inf
        while True:
            await self._changed.wait()
            is_soon = trio.current_time() - read_at < SOON_S
            pause_s = min(2 * pause_s, LONGEST_COALESCE_S) if is_soon else COALESCE_S
            await trio.sleep(pause_s)
            self._changed = trio.Event()
            if self._lister is None:
                continue
            try:
                found = msgspec.json.encode(await definitions_of(self._lister))
            except (Lost, NoReply):
                continue
            await self._put(MountsPut(mount=self._settings.mount, pin=self._settings.pin, definitions=found))
            read_at = trio.current_time()

    async def _put(self, params: MountsPut) -> None:
        tries = 0
        # At least once: a server may report changes all the time.
        while not (tries and self._changed.is_set()):
            try:
                await self._env.call(params)
            except InvalidParams as error:
                # The same would be refused again.
                _log.error("the definitions cannot be stored: %s", error)
                return
            except LinckiaError as error:
                pause_s = PUT_PAUSES_S[min(tries, len(PUT_PAUSES_S) - 1)]
                if tries >= len(PUT_PAUSES_S):
                    _log.warning("the definitions cannot be stored yet: %s", error)
                tries += 1
                await trio.sleep(pause_s)
            else:
                return
