"""A kill at each step of a write of any service: what was acknowledged is whole, the rest is whole or not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.faults.scene import scene, until
from tests.faults.subjects import SUBJECTS

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", SUBJECTS)
async def test_a_kill_at_each_step_of_a_write_loses_nothing(name: str, tmp_path: Path) -> None:
    subject = SUBJECTS[name]
    done = await trio.run_process(
        [sys.executable, "-m", "tests.faults.child", name, str(tmp_path)],
        cwd=REPOSITORY, env=None, capture_stdout=True, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    said = done.stdout.decode()
    assert done.returncode == 0, said
    steps = [int(line.split()[0]) for line in said.splitlines() if line.split()[1:] == ["9"]]
    assert len(steps) >= 2, said
    for step in steps:
        async with scene(subject, tmp_path / str(step)) as (bench, root):

            async def first_is_there() -> bool:
                return (await subject.seen(bench, root)) >= {1}

            await until(first_is_there)
            assert await subject.seen(bench, root) <= {1, 2}
            await subject.write(bench, root, 2)

            async def both_are_there() -> bool:
                return await subject.seen(bench, root) == {1, 2}

            await until(both_are_there)
