"""The scratchpad: stores long results of knowledge tools for the session, and sends previews in their place.

The preview lets a model choose what to read with `scratchpad_read`. Entries are held in memory while the session lasts;
if there are several fronts, each has a copy. They are lost with the process. Clients without a session share one
scratchpad that cannot be listed. Its ids cannot be guessed, so only the client that was given an id can read the entry.
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

from proto.errors import InvalidParams, OperationError
from proto.operation import Operation
from proto.origin import Origin
from services.front.operations.steps import (
    ScratchpadContent,
    ScratchpadEntry,
    ScratchpadList,
    ScratchpadListing,
    ScratchpadRead,
    ScratchpadStats,
)
from services.front.protocol.session import SessionState
from services.front.surfaces.surface import caches

MIN_BYTES = 4096
SHORT_CHARS = MIN_BYTES // 4
"""Shortest result that is stored; shorter ones, and texts of fewer characters, are sent directly."""

MAX_BYTES = 10 * 1024 * 1024
"""Most bytes stored for one session; a single longer result is sent directly."""

MAX_TOTAL_BYTES = 256 * 1024 * 1024
"""Most bytes stored for all sessions together."""

MAX_UNCLAIMED = 1024
"""Most scratchpads of sessions that are known from other fronts only, without a request here so far."""

REPLICATION_WAIT_S = 0.5
"""How long `wait_for` waits for an entry that another front has stored."""

ID_CHARS = 12

SESSIONLESS = "sessionless"
"""Name among fronts of the scratchpad that clients without a session share."""

current: ContextVar[Scratchpad | None] = ContextVar("scratchpad", default=None)
"""The scratchpad of the client that this task serves; tasks that it starts inherit it."""


class StoredResult(msgspec.Struct, frozen=True):
    """A stored result."""

    id: str
    tool: str
    text: str
    size_bytes: int
    at: datetime.datetime


class Scratchpad:
    """The entries of one session, least recently used first. Created by `Scratchpads`."""

    def __init__(self, pads: Scratchpads, session: str, state: SessionState) -> None:
        self._pads = pads
        self.session = session
        """The name by which services know the session."""
        self.state = state
        self._entries: OrderedDict[str, StoredResult] = OrderedDict()
        self.size_bytes = 0
        self.used = 0.0

    def store(self, tool: str, text: str) -> StoredResult | None:
        """Store a result; None if it is too long."""
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > self._pads.max_bytes:
            return None
        entry = StoredResult(self._id_of(data), tool, text, len(data), datetime.datetime.now(datetime.UTC))
        self.add(entry)
        self._pads.on_stored(self.session, entry)
        return entry

    def _id_of(self, data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()[:ID_CHARS]

    def add(self, entry: StoredResult) -> None:
        """Add an entry; the least recently used ones are dropped to make room."""
        self.drop(entry.id)
        self._entries[entry.id] = entry
        self.size_bytes += entry.size_bytes
        self.used = time.monotonic()
        while self.size_bytes > self._pads.max_bytes:
            self.drop()
        self._pads.make_room()

    def read(self, id_: str) -> StoredResult | None:
        entry = self._entries.get(id_)
        if entry is not None:
            self._entries.move_to_end(id_)
            self.used = time.monotonic()
        return entry

    async def wait_for(self, id_: str) -> StoredResult | None:
        """Like `read`, but give another front time to send the entry."""
        entry = self.read(id_)
        if entry is None and self._pads.has_peers:
            with trio.move_on_after(REPLICATION_WAIT_S):
                while (entry := self.read(id_)) is None:
                    await self._pads.replicated.wait()
        return entry

    def drop(self, id_: str | None = None) -> None:
        """Drop an entry if it exists; by default the least recently used one."""
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


class _SessionlessScratchpad(Scratchpad):
    """The scratchpad that all clients without a session share."""

    def _id_of(self, data: bytes) -> str:
        return secrets.token_hex(16)


class _RequestScratchpad(Scratchpad):
    """The scratchpad of one request without a session; its entries are in the shared one."""

    def __init__(self, pads: Scratchpads, client: str, sessionless: Scratchpad) -> None:
        super().__init__(pads, client, sessionless.state)
        self._sessionless = sessionless

    def store(self, tool: str, text: str) -> StoredResult | None:
        return self._sessionless.store(tool, text)

    def read(self, id_: str) -> StoredResult | None:
        return self._sessionless.read(id_)


class Scratchpads:
    """All scratchpads; each lives as long as something refers to it.

    `has_peers` says whether there are other fronts.  `on_stored` is called with each new entry, to replicate it.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES, max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self.max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._sessionless = _SessionlessScratchpad(self, SESSIONLESS, SessionState())
        self._named: weakref.WeakValueDictionary[str, Scratchpad] = weakref.WeakValueDictionary(
            {SESSIONLESS: self._sessionless}
        )
        self._unclaimed: OrderedDict[str, Scratchpad] = OrderedDict()
        self.has_peers = False
        self.on_stored: Callable[[str, StoredResult], None] = lambda session, entry: None
        self.replicated = trio.Event()

    def open(self, session: str = "", state: SessionState | None = None) -> Scratchpad:
        """Open the scratchpad of a session; a session without a name gets a random one."""
        pad = self._unclaimed.pop(session, None) or Scratchpad(self, session or secrets.token_hex(16), SessionState())
        pad.state = state or pad.state
        self._named[pad.session] = pad
        return pad

    def for_request(self, client: str) -> Scratchpad:
        """Open the scratchpad of an HTTP request without a session; services know it by the name of its client."""
        return _RequestScratchpad(self, client, self._sessionless)

    def replicate(self, session: str, entry: StoredResult) -> None:
        """Add an entry that another front has stored."""
        pad = self._named.get(session)
        if pad is None:
            pad = self._unclaimed[session] = self.open(session)
            if len(self._unclaimed) > MAX_UNCLAIMED:
                self._unclaimed.popitem(last=False)
        pad.add(entry)
        self.replicated.set()
        self.replicated = trio.Event()

    @property
    def size_bytes(self) -> int:
        return sum(pad.size_bytes for pad in self._named.values())

    def make_room(self) -> None:
        """While all entries together exceed the limit, drop one of the least recently used scratchpad."""
        while self.size_bytes > self._max_total_bytes:
            min((pad for pad in self._named.values() if pad.size_bytes), key=lambda pad: pad.used).drop()


# Results


def shortened(operation: Operation[object], value: object, text: str, structured: bytes) -> tuple[str, bytes]:
    """Return the text and structured content of a result unchanged, or a preview of them once they are stored."""
    pad = current.get()
    if pad is None or not caches(operation) or len(text.encode("utf-8", "surrogatepass")) < MIN_BYTES:
        return text, structured
    entry = pad.store(operation.name, text)
    if entry is None:
        return text, structured
    preview = "\n".join(preview_lines(value, text if operation.text else None))
    cached = {"id": entry.id, "tool": entry.tool, "size_bytes": entry.size_bytes, "preview": preview}
    notice = (
        f"📁 Output cached: {entry.id} ({entry.size_bytes / 1024:.1f}KB) from {entry.tool}\n"
        f"Preview: {preview}\n"
        f'Read the whole of it with scratchpad_read(id="{entry.id}").'
    )
    return notice, msgspec.json.encode({"cached": cached})


# Previews

_MAX_ROWS = 200
_MAX_CHARS = 80
_TEXT_CHARS = 300
_MAX_HEADINGS = 30
_PASSAGES_CHARS = 5000
"""Most characters of the passages of all hits together."""

_LEAST_CHARS = 40
"""Shortest passage that is shown."""

_HEADING = re.compile(r"^ {0,3}(#{1,6}[ \t]+\S.*)$", re.MULTILINE)
_SHOWN = (
    "id", "source_id", "source", "target", "target_id", "label", "title", "preview", "path",
    "score", "similarity", "type", "suggested_link_type", "size", "date",
)  # fmt: skip
_OF_A_HIT = ("id", "preview", "score")


def preview_lines(value: object, text: str | None) -> Iterator[str]:
    """Yield the number of results and a line for each; for a text, its beginning and its headings."""
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
    # A search lists every hit, so that each can be read, with a passage if there is room.
    passage = min(_PASSAGES_CHARS // max(len(rows), 1), _TEXT_CHARS)
    for row in rows if is_search else rows[:_MAX_ROWS]:
        yield f"- {_shown(row, _OF_A_HIT if is_search else _SHOWN)}"
        if isinstance(row, Mapping) and passage >= _LEAST_CHARS:
            text_of_hit = row.get("snippet", row.get("text"))
            yield from (f"  {line}" for line in (_beginning(text_of_hit, passage),) if line)
    if not is_search and len(rows) > _MAX_ROWS:
        yield f"- and {len(rows) - _MAX_ROWS} more"


def _beginning(text: object, chars: int) -> str:
    return " ".join(text[: 2 * chars].split())[:chars] if isinstance(text, str) else ""


def _rows(value: object) -> list[object] | None:
    """Return the longest list in a result; None if it has none."""
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
    # Ids are not truncated because the next call needs them, nor are the titles of hits, which the model chooses by.
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


async def _read(params: ScratchpadRead, origin: Origin) -> ScratchpadContent:
    pad = current.get()
    entry = None if pad is None else await pad.wait_for(params.id)
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


async def _list(params: ScratchpadList, origin: Origin) -> ScratchpadListing:
    return (current.get() or Scratchpads().open()).listing()


HANDLERS: dict[str, Callable[[Any, Origin], Awaitable[object]]] = {"scratchpad_read": _read, "scratchpad_list": _list}
"""Handlers of the scratchpad's operations; they run in the task that serves the client."""
