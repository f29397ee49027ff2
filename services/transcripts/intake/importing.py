"""Files that agents left on disk, part by part: what was said goes into the forest together with how far that is.

One transaction keeps a part's messages, which node each record became, what the layout has in hand and the position in
the file. So an import that is killed anywhere goes on where it was, and a part that is sent again is recognised. What
the end of a file leaves in hand is kept too, and taken back where the file turns out to have grown there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import apsw
import msgspec
import trio

from proto.errors import OperationError
from proto.ops.transcripts_intake import ImportResult, ImportState, TranscriptImport
from services.runtime.database import Database
from services.transcripts.intake.ingest import Ingest
from services.transcripts.layouts import Layout, Said, Step
from services.transcripts.layouts.claude import Claude
from services.transcripts.layouts.codex import Codex
from services.transcripts.layouts.exports import Exports
from services.transcripts.layouts.gemini import Gemini
from services.transcripts.messages import Turn
from services.transcripts.providers.wire import Json, Unreadable, decode
from services.transcripts.store import deletion, forest
from services.transcripts.store.forest import Place
from services.transcripts.store.hashing import OutOfRange

NO_LAYOUT = "none"
"""The layout of a file none of whose records is known so far."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The stored state of a file's import."""

    position: int = 0
    tail: str = ""
    layout: str = ""
    state: bytes = b""
    part: str = ""
    answer: bytes = b""
    growing: tuple[int, ...] = ()


@dataclass(slots=True)
class _Read:
    """A part, read: what is certain, and what was still in hand where the file ends."""

    steps: list[Step] = field(default_factory=list)
    last: list[Step] = field(default_factory=list)
    unreadable: int = 0
    problem: str = ""

    def fail(self, why: str) -> None:
        self.unreadable += 1
        self.problem = self.problem or why


class Importing:
    """From records to nodes."""

    def __init__(self, database: Database, ingest: Ingest) -> None:
        self._database = database
        self._ingest = ingest
        self._reading = trio.CapacityLimiter(1)

    async def state(self, source: str) -> ImportState:
        """How far a file is."""
        held = await self._database.read(lambda db: _held(db, source))
        return ImportState(position=held.position, tail=held.tail, layout=held.layout)

    async def import_part(self, part: TranscriptImport) -> ImportResult:
        """Keep a part of a file.

        Raises:
            OperationError: it does not begin where the file has been read to, or the disk fails.
        """
        held = await self._database.read(lambda db: _held(db, part.source))
        name = f"{part.start}-{part.position}-{part.tail}"
        if held.part == name:
            return msgspec.json.decode(held.answer, type=ImportResult)
        if part.start == 0:
            held = _Held(growing=held.growing)
        elif part.start != held.position:
            raise OperationError(
                f"{part.source} has been imported up to byte {held.position}, and this part begins at {part.start};"
                " is another import of it running?"
            )
        layout, read = await trio.to_thread.run_sync(self._read, held, part, limiter=self._reading)
        before = held

        def change(db: apsw.Connection) -> ImportResult:
            if _held(db, part.source).part != before.part and part.start:
                raise OperationError(f"another import of {part.source} is running")
            return self._keep(db, part, name, before, layout, read)

        return await self._database.write(change)

    def _read(self, held: _Held, part: TranscriptImport) -> tuple[tuple[str, bytes], _Read]:
        """In a thread: the layout's name and state after this part, and what the part said."""
        layout = _layout(held)
        read = _Read()
        for number, record in enumerate(part.records, 1):
            try:
                given = decode(record)
                if not isinstance(given, dict):
                    read.fail(f"record {number} after byte {part.start} is not an object")
                    continue
                steps: list[Step] | None = None
                if layout is not None:
                    steps = layout.read(given)
                elif (found := detect(given)) is not None:
                    layout, steps = found
            except (Unreadable, RecursionError) as error:
                read.fail(f"record {number} after byte {part.start} is not JSON: {str(error) or 'nested too deeply'}")
                continue
            if steps is None:
                read.fail(f"record {number} after byte {part.start} is of no known form")
            else:
                read.steps += steps
        said = [step for step in read.steps if isinstance(step, Said)]
        if layout is None:
            return (NO_LAYOUT, b""), read
        for each in (*said, *layout.in_hand()):
            each.messages = self._ingest.masked(each.messages)
            each.system = self._ingest.masked_text(each.system)
        layout.system = self._ingest.masked_text(layout.system)
        state = msgspec.json.encode(layout)
        if part.final:
            # The state keeps it in hand: the next record may belong to it.
            read.last = layout.flush()
        return (layout.name, state), read

    def _keep(
        self,
        db: apsw.Connection,
        part: TranscriptImport,
        name: str,
        before: _Held,
        layout: tuple[str, bytes],
        read: _Read,
    ) -> ImportResult:
        adding = _Adding(self._ingest, db, part.source, {})
        touched: set[int] = set()
        for step in read.steps:
            touched.update(place.node_id for place in adding.add(step, read)[0])
        growing: list[int] = []
        for step in read.last:
            places, new = adding.add(step, read)
            touched.update(place.node_id for place in places)
            growing += (place.node_id for place in places[len(places) - new :])
        if read.steps or read.last:
            for node_id in reversed(before.growing):
                if node_id not in touched:
                    deletion.take_back(db, node_id)
        kept_on = [node_id for node_id in before.growing if node_id in touched and read.last]
        answer = ImportResult(
            messages=adding.messages,
            nodes=adding.new,
            unreadable=read.unreadable,
            problem=read.problem,
            layout=layout[0],
        )
        db.execute(
            "INSERT OR REPLACE INTO source(source, position, tail, layout, state, part, answer, growing)"
            " VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
            (
                part.source,
                part.position,
                part.tail,
                *layout,
                name,
                msgspec.json.encode(answer),
                msgspec.json.encode([*kept_on, *growing] if read.steps or read.last else list(before.growing)),
            ),
        )
        return answer


@dataclass(slots=True)
class _Adding:
    """Steps of one part, in its transaction."""

    ingest: Ingest
    db: apsw.Connection
    source: str
    places: dict[str, Place | None]
    messages: int = 0
    new: int = 0

    def add(self, step: Step, read: _Read) -> tuple[list[Place], int]:
        """The nodes of a step, and how many of them, the last ones, are new."""
        after = self._place(step.after)
        if not isinstance(step, Said):
            self._name([step.key], after)
            return [], 0
        turn = Turn(
            provider=step.provider,
            messages=step.messages,
            model=step.model,
            agent=step.agent,
            project=step.project,
            system=step.system,
        )
        self.messages += len(step.messages)
        try:
            prepared = forest.prepare(turn, self.ingest.strip, b"" if after is None else after.projection)
        except (OutOfRange, RecursionError) as error:
            read.fail(f"a message cannot be kept: {str(error) or 'nested too deeply'}")
            self._name(step.keys, after)
            return [], 0
        placed = forest.add(self.db, prepared, after, self.ingest.is_found)
        self.new += placed.new
        self._name(step.keys, placed.nodes[-1])
        return placed.nodes, placed.new

    def _place(self, key: str) -> Place | None:
        if not key:
            return None
        if key not in self.places:
            row = self.db.execute("SELECT node_id FROM record WHERE key=?", (_digest(self.source, key),)).fetchone()
            self.places[key] = None if row is None or not row[0] else forest.place(self.db, row[0])
        return self.places[key]

    def _name(self, keys: Sequence[str], place: Place | None) -> None:
        node_id = 0 if place is None else place.node_id
        self.db.executemany(
            "INSERT OR REPLACE INTO record(key, node_id) VALUES(?, ?)",
            ((_digest(self.source, key), node_id) for key in keys if key),
        )
        self.places.update(dict.fromkeys(keys, place))


def release(db: apsw.Connection) -> None:
    """Forget what files have in hand of messages that were deleted; in the transaction that deletes."""
    sources = list(db.execute("SELECT source, layout, state, growing FROM source WHERE growing<>CAST('[]' AS BLOB)"))
    for source, layout, state, growing in sources:
        node_ids = msgspec.json.decode(growing, type=list[int])
        kept = {node.node_id for node in forest.nodes(db, node_ids)}
        if len(kept) < len(node_ids) and (held := _layout(_Held(layout=layout, state=state))) is not None:
            held.flush()
            db.execute(
                "UPDATE source SET state=?, growing=? WHERE source=?", (msgspec.json.encode(held), b"[]", source)
            )


def _digest(source: str, key: str) -> bytes:
    # Numbers are a file's own; other names are unique wherever they are, and a session may go on in another file.
    told = f"{source}\0{key}" if key.startswith("#") else key
    return hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _held(db: apsw.Connection, source: str) -> _Held:
    row = db.execute(
        "SELECT position, tail, layout, state, part, answer, growing FROM source WHERE source=?", (source,)
    ).fetchone()
    if row is None:
        return _Held()
    return replace(_Held(*row[:6]), growing=tuple(msgspec.json.decode(row[6], type=list[int])))


def _layout(held: _Held) -> Layout | None:
    kind = LAYOUTS.get(held.layout)
    return None if kind is None else msgspec.json.decode(held.state, type=kind)


LAYOUTS: dict[str, type[Layout]] = {kind.name: kind for kind in (Gemini, Claude, Codex, Exports)}


def detect(record: Json) -> tuple[Layout, list[Step]] | None:
    """A layout that knows `record`, and what that says."""
    kinds: list[type[Layout]] = [Claude] if "uuid" in record and "type" in record else [Gemini, Codex, Exports, Claude]
    for kind in kinds:
        layout = kind()
        steps = layout.read(record)
        if steps is not None:
            return layout, steps
    return None
