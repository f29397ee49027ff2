"""The service `files`: opens the index, resumes interrupted jobs and serves requests."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial

import trio

from proto.errors import Unavailable
from services.files.browse.indexing import IndexTools
from services.files.browse.mapping import MapTools
from services.files.browse.navigation import BrowseTools
from services.files.browse.space import SpaceTools
from services.files.browse.uris import UriResources
from services.files.changes import following
from services.files.changes.changes import Changes
from services.files.changes.operations import ChangeTools, rejoin
from services.files.changes.writing import Writing
from services.files.core import Core, read_settings
from services.files.index.comparing import COLLECTIONS, CompareClient
from services.files.index.jobs import Jobs
from services.files.index.listing import ignore_rules
from services.files.index.tree import Invalidations, Tree, find
from services.files.paths import FileRoots
from services.files.plans.classifying import ClassifierTools
from services.files.plans.executions import Executions
from services.files.plans.followers import Followers
from services.files.plans.plans import PlanTools
from services.files.plans.sources import SourceTools, resume_sources
from services.files.query import named
from services.files.query.columns import Columns
from services.files.query.queries import QueryTools
from services.files.query.set_search import SetSearchTools
from services.files.query.set_tools import SetTools
from services.files.store.database import loss, open_database, steadily
from services.files.text.operations import TextTools
from services.files.undo.journal import Journal
from services.files.undo.operations import UndoTools
from services.runtime.handlers import Environment, Handlers
from services.runtime.storage import DiskFull

_SWITCH_S = 0.001
"""Thread switch interval: a scan holds the interpreter, and calls that arrive meanwhile should not wait long for it."""


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service; ready once the database is open. Raises ValueError if a setting is wrong."""
    chosen = read_settings(env.settings)
    roots = FileRoots(env.roots)
    ignored = ignore_rules(chosen.ignore, env.roots)
    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(*COLLECTIONS)
    path = env.data_dir / "files.db"
    recovery = Recovery()

    def on_rebuilt() -> None:
        recovery.wake()
        env.damaged(loss(path))

    database = await env.opened(open_database, path, on_rebuilt)
    if database.rebuilt:
        recovery.wake()
    env.damaged(await trio.to_thread.run_sync(loss, path))
    env.at_rest(database.give_back)
    env.keeps_keys_in(database)
    async with trio.open_nursery() as tasks:
        tree = Tree(database, Invalidations(), ignored)
        jobs = Jobs(env, tree, tasks, CompareClient(env, tasks, chosen.ignore), partial(_notify, env))
        columns = Columns(database)
        tasks.start_soon(columns.run)
        core = Core(env, chosen, database, tree, roots, jobs, columns)
        changes = Changes(tree, roots, env.data_dir)
        journal = Journal(env, database, chosen.undo_max_mb << 20, chosen.undo_days)
        await _recover(core, changes, tasks)
        tasks.start_soon(recovery.run, core)
        followers = Followers(core, tasks)
        tasks.start_soon(followers.run)
        classifying = ClassifierTools(core)
        tasks.start_soon(classifying.run)
        executions = Executions(core, followers, classifying, tasks)
        await steadily(env, "recovery", partial(resume_sources, core, followers))
        await steadily(env, "recovery", executions.resume)
        yield handlers_of(core, changes, journal, recovery, followers, executions, classifying)
        await executions.close()
        await followers.close()
        # Running scans stop where they are and resume at the next start.
        await jobs.stop()
        tasks.cancel_scope.cancel()


async def _recover(core: Core, changes: Changes, nursery: trio.Nursery) -> None:
    """Recover what a dead process left behind; if the disk is full, as soon as there is room."""
    try:
        noted = await core.database.read(changes.noted)
    except Unavailable:
        # The database was damaged and recreated; the new one contains everything readable.
        noted = await core.database.read(changes.noted)
    # Rescanning paths that were indexed before access to them was denied removes them.
    denied = await core.database.read(lambda db: [path for path in core.roots.denied if find(db, path) is not None])

    async def take_up() -> None:
        unfinished = await trio.to_thread.run_sync(changes.recover, noted) + denied
        await core.jobs.resume()
        for path in unfinished:
            await core.jobs.start(path, background=True)

    try:
        await take_up()
    except (DiskFull, Unavailable):
        nursery.start_soon(steadily, core.env, "recovery", take_up)


class Recovery:
    """Catches up with changes that the index could not store.

    Items restored from the trash rejoin their sets, even if the disk was full or the process died in between. So do the
    former members of sets in a damaged database.
    """

    def __init__(self) -> None:
        self._rebuilt = trio.Event()
        self._behind = trio.Event()
        self._unread: list[str] = []

    def wake(self) -> None:
        """Called when the database was recreated."""
        self._rebuilt.set()

    def behind(self, unread: Sequence[str]) -> None:
        """Called after a change for which the index could not store these paths, or their set memberships."""
        self._unread += unread
        self._behind.set()

    async def run(self, core: Core) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as tasks:
            tasks.start_soon(self._after_changes, core)
            tasks.start_soon(self._after_damage, core)

    async def _after_changes(self, core: Core) -> None:
        async def follow() -> None:
            unread = list(self._unread)
            waiting = await core.database.read(following.waiting)
            for path in [*unread, *(path for _, path in waiting)]:
                await core.jobs.scan(path)
            await rejoin(core, [trash_id for trash_id, _ in waiting])
            del self._unread[: len(unread)]

        while True:
            await steadily(core.env, "recovery", follow)
            await self._behind.wait()
            self._behind = trio.Event()

    async def _after_damage(self, core: Core) -> None:
        async def from_damage() -> None:
            core.jobs.interrupt()
            await core.jobs.resume()
            await core.jobs.settled()
            await rejoin(core, [following.SALVAGED])

        while True:
            await self._rebuilt.wait()
            self._rebuilt = trio.Event()
            core.env.info(index=f"rebuilding: {core.database.rebuilt}")
            await steadily(core.env, "recovery", from_damage)
            core.env.info(index="")


def handlers_of(
    core: Core,
    changes: Changes,
    journal: Journal,
    recovery: Recovery,
    followers: Followers,
    executions: Executions,
    classifying: ClassifierTools,
) -> Handlers:
    """Create the handlers of all operations, family by family."""
    indexing, reading, searches = IndexTools(core), BrowseTools(core), SetSearchTools(core)
    writing = Writing(core.tree, core.roots, core.env.data_dir, changes.defer)
    change_tools = ChangeTools(core, changes, recovery.behind, journal)
    return Handlers(
        indexing,
        reading,
        searches,
        change_tools,
        UndoTools(core, journal, writing, change_tools.perform),
        TextTools(core, writing),
        SpaceTools(core),
        MapTools(core),
        UriResources(core, indexing, reading, searches),
        QueryTools(core),
        SetTools(core),
        SourceTools(core, followers),
        PlanTools(core, executions),
        classifying,
    )


def _notify(env: Environment, job: int, status: str, root: str) -> None:
    """Notify subscribed clients of the resources that have changed."""
    nodes = () if status in ("pending", "running") else ("nodes", f"nodes{root}")
    named.notify(env, f"jobs/{job}", "jobs", f"jobs/{status}", *nodes)
