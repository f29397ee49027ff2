"""What the families of operations share: the open index, its roots, its jobs, and what was changed beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from services.files.index.jobs import Jobs
from services.files.index.listing import Ignored
from services.files.index.tree import Invalidations
from services.files.paths import Roots
from services.runtime.database import Database
from services.runtime.handlers import Environment


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As they may be written."""

    ignore: Annotated[list[str], Meta(description="Patterns, as in .gitignore, of what the index leaves out")] = []
    trash: Annotated[bool, Meta(description="Whether deleted files are kept, so that they can be restored")] = False


def read_settings(table: Mapping[str, Any]) -> Settings:
    """Raises ValueError, which names the setting."""
    try:
        return msgspec.convert(dict(table), Settings)
    except msgspec.ValidationError as error:
        raise ValueError(f"[services.files]: {error}") from None


@dataclass(frozen=True, slots=True)
class Core:
    """The service's parts, each as its own module describes it."""

    env: Environment
    settings: Settings
    database: Database
    roots: Roots
    invalidations: Invalidations
    ignored: Ignored | None
    jobs: Jobs
