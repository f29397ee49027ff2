"""Imports files that agents left on disk, part by part; messages and progress are stored together.

One transaction stores a part's messages, the node of each record, the layout's pending messages and the position in the
file. An import that is killed at any point therefore resumes, and a part that is sent again is recognised. Messages
still pending at the end of a file are stored too, and taken back if the file turns out to have grown there.
"""

from __future__ import annotations

from typing import NamedTuple

import apsw
import msgspec
import trio

from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.transcripts import conversations, forest, titles
from services.transcripts.database import take_back
from services.transcripts.forest import NodeRef, Placed
from services.transcripts.ingest import Ingest
from services.transcripts.layouts import Layout, Step
from services.transcripts.layouts.claude import Claude
from services.transcripts.layouts.cline import Cline
from services.transcripts.layouts.codex import Codex
from services.transcripts.layouts.copilot import CopilotChat, CopilotCli
from services.transcripts.layouts.editors import Cursor, Zed
from services.transcripts.layouts.exports import Exports, Nodes
from services.transcripts.layouts.gemini import Gemini
from services.transcripts.layouts.qwen import Qwen, is_qwen
from services.transcripts.layouts.terminals import Aider, Amp, Goose, OpenCode
from services.transcripts.messages import OutOfRange
from services.transcripts.operations.intake import ImportResult, ImportState, TranscriptImport, TranscriptImportState
from services.transcripts.providers.wire import Json, Unreadable, decode, objects

NO_LAYOUT = "none"
"""The layout of a file in which no record has been recognised so far."""


class _StoredImport(NamedTuple):
    """The stored state of a file's import."""

    told: ImportState = ImportState()
    state: bytes = b""
    part: str = ""
    answer: bytes = b""
    growing: tuple[int, ...] = ()

    def answered(self, part: str) -> ImportResult:
        """Return the stored answer if `part` came last, else where another import has continued."""
        return (
            msgspec.json.decode(self.answer, type=ImportResult) if self.part == part else ImportResult(moved=self.told)
        )


class Importing:
    """Converts records to nodes."""

    def __init__(self, database: Database, ingest: Ingest) -> None:
        self._database = database
        self._ingest = ingest
        self._reading = trio.CapacityLimiter(1)

    @handles(TranscriptImportState)
    async def state(self, params: TranscriptImportState, ctx: Context | None = None) -> ImportState:
        """Return how far a file has been imported."""
        return (await self._database.read(lambda db: _held(db, params.source))).told

    @handles(TranscriptImport)
    async def take(self, params: TranscriptImport, ctx: Context | None = None) -> ImportResult:
        """Store a part of a file if it begins where the last one ended. Raises OperationError if the disk fails."""
        held = await self._database.read(lambda db: _held(db, params.source))
        part = _Part(self._ingest, params, held)
        if held.part == part.name or params.start not in (0, held.told.position):
            return held.answered(part.name)
        await trio.to_thread.run_sync(part.read, limiter=self._reading)
        result = await self._database.write(part.keep)
        self._ingest.hurry()
        return result


class _Part:
    """A part of a file, read in a thread and then stored in one transaction."""

    def __init__(self, ingest: Ingest, params: TranscriptImport, held: _StoredImport) -> None:
        self.name = f"{params.start}-{params.position}-{params.tail}"
        self._ingest = ingest
        self._params = params
        self._found = held.part
        self._held = held if params.start else _StoredImport(growing=held.growing)
        self._steps: list[Step] = []  # final
        self._last: list[Step] = []  # pending at the end of the file
        self._layout = NO_LAYOUT
        self._state = b""
        self._is_linked = False
        self._messages = self._new = self._unreadable = self._mended = 0
        self._problem = ""

    def _fail(self, why: str) -> None:
        self._unreadable += 1
        self._problem = self._problem or why

    def _mend(self, why: str) -> None:
        self._mended += 1
        self._problem = self._problem or why

    def read(self) -> None:
        """Read the part's messages and the layout's final state."""
        layout = _layout(self._held.told.layout, self._held.state)
        for number, record in enumerate(self._params.records, 1):
            where = f"record {number} after byte {self._params.start}"
            try:
                whole = [decode(record)]
            except (Unreadable, RecursionError) as error:
                whole = objects(record)
                rest = f"; {len(whole)} complete records on its line were read" if whole else ""
                self._fail(f"{where} is not JSON: {str(error) or 'nested too deeply'}{rest}")
            for given in whole:
                layout = self._read(layout, given, where)
        if layout is None:
            return
        self._is_linked = layout.is_linked
        for step in (*self._steps, *layout.in_hand()):
            self._ingest.mask(step)
        layout.system = self._ingest.masked(layout.system)
        self._layout, self._state = layout.name, msgspec.json.encode(layout)
        if self._params.final:
            # It stays pending in the state, because the next record may belong to it.
            self._last = layout.finish()

    def _read(self, layout: Layout | None, given: object, where: str) -> Layout | None:
        """Read one record. Returns the layout, once it is known."""
        if not isinstance(given, dict):
            self._fail(f"{where} is not an object")
            return layout
        try:
            layout, steps = detect(given) if layout is None else (layout, layout.read(given))
        except (Unreadable, RecursionError) as error:
            self._fail(f"{where} cannot be read: {str(error) or 'nested too deeply'}")
            return layout
        if steps is None:
            self._fail(f"{where} has no known format")
        else:
            self._steps += steps
        return layout

    def keep(self, db: apsw.Connection) -> ImportResult:
        """Store the messages and the position in the file, unless another part was stored since."""
        params, before = self._params, self._held.growing
        if (held := _held(db, params.source)).part != self._found:
            return held.answered(self.name)
        places: dict[str, NodeRef | None] = {}
        touched: set[int] = set()
        for step in self._steps:
            touched.update(place.node_id for place in self._add(db, places, step).nodes)
        growing: list[int] = []
        for step in self._last:
            placed = self._add(db, places, step)
            touched.update(place.node_id for place in placed.nodes)
            growing += (place.node_id for place in placed.nodes[len(placed.nodes) - placed.new :])
        titles.store_kept(db)
        if self._steps or self._last:
            # A file that is read again from its beginning repeats them in one of its parts.
            repeated = touched if params.final else touched.union(before)
            for node_id in reversed(before):
                if node_id not in repeated:
                    take_back(db, node_id, (*self._steps, *self._last)[0])
            pending = [node_id for node_id in before if node_id in (touched if self._last else repeated - touched)]
            growing = [*pending, *growing]
        else:
            growing = list(before)
        answer = ImportResult(
            messages=self._messages,
            nodes=self._new,
            unreadable=self._unreadable,
            mended=self._mended,
            problem=self._problem,
            layout=self._layout,
        )
        row = (params.source, params.position, params.tail, self._layout, self._state, self.name)
        db.execute(
            "INSERT OR REPLACE INTO source(source, position, tail, layout, state, part, answer, growing)"
            " VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, msgspec.json.encode(answer), msgspec.json.encode(growing)),
        )
        return answer

    def _add(self, db: apsw.Connection, places: dict[str, NodeRef | None], step: Step) -> Placed:
        """Add a step to the forest; `places` are the positions of the records named by this part."""
        if step.after and step.after not in places:
            key = forest.record_key(step.after, self._params.source)
            known = db.execute("SELECT node_id FROM record WHERE key=?", (key,)).get
            if known is None and step.session and self._is_linked:
                places[step.after] = conversations.last(db, step)
                self._mend(f"the record {step.after} is missing: its successors continue the last turn before it")
            else:
                places[step.after] = forest.node_ref(db, known) if known else None
        after = places[step.after] if step.after else None
        if step.is_linked:
            after = forest.followed(db, step)
        if step.titles and after is None and step.after and not step.session:
            titles.keep(db, forest.record_key(step.after, self._params.source), step.titles[-1])
        placed = Placed([])
        self._messages += len(step.messages)
        try:
            prepared = forest.prepare(step, self._ingest.strip, b"" if after is None else after.projection)
        except (OutOfRange, RecursionError) as error:
            self._fail(f"a message cannot be stored: {str(error) or 'nested too deeply'}")
        else:
            placed = forest.add(db, prepared, after, self._ingest.is_found)
            conversations.claim(db, prepared, placed, after, self._ingest.strip)
            self._new += placed.new
        last = placed.nodes[-1] if placed.nodes else after
        node_id = 0 if last is None else last.node_id
        db.executemany(
            "INSERT OR REPLACE INTO record(key, node_id) VALUES(?, ?)",
            ((forest.record_key(key, self._params.source), node_id) for key in step.keys if key),
        )
        places.update(dict.fromkeys(step.keys, last))
        if step.is_linked and placed.nodes:
            forest.name_reply(db, step, placed.nodes[-1])
        return placed


def release(db: apsw.Connection) -> None:
    """Discard the pending state of files whose messages are deleted; call in the transaction that deletes."""
    sources = list(db.execute("SELECT source, layout, state, growing FROM source WHERE growing<>CAST('[]' AS BLOB)"))
    for source, layout, state, growing in sources:
        node_ids = msgspec.json.decode(growing, type=list[int])
        kept = {node.node_id for node in forest.nodes(db, node_ids)}
        if len(kept) < len(node_ids) and (held := _layout(layout, state)) is not None:
            held.finish()
            row = (msgspec.json.encode(held), b"[]", source)
            db.execute("UPDATE source SET state=?, growing=? WHERE source=?", row)


def _held(db: apsw.Connection, source: str) -> _StoredImport:
    of = "position, tail, layout, state, part, answer, growing"
    row = db.execute(f"SELECT {of} FROM source WHERE source=?", (source,)).fetchone()
    if row is None:
        return _StoredImport()
    told = ImportState(position=row[0], tail=row[1], layout=row[2])
    state, part, answer, growing = row[3:]
    return _StoredImport(told, state, part, answer, msgspec.json.decode(growing, type=tuple[int, ...]))


def _layout(name: str, state: bytes) -> Layout | None:
    kind = LAYOUTS.get(name)
    return None if kind is None else msgspec.json.decode(state, type=kind)


_SOURCES = (Cursor, Zed, CopilotChat, Cline, OpenCode, Goose, Amp, Aider)
"""Layouts of sessions from databases and folders, whose records name them (`sources`)."""
_LINKED = (Qwen, Claude)
_OTHERS = (Nodes, Gemini, CopilotCli, Codex, Goose, Exports, Claude)

LAYOUTS: dict[str, type[Layout]] = {kind.name: kind for kind in (*_SOURCES, *_LINKED, *_OTHERS)}


def detect(record: Json) -> tuple[Layout | None, list[Step] | None]:
    """Find a layout that recognises `record`. Returns it with the steps of the record, or None."""
    kinds: tuple[type[Layout], ...] = _OTHERS
    if "source" in record and "before" in record:
        kinds = tuple(kind for kind in _SOURCES if kind.name == record["source"])
    elif "uuid" in record and "type" in record:
        kinds = (Qwen,) if is_qwen(record) else (Claude,)
    for kind in kinds:
        layout = kind()
        steps = layout.read(record)
        if steps is not None:
            return layout, steps
    return None, None
