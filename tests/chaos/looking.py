"""What clients know: after an uncertain answer they look once, and what they saw must not change by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class Value:
    """The values that something may have.

    After an acknowledged write there is one, after an uncertain one there are several, until somebody looks. A value
    that a look has excluded can only come back by an effect after the end of its call.
    """

    def __init__(self, value: str) -> None:
        self.possible = {value}
        self.excluded: set[str] = set()
        self.next = value
        """The value that a task is about to write."""
        self.any = False
        """Whether nothing is known any more."""

    def acknowledged(self, value: str) -> None:
        """Note that a write of this value was acknowledged."""
        self.looked_at(value)

    def uncertain(self, value: str) -> None:
        """Note that this value may have been written."""
        self.possible.add(value)

    def refused(self, value: str) -> None:
        """Note that this value was not written."""
        self.possible.discard(value)

    def looked_at(self, value: str) -> None:
        """Note that this is the value now."""
        self.excluded |= self.possible
        self.excluded.discard(value)
        self.possible = {value}


@dataclass
class Seen:
    """Which uncertain additions were there when their client looked, by kind and name."""

    _there: dict[tuple[str, str], bool] = field(default_factory=dict)

    def note(self, kind: str, name: str, there: bool) -> None:
        self._there[kind, name] = there

    def changed(self, kind: str, is_there: Callable[[str], bool]) -> list[str]:
        """Return what is different now."""
        return [
            f"{kind} {name} is {'not ' * there}there now"
            for (of, name), there in self._there.items()
            if of == kind and is_there(name) is not there
        ]
