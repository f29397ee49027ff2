"""The known notes, and the work queue that keeps the search in sync with them.

A batch of notes is read, parsed, put into the search and then recorded as done. The process may be killed at any point:
a batch that was put but not recorded is put again, which changes nothing, and assigned ids are kept.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import apsw
import trio

from proto.errors import Cancelled, LinckiaError, MaybeExecuted, Overloaded, Timeout, Unavailable
from proto.ops.retrieve import Group, Item, RetrieveDelete, RetrieveGroups, RetrievePut, RetrieveStatus, Value
from services.knowledge import nodes
from services.knowledge.ingest.note_walk import Changes, Walk
from services.knowledge.nodes import Known, Update
from services.knowledge.notes import files, markdown
from services.knowledge.notes.files import Place, Stamp
from services.knowledge.notes.links import with_parents
from services.knowledge.notes.markdown import Note
from services.runtime import storage
from services.runtime.database import Database
from services.runtime.handlers import Environment
from services.runtime.roots import OutsideRoots, Roots
from services.shared.models.measure import Measure, measure
from services.shared.outbox import pages
from services.shared.text import cutting
from services.shared.text.cutting import Section

COLLECTION = "notes"
BATCH_FILES = 64
BATCH_BYTES = 2 * 1024 * 1024
PATH_SEPARATOR = " > "

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
"""Retry delay for a file that could not be indexed; it doubles each time."""

MAX_LONE_FAILURES = 8
"""If more notes in a row are rejected individually, the notes are not the cause."""

TRANSIENT = (Unavailable, Overloaded, Timeout, MaybeExecuted, Cancelled)

VERSION, _CUT_AFTER = "markdown_version", "cut_after"

_log = logging.getLogger("linckia.knowledge")


def version(measured: Measure) -> str:
    """Return the version of parsing and cutting, for the setting `VERSION`.  If it changes, notes are read again."""
    return f"{markdown.VERSION}.{cutting.VERSION}.{measured.signature}"


@dataclass(frozen=True, slots=True)
class Failed:
    """A file that could not be indexed.  It is retried when it changes, or after `retry_at` on trio's clock."""

    reason: str
    pause_s: float
    retry_at: float
    stamp: Stamp | None


class Index:
    """The notes and the outstanding work, which is done one step at a time."""

    def __init__(self, env: Environment, database: Database, look_again: Callable[[Iterable[str]], None]) -> None:
        """`look_again` is called with files that may have been written while they were read."""
        self._env = env
        self._database = database
        self._roots = env.roots
        self._look_again = look_again
        self._measure: Measure | None = None
        self._generation: int | None = None
        """Generation of the database that `known` was read from."""
        self._lone_failures = 0
        self.known: dict[Place, Known] = {}
        self.pending: dict[Place, Stamp | None] = {}
        """Notes to be indexed, in order, with the stamps that a walk saw."""
        self.failed: dict[Place, Failed] = {}
        self._pauses: dict[Place, float] = {}
        """Next retry delay of files that are being retried."""
        self.leaving = True
        """Whether the search may still hold removed notes."""
        self.cut_after: str | None = None
        """Progress of reading all notes again after a change of version: the last id done; None if it is not running.
        The old index is used meanwhile."""
        self.renamed: dict[Place, Place] = {}
        """The last renaming, as new place to old place."""
        self._arranged: tuple[str, ...] = ()
        """The roots for which the ids were assigned last; none before the first time, and after a rebuilt database."""
        self.reconciled = False
        """Whether the ids of both sides were compared since the search was last unavailable."""

    @property
    def is_loaded(self) -> bool:
        return self._generation == self._database.generation

    @property
    def outstanding(self) -> int:
        """The number of notes whose latest text is not in the search yet."""
        return len(self.pending) + len(self.failed)

    @property
    def has_work(self) -> bool:
        return bool(self.pending) or self.leaving or not self.reconciled

    async def load(self) -> None:
        """Load the known notes from the database."""

        # Another model may have a smaller window. Then all notes are cut again, and the old index is used meanwhile.
        measured = self._measure = await trio.to_thread.run_sync(measure, self._env.settings)

        def start(db: apsw.Connection) -> dict[Place, Known]:
            before, now = nodes.setting(db, VERSION), version(measured)
            if before != now:
                nodes.set_setting(db, VERSION, now)
                nodes.set_setting(db, _CUT_AFTER, None if before is None else "")
                # Ids may have been assigned differently in an earlier version.
                nodes.arrive(db, (), {}, self._roots)
            self.cut_after = nodes.setting(db, _CUT_AFTER)
            return nodes.load(db)

        generation = self._database.generation
        self.known = await self._database.write(start)
        self._generation = generation
        self._arranged = ()
        self.pending, self.failed = {}, {}
        self.leaving, self.reconciled = True, False

    def take_up_failed(self, now: float) -> None:
        """Queue failed files whose retry is due."""
        for place, failed in list(self.failed.items()):
            if now >= failed.retry_at:
                del self.failed[place]
                self.pending[place] = failed.stamp
                self._pauses[place] = min(LAST_RETRY_S, 2 * failed.pause_s)

    async def follow(self, changes: Changes, walk: Walk, *, first: bool) -> None:
        """Queue changed notes, before those already pending, or after them if this is the `first` walk."""
        if changes.arrived or changes.gone:
            await self._come_and_go(changes, walk)
        for place in changes.changed:
            failed = self.failed.get(place)
            if failed and walk.notes[place] != failed.stamp:
                del self.failed[place]
        fresh = {place: walk.notes[place] for place in (*changes.arrived, *changes.changed) if place not in self.failed}
        if fresh.keys() - self.pending.keys():
            self.pending = {**self.pending, **fresh} if first else {**fresh, **self.pending}

    async def _come_and_go(self, changes: Changes, walk: Walk) -> None:
        """Remove the files that are gone and assign ids to new ones, in one transaction."""
        moved = await trio.to_thread.run_sync(_moves, changes, self.known, self.renamed, self._roots, walk)
        ids = [self.known[place].id for place in changes.gone]
        roots = tuple(self._roots)

        def change(db: apsw.Connection) -> dict[Place, Known]:
            nodes.depart(db, ids, frozenset(moved.values()))
            return nodes.arrive(db, changes.arrived, moved, roots, nothing_else=not ids and roots == self._arranged)

        given = await self._database.write(change)
        self._arranged = roots
        renamed = given.keys() & self.known.keys()
        self.pending |= dict.fromkeys(sorted(renamed))
        for place in changes.gone:
            del self.known[place]
            self.pending.pop(place, None)
            self.failed.pop(place, None)
        self.known.update(given)
        self.leaving = self.leaving or bool(changes.gone or renamed)

    async def step(self) -> bool:
        """Do one step of work.  Returns whether there was any."""
        if not self.reconciled:
            await self._reconcile()
        elif self.pending:
            await self._batch()
        elif self.leaving:
            await self._take_out()
        else:
            return self.cut_after is not None and await self._cut_again(self.cut_after)
        return True

    async def _cut_again(self, after: str) -> bool:
        """Queue the next notes that were read by another version or for another model.  Returns whether it did.

        Waits while many vectors are missing, because notes that were not read again keep their old vectors.
        """
        held = await self._env.call(RetrieveStatus(collection=COLLECTION))
        if held.vectors and held.vectors_waiting - held.vectors_failed > cutting.AHEAD:
            return False
        there = sorted((known.id, place) for place, known in self.known.items() if known.id > after)[:BATCH_FILES]
        last = there[-1][0] if there else None

        def change(db: apsw.Connection) -> None:
            nodes.put_again(db, (id_ for id_, _ in there))
            nodes.set_setting(db, _CUT_AFTER, last)

        await self._database.write(change)
        self.cut_after = last
        self.known |= {place: Known(id_) for id_, place in there}
        self.pending |= dict.fromkeys(place for _, place in there)
        return True

    async def _reconcile(self) -> None:
        """Compare the ids in the search with ours: queue extra ones for removal and missing ones for indexing."""
        theirs = set(await pages(lambda after: self._env.call(RetrieveGroups(collection=COLLECTION, after=after))))
        ours = {known.id: place for place, known in self.known.items()}
        strange = theirs - ours.keys()
        missing = [id_ for id_, place in ours.items() if id_ not in theirs and self.known[place].hash is not None]

        def change(db: apsw.Connection) -> None:
            nodes.leave(db, strange)
            nodes.put_again(db, missing)

        await self._database.write(change)
        for id_ in missing:
            place = ours[id_]
            self.known[place] = Known(id_)
            self.pending[place] = None
        self.leaving = True
        self.reconciled = True

    async def _take_out(self) -> None:
        """Remove ids from the search; until then, operations filter them out.

        This runs after all pending notes were put, so that a renamed note can reuse the vectors of the old one.
        """
        ids = await self._database.read(lambda db: nodes.leaving(db, 4096))
        if ids:
            await self._env.call(RetrieveDelete(collection=COLLECTION, groups=ids))
            await self._database.write(lambda db: nodes.left(db, ids))
        self.leaving = bool(ids)

    async def _batch(self) -> None:
        wanted = {place: self.known[place] for place in itertools.islice(self.pending, BATCH_FILES)}
        assert self._measure is not None, "`load` has run"
        batch = await trio.to_thread.run_sync(_gather, wanted, self._roots, self._measure)
        now = trio.current_time()
        put = await self._put(list(batch.groups.values()), batch)
        updates = [batch.updates[id_] for id_ in put] + batch.unchanged
        if updates:
            await self._database.write(lambda db: nodes.settle(db, updates))
            self.known |= {update.place: update.known for update in updates}
        if batch.failed:
            await self._database.write(lambda db: nodes.give_up(db, batch.failed))
        for place, reason in batch.failed.items():
            pause_s = self._pauses.get(place, FIRST_RETRY_S)
            self.failed[place] = Failed(reason, pause_s, now + pause_s, self.pending.get(place))
        for place in batch.read:
            self.pending.pop(place, None)
            self._pauses.pop(place, None)
        unsure = (update for update in (*batch.updates.values(), *batch.unchanged) if update.known.stamp is None)
        self._look_again(update.place.absolute for update in unsure)

    async def _put(self, groups: list[Group], batch: _Batch) -> list[str]:
        """Put the groups, bisecting to isolate one that is rejected.  Returns the ids that were accepted."""
        if not groups:
            return []
        try:
            await self._env.call(RetrievePut(collection=COLLECTION, groups=groups))
        except LinckiaError as error:
            if len(groups) > 1 and isinstance(error, Timeout):
                # The batch may have been too large.
                pass
            elif isinstance(error, TRANSIENT) or error.failure.retry_after_ms is not None:
                raise
            elif len(groups) == 1:
                self._lone_failures += 1
                if self._lone_failures > MAX_LONE_FAILURES:
                    raise Unavailable(f"it rejects every note: {error}") from error
                batch.failed[batch.updates[groups[0].id].place] = f"rejected by the search: {error}"
                return []
        else:
            self._lone_failures = 0
            return [group.id for group in groups]
        half = len(groups) // 2
        return await self._put(groups[:half], batch) + await self._put(groups[half:], batch)


def _moves(
    changes: Changes, known: Mapping[Place, Known], renamed: Mapping[Place, Place], roots: Roots, walk: Walk
) -> dict[Place, str]:
    """Match new files to removed ones: renamed by this service, or moved, with the same name and inode or content."""
    by_name: dict[str, list[Place]] = {}
    for place in changes.gone:
        by_name.setdefault(os.path.basename(place.path), []).append(place)
    gone = frozenset(changes.gone)
    found = {new: known[old].id for new, old in renamed.items() if old in gone and new in changes.arrived}
    for new in found:
        by_name[os.path.basename(renamed[new].path)].remove(renamed[new])
    for place in changes.arrived:
        if place in found:
            continue
        candidates = by_name.get(os.path.basename(place.path), [])
        old = next((old for old in candidates if _is_same(walk, place, known[old], roots)), None)
        if old is not None:
            found[place] = known[old].id
            candidates.remove(old)
    return found


def _is_same(walk: Walk, place: Place, old: Known, roots: Roots) -> bool:
    stamp = walk.notes[place]
    if old.stamp is not None and old.stamp._replace(ctime_ns=stamp.ctime_ns) == stamp:
        return True
    text = files.text_if_readable(place, roots)
    return old.hash is not None and text is not None and files.digest(text) == old.hash


@dataclass(slots=True)
class _Batch:
    """A batch of files: `groups` are put before `updates` are recorded; `unchanged` ones need no put."""

    measure: Measure
    groups: dict[str, Group] = field(default_factory=dict)
    updates: dict[str, Update] = field(default_factory=dict)
    unchanged: list[Update] = field(default_factory=list)
    failed: dict[Place, str] = field(default_factory=dict)
    read: list[Place] = field(default_factory=list)
    size_bytes: int = 0

    def take(self, place: Place, known: Known, roots: Roots) -> None:
        """Read and parse one file."""
        self.read.append(place)
        try:
            content = files.read(place.absolute, roots)
        except FileNotFoundError:
            return
        except OSError as error:
            if storage.starved_of(error):
                # The process ran out of resources; the file is fine.
                raise
            self.failed[place] = f"cannot be read: {error.strerror}"
            return
        except (OutsideRoots, files.TooLarge) as error:
            self.failed[place] = f"not indexed: {error}"
            return
        self.size_bytes += len(content.data)
        text = content.text
        hash_ = files.digest(text)
        lead = text[: len(text) - len(text.lstrip())].count("\n")
        stamp = content.stamp if content.settled else None
        if hash_ == known.hash and lead == known.lead:
            self.unchanged.append(Update(place, replace(known, stamp=stamp)))
            return
        try:
            note = markdown.parse(text, place, self.measure)
        except Exception as error:  # noqa: BLE001  # one file that the parser fails on must not stop all others
            _log.exception("%s cannot be parsed", place.absolute)
            self.failed[place] = f"cannot be parsed: {type(error).__name__}: {error}"
            return
        date = note.date if note.date is not None else content.stamp.mtime_ns / 1e9
        self.updates[known.id] = Update(place, Known(known.id, stamp, hash_, lead, note.problem), date, note)
        self.groups[known.id] = group_of(known.id, place, date, note)


def _gather(wanted: Mapping[Place, Known], roots: Roots, measured: Measure) -> _Batch:
    """Read and parse as many of `wanted` as fit into one batch.  Blocks."""
    batch = _Batch(measured)
    for place, known in wanted.items():
        if batch.size_bytes < BATCH_BYTES:
            batch.take(place, known, roots)
    return batch


def group_of(id_: str, place: Place, date: float, note: Note) -> Group:
    """Convert a note to a group for the search."""
    items: list[Item] = []
    seen: dict[str, int] = {}
    if note.front_matter is not None:
        items.append(_item(note.front_matter, note, seen, embed=False))
    items += (_item(section, note, seen, embed=note.embed) for section in note.sections)
    if not items:
        items.append(Item(key="title", text=note.title, metadata={"first": 1, "last": 1}, embed=False))
    metadata: dict[str, Value] = {
        "root": place.root,
        "path": place.path,
        "tags": [*with_parents(note.tags)],
        "date": date,
    }
    # The folders and the file name, which may not be in the title.
    return Group(id=id_, title=note.title, names=place.path[:-3], items=items, metadata=metadata)


def _item(section: Section, note: Note, seen: dict[str, int], *, embed: bool) -> Item:
    heading = PATH_SEPARATOR.join(section.path or (note.title,))
    # Derived from the content, so that a section that only moved keeps its vector.
    mark = hashlib.sha256(f"{heading}\n{section.text}".encode("utf-8", "surrogatepass")).hexdigest()[:24]
    seen[mark] = seen.get(mark, 0) + 1
    metadata: dict[str, Value] = {"first": section.first, "last": section.last}
    if len(section.parts) > 1:
        metadata["parts"] = [
            f"{part.first}:{part.last}:{PATH_SEPARATOR.join(part.path or (note.title,))}" for part in section.parts
        ]
    return Item(key=f"{mark}-{seen[mark]}", text=section.text, heading=heading, metadata=metadata, embed=embed)
