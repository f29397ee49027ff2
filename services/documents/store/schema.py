"""The two databases of documents.

`packs.db` is the store itself: contents, documents, collections, snapshots and sessions; what it acknowledges is on
disk.  `index.db` has the trigrams of their texts and the names in their code; it can be lost at any time and is built
again from the packs.
Each change of a document leaves marks in the outboxes, by triggers, so that no way to change one can forget to tell
the search, the graph and the index.
"""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

import apsw

from linckia.proto.ops.decode import DOCUMENT_TYPES
from linckia.services.documents.manifest import INDEX_VERSION, PACKS_VERSION
from linckia.services.runtime.database import Schema

TEXT_NONE, TEXT_OWN, TEXT_EXTRACTED, TEXT_WAITING, TEXT_QUARANTINED = 0, 1, 2, 3, 4
"""Where the text of a content is: it has none, is text itself, has one extracted, waits for that, or cannot be read."""

PACKED = """
-- Small contents that came together, each compressed by itself, in one row: a row of its own would leave a quarter of
-- its page empty.  A pack has the number of the first content in it.
CREATE TABLE pack(id INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE packed(
    object INTEGER PRIMARY KEY, pack INTEGER NOT NULL, start INTEGER NOT NULL, stored INTEGER NOT NULL,
    dictionary INTEGER NOT NULL
);
CREATE TRIGGER packed_departs AFTER DELETE ON object BEGIN
    DELETE FROM packed WHERE object=OLD.id;
END;
"""

DECODED = """
-- That the text of a content was decoded from, and how that is known.
ALTER TABLE object ADD COLUMN charset TEXT;
CREATE TRIGGER object_read AFTER UPDATE OF text_state ON object WHEN NEW.text_state = 2 BEGIN
    INSERT OR IGNORE INTO index_outbox(object) VALUES(NEW.id);
    INSERT OR REPLACE INTO search_outbox(object) VALUES(NEW.id);
    INSERT OR REPLACE INTO graph_outbox(document) SELECT id FROM document WHERE object=NEW.id;
END;
"""

_TABLES = (
    """
CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- What texts of this store have in common, for zstd; an old one is kept for as long as the store.
CREATE TABLE dictionary(id INTEGER PRIMARY KEY, data BLOB NOT NULL);

-- A content; its bytes are in one block, in a pack with others, or in chunks where it is large.  Ids are never given
-- twice.
CREATE TABLE object(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    hash BLOB NOT NULL UNIQUE,
    size INTEGER NOT NULL,
    chunked INTEGER NOT NULL,
    mime TEXT NOT NULL,
    is_text INTEGER NOT NULL,
    text_state INTEGER NOT NULL,
    problem TEXT
);
CREATE INDEX object_waiting ON object(text_state) WHERE text_state >= 3;
CREATE TABLE block(
    object INTEGER PRIMARY KEY, stored INTEGER NOT NULL, dictionary INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE TABLE chunk(
    id INTEGER PRIMARY KEY AUTOINCREMENT, hash BLOB NOT NULL UNIQUE,
    size INTEGER NOT NULL, stored INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE TABLE part(
    object INTEGER NOT NULL, position INTEGER NOT NULL, chunk INTEGER NOT NULL, PRIMARY KEY(object, position)
) WITHOUT ROWID;
CREATE INDEX part_chunk ON part(chunk);

-- Text that was extracted from a content that is none itself.
CREATE TABLE text(object INTEGER PRIMARY KEY, size INTEGER NOT NULL, data BLOB NOT NULL);

CREATE TABLE document(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    extension TEXT NOT NULL,
    object INTEGER NOT NULL,
    mime TEXT,
    session TEXT,
    metadata TEXT NOT NULL DEFAULT '{}',
    created_ns INTEGER NOT NULL,
    modified_ns INTEGER NOT NULL,
    indexed_ns INTEGER NOT NULL,
    -- What tells a file from a later version of it, without reading it; empty where it may not be relied on.
    stamp TEXT NOT NULL DEFAULT ''
);
CREATE INDEX document_object ON document(object);
CREATE INDEX document_name ON document(name);
CREATE INDEX document_session ON document(session) WHERE session IS NOT NULL;
CREATE TABLE tag(document INTEGER NOT NULL, tag TEXT NOT NULL, PRIMARY KEY(document, tag)) WITHOUT ROWID;
CREATE INDEX tag_tag ON tag(tag, document);
CREATE TABLE collection(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE member(document INTEGER NOT NULL, collection INTEGER NOT NULL, PRIMARY KEY(document, collection))
    WITHOUT ROWID;
CREATE INDEX member_collection ON member(collection, document);

-- The listing is what `snapshots` packs and unpacks; `held` keeps its contents from the collector of garbage.
CREATE TABLE snapshot(
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    label TEXT NOT NULL,
    directory TEXT NOT NULL,
    collection TEXT,
    created_ns INTEGER NOT NULL,
    files INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    listing BLOB NOT NULL
);
CREATE TABLE held(object INTEGER NOT NULL, snapshot INTEGER NOT NULL, PRIMARY KEY(object, snapshot)) WITHOUT ROWID;
CREATE INDEX held_snapshot ON held(snapshot);

CREATE TABLE session(
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, label TEXT NOT NULL,
    started_ns INTEGER NOT NULL, stopped_ns INTEGER
);
CREATE TABLE watched(session TEXT NOT NULL, folder TEXT NOT NULL, interval_ms INTEGER NOT NULL,
    PRIMARY KEY(session, folder)) WITHOUT ROWID;

-- Contents that may have lost their last document or snapshot.
CREATE TABLE loose(object INTEGER PRIMARY KEY);

-- Contents whose text is still to come into, or out of, the index of trigrams.
CREATE TABLE index_outbox(object INTEGER PRIMARY KEY);

-- Contents to be delivered to the search, and documents to be delivered to the graph; a change gives a new number.
CREATE TABLE search_outbox(number INTEGER PRIMARY KEY AUTOINCREMENT, object INTEGER NOT NULL UNIQUE);
CREATE TABLE graph_outbox(number INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL UNIQUE);

-- The nodes of each document that were delivered to the graph.
CREATE TABLE graph_fed(document INTEGER NOT NULL, node TEXT NOT NULL, PRIMARY KEY(document, node)) WITHOUT ROWID;

CREATE TRIGGER document_arrives AFTER INSERT ON document BEGIN
    INSERT OR REPLACE INTO search_outbox(object) VALUES(NEW.object);
    INSERT OR REPLACE INTO graph_outbox(document) VALUES(NEW.id);
END;
CREATE TRIGGER document_departs AFTER DELETE ON document BEGIN
    INSERT OR REPLACE INTO search_outbox(object) VALUES(OLD.object);
    INSERT OR REPLACE INTO graph_outbox(document) VALUES(OLD.id);
    INSERT OR IGNORE INTO loose(object) VALUES(OLD.object);
    DELETE FROM tag WHERE document=OLD.id;
    DELETE FROM member WHERE document=OLD.id;
END;
CREATE TRIGGER document_changes AFTER UPDATE OF object ON document WHEN OLD.object IS NOT NEW.object BEGIN
    INSERT OR REPLACE INTO search_outbox(object) VALUES(OLD.object);
    INSERT OR REPLACE INTO search_outbox(object) VALUES(NEW.object);
    INSERT OR REPLACE INTO graph_outbox(document) VALUES(NEW.id);
    INSERT OR IGNORE INTO loose(object) VALUES(OLD.object);
END;
CREATE TRIGGER document_described AFTER UPDATE OF session ON document WHEN OLD.session IS NOT NEW.session BEGIN
    INSERT OR REPLACE INTO search_outbox(object) VALUES(NEW.object);
END;
CREATE TRIGGER tag_arrives AFTER INSERT ON tag BEGIN
    INSERT OR REPLACE INTO search_outbox(object) SELECT object FROM document WHERE id=NEW.document;
END;
CREATE TRIGGER tag_departs AFTER DELETE ON tag BEGIN
    INSERT OR REPLACE INTO search_outbox(object) SELECT object FROM document WHERE id=OLD.document;
END;
CREATE TRIGGER member_arrives AFTER INSERT ON member BEGIN
    INSERT OR REPLACE INTO search_outbox(object) SELECT object FROM document WHERE id=NEW.document;
END;
CREATE TRIGGER object_arrives AFTER INSERT ON object WHEN NEW.text_state = 1 BEGIN
    INSERT OR IGNORE INTO index_outbox(object) VALUES(NEW.id);
END;
CREATE TRIGGER object_departs AFTER DELETE ON object BEGIN
    INSERT OR IGNORE INTO index_outbox(object) VALUES(OLD.id);
    DELETE FROM block WHERE object=OLD.id;
    DELETE FROM part WHERE object=OLD.id;
    DELETE FROM text WHERE object=OLD.id;
END;
CREATE TRIGGER snapshot_departs AFTER DELETE ON snapshot BEGIN
    INSERT OR IGNORE INTO loose(object) SELECT object FROM held WHERE snapshot=OLD.number;
    DELETE FROM held WHERE snapshot=OLD.number;
END;
"""
    + PACKED
    + DECODED
)


def _name(db: apsw.Connection) -> None:
    """Give the packs an epoch, by which the index and the search know them from any others."""
    epoch = f"{time.time_ns():x}-{secrets.token_hex(8)}"
    # As nothing is cut yet, nothing is cut in another way than it would be now.
    db.execute("INSERT INTO setting VALUES('epoch', ?), ('cut', '')", (epoch,))


# The first of version 1 lacked the second of these tables.
_MIGRATE_1 = PACKED + "CREATE TABLE IF NOT EXISTS graph_fed(document, node, PRIMARY KEY(document, node)) WITHOUT ROWID"

# What had no text, or was text that is better read than searched as it is, by their kinds.
_MIGRATE_2 = "UPDATE object SET text_state={} WHERE text_state IN ({}, {}) AND mime IN ({})".format(
    TEXT_WAITING, TEXT_NONE, TEXT_OWN, ", ".join(f"'{mime}'" for mime in sorted(DOCUMENT_TYPES.values()))
)

# More is read of documents than before.  A text in another character set than UTF-8 comes to wait when it is indexed
# again.
_MIGRATE_3 = (
    f"DROP TRIGGER IF EXISTS object_read; {DECODED}"
    f"UPDATE object SET text_state={TEXT_WAITING} WHERE text_state={TEXT_EXTRACTED}"
)

PACKS = Schema(
    version=PACKS_VERSION, tables=_TABLES, migrations={1: _MIGRATE_1, 2: _MIGRATE_2, 3: _MIGRATE_3}, begin=_name
)

QUEUE_ALL = """
INSERT OR IGNORE INTO graph_outbox(document) SELECT id FROM document ORDER BY id;
INSERT OR IGNORE INTO index_outbox(object) SELECT id FROM object WHERE text_state IN (1, 2);
"""

_INDEX = """
-- The epoch of the packs that this is an index of, once all of them is queued for it.
CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
-- Contents whose text is in the index, in so many pieces (see `pieces`).
CREATE TABLE done(object INTEGER PRIMARY KEY, first INTEGER NOT NULL, pieces INTEGER NOT NULL);
CREATE UNIQUE INDEX done_first ON done(first);
-- Texts too long for the index: they are looked through each time.
CREATE TABLE unindexed(object INTEGER PRIMARY KEY);
CREATE VIRTUAL TABLE trigram USING fts5(
    text, content='', contentless_delete=1, tokenize='trigram case_sensitive 1', detail=none
);
-- In how many of some of the pieces each trigram is.
CREATE TABLE sample(trigram TEXT PRIMARY KEY, pieces INTEGER NOT NULL) WITHOUT ROWID;
-- Words of the texts, for those that are misspelt.
CREATE TABLE word(word TEXT PRIMARY KEY, objects INTEGER NOT NULL) WITHOUT ROWID;

-- What code defines and uses, by name; `symbol` of a reference is who uses it, 0 for the file itself.
CREATE TABLE code(object INTEGER PRIMARY KEY, language TEXT NOT NULL, family TEXT NOT NULL, problem TEXT);
CREATE TABLE symbol(
    id INTEGER PRIMARY KEY, object INTEGER NOT NULL, name TEXT NOT NULL, qualified TEXT NOT NULL, kind TEXT NOT NULL,
    first INTEGER NOT NULL, last INTEGER NOT NULL, parent INTEGER NOT NULL
);
CREATE INDEX symbol_object ON symbol(object);
CREATE INDEX symbol_name ON symbol(name);
-- There are twenty times as many of these as contents, and of their words a tenth: as numbers they take half the room.
CREATE TABLE term(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE used(
    object INTEGER NOT NULL, number INTEGER NOT NULL, symbol INTEGER NOT NULL, kind INTEGER NOT NULL,
    name INTEGER NOT NULL, target INTEGER NOT NULL, tentative INTEGER NOT NULL, PRIMARY KEY(object, number)
) WITHOUT ROWID;
CREATE INDEX used_name ON used(name);
CREATE VIEW reference AS
    SELECT used.object, used.number, used.symbol, relation.text AS kind, named.text AS name, meant.text AS target,
        used.tentative
    FROM used JOIN term relation ON relation.id = used.kind JOIN term named ON named.id = used.name
        JOIN term meant ON meant.id = used.target;
-- Names whose meaning may have changed: the documents that use them are delivered to the graph again.
CREATE TABLE changed(name TEXT PRIMARY KEY) WITHOUT ROWID;
"""

INDEX = Schema(version=INDEX_VERSION, tables=_INDEX)

_ROWS = 128
"""That one statement inserts: a statement waits for the interpreter once, which threads that compress take in turns.
With one row each, that wait would be most of the time that a bulk add takes."""


def insert(db: apsw.Connection, table: str, rows: Sequence[tuple[apsw.SQLiteValue, ...]]) -> None:
    """Insert rows into `table(column, …)`, many by one statement."""
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        row = f"({', '.join('?' * len(some[0]))})"
        db.execute(f"INSERT INTO {table} VALUES{', '.join([row] * len(some))}", tuple(chain.from_iterable(some)))


def ids(numbers: Iterable[int]) -> apsw.CArrayBinding:
    """Numbers of rows as the table `carray(?)`, which cannot be empty: for none it has -1, the number of no row."""
    return apsw.carray(array("q", numbers) or array("q", (-1,)))


def next_id(db: apsw.Connection, table: str) -> int:
    """The number that the next row of a table will get, which numbers its rows by AUTOINCREMENT."""
    last = db.execute("SELECT seq FROM sqlite_sequence WHERE name=?", (table,)).get
    return (last or 0) + 1
