"""Which engine keeps a collection: the files of this machine or a server, and where new ones are made."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio

from proto.errors import LinckiaError, OperationError, Unavailable
from proto.host import extras
from proto.host.durable import replace_file
from services.retrieve import client_collections
from services.retrieve.collection import Collection
from services.retrieve.engine import NAMES, Engine, LocalEngine
from services.retrieve.open_collections import RetrieveSettings
from services.runtime.database import Kind
from services.runtime.handlers import Environment

if TYPE_CHECKING:
    from services.retrieve.postgres.engine import PostgresEngine

COPY = "moving."
"""Prefix of the names of local copies, which makes them no names of collections."""

OWNER = "owner"
"""File in the data folder with the name by which a server knows it."""


class Copying(NamedTuple):
    """A collection of which a copy is being made elsewhere."""

    name: str
    to_server: bool


class Places:
    """`Engine` over the local files and a server.  A collection is where it was made, or where it was migrated to.

    A migration changes that in steps, each of which may be the last one before a crash. Three files say what was begun:
    `moving-NAME`, that the collection goes to the server as soon as its copy there is live; `moving.NAME.db`, a copy
    that becomes the collection as soon as the one on the server has left; `moved-NAME`, that it has become so, and what
    is on the server can be removed.
    """

    def __init__(self, local: LocalEngine, server: PostgresEngine, *, made_on_server: bool) -> None:
        self.local, self.server = local, server
        self.kind = local.kind
        self._made_on_server = made_on_server
        self.moving: set[str] = set()
        """Collections that a migration in this process is moving."""

    async def names(self) -> list[str]:
        for path in self.local.folder.glob("moving*"):
            name = path.name.removeprefix("moving-").removeprefix("moving.").removesuffix(".db")
            # The folder also has the files of other engines.
            if self.local.may_hold(name):
                await self._finish(name)
        for path in self.local.folder.glob("moved-*"):
            if self.local.may_hold(name := path.name.removeprefix("moved-")):
                await self._remove_left(name)
        return sorted({*await self.local.names(), *await self.server.names()})

    async def holds(self, name: str) -> bool:
        await self._finish(name)
        return await self.local.holds(name) or await self.server.holds(name)

    async def open(self, name: str, on_recreated: Callable[[], object]) -> Collection:
        return await (await self.place(name)).open(name, on_recreated)

    async def open_existing(self, name: str, on_recreated: Callable[[], object]) -> Collection | None:
        return await (await self.place(name)).open_existing(name, on_recreated)

    async def remove(self, name: str) -> bool:
        return await (await self.place(name)).remove(name)

    def close(self) -> None:
        self.local.close()
        self.server.close()

    async def place(self, name: str) -> Engine:
        """Return the engine that holds a collection, or that makes it if none does."""
        await self._finish(name)
        if await self.local.holds(name):
            return self.local
        if self._made_on_server or await self.server.holds(name):
            return self.server
        return self.local

    # Migration

    def _marker(self, name: str) -> Path:
        return self.local.folder / f"moving-{name}"

    def _moved(self, name: str) -> Path:
        return self.local.folder / f"moved-{name}"

    async def begin_copy(self, name: str, *, to_server: bool) -> tuple[Collection, Copying]:
        """Open the copy of a collection, which nobody else sees, and create it if there is none.

        Raises:
            OperationError: the server has another collection of this name.
        """
        copying = Copying(name, to_server)
        if not to_server:
            shown = name.removeprefix(client_collections.PREFIX)
            if not await self.server.claim(name):
                raise OperationError(
                    f"another machine is moving collection {shown!r} into its files; it can give up with "
                    "`linckia migrate retrieve --to postgres`"
                )
            if not await self.server.set_state(name, "leaving", ("live", "leaving", "frozen")):
                raise Unavailable(f"collection {shown!r} was moved by another machine", retry_after_ms=100)
            return await self.local.open(f"{COPY}{name}", lambda: None), copying
        await self.local.remove(f"{COPY}{name}")
        await self._remove_left(name)
        if await self.server.state(name) not in (None, "copying"):
            raise OperationError(
                f"the server has another collection {name.removeprefix(client_collections.PREFIX)!r}; drop one of them"
            )
        return await self.server.open(name, lambda: None, state="copying"), copying

    async def freeze(self, copying: Copying) -> None:
        """Keep other kernels from changing the collection until its copy takes its place."""
        if not copying.to_server and not await self.server.set_state(copying.name, "frozen", ("leaving",)):
            raise Unavailable(f"collection {copying.name} was changed by another machine", retry_after_ms=100)

    async def stay(self, name: str) -> None:
        """Give up a migration from the server, if one was begun."""
        if await self.local.holds(f"{COPY}{name}") and await self.server.claim(name):
            await self.server.set_state(name, "live", ("leaving", "frozen"))
            await self.server.release(name)
            await self.local.remove(f"{COPY}{name}")

    async def begun(self) -> list[str]:
        """Return the names of the collections of which a copy in files was begun."""
        await trio.lowlevel.checkpoint()
        names = [path.stem.removeprefix(COPY) for path in self.local.folder.glob(f"{COPY}*.db")]
        return [name for name in names if self.local.may_hold(name)]

    async def take_place(self, copying: Copying) -> None:
        """Let the complete, closed copy take the place of the closed collection."""
        name = copying.name
        if copying.to_server:
            await trio.to_thread.run_sync(replace_file, self._marker(name), b"")
            await self.server.set_state(name, "live", ("copying",))
        elif not await self.server.set_state(name, "left", ("frozen",)):
            # This machine seemed to be gone. What was written since is not in the copy.
            raise Unavailable(f"collection {name} was changed by another machine", retry_after_ms=100)
        self.moving.discard(name)
        await self._finish(name)

    async def _finish(self, name: str) -> None:
        """Finish what a migration of this collection began.  Raises Unavailable: the server must be asked."""
        if name in self.moving:
            return
        marker = self._marker(name)
        if marker.exists():
            if await self.server.state(name) == "live":
                await self.local.remove(name)
            await trio.to_thread.run_sync(marker.unlink, True)  # whether it may be missing
        elif await self.local.holds(f"{COPY}{name}"):
            if (state := await self.server.state(name)) == "left":
                await trio.to_thread.run_sync(replace_file, self._moved(name), b"")
                await trio.to_thread.run_sync(self.local.rename, f"{COPY}{name}", name)
                with contextlib.suppress(LinckiaError):
                    await self._remove_left(name)
            elif state == "frozen" and await self.server.claim(name):
                # Its migration was interrupted, and no other machine moves it now.
                await self.server.set_state(name, "leaving", ("frozen",))
                await self.server.release(name)

    async def _remove_left(self, name: str) -> None:
        """Remove from the server what was moved into files.  Raises Unavailable."""
        if self._moved(name).exists():
            if await self.server.state(name) == "left":
                await self.server.release(name)
                await self.server.remove(name)
            await trio.to_thread.run_sync(self._moved(name).unlink, True)  # whether it may be missing


class Refusing:
    """`Engine` of a service whose settings cannot work: every call says why."""

    def __init__(self, kind: Kind, reason: str) -> None:
        self.kind = kind
        self._reason = reason

    async def names(self) -> list[str]:
        await trio.lowlevel.checkpoint()
        raise OperationError(self._reason)

    async def holds(self, name: str) -> bool:
        await trio.lowlevel.checkpoint()
        raise OperationError(self._reason)

    async def open(self, name: str, on_recreated: Callable[[], object]) -> Collection:
        await trio.lowlevel.checkpoint()
        raise OperationError(self._reason)

    async def open_existing(self, name: str, on_recreated: Callable[[], object]) -> Collection | None:
        await trio.lowlevel.checkpoint()
        raise OperationError(self._reason)

    async def remove(self, name: str) -> bool:
        await trio.lowlevel.checkpoint()
        raise OperationError(self._reason)

    def close(self) -> None:
        """Nothing is open."""


def engines(env: Environment, settings: RetrieveSettings) -> tuple[Engine, Engine]:
    """Return the engines of the services' collections and of the clients'."""

    def local(files: re.Pattern[str], kind: Kind) -> LocalEngine:
        return LocalEngine(env.data_dir, settings.readers, settings, settings.large_words, files, kind)

    derived, clients = local(NAMES, Kind.DERIVED), local(client_collections.FILES, Kind.SOURCE)
    if not settings.dsn_env and settings.store == "local":
        return derived, clients
    if reason := _obstacle(settings):
        env.info(server=reason)
        return Refusing(Kind.DERIVED, reason), Refusing(Kind.SOURCE, reason)
    # Imported here, since whoever uses no server pays nothing for it.
    from services.retrieve.postgres.engine import PostgresEngine
    from services.retrieve.postgres.server import Server

    server = Server(os.environ[settings.dsn_env], settings.schema)
    machine = settings.machine or platform.node()

    def shared(owner: str, files: re.Pattern[str]) -> PostgresEngine:
        return PostgresEngine(
            server, owner, machine, files, settings.readers, settings.flat_vectors,
            settings.server_index, settings.server_search, settings.server_build_memory,
        )  # fmt: skip

    made_on_server = settings.store == "postgres"
    of_services, of_clients = shared(owner(env.data_dir), NAMES), shared("", client_collections.FILES)
    env.background.start_soon(of_services.watch)
    return (
        Places(derived, of_services, made_on_server=made_on_server),
        Places(clients, of_clients, made_on_server=made_on_server),
    )


def _obstacle(settings: RetrieveSettings) -> str:
    """Return what in the settings keeps the server from being used; empty if nothing does."""
    if not settings.dsn_env:
        return (
            'setting `store` is "postgres", so `dsn_env` must name the variable of the environment with the server\'s '
            "connection string, such as postgresql://user:password@host/database"
        )
    if not (dsn := os.environ.get(settings.dsn_env, "")):
        return f"setting `dsn_env` names the variable {settings.dsn_env}, which was not set when the kernel started"
    if not extras.is_installed(extras.POSTGRES):
        return f"setting `dsn_env` needs the extra `postgres`: {extras.command_for(extras.POSTGRES)}"
    if dsn.startswith("host=/") or "?host=/" in dsn or "&host=/" in dsn:
        return f"{settings.dsn_env} names a socket file, which this service cannot reach; give host and port"
    return ""


def owner(folder: Path) -> str:
    """Return the name by which a server knows the data in `folder`; it is made once."""
    path = folder / OWNER
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        made = uuid.uuid4().hex
        replace_file(path, made.encode())
        return made
