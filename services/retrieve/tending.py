"""Keeps the index of a collection in shape beside searches and writes: checks it, rebuilds it, compacts it.

Nothing that is searched depends on it: while a job fails (a full disk), everything is found as before, more slowly,
and it is tried again.
"""

from __future__ import annotations

from collections.abc import Callable

import apsw
import trio

from proto.errors import LinckiaError
from services.retrieve import store
from services.retrieve.collection import Collection
from services.retrieve.large_words import Lost
from services.retrieve.word_index import COMMIT_EVERY_S

RETRY_S = 30.0
COUNT_EVERY_S = 5.0


async def run_tending(collection: Collection, report: Callable[[str], None]) -> None:
    """Work until cancelled.

    Cancellation: what a job has built so far is given up; the files of it are removed now or at the next start.

    Args:
        report: what keeps the index from being tended, empty once it is.
    """
    await collection.loaded.wait()
    while True:
        collection.wants_tending = trio.Event()
        try:
            while await collection.tend():
                pass
        except (OSError, apsw.Error, LinckiaError) as error:
            report(str(error))
            await trio.sleep(RETRY_S)
            continue
        report("")
        await collection.wants_tending.wait()


async def run_words(collection: Collection, report: Callable[[str], None]) -> None:
    """Keep tantivy in step, where the collection is large enough for it, until cancelled.

    Cancellation: what is not committed is found missing at the next start.

    Args:
        report: what keeps it from being asked, empty once it is; meanwhile FTS5 answers.
    """
    words = collection.words
    turn = trio.CapacityLimiter(1)
    try:
        await trio.to_thread.run_sync(words.clear, limiter=turn)
        while True:
            changed = collection.words_changed = trio.Event()
            try:
                if not words.wants_large(await collection.read(store.count_items)):
                    collection.words_settled.set()
                    await trio.to_thread.run_sync(words.discard, limiter=turn)
                    await changed.wait()
                    await trio.sleep(COUNT_EVERY_S)
                    continue
                await trio.to_thread.run_sync(words.begin, limiter=turn)
                check = trio.from_thread.check_cancelled
                await trio.to_thread.run_sync(words.fill, collection, check, limiter=turn)
                collection.words_ready.set()
                collection.words_settled.set()
                report("")
                await _keep_in_step(collection, turn)
            except (Lost, OSError, apsw.Error, LinckiaError) as error:
                report(str(error))
                collection.words_settled.set()
                await trio.to_thread.run_sync(words.discard, limiter=turn)
                if not words.recreating:
                    await trio.sleep(RETRY_S)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(words.end, limiter=turn)


async def _keep_in_step(collection: Collection, turn: trio.CapacityLimiter) -> None:
    """Commit what was written, every half second while something is.  Raises Lost."""
    words = collection.words
    while True:
        changed = collection.words_changed = trio.Event()
        if words.broken:
            raise Lost(words.broken)
        if not words.pending:
            await changed.wait()
        await trio.sleep(COMMIT_EVERY_S)
        await trio.to_thread.run_sync(words.flush, limiter=turn)
