"""The scratchpad: long answers of knowledge tools are kept for their session, and a preview is sent in their place.

The preview lets a model choose, and `scratchpad_read` answers the whole. Entries live in memory, for as long as the
session; where there are several fronts, each has them. They are lost with the process. Clients without a session share
one space without a list, and read an entry by an id that is beyond guessing: who knows it was given it.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import secrets
import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec
import trio

from linckia.proto.errors import InvalidParams, OperationError
from linckia.proto.operation import Operation
from linckia.proto.ops.front import (
    ScratchpadContent,
    ScratchpadEntry,
    ScratchpadList,
    ScratchpadListing,
    ScratchpadRead,
    ScratchpadStats,
)
from linckia.proto.surfaces.surface import caches
from linckia.services.front.protocol.session import SessionState, current_session

MIN_BYTES = 4096
"""Shorter answers are sent as they are."""

MAX_BYTES = 10 * 1024 * 1024
"""Of one session; a single answer that is longer is sent as it is."""

MAX_TOTAL_BYTES = 256 * 1024 * 1024
"""Of all sessions together."""

MAX_UNCLAIMED = 1024
"""Scratchpads of sessions that other fronts have told of, and of which no request has come here yet."""

ON_THE_WAY_S = 0.5
"""For an entry that another front has given away to arrive here."""

ID_CHARS = 12

LOOSE = "loose"
"""What fronts call the entries of those who have no session."""

current: ContextVar[Scratchpad | None] = ContextVar("scratchpad", default=None)


def enter(pad: Scratchpad | None) -> None:
    """What this task serves from now on, and the tasks that it starts, is of the session of this scratchpad."""
    current.set(pad)
    current_session.set("" if pad is None else pad.session)


class Entry(msgspec.Struct, frozen=True):
    """A kept answer."""

    id: str
    tool: str
    text: str
    size_bytes: int
    at: datetime.datetime


class Scratchpad:
    """The entries of one session, least recently used first. Made by `Scratchpads`."""

    def __init__(self, pads: Scratchpads, session: str, state: SessionState) -> None:
        self._pads = pads
        self.session = session
        """What services know the session by."""
        self.state = state
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self.size_bytes = 0
        self.used = 0.0

    def keep(self, tool: str, text: str) -> Entry | None:
        """Keep an answer; None where it is too long for that."""
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > self._pads.max_bytes:
            return None
        entry = Entry(self._id_of(data), tool, text, len(data), datetime.datetime.now(datetime.UTC))
        self.take(entry)
        self._pads.kept(self.session, entry)
        return entry

    def _id_of(self, data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()[:ID_CHARS]

    def take(self, entry: Entry) -> None:
        """An entry that is new here."""
        self.drop(entry.id)
        self._entries[entry.id] = entry
        self.size_bytes += entry.size_bytes
        self.used = time.monotonic()
        while self.size_bytes > self._pads.max_bytes:
            self.drop()
        self._pads.make_room()

    def read(self, id_: str) -> Entry | None:
        entry = self._entries.get(id_)
        if entry is not None:
            self._entries.move_to_end(id_)
            self.used = time.monotonic()
        return entry

    async def found(self, id_: str) -> Entry | None:
        """The same, also where another front has yet to tell of it."""
        entry = self.read(id_)
        if entry is None and self._pads.several:
            with trio.move_on_after(ON_THE_WAY_S):
                while (entry := self.read(id_)) is None:
                    await self._pads.arrived.wait()
        return entry

    def drop(self, id_: str | None = None) -> None:
        """Drop an entry, if it is there; by default the oldest."""
        entry = self._entries.pop(next(iter(self._entries)) if id_ is None else id_, None)
        if entry is not None:
            self.size_bytes -= entry.size_bytes

    def listing(self) -> ScratchpadListing:
        newest = sorted(reversed(self._entries.values()), key=lambda entry: entry.at, reverse=True)
        return ScratchpadListing(
            entries=[
                ScratchpadEntry(
                    id=entry.id,
                    tool=entry.tool,
                    size_bytes=entry.size_bytes,
                    timestamp=entry.at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                )
                for entry in newest
            ],
            stats=ScratchpadStats(
                total_entries=len(self._entries),
                total_size_bytes=self.size_bytes,
                max_size_bytes=self._pads.max_bytes,
            ),
        )


class _Loose(Scratchpad):
    """The entries of all who have no session."""

    def _id_of(self, data: bytes) -> str:
        return secrets.token_hex(16)


class _Passing(Scratchpad):
    """Of one request without a session."""

    def __init__(self, pads: Scratchpads, client: str, loose: Scratchpad) -> None:
        super().__init__(pads, client, loose.state)
        self._loose = loose

    def keep(self, tool: str, text: str) -> Entry | None:
        return self._loose.keep(tool, text)

    def read(self, id_: str) -> Entry | None:
        return self._loose.read(id_)


class Scratchpads:
    """All scratchpads; one is gone with the last who holds it.

    `several` says whether there are other fronts, `kept` is told of each new entry for them.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES, max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self.max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._loose = _Loose(self, LOOSE, SessionState())
        self._named: weakref.WeakValueDictionary[str, Scratchpad] = weakref.WeakValueDictionary({LOOSE: self._loose})
        self._unclaimed: OrderedDict[str, Scratchpad] = OrderedDict()
        self.several = False
        self.kept: Callable[[str, Entry], None] = lambda session, entry: None
        self.arrived = trio.Event()

    def open(self, session: str = "", state: SessionState | None = None) -> Scratchpad:
        """For a session, which gets a name unless it has one."""
        pad = self._unclaimed.pop(session, None) or Scratchpad(self, session or secrets.token_hex(16), SessionState())
        pad.state = state or pad.state
        self._named[pad.session] = pad
        return pad

    def passing(self, client: str) -> Scratchpad:
        """For a request over HTTP without a session; services know it by the name of its client."""
        return _Passing(self, client, self._loose)

    def arrive(self, session: str, entry: Entry) -> None:
        """Another front has kept an entry."""
        pad = self._named.get(session)
        if pad is None:
            pad = self._unclaimed[session] = self.open(session)
            if len(self._unclaimed) > MAX_UNCLAIMED:
                self._unclaimed.popitem(last=False)
        pad.take(entry)
        self.arrived.set()
        self.arrived = trio.Event()

    @property
    def size_bytes(self) -> int:
        return sum(pad.size_bytes for pad in self._named.values())

    def make_room(self) -> None:
        """Drop entries of the scratchpads that were used least recently, while there is too much in all."""
        while self.size_bytes > self._max_total_bytes:
            min((pad for pad in self._named.values() if pad.size_bytes), key=lambda pad: pad.used).drop()


# Answers


def shortened(operation: Operation[object], value: object, text: str, structured: bytes) -> tuple[str, bytes]:
    """Text and structured content of an answer: as they are, or what stands for them once they are kept."""
    pad = current.get()
    if pad is None or not caches(operation) or len(text.encode("utf-8", "surrogatepass")) < MIN_BYTES:
        return text, structured
    entry = pad.keep(operation.name, text)
    if entry is None:
        return text, structured
    preview = "\n".join(preview_lines(value, text if operation.text else None))
    cached = {"id": entry.id, "tool": entry.tool, "size_bytes": entry.size_bytes, "preview": preview}
    said = (
        f"📁 Output cached: {entry.id} ({entry.size_bytes / 1024:.1f}KB) from {entry.tool}\n"
        f"Preview: {preview}\n"
        f'Read the whole of it with scratchpad_read(id="{entry.id}").'
    )
    return said, msgspec.json.encode({"cached": cached})


# Previews

_MAX_ROWS = 200
_MAX_CHARS = 80
_TEXT_CHARS = 300
_MAX_HEADINGS = 30
_PASSAGES_CHARS = 5000
"""Of all hits together."""

_LEAST_CHARS = 40
_HEADING = re.compile(r"^ {0,3}(#{1,6}[ \t]+\S.*)$", re.MULTILINE)
_SHOWN = (
    "id", "source_id", "source", "target", "target_id", "label", "title", "preview", "path",
    "score", "similarity", "type", "suggested_link_type", "size", "date",
)  # fmt: skip
_OF_A_HIT = ("id", "preview", "score")


def preview_lines(value: object, text: str | None) -> Iterator[str]:
    """A line that says what there is, and one for each result; of a text its beginning and its headings."""
    if text is not None:
        yield f"{_beginning(text, _TEXT_CHARS)}…"
        headings = [match[1].strip() for match in _HEADING.finditer(text)]
        yield from (f"- {heading[:_MAX_CHARS]}" for heading in headings[:_MAX_HEADINGS])
        if len(headings) > _MAX_HEADINGS:
            yield f"- and {len(headings) - _MAX_HEADINGS} more headings"
        return
    rows = _rows(value)
    if rows is None:
        yield f"{msgspec.json.encode(value).decode()[:_TEXT_CHARS]}…"
        return
    yield f"{len(rows)} result{'' if len(rows) == 1 else 's'}"
    is_search = all(isinstance(row, Mapping) and row.keys() >= set(_OF_A_HIT) for row in rows)
    # Of a search every hit is named, so that none is out of reach, and says something of itself where there is room.
    passage = min(_PASSAGES_CHARS // max(len(rows), 1), _TEXT_CHARS)
    for row in rows if is_search else rows[:_MAX_ROWS]:
        yield f"- {_shown(row, _OF_A_HIT if is_search else _SHOWN)}"
        if isinstance(row, Mapping) and passage >= _LEAST_CHARS:
            said = row.get("snippet", row.get("text"))
            yield from (f"  {line}" for line in (_beginning(said, passage),) if line)
    if not is_search and len(rows) > _MAX_ROWS:
        yield f"- and {len(rows) - _MAX_ROWS} more"


def _beginning(text: object, chars: int) -> str:
    return " ".join(text[: 2 * chars].split())[:chars] if isinstance(text, str) else ""


def _rows(value: object) -> list[object] | None:
    """The list that an answer mainly is."""
    if isinstance(value, list):
        return value
    if isinstance(value, Mapping):
        return max((held for held in value.values() if isinstance(held, list)), key=len, default=None)
    return None


def _shown(row: object, keys: tuple[str, ...]) -> str:
    if not isinstance(row, Mapping):
        return str(row)[:_MAX_CHARS]
    cells = [(key, row[key]) for key in keys if isinstance(row.get(key), str | int | float)]
    if not cells:
        return msgspec.json.encode(row).decode()[:_MAX_CHARS]
    # Ids whole, since the next call needs them, and the titles of hits, since the choice is by them.
    whole = ("preview",) if keys is _OF_A_HIT else ()
    return " | ".join(
        f"{cell:.4g}"
        if isinstance(cell, float)
        else " ".join(str(cell).split())
        if key.endswith("id") or key in whole
        else str(cell)[:_MAX_CHARS]
        for key, cell in cells
    )


# Operations


async def _read(params: ScratchpadRead, caller: str) -> ScratchpadContent:
    pad = current.get()
    entry = None if pad is None else await pad.found(params.id)
    if entry is None:
        raise OperationError(f"Scratchpad entry not found: {params.id}")
    if not params.offset and params.length is None:
        return ScratchpadContent(text=entry.text)
    end = len(entry.text) if params.length is None else params.offset + params.length
    text = entry.text[params.offset : end]
    if not text:
        raise InvalidParams(f"parameter `offset`: the entry has {len(entry.text)} characters", field="offset")
    more = end if end < len(entry.text) else None
    return ScratchpadContent(text=text, total_chars=len(entry.text), next_offset=more)


async def _list(params: ScratchpadList, caller: str) -> ScratchpadListing:
    return (current.get() or Scratchpads().open()).listing()


HANDLERS: dict[str, Callable[[Any, str], Awaitable[object]]] = {"scratchpad_read": _read, "scratchpad_list": _list}
"""What answers them, in the task that serves the client."""
