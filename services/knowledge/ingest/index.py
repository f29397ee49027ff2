"""The known notes, and the work that brings the search in step with them.

A batch of notes is read, parsed, put into the search, then recorded as done. The process may be killed at any point: a
batch that was put and not recorded is put again, which changes nothing; an id that was given is kept.
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

from linckia.proto.errors import Cancelled, LinckiaError, MaybeExecuted, Overloaded, Timeout, Unavailable
from linckia.proto.ops.retrieve import Group, Item, RetrieveDelete, RetrieveGroups, RetrievePut, RetrieveStatus, Value
from linckia.services.knowledge import nodes
from linckia.services.knowledge.ingest.walking import Changes, Walk
from linckia.services.knowledge.nodes import Known, Update
from linckia.services.knowledge.notes import files, markdown
from linckia.services.knowledge.notes.files import Place, Stamp
from linckia.services.knowledge.notes.links import with_parents
from linckia.services.knowledge.notes.markdown import Note
from linckia.services.runtime import storage
from linckia.services.runtime.database import Database
from linckia.services.runtime.handlers import Environment
from linckia.services.runtime.models.measure import Measure, measure
from linckia.services.runtime.outbox import pages
from linckia.services.runtime.roots import OutsideRoots, Roots
from linckia.services.runtime.text import cutting
from linckia.services.runtime.text.cutting import Section

COLLECTION = "notes"
BATCH_FILES = 64
BATCH_BYTES = 2 * 1024 * 1024
PATH_SEPARATOR = " > "

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
"""Until a file that could not be indexed is tried again; twice as long each time."""

MAX_LONE_FAILURES = 8
"""With more notes refused one by one, the fault is not in the notes."""

TRANSIENT = (Unavailable, Overloaded, Timeout, MaybeExecuted, Cancelled)

VERSION, _CUT_AFTER = "markdown_version", "cut_after"

_log = logging.getLogger("linckia.knowledge")


def version(measured: Measure) -> str:
    """Under another one the same file would make another note; under the setting `VERSION`."""
    return f"{markdown.VERSION}.{cutting.VERSION}.{measured.signature}"


@dataclass(frozen=True, slots=True)
class Failed:
    """A file that could not be indexed; tried again once it changes, or after `retry_at` on trio's clock."""

    reason: str
    pause_s: float
    retry_at: float
    stamp: Stamp | None


class Index:
    """The notes, and the work that is left; one step at a time."""

    def __init__(self, env: Environment, database: Database, look_again: Callable[[Iterable[str]], None]) -> None:
        """`look_again` is called with files that may have been written while they were read."""
        self._env = env
        self._database = database
        self._roots = env.roots
        self._look_again = look_again
        self._measure: Measure | None = None
        self._generation: int | None = None
        """Of the database that `known` was read from."""
        self._lone_failures = 0
        self.known: dict[Place, Known] = {}
        self.pending: dict[Place, Stamp | None] = {}
        """Notes to be indexed, in this order, with the stamps that a walk saw."""
        self.failed: dict[Place, Failed] = {}
        self._pauses: dict[Place, float] = {}
        """Of files that are tried again: how long to wait if they fail once more."""
        self.leaving = True
        """Whether the search may still hold notes that are gone."""
        self.cut_after: str | None = None
        """Of the notes that are to be read again, which serve as they are until then, the id that was the last to be;
        None: there is none."""
        self.renamed: dict[Place, Place] = {}
        """The note that got another name last, by its new place: it is the one that was at the old."""
        self.reconciled = False
        """Whether the ids of both sides were compared since the search was last away."""

    @property
    def is_loaded(self) -> bool:
        return self._generation == self._database.generation

    @property
    def outstanding(self) -> int:
        """Notes whose latest text is not in the search yet."""
        return len(self.pending) + len(self.failed)

    @property
    def has_work(self) -> bool:
        return bool(self.pending) or self.leaving or not self.reconciled

    async def load(self) -> None:
        """Begin with what the database holds; after it was found damaged, that is little."""

        # Another model may read less of a piece: then all notes are cut again, while what the search has serves.
        measured = self._measure = await trio.to_thread.run_sync(measure, self._env.settings)

        def start(db: apsw.Connection) -> dict[Place, Known]:
            before, now = nodes.setting(db, VERSION), version(measured)
            if before != now:
                nodes.set_setting(db, VERSION, now)
                nodes.set_setting(db, _CUT_AFTER, None if before is None else "")
                # Those of an earlier version may have other ids.
                nodes.arrive(db, (), {}, self._roots)
            self.cut_after = nodes.setting(db, _CUT_AFTER)
            return nodes.load(db)

        generation = self._database.generation
        self.known = await self._database.write(start)
        self._generation = generation
        self.pending, self.failed = {}, {}
        self.leaving, self.reconciled = True, False

    def take_up_failed(self, now: float) -> None:
        """Try again what failed some time ago."""
        for place, failed in list(self.failed.items()):
            if now >= failed.retry_at:
                del self.failed[place]
                self.pending[place] = failed.stamp
                self._pauses[place] = min(LAST_RETRY_S, 2 * failed.pause_s)

    async def follow(self, changes: Changes, walk: Walk, *, first: bool) -> None:
        """Add the difference to the work, before what is there already, or after it where this is the `first` walk."""
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
        """Forget the files that are gone and give ids to new ones, in one transaction."""
        moved = await trio.to_thread.run_sync(_moves, changes, self.known, self.renamed, self._roots, walk)
        ids = [self.known[place].id for place in changes.gone]

        def change(db: apsw.Connection) -> dict[Place, Known]:
            nodes.depart(db, ids, frozenset(moved.values()))
            return nodes.arrive(db, changes.arrived, moved, self._roots)

        given = await self._database.write(change)
        renamed = given.keys() & self.known.keys()
        self.pending |= dict.fromkeys(sorted(renamed))
        for place in changes.gone:
            del self.known[place]
            self.pending.pop(place, None)
            self.failed.pop(place, None)
        self.known.update(given)
        self.leaving = self.leaving or bool(changes.gone or renamed)

    async def step(self) -> bool:
        """Do one piece of work; answers whether there was any."""
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
        """Take up the next notes that another version has read, or for another model; answers whether it did.

        Not while the vectors of the ones before are to come: of those that wait for that, the old ones are found.
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
        """Compare the search's ids with ours: take out those we do not have, put those it does not have."""
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
        """Take ids out of the search, which leaves out notes that are gone until then.

        After all notes that wait were put: the new note of a renamed file takes over the vectors of the old one.
        """
        ids = await self._database.read(lambda db: nodes.leaving(db, 4096))
        if ids:
            await self._env.call(RetrieveDelete(collection=COLLECTION, groups=ids))
            await self._database.write(lambda db: nodes.left(db, ids))
        self.leaving = bool(ids)

    async def _batch(self) -> None:
        wanted = {place: self.known[place] for place in itertools.islice(self.pending, BATCH_FILES)}
        assert self._measure is not None, "notes are known before they are read"
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
        """Put the groups, in halves until the one that is refused stands alone; answers the ids that went in."""
        if not groups:
            return []
        try:
            await self._env.call(RetrievePut(collection=COLLECTION, groups=groups))
        except LinckiaError as error:
            if len(groups) > 1 and isinstance(error, Timeout):
                # Too much at once looks like this as well.
                pass
            elif isinstance(error, TRANSIENT) or error.failure.retry_after_ms is not None:
                raise
            elif len(groups) == 1:
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


def _moves(
    changes: Changes, known: Mapping[Place, Known], renamed: Mapping[Place, Place], roots: Roots, walk: Walk
) -> dict[Place, str]:
    """New files that are gone ones: renamed here; or in another folder, with the same name and inode or content."""
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
    """Files that were read: `groups` are to be put before `updates` are recorded; `unchanged` need no put."""

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
                # Nothing is wrong with the file: the next process reads it.
                raise
            self.failed[place] = f"cannot be read: {error.strerror}"
            return
        except (OutsideRoots, files.TooLarge) as error:
            self.failed[place] = f"is not indexed: {error}"
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
    """Read and parse `wanted`, or as many of them as make one batch; blocks."""
    batch = _Batch(measured)
    for place, known in wanted.items():
        if batch.size_bytes < BATCH_BYTES:
            batch.take(place, known, roots)
    return batch


def group_of(id_: str, place: Place, date: float, note: Note) -> Group:
    """A note as the search holds it."""
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
    # Its folders and its name, which the title need not repeat.
    return Group(id=id_, title=note.title, names=place.path[:-3], items=items, metadata=metadata)


def _item(section: Section, note: Note, seen: dict[str, int], *, embed: bool) -> Item:
    heading = PATH_SEPARATOR.join(section.path or (note.title,))
    # By its content, so that a section that only moved keeps its vector.
    mark = hashlib.sha256(f"{heading}\n{section.text}".encode("utf-8", "surrogatepass")).hexdigest()[:24]
    seen[mark] = seen.get(mark, 0) + 1
    metadata: dict[str, Value] = {"first": section.first, "last": section.last}
    if len(section.parts) > 1:
        metadata["parts"] = [
            f"{part.first}:{part.last}:{PATH_SEPARATOR.join(part.path or (note.title,))}" for part in section.parts
        ]
    return Item(key=f"{mark}-{seen[mark]}", text=section.text, heading=heading, metadata=metadata, embed=embed)
