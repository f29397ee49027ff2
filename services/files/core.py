"""What the families of operations share: the open index, its roots, its jobs, and what was changed beside them."""

from __future__ import annotations

from dataclasses import dataclass

from services.files.index.invalidations import Invalidations
from services.files.index.jobs import Jobs
from services.files.index.listing import Ignored
from services.files.paths import Roots
from services.files.settings import Settings
from services.runtime.database import Database
from services.runtime.handlers import Environment


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
