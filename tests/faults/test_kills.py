"""A kill at each step of a write of any service: acknowledged writes are whole, others are whole or absent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults.child import KILLED
from tests.faults.scene import scene
from tests.faults.subjects import SUBJECTS
from tests.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]


MOST = 5


@pytest.fixture(scope="module")
def child() -> Iterator[subprocess.Popen[str]]:
    """`tests.faults.child`, whose import of every service is what costs."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.child"],
        cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        yield process


@pytest.mark.parametrize("name", SUBJECTS)
async def test_a_kill_at_each_step_of_a_write_loses_nothing(
    name: str, tmp_path: Path, child: subprocess.Popen[str], sample: Callable[[Sequence[int], int], list[int]]
) -> None:
    subject = SUBJECTS[name]
    (count,) = ask(child, name, tmp_path, [0])
    steps = sample(range(1, count + 1), MOST)
    codes = ask(child, name, tmp_path, steps)
    killed = [step for step, code in zip(steps, codes, strict=True) if code == KILLED]
    assert len(killed) >= 2, codes
    for step in killed:
        async with scene(subject, tmp_path / str(step)) as (bench, root):

            async def first_is_there() -> bool:
                return (await subject.seen(bench, root)) >= {1}

            await until(first_is_there)
            assert await subject.seen(bench, root) <= {1, 2}
            await subject.write(bench, root, 2)

            async def both_are_there() -> bool:
                return await subject.seen(bench, root) == {1, 2}

            await until(both_are_there)


def ask(child: subprocess.Popen[str], name: str, folder: Path, steps: list[int]) -> list[int]:
    assert child.stdin is not None
    assert child.stdout is not None
    print(json.dumps([name, str(folder), *steps]), file=child.stdin, flush=True)
    return [int(child.stdout.readline()) for _ in steps]
