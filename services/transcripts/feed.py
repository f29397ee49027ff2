"""Feeds turns to the search; see `services.shared.forgetting`.

Each new node adds its number to the table `outbox` in the transaction that stores it, and each deleted node its hash.
If the number of turns in the search differs from the number delivered (its folder was lost or restored from a copy),
both sides are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import apsw

from proto.ops.retrieve import Group, Item, RetrieveStatus, Surroundings, Value
from services.runtime.database import Database
from services.runtime.handlers import Environment
from services.shared.forgetting import ForgettingFeed
from services.shared.search_feed import Due
from services.transcripts import conversations, forest
from services.transcripts.messages import Stripper, calls_text, spoken_text

COLLECTION = "transcripts"
AROUND = Surroundings(follows="after", whole="root")
"""A turn is found by the turn before it, and by its conversation."""

BATCH = 200
BATCH_CHARS = 2_000_000

GATHER_S = 0.1
"""A new turn waits until no other came for this long, unless a search waits for it: a hundred turns cost the search
little more than one, and what they cost delays the clients that send more."""

PIECE_CHARS = 1000
"""About the length that common small models read; more would be ignored."""

MAX_EMBEDDED = 48
"""Pieces of one turn that get a vector; the rest of a log of several megabytes is found by words."""

WORDS_CHARS = 16_000
"""Length of a piece that is found by words only."""

MAX_PIECES = 1024
"""Most pieces of one turn; 17 million characters."""


class TurnFeed(ForgettingFeed):
    """The feed of turns, and the outbox that runs it."""

    def __init__(self, env: Environment, database: Database, strip: Stripper) -> None:
        super().__init__(env, database, COLLECTION, gather_s=GATHER_S)
        self._strip = strip

    async def compare(self) -> None:
        status = await self.env.call(RetrieveStatus(collection=COLLECTION))
        # Another kernel, with a search of its own, may have delivered as many.
        if self.env.kernel or status.groups != await self.database.read(delivered):
            await super().compare()

    def stored(self, db: apsw.Connection) -> int:
        return int(db.execute("SELECT count(*) FROM node WHERE found").get)

    def reconcile(self, db: apsw.Connection, theirs: set[str]) -> list[str]:
        queued = {node_id for (node_id,) in db.execute("SELECT node_id FROM outbox WHERE node_id IS NOT NULL")}
        mine = {
            hash_.hex(): (node_id, hash_) for node_id, hash_ in db.execute("SELECT node_id, hash FROM node WHERE found")
        }
        rows = [row for name, row in mine.items() if name not in theirs and row[0] not in queued]
        db.executemany("INSERT INTO outbox(node_id, hash) VALUES(?, ?)", rows)
        return sorted(theirs - mine.keys())

    def due(self, db: apsw.Connection) -> Due | None:
        rows = list(db.execute("SELECT number, node_id, hash FROM outbox ORDER BY number LIMIT ?", (BATCH,)))
        held = {node.node_id: node for node in forest.nodes(db, [node_id for _, node_id, _ in rows if node_id])}
        numbers: list[int] = []
        latest: dict[str, Group | None] = {}  # the last entry for a hash counts
        chars = 0
        for number, node_id, hash_ in rows:
            node = held.get(node_id)
            group = None
            if node is not None and (root := forest.node_ref(db, node.root)) is not None:
                links = Links(root.hash.hex(), forest.found_before(db, node.node_id), forest.tools_of(db, node))
                group = group_of(node, links, conversations.projects(db, node.node_id), self._strip)
            latest.pop(hash_.hex(), None)
            latest[hash_.hex()] = group if group is not None and group.items else None
            chars += sum(len(item.text) for item in group.items) if group is not None else 0
            numbers.append(number)
            if chars > BATCH_CHARS:
                break
        is_full = len(numbers) == BATCH or len(numbers) < len(rows)
        if not numbers:
            return None
        put = [group for group in latest.values() if group is not None]
        dropped = [name for name, group in latest.items() if group is None]
        return Due(tuple(numbers), put, dropped, is_full=is_full)


def delivered(db: apsw.Connection) -> int:
    """Return how many turns have been delivered to the search."""
    waiting = "SELECT count(*) FROM outbox JOIN node USING(node_id) WHERE found"
    return int(db.execute(f"SELECT (SELECT count(*) FROM node WHERE found) - ({waiting})").get)


class Links(NamedTuple):
    """What a turn belongs to, by hashes, and the tools that it calls or has results of."""

    root: str
    before: str
    tools: list[str]


def group_of(node: forest.StoredMessage, links: Links, projects: list[str], strip: Stripper) -> Group:
    """Build the search entry of a turn; `projects` are those of its conversations."""
    blocks = node.blocks
    items = [
        Item(key=f"{index:04}", text=text, heading=node.role, embed=embedded)
        for index, (text, embedded) in enumerate(pieces(strip(spoken_text(blocks))))
    ]
    if called := calls_text(blocks):
        # Found by words only.
        items.append(Item(key="calls", text=called[:16_000], heading=node.role, embed=False))
    metadata: dict[str, Value] = {
        "role": node.role,
        "agent": node.agent,
        "project": projects if len(projects) > 1 else (projects or [node.project])[0],
        "at": node.at,
        "root": links.root,
    }
    more: dict[str, Value] = {
        "after": links.before, "tools": links.tools, "machine": node.elsewhere, "branch": node.branch,
    }  # fmt: skip
    return Group(id=node.hash, items=items, metadata=metadata | {name: value for name, value in more.items() if value})


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of `text` in order, each with True if it gets a vector."""
    text = text.strip()
    start = count = 0
    while start < len(text) and count < MAX_PIECES:
        embedded = count < MAX_EMBEDDED
        end = _end(text, start, PIECE_CHARS if embedded else WORDS_CHARS)
        if piece := text[start:end].strip():
            yield piece, embedded
            count += 1
        start = end


def _end(text: str, start: int, size: int) -> int:
    """Return where a piece that starts at `start` ends: after a paragraph, a line, a sentence or a word."""
    end = start + size
    if end >= len(text):
        return len(text)
    for mark in ("\n\n", "\n", ". ", " "):
        cut = text.rfind(mark, start + size // 2, end)
        if cut > 0:
            return cut + len(mark)
    return end
