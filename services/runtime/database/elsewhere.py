"""Databases that are not in files of this machine (`services.runtime.sources`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from proto.errors import LinckiaError

VFS: Final = "linckia-pages"
"""Name of the VFS through which SQLite opens them."""


class Elsewhere(Protocol):
    """A database whose pages are on a server. Its transactions are the server's, and it has no log."""

    size: int
    """In bytes."""
    failure: LinckiaError | None
    """Why the server did not do what SQLite asked for last."""

    def check(self) -> None:
        """Raise Unavailable unless what is in memory is current."""


files: dict[Path, Elsewhere] = {}
"""Those of this process, by the path that they would have here."""
