"""The forest of conversations: placing messages in it, and reading them back.

The functions take a connection and run inside the caller's transaction. A node's ancestors always exist: a deleted node
that others follow keeps its place without its content.

If a conversation continues with another model, or under an agent that adds and removes its own remarks, all hashes of
its history would be new. Such a history is recognised by its projection, up to the last model reply that is already
known, and the conversation continues from there.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import apsw
import msgspec

from services.transcripts.messages import (
    ASSISTANT,
    Message,
    Turn,
    canonical,
    content_json,
    node_hash,
    projection,
)
from services.transcripts.operations.conversations import Block, Bucket

read_blocks = msgspec.json.Decoder(list[Block]).decode
"""Decodes the content of a node."""

Strip = Callable[[str], str]

MACHINE = platform.node()
_LOOKED_BACK = 16

_NODE_REF = "node_id, hash, root, depth, projection"

_NEXT = (
    "SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name='node'), 0),"
    " coalesce((SELECT max(node_id) FROM node), 0)) + 1"
)
"""The number that AUTOINCREMENT gives to the next node."""


class NodeRef(NamedTuple):
    """A position in the forest: new messages are added after this node."""

    node_id: int
    hash: bytes
    root: int
    depth: int
    projection: bytes


class Step(NamedTuple):
    """A message with everything prepared except its place.

    `projection` is the message's projection, provided that the conversation begins with this turn.
    """

    message: Message
    content: bytes
    model: str
    projection: bytes


class Prepared(NamedTuple):
    """A turn after all the work that needs no database."""

    turn: Turn
    steps: list[Step]


@dataclass(slots=True)
class Placed:
    """The result of adding a turn: the nodes of its messages in order, and how many of them are new."""

    nodes: list[NodeRef]
    new: int = 0


def prepare(turn: Turn, strip: Strip, parent: bytes = b"") -> Prepared:
    """Prepare a turn; `parent` is the projection of the node that it follows. Raises OutOfRange."""
    steps: list[Step] = []
    for message in turn.messages:
        content = content_json(message.content)
        parent = projection(parent, message.role, message.content, strip)
        steps.append(Step(message, content, message.model or turn.model, parent))
    return Prepared(turn, steps)


def add(db: apsw.Connection, prepared: Prepared, parent: NodeRef | None, found: Callable[[Message], bool]) -> Placed:
    """Add a turn after `parent`, or as a root; existing nodes are unchanged.

    `found` returns True if a message has searchable text.
    """
    turn = prepared.turn
    if turn.copies and (original := _copied(db, turn.copies, prepared.steps)) is not None:
        return Placed([original])
    hashes: list[bytes] = []  # the hashes of the messages if all of them were new
    above = parent.hash if parent is not None else b""
    for step in prepared.steps:
        above = _hash(turn, step, above)
        hashes.append(above)
    start, nodes = _known(db, prepared, hashes)
    placed = Placed(nodes)
    added: set[int] = set()
    at = nodes[-1] if nodes else parent
    # While each parent has the expected hash, these are the hashes of the nodes, and none of the nodes exists.
    expected = at is None or not nodes or at.hash == hashes[start - 1]
    prompt: int | None = None
    for step, name in zip(prepared.steps[start:], hashes[start:], strict=True):
        hash_ = name if expected else _hash(turn, step, b"" if at is None else at.hash)
        known = None if expected else node_ref(db, hash_)
        if known is None and step.message.reply:
            # The reply may already be stored as an echo.
            after = None if at is None else at.node_id
            known = _node_ref(db, "projection=? AND parent IS ? AND reply=0", step.projection, after)
        if known is None:
            prompt = prompt or keep_prompt(db, turn.system)
            known = _new(db, turn, step, hash_, at, prompt, found)
            placed.new += 1
            added.add(known.node_id)
        expected = expected and known.hash == hash_
        at = known
        placed.nodes.append(at)
    for step, node in zip(prepared.steps, placed.nodes, strict=True):
        if step.message.reply and node.node_id not in added:
            _was_said(db, node.node_id, step)
    return placed


def _hash(turn: Turn, step: Step, parent: bytes) -> bytes:
    carried = {"role": step.message.role, "model": step.model, "provider": turn.provider, "agent": turn.agent}
    return node_hash(canonical(step.content, parent=parent.hex(), **carried))


def _known(db: apsw.Connection, prepared: Prepared, hashes: Sequence[bytes]) -> tuple[int, list[NodeRef]]:
    """Return how many of the first messages are already stored, and their nodes."""
    for index in reversed(range(len(hashes))):
        known = node_ref(db, hashes[index])
        message = prepared.steps[index].message
        if known is None and message.role == ASSISTANT and not message.reply:
            # A recorded reply takes precedence over one that a client only repeated.
            known = _node_ref(db, "projection=? ORDER BY reply DESC, node_id", prepared.steps[index].projection)
        if known is not None:
            return index + 1, [NodeRef(*row) for row in lineage(db, known.node_id, _NODE_REF, index + 1)]
    return 0, []


def _copied(db: apsw.Connection, hash_: str, steps: Sequence[Step]) -> NodeRef | None:
    """Return the stored turn that a message says it repeats; None if it is not stored, or differs."""
    digest = digest_of(hash_)
    row = db.execute(f"SELECT {_NODE_REF}, role, content FROM node WHERE hash=?", (digest,)).fetchone()
    if row is None or len(steps) != 1:
        return None
    *place, role, content = row
    original, step = NodeRef(*place), steps[0]
    # A deleted turn has no content any more, but its projection.
    is_same = (role, content) == (step.message.role, step.content) or original.projection == step.projection
    return original if is_same else None


def _node_ref(db: apsw.Connection, condition: str, *bindings: apsw.SQLiteValue) -> NodeRef | None:
    row = db.execute(f"SELECT {_NODE_REF} FROM node WHERE {condition} LIMIT 1", bindings).fetchone()
    return None if row is None else NodeRef(*row)


def keep_prompt(db: apsw.Connection, text: str) -> int | None:
    """Store a system prompt and return its number; None for an empty one."""
    if not text:
        return None
    digest = hashlib.sha256(text.encode()).digest()[:16]
    row = db.execute("SELECT prompt_id FROM prompt WHERE digest=?", (digest,)).fetchone()
    if row is not None:
        return int(row[0])
    db.execute("INSERT INTO prompt(digest, text) VALUES(?, ?)", (digest, text))
    return db.last_insert_rowid()


def _new(
    db: apsw.Connection,
    turn: Turn,
    step: Step,
    hash_: bytes,
    at: NodeRef | None,
    prompt: int | None,
    found: Callable[[Message], bool],
) -> NodeRef:
    message = step.message
    barred = is_barred(db, step.projection)
    when = message.at if message.at is not None else turn.at if turn.at is not None else time.time()
    columns = {
        "gone": barred,
        "found": not barred and found(message),
        "role": message.role,
        "model": step.model,
        "content": b"[]" if barred else step.content,
        "provider": turn.provider,
        "agent": turn.agent,
        "project": turn.project,
        "machine": MACHINE,
        "branch": turn.branch,
        "at": when,
        "thinking": "" if barred else as_json(message.thinking),
        "prompt_id": prompt,
    }
    if message.reply:
        columns |= {"reply": True, "stop_reason": message.stop_reason, "usage": as_json(message.usage)}
    return insert(db, at, hash_, step.projection, columns)


def is_barred(db: apsw.Connection, projection_: bytes) -> bool:
    """Return True if a message was deleted for good and must not be stored again."""
    return db.execute("SELECT 1 FROM barred WHERE projection=?", (projection_,)).get is not None


def insert(
    db: apsw.Connection,
    above: NodeRef | None,
    hash_: bytes,
    projection_: bytes,
    columns: Mapping[str, apsw.SQLiteValue],
) -> NodeRef:
    """Insert a node after `above`; a `found` node is queued for the search. `columns` are all others."""
    depth = 1 if above is None else above.depth + 1
    # A root names itself, so its number is known before it is inserted.
    node_id = int(db.execute(_NEXT).get) if above is None else None
    root = node_id if above is None else above.root
    row = {
        "node_id": node_id,
        "hash": hash_,
        "parent": above and above.node_id,
        "root": root,
        "depth": depth,
        "projection": projection_,
        **columns,
    }
    db.execute(f"INSERT INTO node({', '.join(row)}) VALUES({', '.join('?' * len(row))})", tuple(row.values()))
    node_id = db.last_insert_rowid()
    if columns["found"]:
        db.execute("INSERT INTO outbox(node_id, hash) VALUES(?, ?)", (node_id, hash_))
    return NodeRef(node_id, hash_, node_id if root is None else root, depth, projection_)


def _was_said(db: apsw.Connection, node_id: int, step: Step) -> None:
    """Store the fields that only the reply itself has in a node that existed; repeating this changes nothing."""
    message = step.message
    db.execute(
        "UPDATE node SET reply=1, stop_reason=?2, usage=?3, thinking=iif(thinking='' AND NOT gone, ?4, thinking)"
        " WHERE node_id=?1 AND NOT reply",
        (node_id, message.stop_reason, as_json(message.usage), as_json(message.thinking)),
    )


def as_json(value: object) -> str:
    """Encode a column value as JSON; empty for an empty value."""
    return msgspec.json.encode(value).decode() if value else ""


# Reading


def read_usage(figures: str) -> dict[str, Any]:
    """Decode token figures from a column."""
    return msgspec.json.decode(figures, type=dict[str, Any]) if figures else {}


class StoredMessage(msgspec.Struct, frozen=True):
    """A stored message: a node of the forest."""

    node_id: int
    hash: str
    parent: int | None
    root: int
    role: str
    content: bytes
    model: str
    provider: str
    agent: str
    project: str
    at: float
    stop_reason: str
    usage: str
    machine: str
    branch: str

    @property
    def elsewhere(self) -> str:
        """The machine that stored it first, if it was another one."""
        return "" if self.machine == MACHINE else self.machine

    @property
    def blocks(self) -> list[Block]:
        return read_blocks(self.content)

    @property
    def bucket(self) -> Bucket:
        return Bucket(
            type="message",
            role=self.role,
            content=self.blocks,
            model=self.model,
            provider=self.provider,
            agent_name=self.agent,
        )

    @property
    def tokens(self) -> dict[str, Any] | None:
        return read_usage(self.usage) if self.usage else None


_NODE = (
    "node_id, hash, parent, root, role, content, model, provider, agent, project, at, stop_reason, usage, machine,"
    " branch"
)


def _node(row: tuple[Any, ...]) -> StoredMessage:
    return StoredMessage(row[0], row[1].hex(), *row[2:])


def find(db: apsw.Connection, hash_: str) -> StoredMessage | None:
    """Return the node with this hash; None if it does not exist or its content was deleted."""
    digest = digest_of(hash_)
    if digest is None:
        return None
    row = db.execute(f"SELECT {_NODE} FROM node WHERE hash=? AND NOT gone", (digest,)).fetchone()
    return None if row is None else _node(row)


def digest_of(hash_: str) -> bytes | None:
    """Decode a hash from hexadecimal digits; None if it is not a hash."""
    try:
        digest = bytes.fromhex(hash_)
    except ValueError:
        return None
    return digest if len(digest) == 32 and len(hash_) == 64 else None


def lineage(db: apsw.Connection, node_id: int, columns: str, limit: int = 0) -> list[tuple[Any, ...]]:
    """Return these columns of the nodes from the root to this one, root first.

    Rows are plain tuples, because paths are long. `limit` selects the last nodes; 0 means all.
    """
    last = f" LIMIT {limit}" if limit else ""
    # A node is always newer than its parent, so sorting the ids alone is enough, without any text.
    rows = db.execute(
        f"SELECT {columns} FROM node WHERE node_id IN ("
        "WITH RECURSIVE up(node_id, above) AS (SELECT node_id, parent FROM node WHERE node_id=? UNION ALL"
        f" SELECT node.node_id, node.parent FROM up CROSS JOIN node ON node.node_id=up.above{last})"
        " SELECT node_id FROM up) ORDER BY node_id",
        (node_id,),
    )
    return list(rows)


def chain(db: apsw.Connection, node_id: int) -> list[int]:
    """Return the ids of the nodes from the root to this one, root first."""
    rows = db.execute(
        "WITH RECURSIVE up(node_id) AS (SELECT ? UNION ALL SELECT node.parent FROM up CROSS JOIN node"
        " ON node.node_id=up.node_id WHERE node.parent IS NOT NULL) SELECT node_id FROM up",
        (node_id,),
    )
    # A node is always newer than its parent.
    return sorted(id_ for (id_,) in rows)


def found_before(db: apsw.Connection, node_id: int) -> str:
    """Return the hash of the nearest turn before this one that the search has; empty if there is none."""
    row = db.execute(
        "WITH RECURSIVE up(hash, found, above, steps) AS ("
        "SELECT above.hash, above.found, above.parent, 1 FROM node JOIN node above ON above.node_id=node.parent"
        " WHERE node.node_id=? UNION ALL"
        " SELECT node.hash, node.found, node.parent, steps + 1 FROM up JOIN node ON node.node_id=up.above"
        f" WHERE NOT up.found AND steps < {_LOOKED_BACK}) SELECT lower(hex(hash)) FROM up WHERE found",
        (node_id,),
    ).get
    return str(row or "")


def tools_of(db: apsw.Connection, node: StoredMessage) -> list[str]:
    """Return the names of the tools that a turn calls, or has results of, without repetitions."""
    blocks = node.blocks
    names = dict.fromkeys(block.tool_name for block in blocks if block.tool_name)
    wanted = {block.tool_result_id for block in blocks if block.tool_result_id}
    for (content,) in lineage(db, node.node_id, "content", _LOOKED_BACK)[-2::-1] if wanted else ():
        for block in read_blocks(content):
            if block.tool_name and block.tool_use_id in wanted:
                names[block.tool_name] = None
                wanted.discard(block.tool_use_id)
        if not wanted:
            break
    return list(names)


def nodes(db: apsw.Connection, node_ids: Sequence[int]) -> Iterator[StoredMessage]:
    """Yield the nodes that exist, in any order."""
    marks = ",".join("?" * len(node_ids))
    for row in db.execute(f"SELECT {_NODE} FROM node WHERE node_id IN ({marks}) AND NOT gone", list(node_ids)):
        yield _node(row)


def node_ref(db: apsw.Connection, name: int | bytes) -> NodeRef | None:
    """Return the place of a node, given by its number or hash."""
    return _node_ref(db, "node_id=?" if isinstance(name, int) else "hash=?", name)


def record_key(name: str, source: str = "") -> bytes:
    """Return the key of the table `record` for a record's own name; a number (`#1`) is local to its source."""
    told = f"{source}\0{name}" if name.startswith("#") else name
    return hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def followed(db: apsw.Connection, turn: Turn) -> NodeRef | None:
    """Return the message that a turn of an API with stored conversations continues; None if it is not known.

    A turn that is stored already, by the id of its reply, stays where it is.
    """
    if (reply := _named(db, turn.reply_id)) is not None:
        count = len(turn.messages)
        path = lineage(db, reply.node_id, _NODE_REF, count + 1)
        return NodeRef(*path[0]) if len(path) > count else None
    return _named(db, turn.follows)


def _named(db: apsw.Connection, name: str) -> NodeRef | None:
    node_id = db.execute("SELECT node_id FROM record WHERE key=?", (record_key(name),)).get if name else None
    return node_ref(db, int(node_id)) if node_id else None


def name_reply(db: apsw.Connection, turn: Turn, node: NodeRef) -> None:
    """Let later turns follow a reply by its id, and by that of its conversation unless the turn is stored already."""
    if _named(db, turn.reply_id) is None:
        names = [name for name in (turn.reply_id, turn.thread_id) if name]
        rows = [(record_key(name), node.node_id) for name in names]
        db.executemany("INSERT OR REPLACE INTO record(key, node_id) VALUES(?, ?)", rows)


def tree(db: apsw.Connection, root: int, limit: int) -> list[tuple[StoredMessage, str]]:
    """Return the nodes from this root on, oldest first, each with its parent's hash; nodes without content too."""
    columns = ", ".join(f"node.{name}" for name in _NODE.split(", "))
    rows = db.execute(
        f"SELECT {columns}, above.hash FROM node LEFT JOIN node above ON above.node_id=node.parent"
        " WHERE node.node_id IN (WITH RECURSIVE down(node_id) AS (SELECT ?1 UNION ALL"
        " SELECT node.node_id FROM down CROSS JOIN node ON node.parent=down.node_id LIMIT ?2)"
        " SELECT node_id FROM down) ORDER BY node.node_id",
        (root, limit),
    )
    return [(_node(row[:-1]), row[-1].hex() if row[-1] else "") for row in rows]


_LEAF = "NOT gone AND NOT EXISTS(SELECT 1 FROM node child WHERE child.parent=node.node_id)"


def leaves(db: apsw.Connection, limit: int) -> list[tuple[int, str]]:
    """Return the last messages of the newest conversations, with their hashes."""
    rows = db.execute(f"SELECT node_id, hash FROM node WHERE {_LEAF} ORDER BY node_id DESC LIMIT ?", (limit,))
    return [(int(node_id), digest.hex()) for node_id, digest in rows]


def counts(db: apsw.Connection) -> tuple[int, int, int]:
    """Count nodes, roots and leaves, not counting those with deleted content."""
    kinds = f"count(*), count(*) FILTER (WHERE parent IS NULL), count(*) FILTER (WHERE {_LEAF})"
    ((all_, roots, ends),) = db.execute(f"SELECT {kinds} FROM node WHERE NOT gone")
    return int(all_), int(roots), int(ends)


def prompt_text(db: apsw.Connection, prompt_id: int | None) -> str:
    """Return a system prompt; empty if there was none."""
    row = db.execute("SELECT text FROM prompt WHERE prompt_id=?", (prompt_id,)).fetchone()
    return "" if row is None else str(row[0])
