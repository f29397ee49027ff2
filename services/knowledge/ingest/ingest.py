"""Keeping the index in step with the folders, for as long as the service lives.

One task walks the roots at the start, and from then on looks at what the watcher of folders says has changed; all
roots are walked again now and then, and every second (less often where a walk is dear) while there is no watcher.  It
compares the files' stamps with what is stored, and works off what differs in batches: read, put into the search, then
recorded as done.  Between those two steps it may be killed at any point: what was put and not recorded is put once
more, which changes nothing; what was given an id keeps it.  At the start, and whenever the search was away, both sides
are compared id by id, so that no note is lost and none is there twice.  While the search is away the work waits, with
growing pauses; the service goes on answering.
"""

from __future__ import annotations

import apsw
import time
from collections.abc import Iterable, Mapping

import trio

from proto.errors import Cancelled, LinckiaError, MaybeExecuted, Overloaded, Timeout, Unavailable
from proto.ops.retrieve import Group, RetrieveDelete, RetrieveGroups, RetrievePut
from services.knowledge.ingest.batch import BATCH_FILES, Batch, gather
from services.knowledge.ingest.changes import Changes, compare, moves, renamed, within
from services.knowledge.ingest.invalidations import Touched
from services.knowledge.ingest.progress import SCAN_CPU_SHARE, SCAN_INTERVAL_S, SCAN_TIME_SHARE, Failed, Progress
from services.knowledge.ingest.walking import Walk, Walker
from services.knowledge.notes import markdown
from services.knowledge.notes.files import Place, Stamp
from services.knowledge.store import nodes
from services.knowledge.store.nodes import Known
from services.knowledge.store.store import Store
from services.runtime.handlers import Environment

COLLECTION = "notes"

RECONCILE_INTERVAL_S = 300.0
RECONCILE_SHARE = 0.01
"""Of the time, for walks of everything while a watcher tells what has changed."""

FIRST_PAUSE_S = 0.25
LAST_PAUSE_S = 15.0
RETRY_FILE_S = 60.0
MAX_LONE_FAILURES = 8
"""So many notes refused one by one mean that it is not the notes."""

TRANSIENT = (Unavailable, Overloaded, Timeout, MaybeExecuted, Cancelled)
_VERSION = "markdown_version"


def _interval(settings: Mapping[str, object]) -> float:
    """Setting `scan_interval_s`: the least seconds between two walks.

    Raises:
        ValueError: it is not a number above 0.
    """
    value = settings.get("scan_interval_s", SCAN_INTERVAL_S)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"setting `scan_interval_s` of knowledge: {value!r} is not a number of seconds above 0")
    return float(value)


STARTUP_PATIENCE_S = 5.0
"""A thousand notes are indexed in that time; with more, an answer from a part, said to be one, is better than none."""

WRITER_PATIENCE_S = 1.0
"""Whoever changes a note through this service and then asks for it is to find it changed; while the search is away, it
is changed on disk all the same."""


class Ingest:
    """The task, and what it knows."""

    def __init__(self, env: Environment, store: Store) -> None:
        self.env = env
        self.store = store
        self.walker = Walker(env.roots)
        self.roots = self.walker.roots
        self.progress = Progress()
        self._least_interval_s = _interval(env.settings)
        self.known: dict[Place, Known] = {}
        self.pending: dict[Place, None] = {}
        self.failed: dict[Place, Failed] = {}
        self._seen: dict[Place, Stamp] = {}
        self._touched = Touched()
        self._leaving = True
        self._renamed: frozenset[Place] = frozenset()
        self._reconciled = False
        self._wake = trio.Event()
        self._next_scan = 0.0
        self._retry_at = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._lone_failures = 0
        self._turn = trio.CapacityLimiter(1)
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.passed = trio.Condition()
        self._started = trio.current_time()

    async def caught_up(self) -> None:
        """Until everything there is has been indexed, but no longer than `STARTUP_PATIENCE_S` after the start.

        Whoever asks a moment after the first start wants the folder's notes, not the news that there are none yet.
        """
        with trio.move_on_at(self._started + STARTUP_PATIENCE_S):
            async with self.passed:
                while self.pending or not (self.known or self.progress.scanned):
                    await self.passed.wait()

    def hurry(self) -> None:
        """Scan now instead of at the next turn."""
        self._next_scan = 0.0
        self._wake.set()

    def watched(self) -> None:
        """From now on, a watcher says what changes; what changed before may not have been said."""
        if self.progress.unwatched is not None:
            self.progress.unwatched = None
            self.hurry()

    def unwatched(self, reason: str) -> None:
        """From now on nobody says what changes."""
        if self.progress.unwatched is None:
            self._next_scan = min(self._next_scan, trio.current_time() + self._least_interval_s)
            self._wake.set()
        self.progress.unwatched = reason

    def touch(self, files: Iterable[str], folders: Iterable[str] = (), *, wait: bool = True) -> None:
        """Look at these files, and at all below these folders; soon, or when those who write them have come to rest."""
        self._touched.add(files, folders, wait=wait)
        if self._touched.too_many:
            self._next_scan = 0.0
        self._wake.set()

    async def take_in(self, path: str) -> None:
        """Look at this file now, until it is indexed as it is, but no longer than `WRITER_PATIENCE_S`."""
        self.touch([path], wait=False)
        taken = self._touched.taken
        with trio.move_on_after(WRITER_PATIENCE_S):
            async with self.passed:
                while self._touched.taken == taken or self._touched.is_in_hand(path):
                    await self.passed.wait()
                while any(place.absolute == path for place in self.pending):
                    await self.passed.wait()

    @property
    def leaving(self) -> bool:
        """Whether the search may still hold notes that are gone."""
        return self._leaving

    @property
    def outstanding(self) -> int:
        """Notes whose latest text is not in the search yet."""
        return len(self.pending) + len(self.failed)

    def degraded(self) -> list[str]:
        """In what way an answer from the index may fall short of the files at this moment."""
        return self.progress.degraded(
            notes=len(self.known),
            pending=self.pending,
            failed=self.failed,
            unsettled=self._leaving or not self._reconciled,
            roots=self.roots,
        )

    def problems(self) -> dict[str, str]:
        """Files and folders that are not, or not wholly, indexed, and why."""
        return self.progress.problems(self.known, self.failed)

    async def run(self) -> None:
        """Work until `stop`, or until cancelled."""
        try:
            with self._scope:
                await self.env.after_the_rush()
                await self._work()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """End the task; once this returns it uses neither the database nor a file, cancelled or not."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    async def _work(self) -> None:
        await self._begin()
        while True:
            self._wake = trio.Event()
            now = trio.current_time()
            worked = False
            self._take_up_failed(now)
            try:
                if now >= self._next_scan:
                    await self._scan()
                elif now >= self._touched.at:
                    await self._look()
                if now >= self._retry_at:
                    worked = await self._step()
            except LinckiaError as error:
                # Who was away may have come back with less than it had.
                self._reconciled = False
                self._wait(f"the search is not available: {error}", error.failure.retry_after_ms or 0)
            except sqlite3.OperationalError as error:
                self._next_scan = max(self._next_scan, now + SCAN_INTERVAL_S)
                self._wait(f"the database of notes cannot be used: {error}", 0)
            self._touched.done()
            self.env.info(notes=str(len(self.known)), pending=str(self.outstanding))
            async with self.passed:
                self.passed.notify_all()
            if not worked:
                await self._rest()

    async def _begin(self) -> None:
        def start(connection: apsw.Connection) -> dict[Place, Known]:
            version = str(markdown.VERSION)
            if nodes.setting(connection, _VERSION) != version:
                connection.execute("UPDATE node SET hash=NULL")
                nodes.set_setting(connection, _VERSION, version)
            return nodes.load(connection)

        self.known = await self.store.write(start)

    async def _rest(self) -> None:
        until = min(self._next_scan, self._touched.at)
        if self._has_work():
            until = min(until, max(self._retry_at, trio.current_time()))
        until = min((until, *(failed.retry_at for failed in self.failed.values())))
        with trio.move_on_at(until):
            await self._wake.wait()

    def _take_up_failed(self, now: float) -> None:
        for place, failed in list(self.failed.items()):
            if now >= failed.retry_at:
                del self.failed[place]
                self.pending[place] = None

    def _has_work(self) -> bool:
        return bool(self.pending) or self._leaving or not self._reconciled

    def _wait(self, reason: str, hint_ms: int) -> None:
        """Pause the work, each time longer, at least as long as whoever refused it asks for."""
        self._retry_at = trio.current_time() + max(self._pause_s, min(LAST_PAUSE_S, hint_ms / 1000))
        self._pause_s = min(LAST_PAUSE_S, self._pause_s * 2)
        self.progress.waiting = reason

    async def _scan(self) -> None:
        """Walk all roots."""

        def timed() -> tuple[Walk, Changes, float, float]:
            wall, cpu = time.perf_counter(), time.thread_time()
            walk = self.walker.walk()
            changes = compare(self.known, walk)
            return walk, changes, time.perf_counter() - wall, time.thread_time() - cpu

        began_at = time.time()
        touched = self._touched.take()
        try:
            walk, changes, wall_s, cpu_s = await trio.to_thread.run_sync(timed, limiter=self._turn)
            await self._follow(changes, walk)
        except BaseException:
            self.touch(*touched)
            raise
        self._seen = walk.notes
        progress = self.progress
        progress.scanned = True
        progress.scan_began_at = began_at
        progress.scanned_at = time.time()
        progress.scan_ms = wall_s * 1000
        progress.walk_problems = walk.problems
        if progress.unwatched is None:
            progress.interval_s = max(RECONCILE_INTERVAL_S, wall_s / RECONCILE_SHARE)
        else:
            progress.interval_s = max(self._least_interval_s, cpu_s / SCAN_CPU_SHARE, wall_s / SCAN_TIME_SHARE)
        self._next_scan = trio.current_time() + progress.interval_s

    async def _look(self) -> None:
        """Look at what was touched."""
        files, folders = self._touched.take()

        def look() -> tuple[dict[Place, Known], Walk, Changes]:
            known = within(self.known, self.walker, files, folders)
            walk = self.walker.look(files, folders)
            return known, walk, compare(known, walk)

        try:
            known, walk, changes = await trio.to_thread.run_sync(look, limiter=self._turn)
            await self._follow(changes, walk)
        except BaseException:
            self.touch(files, folders)
            raise
        for place in known:
            self._seen.pop(place, None)
        self._seen.update(walk.notes)
        looked = (*files, *folders)
        below = tuple(folder.rstrip("/") + "/" for folder in folders)
        kept = {
            path: reason
            for path, reason in self.progress.walk_problems.items()
            if path not in looked and not path.startswith(below)
        }
        self.progress.walk_problems = {**kept, **walk.problems}

    async def _follow(self, changes: Changes, walk: Walk) -> None:
        """Put what differs among the work."""
        self._renamed |= renamed(changes, self._seen, walk)
        if changes.arrived or changes.gone:
            await self._come_and_go(changes, walk)
        for place in changes.changed:
            failed = self.failed.get(place)
            if failed and walk.notes[place] != failed.stamp:
                del self.failed[place]
        fresh = dict.fromkeys(place for place in (*changes.arrived, *changes.changed) if place not in self.failed)
        # What was written just now goes before what waits since the start.
        if fresh.keys() - self.pending.keys():
            self.pending = {**fresh, **self.pending} if self.progress.scanned else {**self.pending, **fresh}

    async def _come_and_go(self, changes: Changes, walk: Walk) -> None:
        """Forget the files that are gone and give ids to new ones, in one transaction."""
        moved = await trio.to_thread.run_sync(moves, changes, self.known, self.roots, walk, limiter=self._turn)
        ids = [self.known[place].id for place in changes.gone]

        def change(connection: apsw.Connection) -> dict[Place, Known]:
            nodes.depart(connection, ids, frozenset(moved.values()))
            return nodes.arrive(connection, changes.arrived, moved, self.roots)

        given = await self.store.write(change)
        for place in changes.gone:
            del self.known[place]
            self.pending.pop(place, None)
            self.failed.pop(place, None)
        self.known.update(given)
        self._leaving = self._leaving or bool(changes.gone)

    async def _step(self) -> bool:
        """Do one piece of work; answers whether there was any."""
        if not self._reconciled:
            await self._reconcile()
        elif self._leaving and await self._take_out():
            pass
        elif self.pending:
            await self._batch()
        else:
            return False
        self._pause_s = FIRST_PAUSE_S
        self.progress.waiting = None
        return True

    async def _reconcile(self) -> None:
        """Compare the search's ids with ours: take out what we do not have, put what it does not have."""
        theirs: set[str] = set()
        after, more = "", True
        while more:
            page = await self.env.call(RetrieveGroups(collection=COLLECTION, after=after))
            theirs.update(page.ids)
            more = page.more and bool(page.ids)
            after = page.ids[-1] if page.ids else after
        ours = {known.id: place for place, known in self.known.items()}
        strange = theirs - ours.keys()
        missing = [id_ for id_, place in ours.items() if id_ not in theirs and self.known[place].hash is not None]

        def change(connection: apsw.Connection) -> None:
            nodes.leave(connection, strange)
            nodes.put_again(connection, missing)

        if strange or missing:
            await self.store.write(change)
        for id_ in missing:
            place = ours[id_]
            self.known[place] = Known(id_, None, None, 0, None)
            self.pending[place] = None
        self._leaving = True
        self._reconciled = True

    async def _take_out(self) -> bool:
        """Take ids out of the search; answers whether there were any that can go now.

        Those of renamed notes stay until the new ones are there, which take over their vectors: unless the id is one of
        a note again.
        """
        self._renamed &= self.pending.keys()
        reused = bool(self._renamed)
        ids = await self.store.read(lambda connection: nodes.leaving(connection, 4096, reused=reused))
        if not ids:
            self._leaving = reused
            return False
        await self.env.call(RetrieveDelete(collection=COLLECTION, groups=ids))
        await self.store.write(lambda connection: nodes.left(connection, ids))
        return True

    async def _batch(self) -> None:
        wanted = []
        for place in list(self.pending)[: 4 * BATCH_FILES]:
            if place in self.known:
                wanted.append((place, self.known[place]))
            else:
                del self.pending[place]
        batch = await trio.to_thread.run_sync(gather, wanted, self.roots, limiter=self._turn)
        retry_at = trio.current_time() + RETRY_FILE_S
        put = await self._put(list(batch.groups.values()), batch)
        updates = [batch.updates[id_] for id_ in put] + batch.unchanged
        if updates:
            self.known.update(await self.store.write(lambda connection: nodes.settle(connection, updates)))
        for place, reason in batch.failed.items():
            self.failed[place] = Failed(reason, retry_at, self._seen.get(place))
        for place in batch.read:
            self.pending.pop(place, None)
        self._look_again(batch)

    def _look_again(self, batch: Batch) -> None:
        """At what may have been written while it was read, and may not be told of once more."""
        unsure = [update.place for update in (*batch.updates.values(), *batch.unchanged) if update.stamp is None]
        self.touch(place.absolute for place in unsure)

    async def _put(self, groups: list[Group], batch: Batch) -> list[str]:
        """Put the groups, in halves until the one that is refused stands alone; answers the ids that went in."""
        if not groups:
            return []
        try:
            await self.env.call(RetrievePut(collection=COLLECTION, groups=groups))
        except TRANSIENT as error:
            # Too much at once looks like this as well.
            if len(groups) == 1 or not isinstance(error, Timeout):
                raise
        except LinckiaError as error:
            if len(groups) == 1:
                self._lone_failures += 1
                if self._lone_failures > MAX_LONE_FAILURES:
                    raise Unavailable(f"it refuses every note: {error}") from error
                batch.failed[batch.updates[groups[0].id].place] = f"the search refused it: {error}"
                return []
        else:
            self._lone_failures = 0
            return [group.id for group in groups]
        half = len(groups) // 2
        return await self._put(groups[:half], batch) + await self._put(groups[half:], batch)
