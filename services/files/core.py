"""What the families of operations share: the open index, its roots, its jobs, and how a handler reads and writes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import apsw
import msgspec
from msgspec import Meta

from linckia.proto.operation import Params
from linckia.services.files.index.jobs import Jobs
from linckia.services.files.index.tree import Tree
from linckia.services.files.paths import FileRoots
from linckia.services.runtime.database import Database
from linckia.services.runtime.handlers import Context, Environment, handles

P = TypeVar("P", bound=Params[Any])
A = TypeVar("A")
R = TypeVar("R")
F = TypeVar("F", bound="Family")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As they may be written."""

    ignore: Annotated[list[str], Meta(description="Patterns, as in .gitignore, of what the index leaves out")] = []
    trash: Annotated[bool, Meta(description="Whether deleted files are kept, so that they can be restored")] = True


def read_settings(table: Mapping[str, Any]) -> Settings:
    """Raises ValueError, which names the setting."""
    try:
        return msgspec.convert(dict(table), Settings)
    except msgspec.ValidationError as error:
        raise ValueError(f"[services.files]: {error}") from None


@dataclass(frozen=True, slots=True)
class Core:
    """The service's parts, each as its own module describes it."""

    env: Environment
    settings: Settings
    database: Database
    tree: Tree
    roots: FileRoots
    jobs: Jobs


class Family:
    """Operations that need nothing but the core."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def told(self, params: Any) -> None:
        """A change was stored: tell clients that subscribed."""


Query = Callable[[F, apsw.Connection, P], R]
Handler = Callable[[F, A, Context], Awaitable[R]]


def reads(params: type[P]) -> Callable[[Query[F, P, R]], Handler[F, P, R]]:
    """Have the decorated query of a `Family` handle an operation, in a thread that reads the database."""

    def handler_of(query: Query[F, P, R]) -> Handler[F, P, R]:
        async def handler(self: F, given: P, ctx: Context) -> R:
            return await self._core.database.read(lambda db: query(self, db, given))

        return handles(params)(handler)

    return handler_of


def writes(params: type[P]) -> Callable[[Query[F, P, R]], Handler[F, P, R]]:
    """Have the decorated change of a `Family` handle an operation, in a transaction, and `told` after it."""

    def handler_of(change: Query[F, P, R]) -> Handler[F, P, R]:
        async def handler(self: F, given: P, ctx: Context) -> R:
            changed = await self._core.database.write(lambda db: change(self, db, given))
            self.told(given)
            return changed

        return handles(params)(handler)

    return handler_of
