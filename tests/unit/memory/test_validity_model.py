"""Whatever is said, replaced, changed and forgotten, recall has what a plain model in a list has, now and then."""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proto.errors import InvalidParams
from services.memory.operations import Forget, UpdateMemory
from tests.in_process import Bench
from tests.unit.memory.rig import Clock, listed, recalled, remembering, say

STEPS = 40


@dataclass(eq=False)
class Held:
    """A memory of the model; `end` is the last moment at which it holds, `by` the memory that replaced it."""

    text: str
    first: int
    begin: int | None = None
    end: int | None = None
    by: Held | None = None
    by_ns: int = 0
    id: str = ""

    @property
    def start(self) -> int:
        return self.first if self.begin is None else self.begin

    def is_over(self, at: int) -> bool:
        return (self.end is not None and at > self.end) or (self.by is not None and at >= self.by_ns)

    def holds(self, at: int) -> bool:
        return self.start <= at and not self.is_over(at)

    def heirs(self) -> list[Held]:
        return [] if self.by is None else [self.by, *self.by.heirs()]


@dataclass
class Said:
    """What a call says of a memory."""

    begin: str | None
    end: str | None
    olds: list[Held]

    @property
    def given(self) -> dict[str, Any]:
        return {"valid_from": self.begin, "valid_until": self.end, "supersedes": [old.id for old in self.olds]}


def first_of(date: str | None) -> int | None:
    at = None if date is None else datetime.datetime.fromisoformat(f"{date}T00:00:00+00:00")
    return None if at is None else int(at.timestamp()) * 10**9


def last_of(date: str | None) -> int | None:
    at = first_of(date)
    return None if at is None else at + 86_400 * 10**9 - 1000


class Model:
    """Does the same with the service and with a list of its own."""

    def __init__(self, bench: Bench, clock: Clock, rng: random.Random) -> None:
        self.bench, self.clock, self.rng = bench, clock, rng
        self.held: list[Held] = []
        self.refused = 0

    async def step(self) -> None:
        self.clock.pass_days(self.rng.randint(0, 3))
        olds = self.rng.sample(self.held, min(len(self.held), self.rng.choice((0, 0, 1, 1, 2))))
        said = Said(self.date(), self.date(), olds)
        kind = self.rng.choice(("add",) * 6 + ("update",) * 3 + ("forget",))
        if kind == "add" or not self.held:
            await self.add(
                f"{self.rng.choice(('Ann', 'Ben'))} lives in {self.rng.choice(('Oslo', 'Rome', 'Ulm', 'Kiel'))}", said
            )
        elif kind == "update":
            await self.update(self.rng.choice(self.held), said)
        else:
            await self.forget(self.rng.choice(self.held))

    def date(self) -> str | None:
        near = self.clock.day + datetime.timedelta(days=self.rng.randint(-40, 40))
        return self.rng.choice((None, None, str(near)))

    async def add(self, text: str, said: Said) -> None:
        begin, end = first_of(said.begin), last_of(said.end)
        asserted = max(self.clock.now_ns, begin or 0)
        asserted = asserted if end is None else min(asserted, end)
        alike = [one for one in self.held if one.text == text and not one.is_over(asserted)]
        same = next((one for one in alike if one.begin is None or one.begin <= asserted), None)
        new = same or Held(text, self.clock.now_ns)
        if (replaced := self.accepted(new, begin, end, said)) is None:
            with pytest.raises(InvalidParams):
                await say(self.bench, text, **said.given)
            return
        done = await say(self.bench, text, **said.given)
        if same is None:
            new.id = done.id
            self.held.append(new)
        assert done.id == new.id
        begins = [each for each in (new.begin, begin) if each is not None]
        self.set(new, min(begins, default=None), new.end if end is None else end, replaced)

    async def update(self, one: Held, said: Said) -> None:
        begin = one.begin if said.begin is None else first_of(said.begin)
        end = one.end if said.end is None else last_of(said.end)
        call = UpdateMemory(id=one.id, **said.given)
        if (replaced := self.accepted(one, begin, end, said)) is None:
            with pytest.raises(InvalidParams):
                await self.bench.call(call)
            return
        await self.bench.call(call)
        for old in self.held:
            if old.by is one and old not in replaced:
                old.by = None
        self.set(one, begin, end, replaced)

    def accepted(self, new: Held, begin: int | None, end: int | None, said: Said) -> list[Held] | None:
        """Return what is replaced; None if the call must be refused."""
        replaced: list[Held] = []
        for old in said.olds:
            line = [old, *old.heirs()]
            replaced.append(next((each for each in line if each.by is new), line[-1]))
        is_cycle = new in said.olds or not {new, *new.heirs()}.isdisjoint(replaced)
        is_refused = is_cycle or (begin is not None and end is not None and end < begin)
        self.refused += is_refused
        return None if is_refused else replaced

    async def forget(self, gone: Held) -> None:
        await self.bench.call(Forget(id=gone.id))
        self.held.remove(gone)
        for old in self.held:
            if old.by is gone:
                old.by = gone.by

    def set(self, one: Held, begin: int | None, end: int | None, replaced: list[Held]) -> None:
        is_moved = begin != one.begin
        one.begin, one.end = begin, end
        for old in self.held:
            if (old.by is one and is_moved) or (old in replaced and old.by is not one):
                # It was said before the other one: it holds again from now on.
                is_back = one.begin is None and one.start < old.start
                old.by, old.by_ns = one, self.clock.now_ns if is_back else one.start

    async def compare(self) -> None:
        assert {one.id for one in await listed(self.bench, limit=1000)} == {one.id for one in self.held}
        days = [self.clock.day + datetime.timedelta(days=self.rng.randint(-90, 60)) for _ in range(6)]
        for moment in (None, *map(str, days)):
            at = last_of(moment) or self.clock.now_ns
            found = {
                one.id
                for text in {one.text for one in self.held}
                for one in await recalled(self.bench, text, as_of=moment, limit=100)
            }
            assert found == {one.id for one in self.held if one.holds(at)}, moment


@pytest.mark.parametrize("seed", range(6))
async def test_any_changes_leave_what_a_plain_model_holds(tmp_path: Path, clock: Clock, seed: int) -> None:
    async with remembering(tmp_path) as bench:
        model = Model(bench, clock, random.Random(seed))
        for _ in range(STEPS):
            await model.step()
        await model.compare()
        assert len(model.held) > 5
        assert model.refused
