"""A finished download handed to the store of documents, in pieces: neither process ever holds the whole."""

from __future__ import annotations

from collections.abc import Callable

import trio

from proto.errors import LinckiaError, MaybeExecuted, OperationError, Unavailable
from proto.ops.documents.change import (
    AddResult,
    DocumentsPutAbandon,
    DocumentsPutBegin,
    DocumentsPutCommit,
    DocumentsPutPiece,
)
from services.fetch.partial import Partial
from services.runtime.handlers import Context

ATTEMPTS = 3
"""An upload dies with the store's process; the next generation takes a new one."""


async def store(
    context: Context, begin: DocumentsPutBegin, partial: Partial, sha256: str, report: Callable[[int], None]
) -> AddResult:
    """Store `partial` as `begin` says; `report` hears how many bytes have gone.

    Raises:
        LinckiaError: of the store.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await _upload(context, begin, partial, sha256, report)
        except (Unavailable, MaybeExecuted, OperationError):
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt answers or raises")


async def _upload(
    context: Context, begin: DocumentsPutBegin, partial: Partial, sha256: str, report: Callable[[int], None]
) -> AddResult:
    upload_id = (await context.call(begin)).upload_id
    try:
        offset = 0
        while offset < partial.size:
            data = await trio.to_thread.run_sync(partial.read, offset)
            await context.call(DocumentsPutPiece(upload_id=upload_id, offset=offset, data=data))
            offset += len(data)
            report(offset)
        return await context.call(DocumentsPutCommit(upload_id=upload_id, size=offset, sha256=sha256))
    except BaseException:
        await _abandon(context, upload_id)
        raise


async def _abandon(context: Context, upload_id: str) -> None:
    with trio.move_on_after(1.0) as limit:
        limit.shield = True
        try:
            await context.call(DocumentsPutAbandon(upload_id=upload_id))
        except LinckiaError:
            return  # The store forgets it by itself, in time.
