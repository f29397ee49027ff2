"""The database of conversations: its tables, how it is opened, and how messages are deleted from it.

It is the only copy of its conversations. Deleted content is in no file any more: freed pages are overwritten
(`secure_delete`), and `Database.checkpoint` truncates the log. A deleted message that others follow keeps its place
without its content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import apsw

from services.runtime.database import Database, Kind, Schema
from services.transcripts import conversations, dropped, titles
from services.transcripts.manifest import SCHEMA_VERSION
from services.transcripts.messages import Turn

_TABLES = """
-- A message. `gone` means deleted: its content is lost, its place is kept because others follow it.
CREATE TABLE node(
    node_id INTEGER PRIMARY KEY AUTOINCREMENT,
    hash BLOB NOT NULL UNIQUE,
    parent INTEGER REFERENCES node(node_id),
    root INTEGER,
    depth INTEGER NOT NULL,
    -- See hashing.projection.
    projection BLOB NOT NULL,
    -- A reply recorded from the model, not repeated by a client.
    reply INTEGER NOT NULL DEFAULT 0,
    gone INTEGER NOT NULL DEFAULT 0,
    -- It has searchable text.
    found INTEGER NOT NULL DEFAULT 0,
    role TEXT NOT NULL,
    content BLOB NOT NULL,
    model TEXT NOT NULL,
    provider TEXT NOT NULL,
    agent TEXT NOT NULL,
    project TEXT NOT NULL,
    -- The machine that stored it first, and the branch of its project; empty if unknown.
    machine TEXT NOT NULL DEFAULT '',
    branch TEXT NOT NULL DEFAULT '',
    at REAL NOT NULL,
    stop_reason TEXT NOT NULL DEFAULT '',
    usage TEXT NOT NULL DEFAULT '',
    thinking TEXT NOT NULL DEFAULT '',
    prompt_id INTEGER
);
CREATE INDEX node_parent ON node(parent);
CREATE INDEX node_projection ON node(projection);
CREATE INDEX node_found ON node(found) WHERE found;
CREATE INDEX node_prompt ON node(prompt_id) WHERE prompt_id IS NOT NULL;

CREATE TABLE prompt(prompt_id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text TEXT NOT NULL);

-- Projections whose content must not be stored again.
CREATE TABLE barred(projection BLOB PRIMARY KEY) WITHOUT ROWID;

-- Updates for the search: a node to add, or a hash to drop if there is no node.
CREATE TABLE outbox(
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    node_id INTEGER,
    hash BLOB NOT NULL
);

CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

_IMPORTS = """
-- Imported files: the position, the layout's pending messages, and the last part with its answer.
CREATE TABLE source(
    source TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    tail TEXT NOT NULL,
    layout TEXT NOT NULL,
    state BLOB NOT NULL,
    part TEXT NOT NULL,
    answer BLOB NOT NULL,
    -- Nodes of messages that may still grow.
    growing BLOB NOT NULL
) WITHOUT ROWID;
-- The node of each record, by a digest of the record's own id; 0 if it begins a conversation.
CREATE TABLE record(key BLOB PRIMARY KEY, node_id INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX record_node ON record(node_id);
"""

_TALKS = """
-- The list entry of a conversation, valid until one of its turns changes.
CREATE TABLE talk(
    conversation_id INTEGER PRIMARY KEY,
    name BLOB NOT NULL,
    head BLOB NOT NULL,
    title TEXT NOT NULL,
    -- The title in the form that is searched.
    sought TEXT NOT NULL,
    project TEXT NOT NULL,
    agent TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    began REAL NOT NULL,
    ended REAL NOT NULL,
    turns INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    input INTEGER NOT NULL,
    output INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    cost REAL,
    -- Models without a known price, a JSON array: their calls are not part of the cost.
    unpriced TEXT NOT NULL
);
CREATE TRIGGER talk_grows AFTER INSERT ON member BEGIN
    DELETE FROM talk WHERE conversation_id=NEW.conversation_id;
END;
CREATE TRIGGER talk_changes AFTER UPDATE ON member BEGIN
    DELETE FROM talk WHERE conversation_id=NEW.conversation_id;
END;
CREATE TRIGGER talk_shrinks AFTER DELETE ON member BEGIN
    DELETE FROM talk WHERE conversation_id=OLD.conversation_id;
END;
CREATE TRIGGER talk_costs AFTER INSERT ON call BEGIN
    DELETE FROM talk WHERE conversation_id=NEW.conversation_id;
END;
CREATE TRIGGER talk_costs_other AFTER UPDATE ON call BEGIN
    DELETE FROM talk WHERE conversation_id IN (OLD.conversation_id, NEW.conversation_id);
END;
CREATE TRIGGER talk_costs_less AFTER DELETE ON call BEGIN
    DELETE FROM talk WHERE conversation_id=OLD.conversation_id;
END;
CREATE TRIGGER talk_loses AFTER UPDATE OF gone, usage ON node BEGIN
    DELETE FROM talk WHERE conversation_id IN (SELECT conversation_id FROM member WHERE node_id=NEW.node_id);
END;
CREATE TRIGGER talk_moves AFTER UPDATE ON conversation BEGIN
    DELETE FROM talk WHERE conversation_id=NEW.conversation_id;
END;
"""

_NODE_ROOT = "CREATE INDEX node_root ON node(root);"


def _migrate_1(db: apsw.Connection) -> None:
    """Reread all imported files: early databases of version 1 stored less about them."""
    if "tail" not in {name for (name,) in db.execute("SELECT name FROM pragma_table_info('source')")}:
        db.execute(f"DROP TABLE record; DROP TABLE source; {_IMPORTS}").fetchall()


def _migrate_3(db: apsw.Connection) -> None:
    """Recompute the summaries: conversations used to be trees of turns."""
    for name in ("grows", "changes", "shrinks"):
        db.execute(f"DROP TRIGGER IF EXISTS talk_{name}")
    db.execute("DROP TABLE IF EXISTS talk")
    db.execute(f"{conversations.TABLES} {_TALKS}").fetchall()
    conversations.migrate(db)


def _migrate_5(db: apsw.Connection) -> None:
    """Keep deletions and places, and give all turns to the search again: it ranks them by the turn before."""
    db.execute(dropped.TABLES).fetchall()
    for column in ("machine", "branch"):
        db.execute(f"ALTER TABLE node ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")
    queued = "SELECT node_id FROM outbox WHERE node_id IS NOT NULL"
    db.execute(
        f"INSERT INTO outbox(node_id, hash) SELECT node_id, hash FROM node WHERE found AND node_id NOT IN ({queued})"
    )


SCHEMA = Schema(
    version=SCHEMA_VERSION,
    tables=_TABLES + _IMPORTS + _NODE_ROOT + conversations.TABLES + _TALKS + titles.TABLES + dropped.TABLES,
    migrations={1: _migrate_1, 2: _NODE_ROOT, 3: _migrate_3, 4: titles.TABLES, 5: _migrate_5},
)


def open_database(path: Path, on_damage: Callable[[str], object] | None = None) -> Database:
    """Open `path`, creating it if necessary; blocks. A damaged file is opened too, and served as far as possible."""
    return Database(
        path,
        SCHEMA,
        kind=Kind.SOURCE,
        readers=4,
        pragmas={"secure_delete": 1, "cache_size": -32768},
        on_damage=on_damage,
        keeps_keys=True,
    )


Doomed = tuple[int, bytes, bytes, int | None]
"""A turn to delete: its number, hash, projection and system prompt."""


class Deleted(NamedTuple):
    """The result of a deletion.

    It has the hashes of the turns whose content was deleted, how many of them keep their place, and how many turns stay
    because other conversations share them.
    """

    hashes: list[bytes]
    kept: int
    shared: int = 0


def delete(db: apsw.Connection, node_id: int, *, descendants: bool, bar: bool, noted: bool = True) -> Deleted:
    """Delete a node's content, optionally with all nodes that follow it, from every conversation.

    Runs inside the caller's transaction. The deletion is `noted` for other machines, unless it came from one.
    """
    doomed = _below(db, node_id, descendants=descendants)
    if noted:
        dropped.note(db, dropped.ALL, [hash_ for _, hash_, *_ in doomed])
    titles.forget(db, [found for found, *_ in doomed])
    return Deleted(*_take_out(db, doomed, bar=bar))


def delete_from(
    db: apsw.Connection, conversation_id: int, node_id: int | None, *, descendants: bool, noted: bool = True
) -> Deleted:
    """Delete one conversation, or a turn from it. Other conversations keep the turns that they share."""
    query = "SELECT node_id FROM member WHERE conversation_id=?"
    chosen = {int(found) for (found,) in db.execute(query, (conversation_id,))}
    if node_id is not None:
        chosen &= {found for found, *_ in _below(db, node_id, descendants=descendants)}
    if noted:
        name = db.execute("SELECT name FROM conversation WHERE conversation_id=?", (conversation_id,)).get
        of = "SELECT node_id, hash FROM member JOIN node USING(node_id) WHERE conversation_id=?"
        dropped.note(db, name, [hash_ for found, hash_ in db.execute(of, (conversation_id,)) if found in chosen])
    titles.forget(db, sorted(chosen))
    doomed: list[Doomed] = []
    shared = 0
    for found in sorted(chosen, reverse=True):
        if conversations.part_with(db, conversation_id, found):
            shared += 1
        else:
            doomed += _below(db, found, descendants=False)
    hashes, kept = _take_out(db, doomed, bar=False)
    db.executemany(
        "DELETE FROM member WHERE conversation_id=? AND node_id=?", ((conversation_id, found) for found in chosen)
    )
    return Deleted(hashes, kept, shared)


def _below(db: apsw.Connection, node_id: int, *, descendants: bool) -> list[Doomed]:
    """Return a turn, optionally with all turns that follow it, deepest first."""
    rows = db.execute(
        "WITH RECURSIVE down(node_id) AS (VALUES(?1) UNION ALL"
        " SELECT node.node_id FROM down JOIN node ON ?2 AND node.parent=down.node_id)"
        " SELECT node.node_id, hash, projection, prompt_id FROM down JOIN node ON node.node_id=down.node_id"
        " ORDER BY depth DESC",
        (node_id, descendants),
    )
    return [(int(found), hash_, projection_, prompt_id) for found, hash_, projection_, prompt_id in rows]


def _take_out(db: apsw.Connection, doomed: Sequence[Doomed], *, bar: bool) -> tuple[list[bytes], int]:
    """Delete the content of turns; each turn comes after those that follow it."""
    kept = 0
    tops: list[int] = []
    for found, hash_, projection_, _ in doomed:
        if bar:
            db.execute("INSERT OR IGNORE INTO barred VALUES(?)", (projection_,))
        db.execute("DELETE FROM outbox WHERE node_id=?", (found,))
        db.execute("INSERT INTO outbox(node_id, hash) VALUES(NULL, ?)", (hash_,))
        if db.execute("SELECT 1 FROM node WHERE parent=? LIMIT 1", (found,)).fetchone() is not None:
            db.execute(
                "UPDATE node SET gone=1, found=0, content=?, thinking='', stop_reason='', usage='', prompt_id=NULL"
                " WHERE node_id=?",
                (b"[]", found),
            )
            kept += 1
        else:
            tops.append(_remove(db, found))
    while tops:
        # A place is only kept for the turns that follow it.
        row = db.execute(
            "SELECT parent FROM node WHERE node_id=?1 AND gone"
            " AND NOT EXISTS(SELECT 1 FROM node child WHERE child.parent=?1)",
            (above := tops.pop(),),
        ).fetchone()
        if row is not None:
            tops.append(_remove(db, above))
    db.executemany(
        "DELETE FROM prompt WHERE prompt_id=?1 AND NOT EXISTS(SELECT 1 FROM node WHERE prompt_id=?1)",
        {(prompt_id,) for *_, prompt_id in doomed if prompt_id is not None},
    )
    return [hash_ for _, hash_, *_ in doomed], kept


def take_back(db: apsw.Connection, node_id: int, turn: Turn) -> None:
    """Remove an unfinished message from the conversation that `turn` is part of, unless others follow it."""
    id_ = conversations.of_session(db, turn)
    # Another machine may have it, too.
    is_noted = dropped.joins(db)
    if id_ is not None and conversations.part_with(db, id_, node_id):
        if is_noted:
            noted = "SELECT name, hash FROM conversation, node WHERE conversation_id=? AND node_id=?"
            ((name, hash_),) = db.execute(noted, (id_, node_id))
            dropped.note(db, name, [hash_])
        return
    row = db.execute(
        "SELECT 1 FROM node WHERE node_id=?1 AND NOT EXISTS(SELECT 1 FROM node WHERE parent=?1)", (node_id,)
    ).fetchone()
    if row is not None:
        doomed = _below(db, node_id, descendants=False)
        if is_noted:
            dropped.note(db, dropped.ALL, [hash_ for _, hash_, *_ in doomed])
        _take_out(db, doomed, bar=False)


def _remove(db: apsw.Connection, node_id: int) -> int:
    """Delete a node. Returns its parent; 0 if it has none."""
    db.execute("DELETE FROM record WHERE node_id=?", (node_id,))
    ((parent,),) = db.execute("DELETE FROM node WHERE node_id=? RETURNING parent", (node_id,))
    return int(parent or 0)
