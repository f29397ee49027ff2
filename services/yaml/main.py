"""The service `yaml`: each operation runs in a worker thread, since a large file takes a second to parse.

Failures carry the JSON-RPC codes of `proto.ops.yaml`.
"""

from __future__ import annotations

import contextlib
import json
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
    CommentsResult,
    EditResult,
    GetResult,
    NoyalibGet,
    NoyalibSet,
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
from services.yaml.edit import get_at, read_tree, set_at
from services.yaml.errors import YamlError
from services.yaml.files import DEFAULT_MAX_BYTES, Roots
from services.yaml.operations import YamlFiles

T = TypeVar("T")

THREADS = 4
"""Parsing holds the interpreter's lock; more threads only let reads of small files pass a large one."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[services.yaml]`."""

    max_bytes: Annotated[int, Meta(ge=1024, description="Largest file that is read")] = DEFAULT_MAX_BYTES


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready at once; nothing is kept but the cache of parsed files."""
    settings = msgspec.convert(env.settings, Settings)
    files = YamlFiles(Roots.of(*env.roots), max_bytes=settings.max_bytes)
    limiter = trio.CapacityLimiter(THREADS)
    handlers = Handlers()

    async def run(work: Callable[[], T]) -> T:
        # Not abandoned on cancellation: an edit that has begun ends, or has not happened.
        try:
            return await trio.to_thread.run_sync(work, limiter=limiter)
        except YamlError as error:
            hashes = {"expected": error.expected, "found": error.found}
            raise OperationError(
                error.message, code=int(error.code), data={name: value for name, value in hashes.items() if value}
            ) from None

    @handlers.handle(NoyalibGet)
    async def get(params: NoyalibGet, ctx: Context) -> GetResult:
        return await run(partial(files.get, params.file, params.path, document=params.document))

    @handlers.handle(NoyalibSet)
    async def set_value(params: NoyalibSet, ctx: Context) -> EditResult:
        return await run(partial(files.set_value, params.file, params.path, params.value, **_options(params)))

    @handlers.handle(YamlDelete)
    async def delete(params: YamlDelete, ctx: Context) -> EditResult:
        return await run(partial(files.delete, params.file, params.path, **_options(params)))

    @handlers.handle(YamlAppend)
    async def append(params: YamlAppend, ctx: Context) -> EditResult:
        return await run(partial(files.append, params.file, params.path, params.value, **_options(params)))

    @handlers.handle(YamlRename)
    async def rename(params: YamlRename, ctx: Context) -> EditResult:
        return await run(partial(files.rename, params.file, params.path, params.key, **_options(params)))

    @handlers.handle(YamlGetComments)
    async def get_comments(params: YamlGetComments, ctx: Context) -> CommentsResult:
        return await run(partial(files.get_comments, params.file, params.path, document=params.document))

    @handlers.handle(YamlSetComments)
    async def set_comments(params: YamlSetComments, ctx: Context) -> EditResult:
        change = partial(files.set_comments, params.file, params.path, above=params.above, beside=params.beside)
        return await run(partial(change, **_options(params)))

    @handlers.handle(YamlEdit)
    async def edit(params: YamlEdit, ctx: Context) -> EditResult:
        return await run(partial(files.edit, params.file, params.edits, **_options(params)))

    @handlers.handle(YamlValidate)
    async def validate(params: YamlValidate, ctx: Context) -> ValidateResult:
        schema = json.dumps(params.schema)
        return await run(partial(files.validate, params.file, schema, document=params.document))

    yield handlers


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
