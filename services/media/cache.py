"""The cache of results derived from file contents: one SQLite file, including pictures, that can be recreated at any
time.

All functions work within a transaction of the caller.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from proto.ops.decode import Decoded
from proto.ops.media import THUMBNAIL, MediaArtifact
from services.media.manifest import SCHEMA_VERSION
from services.runtime.database import Schema

VERSION: Final = 1
"""Version of the results; those of another version are recreated."""

MAX_SEEN: Final = 500_000

USE_STEP_S: Final = 3600.0
"""Precision of the time of last use: recording every use would cost an fsync each."""

PICTURE: Final = "name, type, width, height, metadata, length(data)"
"""The columns that `artifact_of` takes."""

SCHEMA: Final = Schema(
    version=SCHEMA_VERSION,
    tables="""
CREATE TABLE content(
    hash BLOB PRIMARY KEY, version INTEGER NOT NULL, metadata BLOB NOT NULL, problem TEXT, bytes INTEGER NOT NULL,
    used_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX content_by_use ON content(used_at);
CREATE TABLE picture(
    hash BLOB NOT NULL, name TEXT NOT NULL, position INTEGER NOT NULL, type TEXT NOT NULL, width INTEGER NOT NULL,
    height INTEGER NOT NULL, metadata BLOB NOT NULL, data BLOB NOT NULL, PRIMARY KEY(hash, name)
);

-- The hash of each known version of a file, so that it need not be read again.
CREATE TABLE seen(version TEXT PRIMARY KEY, hash BLOB NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
""",
)


class CachedResult(NamedTuple):
    """The cached result of a content."""

    hash: bytes
    metadata: dict[str, Any]
    problem: str | None
    used_at: float
    artifacts: list[MediaArtifact]


def contents(db: apsw.Connection, which: str, *values: apsw.SQLiteValue) -> list[CachedResult]:
    """Return the cached results that match the SQL condition `which`."""
    query = f"SELECT hash, metadata, problem, used_at FROM content WHERE version=? {which}"
    rows = list(db.execute(query, (VERSION, *values)))
    return [
        CachedResult(hash_, msgspec.json.decode(metadata), problem, used_at, artifacts(db, hash_))
        for hash_, metadata, problem, used_at in rows
    ]


def store_hash(db: apsw.Connection, version: str, hash_: bytes) -> None:
    db.execute("INSERT OR REPLACE INTO seen VALUES(?, ?, ?)", (version, hash_, time.time()))
    if db.execute("SELECT count(*) FROM seen").get > MAX_SEEN:
        db.execute(
            "DELETE FROM seen WHERE version IN (SELECT version FROM seen ORDER BY at LIMIT ?)", (MAX_SEEN // 10,)
        )


def artifacts(db: apsw.Connection, hash_: bytes) -> list[MediaArtifact]:
    """Return the pictures of a content, without their bytes."""
    rows = db.execute(f"SELECT {PICTURE} FROM picture WHERE hash=? ORDER BY position", (hash_,))
    return [artifact_of(hash_, *row) for row in rows]


def thumbnail(db: apsw.Connection, version: str) -> str:
    """Return the artefact path of a file's thumbnail; empty if none is known."""
    row = db.execute(
        "SELECT picture.hash, name FROM seen JOIN picture ON picture.hash = seen.hash"
        " WHERE version=? AND type=? ORDER BY position LIMIT 1",
        (version, THUMBNAIL),
    ).fetchone()
    return "" if row is None else artifact_path(*row)


def store_result(db: apsw.Connection, hash_: bytes, made: Decoded, cache_bytes: int) -> CachedResult:
    """Cache a result, and evict the least recently used ones beyond `cache_bytes`."""
    encoded = msgspec.json.encode(made.metadata)
    size = len(encoded) + sum(len(each.data) for each in made.pictures)
    now = time.time()
    db.execute("DELETE FROM picture WHERE hash=?", (hash_,))
    row = (hash_, VERSION, encoded, made.problem, size, now)
    db.execute("INSERT OR REPLACE INTO content VALUES(?, ?, ?, ?, ?, ?)", row)
    for at, each in enumerate(made.pictures):
        details = msgspec.json.encode(each.metadata)
        shown = (hash_, each.name, at, each.type, each.width, each.height, details, each.data)
        db.execute("INSERT INTO picture VALUES(?, ?, ?, ?, ?, ?, ?, ?)", shown)
    total: int = db.execute("SELECT coalesce(sum(bytes), 0) FROM content").get
    query = "SELECT hash, bytes FROM content WHERE hash<>? ORDER BY used_at LIMIT 1"
    while total > cache_bytes and (oldest := db.execute(query, (hash_,)).get) is not None:
        db.execute("DELETE FROM picture WHERE hash=?", oldest[:1])
        db.execute("DELETE FROM content WHERE hash=?", oldest[:1])
        total -= oldest[1]
    return CachedResult(hash_, made.metadata, made.problem, now, artifacts(db, hash_))


def artifact_of(
    hash_: bytes, name: str, kind: str, width: int, height: int, metadata: bytes, size: int
) -> MediaArtifact:
    """Build a picture's description from the columns of its row."""
    return MediaArtifact(
        name=name, type=kind, mime_type="image/jpeg", path=artifact_path(hash_, name), width=width, height=height,
        size=size, metadata=msgspec.json.decode(metadata),
    )  # fmt: skip


def artifact_path(hash_: bytes, name: str) -> str:
    """Return the public path of an artefact."""
    text = hash_.hex()
    return f"cache/{text[:2]}/{text[2:4]}/{text}/{name}"
