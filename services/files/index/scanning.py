"""A scan that begins after it is asked for: one under way may have passed by what has changed since."""

from __future__ import annotations

import trio

from proto.errors import OperationError
from services.files import paths
from services.files.core import Core
from services.files.index.listing import look
from services.files.store.rows import fetch_value


async def scan_anew(core: Core, path: str, *, must_exist: bool = False) -> None:
    """Scan a path, which is real and below the roots, and wait; cancelling this cancels the scan.

    Raises:
        OperationError: it was not scanned to its end; with `must_exist` also where there is nothing at the path.
    """
    newest: int = await core.database.read(lambda db: fetch_value(db, "SELECT max(id) FROM job")) or 0
    while True:
        job = await core.jobs.start(path, background=False, force=True, max_age_s=0)
        await core.jobs.wait(job, lambda counts: None)
        if job.id > newest:
            break
    ended = await core.jobs.get(job.id)
    if ended.status == "completed":
        return
    if not must_exist and await trio.to_thread.run_sync(look, path) is None:
        return
    raise OperationError(f"{paths.shown(path)} was not scanned: {ended.error or ended.status}")
