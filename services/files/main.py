"""The service `files`: opens the index, takes up the jobs that a dead process left, and answers."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio

from proto.errors import Unavailable
from proto.mcp import RESOURCE_UPDATED, ResourceUpdated
from proto.operation import Params
from proto.ops.files.index import Index, ListJobs
from proto.ops.files.reading import Inspect, Navigate
from services.files.browse.indexing import Indexing
from services.files.browse.reading import Reading, node_uri
from services.files.browse.uris import Uris
from services.files.changes import trashed
from services.files.changes.changes import Changes
from services.files.changes.changing import Changing, rejoin, scan_all
from services.files.changes.following import Follow
from services.files.core import Core, read_settings
from services.files.index.compare_client import CompareClient
from services.files.index.invalidations import Invalidations
from services.files.index.jobs import Jobs
from services.files.index.listing import ignore_rules
from services.files.paths import Roots
from services.files.plans.classifying import ClassifierTools, Classifying
from services.files.plans.executions import Executions
from services.files.plans.outcomes import Doing
from services.files.plans.plan_uris import PlanUris
from services.files.plans.plans import PlanTools
from services.files.query.queries import Queries
from services.files.sets.grouping import Grouping
from services.files.sets.resources import SetSearch
from services.files.sources.followers import Followers
from services.files.sources.sources import SourceTools, resume_sources
from services.files.space.space import Space
from services.files.store.database import open_database, steadily
from services.runtime.handlers import Environment, Handlers
from services.runtime.storage import DiskFull

_SWITCH_S = 0.001
"""A scan holds the interpreter; a call that comes meanwhile shall not wait long for it."""

COLLECTIONS = (100_000, 50, 100)
"""Thresholds of the garbage collector: the objects of a scan, millions of them, are in no cycles, and looking for some
took an eighth of its time."""


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the database is open. Raises ValueError where a setting is wrong."""
    chosen = read_settings(env.settings)
    roots = Roots(env.roots)
    ignored = ignore_rules(chosen.ignore, roots.paths)
    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(*COLLECTIONS)
    rebuilt = Rebuilt()
    database = await trio.to_thread.run_sync(open_database, env.data_dir / "files.db", rebuilt.set)
    if database.rebuilt:
        rebuilt.set()
    env.at_rest(database.give_back)
    try:
        async with trio.open_nursery() as scans:
            invalidations = Invalidations()
            compare_client = CompareClient(env, chosen.ignore)
            scans.start_soon(compare_client.run)
            jobs = Jobs(
                env, database, invalidations, ignored, scans, compare_client, lambda *change: _tell(env, *change)
            )
            core = Core(env, chosen, database, roots, invalidations, ignored, jobs)
            changes = Changes(database, roots, Follow(invalidations, ignored), env.data_dir)
            await _take_up(core, changes, scans)
            recovery = Recovery(core, rebuilt)
            scans.start_soon(recovery.run)
            following = Followers(core, scans)
            scans.start_soon(following.run)
            classifying = Classifying(core)
            scans.start_soon(classifying.run)
            executions = Executions(core, following, Doing(core, classifying), scans)
            await steadily(env, "recovery", partial(resume_sources, core, following))
            await steadily(env, "recovery", executions.resume)
            yield handlers_of(core, changes, following, executions, classifying)
            await executions.close()
            await following.close()
            classifying.close()
            recovery.close()
            # A scan in hand is stopped where it is, and taken up at the next start.
            await jobs.stop()
            compare_client.close()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(database.close)


async def _take_up(core: Core, changes: Changes, nursery: trio.Nursery) -> None:
    """What a process that died left behind; where the disk is full, once it is not."""
    try:
        noted = await core.database.read(changes.noted)
    except Unavailable:
        # Damaged and begun again: the new one has what could be read.
        noted = await core.database.read(changes.noted)

    async def take_up() -> None:
        unfinished = await trio.to_thread.run_sync(changes.heal, noted)
        await core.jobs.resume()
        for path in unfinished:
            await core.jobs.start(path, background=True, force=True, max_age_s=0)

    try:
        await take_up()
    except (DiskFull, Unavailable):
        nursery.start_soon(steadily, core.env, "recovery", take_up)


class Rebuilt:
    """Says that the database was begun again; may be waited for again and again."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = trio.Event()


class Recovery:
    """Has what came back to the index in its sets again: from the trash before the last process died, or from a
    database that was damaged."""

    def __init__(self, core: Core, rebuilt: Rebuilt) -> None:
        self._core = core
        self._rebuilt = rebuilt
        self._scope = trio.CancelScope()

    def close(self) -> None:
        """Have `run` end."""
        self._scope.cancel()

    async def run(self) -> None:
        """Until `close`."""
        with self._scope:
            await steadily(self._core.env, "recovery", self._from_trash)
            while True:
                await self._rebuilt.wait()
                self._core.env.info(index=f"rebuilding: {self._core.database.rebuilt}")
                await steadily(self._core.env, "recovery", self._from_damage)
                self._core.env.info(index="")

    async def _from_trash(self) -> None:
        waiting = await self._core.database.read(trashed.waiting)
        if waiting:
            await scan_all(self._core.jobs, [path for _, path in waiting])
            await rejoin(self._core, [trash_id for trash_id, _ in waiting])

    async def _from_damage(self) -> None:
        self._core.jobs.interrupt()
        await self._core.jobs.resume()
        await self._core.jobs.settled()
        await self._core.database.write(trashed.scanned)


def rehearse(root: Path, settings: Mapping[str, Any]) -> Sequence[Params[Any]]:
    """A file in a folder is indexed, and looked at."""
    folder = root / "folder"
    folder.mkdir()
    (folder / "file.txt").write_text("text")
    return (
        Index(root=str(root), async_=False, max_age=0),
        ListJobs(limit=10),
        Navigate(path=str(folder)),
        Inspect(path=str(folder / "file.txt")),
    )


def handlers_of(
    core: Core, changes: Changes, following: Followers, executions: Executions, classifying: Classifying
) -> Handlers:
    """The operations, a family after the other."""
    indexing, reading, searches = Indexing(core), Reading(core), SetSearch(core)
    return Handlers(
        indexing,
        reading,
        searches,
        Changing(core, changes),
        Space(core),
        Uris(core, indexing, reading, searches),
        PlanUris(core),
        Queries(core),
        Grouping(core),
        SourceTools(core, following),
        PlanTools(core, executions),
        ClassifierTools(core, classifying),
    )


def _tell(env: Environment, job: int, status: str, root: str) -> None:
    """Tell clients that subscribed which resources read otherwise now."""
    uris = [f"synthesis://jobs/{job}", "synthesis://jobs", f"synthesis://jobs/{status}"]
    if status not in ("pending", "running"):
        uris += ["synthesis://nodes", node_uri(root)]
    for uri in uris:
        env.publish(RESOURCE_UPDATED, ResourceUpdated(uri=uri))
