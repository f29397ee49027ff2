"""The service `mounts`: the registry of what mounted MCP servers offer, while they rest or are down too.

It keeps the approved definitions of each (first seen, or approved since) and the latest ones. Without `pin`, clients
see the latest; with `pin`, they see the approved ones until somebody approves the latest.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

import msgspec
import trio

from proto.errors import Forbidden, InvalidParams, OperationError
from proto.mounts import CHANGED, Definitions, Flag, MountChanged, MountNames, Offered, is_name, service_of
from proto.ops import mounts as ops
from proto.wire import frames
from services.mounts.offers import flags
from services.mounts.offers.canonical import Parsed, canonical, changed_lists, checked, differences, parse
from services.mounts.offers.names import Names
from services.mounts.offers.store import Kept, Store
from services.runtime.handlers import Context, Environment, Handlers, handles

_log = logging.getLogger("linckia.service")

Change = Callable[[Kept | None], Kept | None]
"""Makes a mount's new state from the one before; None: nothing changes."""


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service; ready once all files have been read."""
    store = await trio.to_thread.run_sync(Store, env.data_dir)
    yield Handlers(Registry(env, store, await trio.to_thread.run_sync(Names, env.data_dir)))


def warm_up() -> None:
    """Read the table of Linckia's own operations, whose names are compared with tools."""
    flags.own_names()


class Registry:
    """The handlers. Changes of one mount wait for one another; a change that has begun is finished."""

    def __init__(self, env: Environment, store: Store, names: Names) -> None:
        self._env = env
        self._store = store
        self._names = names
        self._naming = trio.Lock()
        self._changing: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        self._nothing = checked(Definitions())
        self._warn()

    @handles(ops.MountsPut)
    async def put(self, params: ops.MountsPut, ctx: Context) -> ops.MountsStored:
        mount = _checked(params.mount)
        if ctx.caller != service_of(mount):
            raise Forbidden(f"{ctx.caller} cannot say what {mount} offers")

        def changed(before: Kept | None) -> Kept | None:
            latest = parse(params.definitions)
            if before is not None:
                after = Kept(latest, before.approved, pin=params.pin)
                same = after.version == before.version and after.pin == before.pin
                return None if same and not _differ(before.latest, latest) else after
            approved = self._nothing if params.pin and self._store.lost_approval(mount) else latest
            return Kept(latest, approved, pin=params.pin)

        return await self._change(mount, changed)

    @handles(ops.MountsApprove)
    async def approve(self, params: ops.MountsApprove, ctx: Context) -> ops.MountsStored:
        def approved(before: Kept | None) -> Kept:
            if before is None:
                raise OperationError(f"the server of {mount} has not started yet, so there is nothing to approve")
            return Kept(before.latest, before.latest, pin=before.pin)

        mount = _checked(params.mount)
        return await self._change(mount, approved)

    @handles(ops.MountsForget)
    async def forget(self, params: ops.MountsForget, ctx: Context) -> None:
        mount = _checked(params.mount)
        async with self._changing[mount]:
            before = self._store.kept.get(mount)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._store.forget, mount)
                async with self._naming:
                    await trio.to_thread.run_sync(self._names.forget, mount)
            self._tell(mount, before.seen if before else self._nothing, self._nothing)

    @handles(ops.MountsOffered)
    async def offered(self, params: ops.MountsOffered, ctx: Context) -> frames.Written:
        kept = self._store.kept.get(_checked(params.mount))
        if kept is None:
            return _written(Offered())
        found = await self._flags(params.mount, kept.seen, kept.flags)
        return _written(
            Offered(
                version=kept.version,
                definitions=kept.shown.definitions,
                own_names=kept.shown.own_names,
                flags=found,
                held_back=kept.held_back,
            )
        )

    @handles(ops.MountsName)
    async def name(self, params: ops.MountsName, ctx: Context) -> MountNames:
        async with self._naming:
            with trio.CancelScope(shield=True):
                found = await trio.to_thread.run_sync(self._names.give, params.wanted, params.released)
            return found

    @handles(ops.MountsDiff)
    async def diff(self, params: ops.MountsDiff, ctx: Context) -> ops.MountDifferences:
        kept = self._store.kept.get(_checked(params.mount))
        if kept is None:
            return ops.MountDifferences()
        changes = await trio.to_thread.run_sync(lambda: list(differences(kept.approved, kept.latest)))
        found = await self._flags(params.mount, kept.latest, kept.latest_flags)
        return ops.MountDifferences(changes=changes, flags=found)

    async def _change(self, mount: str, change: Change) -> ops.MountsStored:
        async with self._changing[mount]:
            before = self._store.kept.get(mount)

            def stored() -> Kept | None:
                after = change(before)
                if after is not None:
                    self._store.put(mount, after)
                return after

            with trio.CancelScope(shield=True):
                after = await trio.to_thread.run_sync(stored)
            if after is None:
                return ops.MountsStored()
            return ops.MountsStored(changed=self._tell(mount, before.seen if before else self._nothing, after.seen))

    def _tell(self, mount: str, before: Parsed, after: Parsed) -> list[str]:
        """Publish which lists changed for clients, and return them."""
        changed = changed_lists(before, after)
        if changed or before.definitions.instructions != after.definitions.instructions:
            self._env.publish(CHANGED, MountChanged(mount=mount, lists=changed))
        self._warn()
        return changed

    async def _flags(self, mount: str, shown: Parsed, own: list[Flag]) -> list[Flag]:
        others = {name: kept.seen.items["tools"] for name, kept in dict(self._store.kept).items() if name != mount}
        tools = shown.items["tools"]
        collisions = list(self._names.flags_of(mount))
        found = await trio.to_thread.run_sync(lambda: [*collisions, *own, *flags.flags_among(mount, tools, others)])
        return found[: flags.MAX_FLAGS]

    def _warn(self) -> None:
        damaged = self._store.damaged()
        said = (
            f"{', '.join(damaged)}: unreadable, kept aside. The mount's list comes back when its server starts; if it"
            " is pinned, `linckia mcp approve` is needed"
        )
        self._env.damaged(said if damaged else "")
        if damaged:
            _log.warning("%s", said)


def _written(offered: Offered) -> frames.Written:
    """Return the result as JSON: definitions are JSON as it was written, which no other encoding can contain."""
    return frames.Written(msgspec.json.encode(offered))


def _checked(mount: str) -> str:
    """Return the name, which becomes a file's. Raises InvalidParams: a newline may follow what a pattern matches."""
    if not is_name(mount):
        raise InvalidParams("`mount` is not the name of a mount", field="mount")
    return mount


def _differ(before: Parsed, after: Parsed) -> bool:
    return (
        bool(changed_lists(before, after))
        or before.server_info != after.server_info
        or _rest(before) != _rest(after)
        or before.flags != after.flags
    )


def _rest(parsed: Parsed) -> tuple[str, str, bytes]:
    given = parsed.definitions
    return given.protocol_version, given.instructions, canonical(given.capabilities)
