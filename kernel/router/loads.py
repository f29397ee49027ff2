"""Which instances of a pool accept calls, by their number of calls in flight.

Each load has a bit mask with one bit for each instance, so finding the least loaded one takes as long for 1,000
instances as for one.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from kernel.router.instance import Instance


class Loads:
    """Loads of instances, in the order of `instances`; `update` must be called after each change of an instance."""

    def __init__(self, instances: Iterable[Instance]) -> None:
        self._instances = tuple(instances)
        for place, instance in enumerate(self._instances):
            instance.place = place
        self._masks: list[int] = [0]
        """By number of calls in flight: the instances that accept calls and have so many."""
        self.accepting = 0
        """Number of instances that accept calls."""

    def update(self, instance: Instance) -> None:
        """Note how many calls the instance has in flight, and whether it accepts more."""
        load = None if instance.taking is None else instance.in_flight
        before, bit = instance.load, 1 << instance.place
        if load == before:
            return
        if before is not None:
            self._masks[before] ^= bit
            self.accepting -= 1
        if load is not None:
            while len(self._masks) <= load:
                self._masks.append(0)
            self._masks[load] |= bit
            self.accepting += 1
        instance.load = load

    def least(self, below: int) -> Instance | None:
        """Return the first of the least loaded instances with fewer than `below` calls that accepts another call now.

        One that a suspect has to itself does not.
        """
        now = trio.current_time()
        for load, accepting in enumerate(self._masks[:below]):
            left = accepting
            while left:
                lowest = left & -left
                instance = self._instances[lowest.bit_length() - 1]
                if not load or instance.tries_until <= now:
                    return instance
                left ^= lowest
        return None
