"""Conditions of plans: each finds exactly the entries it says, alone and in groups; none asks for nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from proto.errors import InvalidParams
from services.files.operations.plans import (
    All,
    AnyOf,
    Condition,
    MediaCondition,
    NoneOf,
    PathCondition,
    PlanCreate,
    PlanSource,
    SizeCondition,
    SourceConfig,
    TimeCondition,
)
from services.files.query import conditions
from services.files.query.entries import Select
from services.files.store import sql
from tests.unit.files.rig import files_service, index

FILES = {
    "pics/a.JPG": 10, "pics/b.png": 2000, "clips/c.mp4": 3000, "songs/d.flac": 40, "texts/e.pdf": 50, "f.bin": 60,
    "pics/100%.gif": 70,
}  # fmt: skip

Finds = Callable[[Condition], set[str]]


async def finder(tmp_path: Path) -> Finds:
    """The names of what meets a condition."""
    root, data = tmp_path / "root", tmp_path / "data"
    for n, (name, size) in enumerate(FILES.items()):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * size)
        os.utime(root / name, (1_700_000_000 + n * 86_400,) * 2)
    async with files_service(data, root) as bench:
        await index(bench, root)
    db = apsw.Connection(str(data / "files/files.db"))
    db.set_busy_timeout(10_000)  # the service writes to it, too
    sql.register(db)

    def find(condition: Condition) -> set[str]:
        return {name for (name,) in Select([conditions.where(condition)]).run(db, "n.name", "AND n.kind = 0")}

    return find


async def test_each_condition_selects_the_right_entries(tmp_path: Path) -> None:
    finds = await finder(tmp_path)
    everything = {Path(name).name for name in FILES}
    assert finds(MediaCondition(mediaType="image")) == {"a.JPG", "b.png", "100%.gif"}
    assert finds(MediaCondition(mediaType="video")) == {"c.mp4"}
    assert finds(MediaCondition(mediaType="audio")) == {"d.flac"}
    assert finds(MediaCondition(mediaType="document")) == {"e.pdf"}
    assert finds(SizeCondition(minSize=60, maxSize=2000)) == {"b.png", "f.bin", "100%.gif"}
    assert finds(TimeCondition(minMtime=1_700_000_000 + 86_400, maxMtime=1_700_000_000 + 2 * 86_400)) == {
        "b.png",
        "c.mp4",
    }
    assert finds(TimeCondition(minCtime="2999-01-01")) == set()
    assert finds(PathCondition(pathContains="/PICS/")) == {"a.JPG", "b.png", "100%.gif"}
    assert finds(PathCondition(pathSuffix=".jpg")) == {"a.JPG"}
    assert finds(PathCondition(pathContains="0%")) == {"100%.gif"}
    assert finds(PathCondition(pathPrefix="/")) == everything
    assert finds(PathCondition(pathPattern="*/pics/*.png")) == {"b.png"}
    assert finds(PathCondition(pathPattern="*.jpg")) == {"a.JPG"}
    assert finds(PathCondition(pathPattern=r"/(clips|songs)/[cd]\.")) == {"c.mp4", "d.flac"}


async def test_groups_combine_their_conditions(tmp_path: Path) -> None:
    finds = await finder(tmp_path)
    everything = {Path(name).name for name in FILES}
    image, small = MediaCondition(mediaType="image"), SizeCondition(maxSize=60)
    assert finds(All(conditions=[image, small])) == {"a.JPG"}
    assert finds(AnyOf(conditions=[image, small])) == everything - {"c.mp4"}
    assert finds(NoneOf(conditions=[image, small])) == {"c.mp4"}
    assert finds(All(conditions=[image, NoneOf(conditions=[small])])) == {"b.png", "100%.gif"}
    assert finds(All(conditions=[])) == finds(NoneOf(conditions=[])) == everything
    assert finds(AnyOf(conditions=[])) == set()


async def test_conditions_that_cannot_be_asked_are_refused_by_their_place(tmp_path: Path) -> None:
    deep: Condition = SizeCondition(minSize=1)
    for _ in range(40):
        deep = All(conditions=[deep])
    wrong: list[tuple[Condition, str]] = [
        (All(conditions=[SizeCondition()]), "conditions.conditions[0]"),
        (PathCondition(), "conditions"),
        (TimeCondition(minMtime="soon"), "conditions.minMtime"),
    ]
    async with files_service(tmp_path / "data", tmp_path) as bench:
        source = PlanSource(type="filesystem.index", config=SourceConfig(path=str(tmp_path)))
        for condition, field in wrong:
            with pytest.raises(InvalidParams) as refused:
                await bench.call(PlanCreate(name="p", sources=[source], conditions=condition))
            assert refused.value.failure.field == field
        with pytest.raises(InvalidParams, match="levels"):
            await bench.call(PlanCreate(name="p", sources=[source], conditions=deep))
