"""`linckia sync` between services in this process, with or without interruptions."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from typing import Any

import msgspec

from kernel.cli.carry.sync import PARTS, Joining, Tally
from proto.ops import load
from tests.in_process import Bench


class Interrupted(Exception):
    """Either side, or the command, died at a call; before it was made, or after it was done."""


class BenchSide:
    """The services of a bench, by the names of their operations. Counts the calls."""

    def __init__(self, bench: Bench, chance: random.Random | None = None) -> None:
        self.bench = bench
        self.chance = chance
        self.calls: list[str] = []

    async def call(self, name: str, params: Mapping[str, object]) -> Any:
        """Raises Interrupted at random, if there is a chance."""
        self.calls.append(name)
        self._interrupt()
        op = table()[name]
        found = msgspec.to_builtins(await self.bench.call(op.parse(params)))
        self._interrupt()
        return found

    def _interrupt(self) -> None:
        if self.chance is not None and self.chance.random() < 0.15:
            raise Interrupted


table = functools.cache(load)


async def join(part: str, here: Bench, there: Bench, chance: random.Random | None = None) -> Tally:
    """Join a part of both, and return what was done. With a `chance`, it may be interrupted."""
    (found,) = [each for each in PARTS if each.name == part]
    sides = BenchSide(here, chance), BenchSide(there, chance)
    return await Joining(found, *sides, "the other kernel", dry=False).run()
