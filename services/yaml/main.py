"""The service `yaml`: each operation runs in a worker thread, since a large file takes a second to parse.

Failures carry the JSON-RPC codes of `proto.ops.yaml`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar

import msgspec
import trio
from msgspec import Meta

from proto.errors import OperationError
from proto.operation import Params
from proto.ops.yaml import (
    AppendEdit,
    CommentEdit,
    CommentsResult,
    DeleteEdit,
    Edit,
    EditResult,
    GetResult,
    NoyalibGet,
    NoyalibSet,
    RenameEdit,
    SetEdit,
    ValidateResult,
    YamlAppend,
    YamlDelete,
    YamlEdit,
    YamlGetComments,
    YamlRename,
    YamlSetComments,
    YamlValidate,
)
from services.runtime.handlers import Context, Environment, Handlers
from services.yaml.edit.values import get_at, read_tree, set_at
from services.yaml.errors import YamlError
from services.yaml.files import DEFAULT_MAX_BYTES, Roots
from services.yaml.operations import YamlFiles

T = TypeVar("T")

THREADS = 4
"""Parsing holds the interpreter's lock; more threads only let reads of small files pass a large one."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[services.yaml]`."""

    max_bytes: Annotated[int, Meta(ge=1024, description="Largest file that is read")] = DEFAULT_MAX_BYTES


class YamlService:
    """The handlers of the operations."""

    def __init__(self, files: YamlFiles) -> None:
        self._files = files
        self._limiter = trio.CapacityLimiter(THREADS)

    def handlers(self) -> Handlers:
        """By operation; each changing one but `yaml_edit` makes one edit."""
        handlers = Handlers()
        handlers.handle(NoyalibGet)(self.get)
        handlers.handle(YamlGetComments)(self.get_comments)
        handlers.handle(YamlValidate)(self.validate)
        handlers.handle(YamlEdit)(self.edit)
        handlers.handle(NoyalibSet)(self.set_value)
        handlers.handle(YamlDelete)(self.delete)
        handlers.handle(YamlAppend)(self.append)
        handlers.handle(YamlRename)(self.rename)
        handlers.handle(YamlSetComments)(self.set_comments)
        return handlers

    async def get(self, params: NoyalibGet, ctx: Context) -> GetResult:
        return await self._run(partial(self._files.get, params.file, params.path, document=params.document))

    async def get_comments(self, params: YamlGetComments, ctx: Context) -> CommentsResult:
        return await self._run(partial(self._files.get_comments, params.file, params.path, document=params.document))

    async def validate(self, params: YamlValidate, ctx: Context) -> ValidateResult:
        return await self._run(partial(self._files.validate, params.file, params.schema, document=params.document))

    async def edit(self, params: YamlEdit, ctx: Context) -> EditResult:
        return await self._run(partial(self._files.edit, params.file, params.edits, **_options(params)))

    async def set_value(self, params: NoyalibSet, ctx: Context) -> EditResult:
        return await self._change(params, SetEdit(params.path, params.value))

    async def delete(self, params: YamlDelete, ctx: Context) -> EditResult:
        return await self._change(params, DeleteEdit(params.path))

    async def append(self, params: YamlAppend, ctx: Context) -> EditResult:
        return await self._change(params, AppendEdit(params.path, params.value))

    async def rename(self, params: YamlRename, ctx: Context) -> EditResult:
        return await self._change(params, RenameEdit(params.path, params.key))

    async def set_comments(self, params: YamlSetComments, ctx: Context) -> EditResult:
        return await self._change(params, CommentEdit(params.path, params.above, params.beside))

    async def _change(self, params: _Change, edit: Edit) -> EditResult:
        return await self._run(partial(self._files.change, params.file, edit, **_options(params)))

    async def _run(self, work: Callable[[], T]) -> T:
        # Not abandoned on cancellation: an edit that has begun ends, or has not happened.
        try:
            return await trio.to_thread.run_sync(work, limiter=self._limiter)
        except YamlError as error:
            hashes = {"expected": error.expected, "found": error.found}
            raise OperationError(
                error.message, code=int(error.code), data={name: value for name, value in hashes.items() if value}
            ) from None


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready at once; nothing is kept but the cache of parsed files."""
    settings = msgspec.convert(env.settings, Settings)
    yield YamlService(YamlFiles(Roots.of(*env.roots), max_bytes=settings.max_bytes)).handlers()


def warm_up() -> None:
    """Read and change a small document: compiling the parser's patterns is half of a first call's time."""
    tree = read_tree(_SAMPLE)
    set_at(set_at(tree, "a.b[0]", "2"), "c.d", "new")
    get_at(tree, "a")


def rehearse(root: Path, settings: Mapping[str, Any]) -> Sequence[Params[Any]]:
    """Read the small document, and change it."""
    (root / "sample.yaml").write_text(_SAMPLE, encoding="utf-8")
    get = NoyalibGet(file="sample.yaml", path="a.b")
    return (get, NoyalibSet(file="sample.yaml", path="a.b[0]", value="2"), get)


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

_Change = NoyalibSet | YamlDelete | YamlAppend | YamlRename | YamlSetComments | YamlEdit


class _Options(TypedDict):
    document: int
    if_match: str | None
    dry_run: bool


def _options(params: _Change) -> _Options:
    """What every changing operation takes."""
    return _Options(document=params.document, if_match=params.if_match, dry_run=params.dry_run)
