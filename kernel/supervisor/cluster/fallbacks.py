"""Which services run on this machine although the settings place them on the cluster, and when to try it again."""

from __future__ import annotations

AGAIN_S = 15.0
"""Time after which a service that found no room on the cluster looks for it again. It serves calls meanwhile."""

MAX_FAILURES = 2
"""Consecutive generations that died on nodes before READY, after which the service runs here."""


class Fallbacks:
    """Decides which services stay on this machine although the settings place them on the cluster."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._here: dict[str, float] = {}
        """Services that run on this machine, and when the cluster was last tried (trio's clock)."""
        self._known: frozenset[str] = frozenset()

    def reason(self, name: str) -> str:
        """Return why the next generation must start here, whatever the cluster's state; "" if it need not."""
        count = self._failures.get(name, 0)
        return f"{count} generations in a row failed on nodes" if count >= MAX_FAILURES else ""

    def failed(self, name: str) -> None:
        """Note that a generation on a node died before it was READY."""
        self._failures[name] = self._failures.get(name, 0) + 1

    def worked(self, name: str) -> None:
        """Note that a generation on a node became READY."""
        self._failures.pop(name, None)

    def here(self, name: str, now: float) -> None:
        """Note that the service starts on this machine."""
        self._here[name] = now

    def is_here(self, name: str) -> bool:
        """Return whether the service runs on this machine."""
        return name in self._here

    def there(self, name: str) -> None:
        """Note that the service runs on a node, or does not exist any more."""
        self._here.pop(name, None)

    def forget(self, name: str) -> None:
        self._here.pop(name, None)
        self._failures.pop(name, None)

    def to_move(self, alive: frozenset[str], now: float) -> list[str]:
        """Return the services that should try the cluster now, given the ids of the nodes that are alive.

        These are all that run here, if a node is new; otherwise those whose latest try is long ago, but not those that
        failed on nodes, since that would repeat itself.
        """
        new, self._known = alive - self._known, alive
        if new:
            self._failures.clear()
            found = list(self._here)
        else:
            found = [name for name, at in self._here.items() if now - at >= AGAIN_S and not self.reason(name)]
        self._here |= dict.fromkeys(found, now)
        return found

    def lost(self) -> None:
        """Note that the cluster is lost, so that all its nodes are new when it is back."""
        self._known = frozenset()
