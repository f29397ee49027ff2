"""Compares two files, each on disk or as `documents` has stored it."""

from __future__ import annotations

from typing import NamedTuple

import trio

from proto import grants
from proto.errors import Forbidden, InvalidParams, OperationError
from proto.ops.documents.reading import DocumentsContent
from services.files import paths
from services.files.operations.text import DiffFiles, DiffSide, FileDiff
from services.files.paths import FileRoots
from services.runtime.handlers import Context
from services.runtime.rewrite import content_hash, naming_errors, read_whole
from services.shared.text.lines import shortly
from services.shared.text.texts import decode

MAX_BYTES = 8 * 1024 * 1024
"""Largest file that is compared: both are held as lines."""


class _Side(NamedTuple):
    name: str
    """As the diff names it."""
    path: str
    """For the kind of its text; may be empty."""
    data: bytes


async def difference(params: DiffFiles, roots: FileRoots, ctx: Context, limiter: trio.CapacityLimiter) -> FileDiff:
    """Compare two files. Raises LinckiaError, which names the side and its field."""
    before = await _read(params.before, "before", roots, ctx, limiter)
    after = await _read(params.after, "after", roots, ctx, limiter)
    return await trio.to_thread.run_sync(_compared, before, after, limiter=limiter)


async def _read(side: DiffSide, field: str, roots: FileRoots, ctx: Context, limiter: trio.CapacityLimiter) -> _Side:
    if side.path and not side.snapshot:
        return await trio.to_thread.run_sync(_on_disk, side.path, f"{field}.path", roots, limiter=limiter)
    if grants.roots():
        at = f"{field}.{'hash' if side.hash else 'snapshot'}"
        raise Forbidden(f"`{at}`: stored versions come from all roots, and this token is limited to some", field=at)
    wanted = DocumentsContent(hash=side.hash or None, path=side.path, snapshot=side.snapshot, most=MAX_BYTES)
    try:
        found = await ctx.call(wanted)
    except (InvalidParams, OperationError) as error:
        inner = error.failure.field or ("hash" if side.hash else "path")
        at = f"{field}.{'snapshot' if inner == 'snapshot_id' else inner}"
        raise type(error)(f"`{at}`: {error}", field=at) from None
    return _Side(f"{found.path or 'content'}@{found.hash[:12]}", found.path, found.data)


def _on_disk(path: str, field: str, roots: FileRoots) -> _Side:
    real = roots.real(roots.clean(path, field), field)
    with naming_errors(path, field, roots=roots.all):
        return _Side(real, real, read_whole(paths.to_os(real), roots.all, MAX_BYTES))


def _compared(before: _Side, after: _Side) -> FileDiff:
    diff = binary = ""
    if before.data != after.data:
        try:
            name = before.name
            old = decode(before.data, before.path).text
            name = after.name
            new = decode(after.data, after.path).text
        except OperationError:
            binary = f"{name} is not text"
        else:
            diff = shortly(old, new, before.name, after.name)
            diff = diff or "no line differs: only encoding or line ends do\n"
    return FileDiff(
        equal=before.data == after.data, diff=diff, binary=binary, before_hash=content_hash(before.data),
        after_hash=content_hash(after.data), before_bytes=len(before.data), after_bytes=len(after.data),
    )  # fmt: skip
