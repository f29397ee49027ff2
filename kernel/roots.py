"""The roots as folders: which one each path names, and the restart of services when it names another.

A service is confined to the folders that were there when it was born. A root that is deleted and recreated, or that a
file system is mounted on, is another folder under the same name, and closed to those who were born before: so they are
ended in order and restarted. A root that is merely gone changes nothing until something stands in its place.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import trio

LOOK_INTERVAL_S: Final = 1.0

_log = logging.getLogger("linckia.kernel")


class RootFolders:
    """What the roots are at the moment."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self._roots = tuple(map(str, roots))
        self.identities = tuple(map(_identity, self._roots))
        """A text for each root that tells its folder from another of that name; empty where there never was one."""

    async def run(self, replaced: Callable[[], None]) -> None:
        """Look again and again, and call `replaced` whenever a root is another folder than before."""
        while self._roots:
            await trio.sleep(LOOK_INTERVAL_S)
            # A look at a network folder may take as long as it likes: not on the event loop.
            await self.look(replaced)

    async def look(self, replaced: Callable[[], None]) -> None:
        """Look once."""
        found = await trio.to_thread.run_sync(lambda: tuple(map(_identity, self._roots)), abandon_on_cancel=True)
        now = tuple(new or old for new, old in zip(found, self.identities, strict=True))
        if now != self.identities:
            changed = [root for root, new, old in zip(self._roots, now, self.identities, strict=True) if new != old]
            _log.warning("%s is another folder than before: the services that use it are restarted", changed)
            self.identities = now
            replaced()


def _identity(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        # Gone, or out of reach for the moment.
        return ""
    return f"{status.st_dev}:{status.st_ino}"
