"""What the operation families share: the open index, its roots, its jobs, and decorators for reading and writing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import apsw
import msgspec
from msgspec import Meta

from proto.operation import Params
from services.files.index.jobs import Jobs
from services.files.index.tree import Tree
from services.files.paths import FileRoots
from services.files.query.columns import Columns
from services.runtime.change_log import EXCLUDED
from services.runtime.database import Database
from services.runtime.handlers import Context, Environment, handles

P = TypeVar("P", bound=Params[Any])
A = TypeVar("A")
R = TypeVar("R")
F = TypeVar("F", bound="Family")


class FilesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `[services.files]`."""

    ignore: Annotated[list[str], Meta(description="Patterns of names that are not indexed, as in .gitignore")] = []
    trash: Annotated[bool, Meta(description="Whether deleted files are kept so that they can be restored")] = True
    undo_max_mb: Annotated[int, Meta(ge=0, description="Most former content that is kept for undo, compressed")] = 1024
    undo_days: Annotated[float, Meta(gt=0, description="How long changes can be undone")] = 30.0
    undo_exclude: Annotated[
        tuple[str, ...], Meta(description="Patterns of file names whose former content is not kept for undo")
    ] = EXCLUDED


def read_settings(table: Mapping[str, Any]) -> FilesSettings:
    """Parse the settings table. Raises ValueError, which names the setting."""
    try:
        return msgspec.convert(dict(table), FilesSettings)
    except msgspec.ValidationError as error:
        raise ValueError(f"[services.files]: {error}") from None


@dataclass(frozen=True, slots=True)
class Core:
    """The parts of the service that handlers need."""

    env: Environment
    settings: FilesSettings
    database: Database
    tree: Tree
    roots: FileRoots
    jobs: Jobs
    columns: Columns


class Family:
    """Base class of operations that need only the core."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def notify(self, params: Any) -> None:
        """Called after a change was stored; notifies subscribed clients."""


Query = Callable[[F, apsw.Connection, P], R]
Handler = Callable[[F, A, Context], Awaitable[R]]


def reads(params: type[P]) -> Callable[[Query[F, P, R]], Handler[F, P, R]]:
    """Make the decorated query of a `Family` handle an operation; it runs in a thread that reads the database."""

    def handler_of(query: Query[F, P, R]) -> Handler[F, P, R]:
        async def handler(self: F, given: P, ctx: Context) -> R:
            return await self._core.database.read(lambda db: query(self, db, given))

        return handles(params)(handler)

    return handler_of


def writes(params: type[P]) -> Callable[[Query[F, P, R]], Handler[F, P, R]]:
    """Make the decorated change of a `Family` handle an operation in a transaction, then call `notify`."""

    def handler_of(change: Query[F, P, R]) -> Handler[F, P, R]:
        async def handler(self: F, given: P, ctx: Context) -> R:
            changed = await self._core.database.answer(lambda db: change(self, db, given))
            self.notify(given)
            return changed

        return handles(params)(handler)

    return handler_of
