"""The turns of each conversation, and the tokens of its model calls.

Equal turns are stored once; a conversation is a set of turns. It is identified by its session if its file states one,
otherwise by its first user turn, and then includes the turns before that one. Each conversation has its own project and
times for a shared turn. A model call is counted once, however many files repeat it: a forked session copies the history
of its parent.

A conversation is provisional if its name is not final: no user turn is known yet, or it was derived from a database
that did not record sessions. Its turns move to the first other conversation that claims them.

The functions take a connection and run inside the caller's transaction.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apsw

from services.transcripts import forest, titles
from services.transcripts.forest import NodeRef, Placed, Prepared, Strip
from services.transcripts.messages import IMAGE, Stripper, Turn
from services.transcripts.operations.conversations import Block
from services.transcripts.providers.wire import count
from services.transcripts.titles import first_line

TABLES = """
CREATE TABLE conversation(
    conversation_id INTEGER PRIMARY KEY AUTOINCREMENT,
    -- A digest of the session, or of the first user turn's hash.
    name BLOB NOT NULL UNIQUE,
    -- The first user turn of a conversation without a session: all turns below it are part of the conversation.
    first INTEGER,
    provisional INTEGER NOT NULL,
    project TEXT NOT NULL
);
CREATE INDEX conversation_provisional ON conversation(conversation_id) WHERE provisional;

-- The turns of a conversation in the order in which it stated them.
CREATE TABLE member(
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation_id INTEGER NOT NULL,
    node_id INTEGER NOT NULL,
    at REAL NOT NULL,
    -- Whether a subagent said or heard it.
    side INTEGER NOT NULL,
    -- Whether its tokens are in the table `call`, here or in another conversation.
    counted INTEGER NOT NULL,
    UNIQUE(conversation_id, node_id)
);
CREATE INDEX member_node ON member(node_id);

-- Calls of models whose tokens are known.
CREATE TABLE call(
    key BLOB PRIMARY KEY,
    conversation_id INTEGER NOT NULL,
    -- The turn that it is deleted with.
    node_id INTEGER,
    model TEXT NOT NULL,
    usage TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX call_conversation ON call(conversation_id);
CREATE INDEX call_node ON call(node_id);

CREATE TRIGGER node_gone AFTER UPDATE OF gone ON node WHEN NEW.gone BEGIN
    DELETE FROM call WHERE node_id=NEW.node_id;
END;
CREATE TRIGGER node_removed AFTER DELETE ON node BEGIN
    DELETE FROM member WHERE node_id=OLD.node_id;
    DELETE FROM call WHERE node_id=OLD.node_id;
END;
CREATE TRIGGER conversation_ends AFTER DELETE ON member
WHEN NOT EXISTS(SELECT 1 FROM member WHERE conversation_id=OLD.conversation_id) BEGIN
    DELETE FROM conversation WHERE conversation_id=OLD.conversation_id;
    DELETE FROM call WHERE conversation_id=OLD.conversation_id;
END;
"""

_DIGEST_BYTES = 16


class Membership(NamedTuple):
    """A turn's membership in a conversation, as exported by `linckia export`."""

    name: bytes
    is_first: bool
    provisional: bool
    project: str
    at: float
    side: bool
    counted: bool


def _digest(kind: str, *parts: bytes) -> bytes:
    return hashlib.blake2b(b"\0".join((kind.encode(), *parts)), digest_size=_DIGEST_BYTES).digest()


def _session_name(turn: Turn) -> bytes:
    return _digest("session", turn.agent.encode(), turn.session.encode("utf-8", "surrogatepass"))


def _is_said(blocks: Sequence[Block], strip: Strip) -> bool:
    return bool(first_line(blocks, strip)) or any(block.type == IMAGE for block in blocks)


# Writing


def claim(db: apsw.Connection, prepared: Prepared, placed: Placed, after: NodeRef | None, strip: Strip) -> None:
    """Add newly placed turns to their conversation, count their calls, and store its titles.

    `after` is the turn that they follow; None at the beginning of a conversation.
    """
    turn = prepared.turn
    if not (placed.nodes or turn.calls or turn.counted):
        if turn.titles and (id_ := _of_titles(db, turn, after)) is not None:
            titles.store(db, id_, turn.titles)
        return
    if turn.copies and placed.nodes and not placed.new and placed.nodes[-1].hash.hex() == turn.copies:
        # It stays with its own conversation, which the session only continues.
        return
    before: list[tuple[int, float]] = []
    start = 0
    if turn.session:
        name = _session_name(turn)
        id_ = _conversation(db, name, None, turn.project, provisional=False)
    elif turn.follows and after is not None and (found := _of_node(db, after.node_id)) is not None:
        id_, name = found
    else:
        if not placed.nodes:
            return
        id_, name, before = _of_first_turn(db, prepared, placed, after, strip)
        known = len(placed.nodes) - placed.new
        if known and _is_member(db, id_, placed.nodes[known - 1].node_id):
            start = known
    titles.store(db, id_, turn.titles)
    now = time.time()
    at_node = placed.nodes[-1] if placed.nodes else after
    is_stated = bool(turn.calls or turn.counted)
    counted = {at_node.node_id} if is_stated and at_node is not None else set[int]()
    rows = [(node_id, at, False) for node_id, at in before]
    for index, (step, node) in enumerate(zip(prepared.steps, placed.nodes, strict=True)):
        message = step.message
        if not is_stated and message.reply and message.usage:
            counted.add(node.node_id)
            _count(db, _digest("turn", name, node.hash), id_, node.node_id, message.model or step.model, message.usage)
        if index >= start:
            at = message.at if message.at is not None else turn.at if turn.at is not None else now
            rows.append((node.node_id, at, node.node_id in counted))
    joined = _join(db, id_, rows, side=turn.side)
    if joined and turn.project:
        _tell_project(db, [node.node_id for node in placed.nodes[start : len(placed.nodes) - placed.new]])
    if joined < len(rows) or not placed.new:
        for node_id in counted:
            _mark_counted(db, id_, node_id)
    _count_calls(db, id_, turn, at_node, has_own_node=bool(placed.nodes))


def _count_calls(db: apsw.Connection, id_: int, turn: Turn, at_node: NodeRef | None, *, has_own_node: bool) -> None:
    """Count the calls that a log states for a turn, or for the one before it."""
    for call in turn.calls:
        key = _digest("call", call.key.encode("utf-8", "surrogatepass"))
        # A fork that came first may have counted it.
        is_own = bool(call.session) and call.session == turn.session
        _count(db, key, id_, None if at_node is None else at_node.node_id, call.model, call.usage, is_own=is_own)
        if at_node is not None and not has_own_node:
            db.execute(
                "UPDATE node SET usage=? WHERE node_id=? AND usage='' AND reply AND NOT gone",
                (forest.as_json(call.usage), at_node.node_id),
            )


def _conversation(db: apsw.Connection, name: bytes, first: int | None, project: str, *, provisional: bool) -> int:
    row = db.execute("SELECT conversation_id, project, provisional FROM conversation WHERE name=?", (name,)).fetchone()
    if row is None:
        of = "name, first, provisional, project"
        db.execute(f"INSERT INTO conversation({of}) VALUES(?, ?, ?, ?)", (name, first, provisional, project))
        return db.last_insert_rowid()
    id_, old, was_provisional = row
    if (project and not old) or (was_provisional and not provisional):
        db.execute(
            "UPDATE conversation SET project=?, provisional=? WHERE conversation_id=?",
            (old or project, was_provisional and provisional, id_),
        )
    return int(id_)


def _of_first_turn(
    db: apsw.Connection, prepared: Prepared, placed: Placed, after: NodeRef | None, strip: Strip
) -> tuple[int, bytes, list[tuple[int, float]]]:
    """Find a conversation by its first user turn.

    Returns its number, its name, and the turns before the placed ones that it lacks.
    """
    turn = prepared.turn
    before: list[tuple[int, float]] = []
    path: list[tuple[NodeRef, bool]] = []
    if after is not None:
        row = db.execute(
            "SELECT conversation_id, name FROM member JOIN conversation USING(conversation_id)"
            " WHERE node_id=?1 AND first<=?1",
            (after.node_id,),
        ).fetchone()
        if row is not None:
            return int(row[0]), bytes(row[1]), []
        for node_id, hash_, root, depth, projection, role, content, at in forest.lineage(
            db, after.node_id, "node_id, hash, root, depth, projection, role, content, at"
        ):
            said = role == "user" and _is_said(forest.read_blocks(content), strip)
            path.append((NodeRef(node_id, hash_, root, depth, projection), said))
            before.append((node_id, at))
    for step, node in zip(prepared.steps, placed.nodes, strict=True):
        path.append((node, step.message.role == "user" and _is_said(step.message.content, strip)))
    first = next((node for node, said in path if said), None)
    name = _digest("first", (first or path[0][0]).hash)
    node_id = None if first is None else first.node_id
    return _conversation(db, name, node_id, turn.project, provisional=first is None), name, before


def _of_node(db: apsw.Connection, node_id: int) -> tuple[int, bytes] | None:
    """Return number and name of the conversation that stated a turn first."""
    row = db.execute(
        "SELECT conversation_id, name FROM member JOIN conversation USING(conversation_id) WHERE node_id=?"
        " ORDER BY number LIMIT 1",
        (node_id,),
    ).fetchone()
    return None if row is None else (int(row[0]), bytes(row[1]))


def _of_titles(db: apsw.Connection, turn: Turn, after: NodeRef | None) -> int | None:
    """Return the conversation of titles that come without a turn: that of their session, or of the turn before."""
    if turn.session:
        return _conversation(db, _session_name(turn), None, turn.project, provisional=False)
    found = None if after is None else _of_node(db, after.node_id)
    return None if found is None else found[0]


def _is_member(db: apsw.Connection, id_: int, node_id: int) -> bool:
    query = "SELECT 1 FROM member WHERE conversation_id=? AND node_id=?"
    return db.execute(query, (id_, node_id)).fetchone() is not None


def _join(db: apsw.Connection, id_: int, rows: Sequence[tuple[int, float, bool]], *, side: bool) -> int:
    """Add turns to a conversation. Each row is a number, a time, and True if its tokens are counted.

    Returns how many were not part of it before.
    """
    joined = 0
    for node_id, at, counted in rows:
        db.execute(
            "INSERT OR IGNORE INTO member(conversation_id, node_id, at, side, counted) VALUES(?, ?, ?, ?, ?)",
            (id_, node_id, at, side, counted),
        )
        joined += db.changes()
    if db.execute("SELECT EXISTS(SELECT 1 FROM conversation WHERE provisional AND conversation_id<>?)", (id_,)).get:
        is_provisional = db.execute("SELECT provisional FROM conversation WHERE conversation_id=?", (id_,)).get
        if not is_provisional:
            leave(db, [node_id for node_id, *_ in rows])
    return joined


def leave(db: apsw.Connection, node_ids: Sequence[int]) -> None:
    """Remove turns from provisional conversations."""
    provisional = "conversation_id IN (SELECT conversation_id FROM conversation WHERE provisional)"
    for node_id in node_ids:
        db.execute(f"DELETE FROM call WHERE node_id=? AND {provisional}", (node_id,))
        db.execute(f"DELETE FROM member WHERE node_id=? AND {provisional}", (node_id,))


def part_with(db: apsw.Connection, id_: int, node_id: int) -> bool:
    """Remove a turn from a conversation if another conversation shares it. Returns True if one does."""
    others = "SELECT conversation_id FROM member WHERE node_id=?1 AND conversation_id<>?2"
    if db.execute(f"{others} LIMIT 1", (node_id, id_)).fetchone() is None:
        return False
    # A call that another conversation also contains is counted there from now on.
    heir = db.execute(
        f"{others} AND counted AND NOT EXISTS(SELECT 1 FROM call WHERE call.conversation_id=member.conversation_id"
        " AND call.node_id=?1) LIMIT 1",
        (node_id, id_),
    ).get
    mine = "WHERE conversation_id=? AND node_id=?"
    if heir is None:
        db.execute(f"DELETE FROM call {mine}", (id_, node_id))
    else:
        db.execute(f"UPDATE call SET conversation_id=? {mine}", (heir, id_, node_id))
    db.execute(f"DELETE FROM member {mine}", (id_, node_id))
    return True


def _tell_project(db: apsw.Connection, node_ids: Sequence[int]) -> None:
    """Reindex turns that were stored before and now belong to a second project."""
    for node_id in node_ids:
        if len(projects(db, node_id)) > 1:
            db.execute(
                "INSERT INTO outbox(node_id, hash) SELECT node_id, hash FROM node WHERE node_id=?1 AND found"
                " AND NOT EXISTS(SELECT 1 FROM outbox WHERE node_id=?1)",
                (node_id,),
            )


def _count(
    db: apsw.Connection,
    key: bytes,
    id_: int,
    node_id: int | None,
    model: str,
    usage: dict[str, Any],
    *,
    is_own: bool = False,
) -> None:
    """Count a call unless another conversation has counted it, which a conversation's own call leaves.

    Larger figures replace earlier ones.
    """
    row = db.execute("SELECT conversation_id, node_id, usage FROM call WHERE key=?", (key,)).fetchone()
    if row is None:
        values = (key, id_, node_id, model, forest.as_json(usage))
        db.execute("INSERT INTO call(key, conversation_id, node_id, model, usage) VALUES(?, ?, ?, ?, ?)", values)
        return
    owner, at_node, figures = row
    if owner != id_ and not is_own:
        return
    told = forest.read_usage(figures)
    kept = figures if count(told, "total_tokens") > count(usage, "total_tokens") else forest.as_json(usage)
    if (owner, at_node, figures) != (id_, node_id, kept):
        db.execute("UPDATE call SET conversation_id=?, node_id=?, usage=? WHERE key=?", (id_, node_id, kept, key))


def _mark_counted(db: apsw.Connection, id_: int, node_id: int) -> None:
    db.execute("UPDATE member SET counted=1 WHERE conversation_id=? AND node_id=? AND NOT counted", (id_, node_id))


# Reading


def of_session(db: apsw.Connection, turn: Turn) -> int | None:
    """Return the conversation of the session that `turn` states."""
    if not turn.session:
        return None
    id_ = db.execute("SELECT conversation_id FROM conversation WHERE name=?", (_session_name(turn),)).get
    return None if id_ is None else int(id_)


def last(db: apsw.Connection, turn: Turn) -> NodeRef | None:
    """Return the last known turn of the session that `turn` belongs to."""
    node_id = db.execute(
        "SELECT node_id FROM member WHERE conversation_id=? AND side=? ORDER BY number DESC LIMIT 1",
        (of_session(db, turn), turn.side),
    ).get
    return None if node_id is None else forest.node_ref(db, int(node_id))


def of_turns(db: apsw.Connection, hashes: Sequence[str]) -> dict[str, set[int]]:
    """Return the conversations that turns are part of."""
    found: dict[str, set[int]] = {}
    query = "SELECT conversation_id FROM member JOIN node USING(node_id) WHERE hash=?"
    for hash_ in hashes:
        digest = forest.digest_of(hash_)
        if digest is not None and (rows := list(db.execute(query, (digest,)))):
            found[hash_] = {int(id_) for (id_,) in rows}
    return found


def projects(db: apsw.Connection, node_id: int) -> list[str]:
    """Return the projects of the conversations that a turn is part of."""
    rows = db.execute(
        "SELECT DISTINCT project FROM member JOIN conversation USING(conversation_id)"
        " WHERE node_id=? AND project<>'' ORDER BY project",
        (node_id,),
    )
    return [str(project) for (project,) in rows]


def named(db: apsw.Connection, name: str) -> int | None:
    """Return the number of the conversation with this name, given in hexadecimal digits."""
    id_ = db.execute("SELECT conversation_id FROM conversation WHERE name=?", (bytes.fromhex(name),)).get
    return None if id_ is None else int(id_)


# Export and import


def memberships(db: apsw.Connection, node_id: int) -> Iterator[Membership]:
    """Yield the conversations that a turn is part of."""
    for name, first, *row in db.execute(
        "SELECT name, first, provisional, project, at, side, counted FROM member"
        " JOIN conversation USING(conversation_id) WHERE node_id=? ORDER BY number",
        (node_id,),
    ):
        provisional, project, at, side, counted = row
        yield Membership(name, first == node_id, bool(provisional), project, at, bool(side), bool(counted))


def restore(db: apsw.Connection, node_id: int, given: Membership) -> int:
    """Restore a turn's membership in a conversation. Returns the conversation's number."""
    first = node_id if given.is_first else None
    id_ = _conversation(db, given.name, first, given.project, provisional=given.provisional)
    if given.is_first:
        db.execute("UPDATE conversation SET first=?1 WHERE conversation_id=?2 AND first IS NULL", (node_id, id_))
    _join(db, id_, [(node_id, given.at, given.counted)], side=given.side)
    return id_


# Migration


def migrate(db: apsw.Connection) -> None:
    """Derive conversations, by the first user turn, for a database that had none.

    Conversations from files are provisional, and the files are read again from the beginning to learn their sessions.
    """
    strip = Stripper()
    final: dict[int, int] = {}
    imported = {int(node_id) for (node_id,) in db.execute("SELECT DISTINCT node_id FROM record WHERE node_id<>0")}
    of = "node_id, hash, root, depth, projection, parent, role, content, project, at, model, reply, usage, gone"
    for row in list(db.execute("SELECT node_id FROM node ORDER BY node_id")):
        ((*at_, parent, role, content, project, at, model, reply, usage, gone),) = db.execute(
            f"SELECT {of} FROM node WHERE node_id=?", row
        )
        node = NodeRef(*at_)
        id_ = final.get(parent)
        is_counted = bool(reply and usage and not gone)
        rows = [(node.node_id, at, is_counted)]
        if id_ is None:
            is_first = role == "user" and not gone and _is_said(forest.read_blocks(content), strip)
            path = list(forest.lineage(db, node.node_id, "node_id, hash, at"))
            name = _digest("first", node.hash if is_first else path[0][1])
            id_ = _conversation(db, name, node.node_id if is_first else None, project, provisional=not is_first)
            rows = [(above, when, is_counted and above == node.node_id) for above, _, when in path]
        if parent in final or is_first:
            final[node.node_id] = id_
        _join(db, id_, rows, side=False)
        if is_counted:
            _count(db, _digest("migrated", node.hash), id_, node.node_id, model, forest.read_usage(usage))
    for node_id in imported:
        db.execute(
            "UPDATE conversation SET provisional=1"
            " WHERE conversation_id IN (SELECT conversation_id FROM member WHERE node_id=?)",
            (node_id,),
        )
    # The stored states of layouts have changed their format.
    db.execute("UPDATE source SET position=0, tail='', part='', layout='', state=x''")
