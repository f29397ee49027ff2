"""Keeps the index of a collection in shape beside searches and writes: checks it, makes it anew, compacts it.

Nothing that is searched depends on it: while a job fails (a full disk), everything is found as before, more slowly,
and it is tried again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import trio

from proto.errors import LinckiaError
from services.retrieve.collection import Collection

RETRY_S = 30.0


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
        except (OSError, sqlite3.Error, LinckiaError) as error:
            report(str(error))
            await trio.sleep(RETRY_S)
            continue
        report("")
        await collection.wants_tending.wait()
