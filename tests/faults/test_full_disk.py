"""A disk that is full at any statement or commit of any service: nothing is done, reads go on, and it passes."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from proto.errors import Executed, LinckiaError
from services.runtime.storage import DiskFull
from tests.faults.scene import ENOUGH_S, scene
from tests.faults.subjects import SUBJECTS, Subject
from tests.in_process import Bench
from tests.unit.runtime.faults import disk
from tests.waiting import until


@pytest.mark.parametrize("name", SUBJECTS)
async def test_a_full_disk_at_each_statement_changes_nothing_and_passes(name: str, tmp_path: Path) -> None:
    statement, struck = 1, True
    while struck:
        # One service lives through all of it; each write is another.
        struck = await full_from(SUBJECTS[name], tmp_path / str(statement), statement)
        statement += 1
    assert statement > 3, "no statement found the disk full"


async def full_from(subject: Subject, folder: Path, statement: int) -> bool:
    """Fill the disk from the `statement`th on; whether the second write got that far."""
    with disk() as one:
        async with scene(subject, folder) as (bench, root):
            await subject.write(bench, root, 1)
            assert await subject.seen(bench, root) == {1}
            one.fill(statement)
            failed = None
            try:
                with trio.move_on_after(0.5):
                    await subject.write(bench, root, 2)
            except LinckiaError as error:
                failed = error
            struck = one.struck
            if failed is not None:
                assert struck, failed
                check_full(failed)
            assert {1} <= await subject.seen(bench, root) <= {1, 2}, "reads go on"
            one.room()
            await write_soon(subject, bench, root)

            async def whole() -> bool:
                return await subject.seen(bench, root) == {1, 2}

            await until(whole)
    return struck


async def write_soon(subject: Subject, bench: Bench, root: Path) -> None:
    """The second write is done soon after room was made; until then its failure says so."""
    with trio.fail_after(ENOUGH_S):
        while True:
            try:
                return await subject.write(bench, root, 2)
            except LinckiaError as error:
                check_full(error)
                await trio.sleep(0.05)


def check_full(error: LinckiaError) -> None:
    """It says that the disk is full, and that nothing was done."""
    assert isinstance(error, DiskFull) or "disk is full" in str(error), repr(error)
    assert error.failure.executed is Executed.NO
