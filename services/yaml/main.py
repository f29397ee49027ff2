"""The service `yaml`: each operation runs in a worker thread, since a large file takes a second to parse."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, TypeVar, TypeVarTuple

import msgspec
import trio
from msgspec import Meta

from proto.ops.changes import CollectChanges, TakeYamlChanges
from proto.ops.yaml import MergeYamlText
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.yaml.files import DEFAULT_MAX_BYTES
from services.yaml.merge_edits import Merge
from services.yaml.merging import merge
from services.yaml.operations import (
    AppendEdit,
    CommentEdit,
    CommentsResult,
    DeleteEdit,
    Edit,
    EditResult,
    GetResult,
    NoyalibGet,
    NoyalibSet,
    PathChange,
    RenameEdit,
    SetEdit,
    ValidateResult,
    YamlAppend,
    YamlDelete,
    YamlEdit,
    YamlGetComments,
    YamlMerge,
    YamlRename,
    YamlSetComments,
    YamlValidate,
)
from services.yaml.values import get_at, read_tree, set_at
from services.yaml.yaml_files import YamlFiles

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

THREADS = 4
"""Parsing holds the interpreter lock; more threads only let reads of small files overtake a large one."""

CHECKS = 2
"""Concurrent validations, in threads of their own: each may take seconds, and other calls do not wait for them."""


class YamlSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `[services.yaml]`."""

    max_bytes: Annotated[int, Meta(ge=1024, description="Largest file that is read")] = DEFAULT_MAX_BYTES


_EDITS: dict[type[PathChange], type[Edit]] = {
    NoyalibSet: SetEdit,
    YamlDelete: DeleteEdit,
    YamlAppend: AppendEdit,
    YamlRename: RenameEdit,
    YamlSetComments: CommentEdit,
}
"""The edit that an operation makes; the operation's parameters include all its fields."""


class YamlService:
    """The handlers of the operations."""

    def __init__(self, files: YamlFiles) -> None:
        self._files = files
        self._limiter = trio.CapacityLimiter(THREADS)
        self._checks = trio.CapacityLimiter(CHECKS)

    @handles(NoyalibGet)
    async def get(self, params: NoyalibGet, ctx: Context) -> GetResult:
        return await self._run(self._files.get, params.file, params.path, params.document)

    @handles(YamlGetComments)
    async def get_comments(self, params: YamlGetComments, ctx: Context) -> CommentsResult:
        return await self._run(self._files.get_comments, params.file, params.path, params.document)

    @handles(YamlValidate)
    async def validate(self, params: YamlValidate, ctx: Context) -> ValidateResult:
        check = partial(self._files.validate, params.file, params.schema, params.document)
        return await trio.to_thread.run_sync(check, limiter=self._checks)

    @handles(YamlEdit)
    async def edit(self, params: YamlEdit, ctx: Context) -> EditResult:
        return await self._edit(params, params.edits)

    @handles(YamlMerge)
    async def merge(self, params: YamlMerge, ctx: Context) -> EditResult:
        given = params.values
        values = await self._run(self._files.mapping, params.source) if given is None else given
        merging = Merge(values, params.path, params.lists == "append", params.remove_nulls)
        return await self._run(
            self._files.merge, params.file, merging, params.document, params.if_match, params.dry_run
        )

    @handles(MergeYamlText)
    async def merge_text(self, params: MergeYamlText, ctx: Context) -> str:
        return await self._run(merge, params.text, params.values)

    async def change(self, params: PathChange, ctx: Context) -> EditResult:
        """Handle any operation in `_EDITS`."""
        kind = _EDITS[type(params)]
        return await self._edit(params, kind(**{name: getattr(params, name) for name in kind.__struct_fields__}))

    async def _edit(self, params: PathChange | YamlEdit, edits: Edit | list[Edit]) -> EditResult:
        return await self._run(self._files.edit, params.file, edits, params.document, params.if_match, params.dry_run)

    async def _run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        # Not abandoned on cancellation: an edit either completes, or has not happened.
        return await trio.to_thread.run_sync(work, *args, limiter=self._limiter)


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service, which is ready at once and only caches parsed files."""
    settings = msgspec.convert(env.settings, YamlSettings)
    service = YamlService(YamlFiles(env.roots, max_bytes=settings.max_bytes))
    log = env.keeps_changes(partial(env.call, CollectChanges()))
    handlers = Handlers(service)
    for params in _EDITS:
        handlers.handle(params)(service.change)
    handlers.handle(TakeYamlChanges)(log.taken)
    yield handlers


def warm_up() -> None:
    """Read and change a small document: compiling the parser's patterns takes half of a first call's time."""
    tree = read_tree(_SAMPLE)
    set_at(set_at(tree, "a.b[0]", "2"), "c.d", "new")
    get_at(tree, "a")


_SAMPLE = """# sample
a:
  b: [1, 'two', "three"]  # flow
  c: &x |
    text
d: {e: *x, f: !!str 1}
---
- plain text
  over lines
- >-
  folded
"""
