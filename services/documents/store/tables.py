"""The schemas of the two databases.

`packs.db` is the store: contents, documents, collections, snapshots and sessions. Acknowledged writes are on disk.
`index.db` has the trigrams of the texts and the names in the code. It is derived and can be rebuilt from the packs at
any time. Triggers put every change of a document into the outboxes, so no code path can forget to update the search,
the graph and the index.
"""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

import apsw

from proto.ops.decode import DOCUMENT_TYPES
from services.documents.manifest import INDEX_VERSION, PACKS_VERSION
from services.runtime.database import Schema

TEXT_NONE, TEXT_OWN, TEXT_EXTRACTED, TEXT_WAITING, TEXT_QUARANTINED = 0, 1, 2, 3, 4
"""Text states: no text, the content itself is text, extracted, waiting for extraction, extraction failed."""

PACKED = """
-- Small contents that were added together share a row, each compressed separately; separate rows would leave a quarter
-- of each page empty. The id of a pack is that of its first content.
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
-- The character set that the text was decoded from, and how it was detected.
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

-- zstd dictionaries trained on texts of this store; old ones are never deleted.
CREATE TABLE dictionary(id INTEGER PRIMARY KEY, data BLOB NOT NULL);

-- Contents. The bytes are in one block, in a pack with others, or in chunks if the content is large. Ids are never
-- reused.
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

-- Text extracted from contents that are not text themselves.
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
    -- Identifies this version of a file without reading it; empty if it is not reliable.
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

-- `snapshots` encodes and decodes the listing; `held` protects its contents from garbage collection.
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

-- Contents that may no longer belong to any document or snapshot.
CREATE TABLE loose(object INTEGER PRIMARY KEY);

-- Contents whose text has to be added to the trigram index or removed from it.
CREATE TABLE index_outbox(object INTEGER PRIMARY KEY);

-- Contents to be delivered to the search and documents to be delivered to the graph; each change assigns a new number.
CREATE TABLE search_outbox(number INTEGER PRIMARY KEY AUTOINCREMENT, object INTEGER NOT NULL UNIQUE);
CREATE TABLE graph_outbox(number INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL UNIQUE);

-- The nodes of each document that have been delivered to the graph.
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
    """Give the packs an epoch, which distinguishes them from other stores in the index and the search."""
    epoch = f"{time.time_ns():x}-{secrets.token_hex(8)}"
    # Nothing is cut yet, so nothing has to be cut again.
    db.execute("INSERT INTO setting VALUES('epoch', ?), ('cut', '')", (epoch,))


# The first databases of version 1 lacked `graph_fed`.
_MIGRATE_1 = PACKED + "CREATE TABLE IF NOT EXISTS graph_fed(document, node, PRIMARY KEY(document, node)) WITHOUT ROWID"

# Extract text of documents that had none, or whose source was searched as text.
_MIGRATE_2 = "UPDATE object SET text_state={} WHERE text_state IN ({}, {}) AND mime IN ({})".format(
    TEXT_WAITING, TEXT_NONE, TEXT_OWN, ", ".join(f"'{mime}'" for mime in sorted(DOCUMENT_TYPES.values()))
)

# Extraction has improved, so repeat it. Texts in character sets other than UTF-8 are queued when they are reindexed.
_MIGRATE_3 = (
    f"DROP TRIGGER IF EXISTS object_read; {DECODED}"
    f"UPDATE object SET text_state={TEXT_WAITING} WHERE text_state={TEXT_EXTRACTED}"
)

# The source of pages was their text.
_MIGRATE_4 = (
    f"UPDATE object SET text_state={TEXT_WAITING} WHERE text_state IN ({TEXT_OWN}, {TEXT_EXTRACTED})"
    " AND (mime LIKE 'text/html%' OR mime LIKE 'application/xhtml+xml%');"
    f"INSERT OR IGNORE INTO index_outbox(object) SELECT id FROM object WHERE text_state={TEXT_WAITING}"
)

PACKS = Schema(
    version=PACKS_VERSION,
    tables=_TABLES,
    migrations={1: _MIGRATE_1, 2: _MIGRATE_2, 3: _MIGRATE_3, 4: _MIGRATE_4},
    begin=_name,
)

QUEUE_ALL = """
INSERT OR IGNORE INTO graph_outbox(document) SELECT id FROM document ORDER BY id;
INSERT OR IGNORE INTO index_outbox(object) SELECT id FROM object WHERE text_state IN (1, 2);
"""

_INDEX = """
-- The epoch of the packs that this index belongs to, set once all of them are queued for it.
CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
-- Contents whose text is in the index, with the number of their pieces (see `pieces`).
CREATE TABLE done(object INTEGER PRIMARY KEY, first INTEGER NOT NULL, pieces INTEGER NOT NULL);
CREATE UNIQUE INDEX done_first ON done(first);
-- Texts too long for the index, which are scanned each time.
CREATE TABLE unindexed(object INTEGER PRIMARY KEY);
CREATE VIRTUAL TABLE trigram USING fts5(
    text, content='', contentless_delete=1, tokenize='trigram case_sensitive 1', detail=none
);
-- The number of sampled pieces that contain each trigram.
CREATE TABLE sample(trigram TEXT PRIMARY KEY, pieces INTEGER NOT NULL) WITHOUT ROWID;
-- Words of the texts, for spelling correction.
CREATE TABLE word(word TEXT PRIMARY KEY, objects INTEGER NOT NULL) WITHOUT ROWID;

-- Definitions and uses in code, by name; `symbol` of a reference is the enclosing definition, 0 for the file itself.
CREATE TABLE code(object INTEGER PRIMARY KEY, language TEXT NOT NULL, family TEXT NOT NULL, problem TEXT);
CREATE TABLE symbol(
    id INTEGER PRIMARY KEY, object INTEGER NOT NULL, name TEXT NOT NULL, qualified TEXT NOT NULL, kind TEXT NOT NULL,
    first INTEGER NOT NULL, last INTEGER NOT NULL, parent INTEGER NOT NULL
);
CREATE INDEX symbol_object ON symbol(object);
CREATE INDEX symbol_name ON symbol(name);
-- There are twenty times as many uses as contents, and a tenth as many distinct words; ids halve their size.
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
-- Names whose meaning may have changed; documents that use them are delivered to the graph again.
CREATE TABLE changed(name TEXT PRIMARY KEY) WITHOUT ROWID;
"""

INDEX = Schema(version=INDEX_VERSION, tables=_INDEX)

_ROWS = 128
"""Rows per INSERT statement.  Each statement has to reacquire the GIL from the threads that compress; with one row per
statement, a bulk add would spend most of its time on that."""


def insert(db: apsw.Connection, table: str, rows: Sequence[tuple[apsw.SQLiteValue, ...]]) -> None:
    """Insert rows into `table(column, …)`, many per statement."""
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        row = f"({', '.join('?' * len(some[0]))})"
        db.execute(f"INSERT INTO {table} VALUES{', '.join([row] * len(some))}", tuple(chain.from_iterable(some)))


def ids(numbers: Iterable[int]) -> apsw.CArrayBinding:
    """Bind row ids for `carray(?)`.  It must not be empty, so without ids it has -1, which is never a row id."""
    return apsw.carray(array("q", numbers) or array("q", (-1,)))


def next_id(db: apsw.Connection, table: str) -> int:
    """Return the id that the next row of an AUTOINCREMENT table will get."""
    last = db.execute("SELECT seq FROM sqlite_sequence WHERE name=?", (table,)).get
    return (last or 0) + 1
