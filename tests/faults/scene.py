"""A subject's services in this process, on a data folder of the test's."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.faults.subjects import Subject
from tests.in_process import Bench, services_in_process

SETTINGS = {"decode": {"memory_limit_bytes": 0}}
ENOUGH_S = 20.0


@contextlib.asynccontextmanager
async def scene(subject: Subject, folder: Path) -> AsyncIterator[tuple[Bench, Path]]:
    """The services with their data in `folder/data`, and the root `folder/root`."""
    root = folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    async with services_in_process(
        subject.services, folder / "data", roots=[root.resolve()], settings=SETTINGS
    ) as bench:
        yield bench, root.resolve()
        for name in reversed(list(bench.running)):
            await bench.finish(name)
        assert not bench.failures, bench.failures
