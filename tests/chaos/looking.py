"""The knowledge of clients: after an uncertain answer they look once, and the state seen must not change by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from tests.chaos.clients import CallOutcome
from tests.chaos.record import Record

LOOKS, PAUSE_S = 5, 0.5
"""How often a client looks after an uncertain answer while nobody answers, and the pause in between."""

Look = Callable[[], Awaitable[str | None]]
"""Returns what a client sees; None if nobody answers for now."""


class Value:
    """The values that something may have.

    After an acknowledged write there is one, after an uncertain one there are several, until somebody looks. A value
    that a look has excluded can only come back by an effect after the end of its call, and so can an uncertain one that
    was overwritten. The acknowledged value before an acknowledged write comes back if that write is lost.
    """

    def __init__(self, value: str) -> None:
        self.possible = {value}
        self.excluded: set[str] = set()
        self._acknowledged = value
        self.next = value
        """The value that a task is about to write."""
        self.any = False
        """Whether nothing is known any more."""

    def acknowledged(self, value: str) -> None:
        """Note that a write of this value was acknowledged."""
        self._is(value, self.possible - {self._acknowledged})
        self._acknowledged = value

    def uncertain(self, value: str) -> None:
        """Note that this value may have been written."""
        self.possible.add(value)

    def refused(self, value: str) -> None:
        """Note that this value was not written."""
        self.possible.discard(value)

    def looked_at(self, value: str) -> None:
        """Note that this is the value now."""
        self._is(value, self.possible)

    def _is(self, value: str, excluded: set[str]) -> None:
        self.excluded |= excluded
        self.excluded.discard(value)
        self.possible = {value}


@dataclass
class Seen:
    """Which uncertain additions were there when their client looked, by kind and name."""

    _there: dict[tuple[str, str], bool] = field(default_factory=dict)

    def note(self, kind: str, name: str, there: bool) -> None:
        self._there[kind, name] = there

    def changed(self, kind: str, is_there: Callable[[str], bool]) -> list[str]:
        """Return the differences from the current state."""
        return [
            f"{kind} {name} is {'not ' * there}there now"
            for (of, name), there in self._there.items()
            if of == kind and is_there(name) is not there
        ]


@dataclass
class Looks:
    """The looks of one worker: each compares the observed state with the possible ones."""

    which: int
    record: Record
    seen: Seen = field(default_factory=Seen)

    async def written(self, value: Value, new: str, said: CallOutcome, look: Look) -> None:
        """Record the outcome of a write; after an uncertain one, look once at the result."""
        if said.ok:
            value.acknowledged(new)
        elif not said.not_done_for_sure:
            value.uncertain(new)
            if (found := await self._look(look)) is not None:
                self.compare("what is seen", value, found, self.record.wrong)
                self.record.maybe["done" if found == new else "not done"] += 1
                value.looked_at(found)

    async def presence(self, kind: str, name: str, look: Look) -> None:
        """Look whether an uncertain addition is there, and remember it."""
        if (found := await self._look(look)) is not None:
            self.seen.note(kind, name, found == "there")

    def compare(self, what: str, value: Value, found: str, otherwise: list[str]) -> None:
        """Report an impossible value as late if a look has excluded it; if not, add it to the list `otherwise`."""
        if found not in value.possible and not value.any:
            late = found in value.excluded
            told = f"{self.record.at_s:.1f} s: {what} of {self.which} is {found!r}, not {sorted(value.possible)}"
            (self.record.late if late else otherwise).append(told)

    async def _look(self, look: Look) -> str | None:
        """Look until somebody answers, but not for long."""
        for _ in range(LOOKS):
            if (found := await look()) is not None:
                self.record.looked += 1
                return found
            await trio.sleep(PAUSE_S)
        return None
