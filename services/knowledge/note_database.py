"""The database of notes.  It is derived from the files, and recreated if it is damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.knowledge.manifest import SCHEMA_VERSION
from services.runtime.database import Database, Kind, Schema

_TABLES = """
CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- Notes. One without a hash is new or must be indexed again; its stamp (size to inode) is then meaningless.
-- One without a title has never been read, so its links are unknown.
CREATE TABLE node(
    id TEXT PRIMARY KEY,
    root TEXT NOT NULL,
    path TEXT NOT NULL,
    hash TEXT,
    lead INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL DEFAULT 0,
    mtime_ns INTEGER NOT NULL DEFAULT 0,
    ctime_ns INTEGER NOT NULL DEFAULT 0,
    inode INTEGER NOT NULL DEFAULT 0,
    title TEXT NOT NULL DEFAULT '',
    date REAL,
    tags TEXT NOT NULL DEFAULT '[]',
    problem TEXT,
    UNIQUE(root, path)
);

-- Ids to be removed from the search.
CREATE TABLE leaving(id TEXT PRIMARY KEY) WITHOUT ROWID;

-- Ids of removed notes, so that a request for one can say which file is gone.
CREATE TABLE departed(id TEXT PRIMARY KEY, path TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;

-- The names of notes; lower ranks win.
CREATE TABLE name(key TEXT NOT NULL, rank INTEGER NOT NULL, id TEXT NOT NULL, PRIMARY KEY(key, rank, id)) WITHOUT ROWID;
CREATE INDEX name_id ON name(id);

-- References; one with a dst is an edge. A fixed one points to a name, whether or not a note has it.
CREATE TABLE edge(
    src TEXT NOT NULL,
    position INTEGER NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    other_key TEXT NOT NULL,
    fixed INTEGER NOT NULL,
    dst TEXT,
    PRIMARY KEY(src, position)
) WITHOUT ROWID;
CREATE INDEX edge_key ON edge(key);
CREATE INDEX edge_other_key ON edge(other_key) WHERE other_key <> '';
CREATE INDEX edge_dst ON edge(dst) WHERE dst IS NOT NULL;
"""

# Triggers, so that no change of a note or an edge is missed.
_GRAPH_OUTBOX = """
-- Notes to be delivered to the graph. A note that changes again gets a new number.
CREATE TABLE graph_outbox(number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE);

CREATE TRIGGER node_arrives AFTER INSERT ON node BEGIN
    INSERT OR REPLACE INTO graph_outbox(id) VALUES(NEW.id);
END;
CREATE TRIGGER node_departs AFTER DELETE ON node BEGIN
    INSERT OR REPLACE INTO graph_outbox(id) VALUES(OLD.id);
END;
CREATE TRIGGER node_changes AFTER UPDATE OF title, root, path ON node
WHEN (OLD.title, OLD.root, OLD.path) IS NOT (NEW.title, NEW.root, NEW.path) BEGIN
    INSERT OR REPLACE INTO graph_outbox(id) VALUES(NEW.id);
END;
CREATE TRIGGER edge_arrives AFTER INSERT ON edge WHEN NEW.dst IS NOT NULL BEGIN
    INSERT OR REPLACE INTO graph_outbox(id) VALUES(NEW.src);
END;
CREATE TRIGGER edge_departs AFTER DELETE ON edge WHEN OLD.dst IS NOT NULL BEGIN
    INSERT OR REPLACE INTO graph_outbox(id) VALUES(OLD.src);
END;
CREATE TRIGGER edge_changes AFTER UPDATE OF dst ON edge WHEN OLD.dst IS NOT NEW.dst BEGIN
    INSERT OR REPLACE INTO graph_outbox(id) VALUES(NEW.src);
END;

INSERT INTO graph_outbox(id) SELECT id FROM node;
"""

_FORMER = """
-- Former ids of notes.
CREATE TABLE former(id TEXT PRIMARY KEY, node TEXT NOT NULL);
CREATE INDEX former_node ON former(node);
"""

_RANKS = """
-- File names now rank before ids and titles. Which names are whole paths is determined when the notes are read again.
UPDATE OR REPLACE name SET rank = CASE rank WHEN 0 THEN 12 WHEN 1 THEN 13 WHEN 2 THEN 11
    ELSE CASE WHEN key LIKE '/%' THEN 10 ELSE 11 END END;
UPDATE name SET rank = rank - 10;
"""


def open_database(path: Path, on_rebuilt: Callable[[], object] | None = None) -> Database:
    """Open the database at `path`; blocks."""
    return Database(
        path, SCHEMA, kind=Kind.DERIVED, readers=2, pragmas={"cache_size": -16384}, on_rebuilt=on_rebuilt,
        keeps_keys=True,
    )  # fmt: skip


SCHEMA = Schema(
    version=SCHEMA_VERSION,
    tables=_TABLES + _GRAPH_OUTBOX + _FORMER,
    migrations={1: _GRAPH_OUTBOX, 2: _FORMER, 3: _RANKS},
)
