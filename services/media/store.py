"""What was made from contents: one SQLite file with the pictures in it, a cache that can be made anew at any time.

It also counts how often a content was begun and never ended, so that one which takes its decoder's life is known even
after everything has died.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw
import msgspec
import trio

from proto.ops.decode import Picture
from proto.ops.media import THUMBNAIL, MediaArtifact

SCHEMA_VERSION = 1
VERSION = 1
"""Of what is made: with another one, everything is made anew."""

CACHE_BYTES = 1024**3
MAX_SEEN = 500_000

_SCHEMA = """
CREATE TABLE content(
    hash BLOB PRIMARY KEY, version INTEGER NOT NULL, metadata BLOB NOT NULL, problem TEXT, bytes INTEGER NOT NULL,
    used_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX content_by_use ON content(used_at);
CREATE TABLE picture(
    hash BLOB NOT NULL, name TEXT NOT NULL, position INTEGER NOT NULL, type TEXT NOT NULL, width INTEGER NOT NULL,
    height INTEGER NOT NULL, metadata BLOB NOT NULL, data BLOB NOT NULL, PRIMARY KEY(hash, name)
);

-- The hash of a file that is still the same, so that it need not be read again.
CREATE TABLE seen(version TEXT PRIMARY KEY, hash BLOB NOT NULL, at REAL NOT NULL) WITHOUT ROWID;

-- Contents whose decoding was begun and not ended, and how often.
CREATE TABLE begun(hash BLOB PRIMARY KEY, times INTEGER NOT NULL) WITHOUT ROWID;
"""

T = TypeVar("T")

_log = logging.getLogger("linckia.media")


class Content(NamedTuple):
    """What is kept of a content."""

    metadata: dict[str, Any]
    artifacts: list[MediaArtifact]
    problem: str | None


class Store:
    """The open database."""

    def __init__(self, path: Path, cache_bytes: int) -> None:
        """Raises apsw.Error, OSError where it can neither be opened nor begun."""
        self._cache_bytes = cache_bytes
        try:
            self._db = _open(path)
        except (apsw.NotADBError, apsw.CorruptError, apsw.SchemaChangeError) as error:
            _log.warning("%s cannot be used (%s): begun anew", path, error)
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._db = _open(path)
        self._turn = trio.CapacityLimiter(1)

    async def use(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` in one transaction; once this returns, it is on disk."""

        def transaction() -> T:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                result = work(self._db)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            return result

        return await trio.to_thread.run_sync(transaction, limiter=self._turn)

    def close(self) -> None:
        self._db.close()

    # Each in a transaction of the caller's.

    def hash_of(self, db: apsw.Connection, version: str) -> bytes | None:
        row = db.execute("SELECT hash FROM seen WHERE version=?", (version,)).fetchone()
        return None if row is None else row[0]

    def has_hash(self, db: apsw.Connection, version: str, hash_: bytes) -> None:
        db.execute("INSERT OR REPLACE INTO seen VALUES(?, ?, ?)", (version, hash_, time.time()))
        if next(db.execute("SELECT count(*) FROM seen"))[0] > MAX_SEEN:
            db.execute(
                "DELETE FROM seen WHERE version IN (SELECT version FROM seen ORDER BY at LIMIT ?)", (MAX_SEEN // 10,)
            )

    def content(self, db: apsw.Connection, hash_: bytes) -> Content | None:
        row = db.execute(
            "SELECT metadata, problem FROM content WHERE hash=? AND version=?", (hash_, VERSION)
        ).fetchone()
        if row is None:
            return None
        db.execute("UPDATE content SET used_at=? WHERE hash=?", (time.time(), hash_))
        pictures = db.execute(
            "SELECT name, type, width, height, metadata, length(data) FROM picture WHERE hash=? ORDER BY position",
            (hash_,),
        )
        return Content(
            msgspec.json.decode(row[0]),
            [artifact_of(hash_, *picture) for picture in pictures],
            row[1],
        )

    def thumbnail(self, db: apsw.Connection, version: str) -> str:
        """What the thumbnail of a file is known by; empty where it is not known to have one."""
        row = db.execute(
            "SELECT picture.hash, name FROM seen JOIN picture ON picture.hash = seen.hash"
            " WHERE version=? AND type=? ORDER BY position LIMIT 1",
            (version, THUMBNAIL),
        ).fetchone()
        return "" if row is None else artifact_path(*row)

    def keep(
        self, db: apsw.Connection, hash_: bytes, metadata: dict[str, Any], pictures: list[Picture], problem: str | None
    ) -> None:
        """Keep what was made, and drop what was not asked for longest where it gets too much."""
        encoded = msgspec.json.encode(metadata)
        size = len(encoded) + sum(len(picture.data) for picture in pictures)
        db.execute("DELETE FROM picture WHERE hash=?", (hash_,))
        db.execute(
            "INSERT OR REPLACE INTO content VALUES(?, ?, ?, ?, ?, ?)",
            (hash_, VERSION, encoded, problem, size, time.time()),
        )
        db.executemany(
            "INSERT INTO picture VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    hash_,
                    each.name,
                    at,
                    each.type,
                    each.width,
                    each.height,
                    msgspec.json.encode(each.metadata),
                    each.data,
                )
                for at, each in enumerate(pictures)
            ),
        )
        total = next(db.execute("SELECT coalesce(sum(bytes), 0) FROM content"))[0]
        while total > self._cache_bytes:
            oldest = db.execute(
                "SELECT hash, bytes FROM content WHERE hash<>? ORDER BY used_at LIMIT 1", (hash_,)
            ).fetchone()
            if oldest is None:
                break
            db.execute("DELETE FROM picture WHERE hash=?", (oldest[0],))
            db.execute("DELETE FROM content WHERE hash=?", (oldest[0],))
            total -= oldest[1]

    def picture(self, db: apsw.Connection, hash_: bytes, name: str) -> bytes | None:
        row = db.execute("SELECT data FROM picture WHERE hash=? AND name=?", (hash_, name)).fetchone()
        return None if row is None else row[0]

    def begin(self, db: apsw.Connection, hash_: bytes) -> int:
        """Count a decoding that begins; answers how many before it never ended."""
        row = db.execute("SELECT times FROM begun WHERE hash=?", (hash_,)).fetchone()
        times = 0 if row is None else int(row[0])
        db.execute("INSERT OR REPLACE INTO begun VALUES(?, ?)", (hash_, times + 1))
        return times

    def end(self, db: apsw.Connection, hash_: bytes, times: int) -> None:
        """It ended in order, or never began: back to so many that did not."""
        if times:
            db.execute("INSERT OR REPLACE INTO begun VALUES(?, ?)", (hash_, times))
        else:
            db.execute("DELETE FROM begun WHERE hash=?", (hash_,))


def artifact_of(
    hash_: bytes, name: str, kind: str, width: int, height: int, metadata: bytes, size: int
) -> MediaArtifact:
    """A picture of a content, from the columns of its row."""
    return MediaArtifact(
        name=name, type=kind, mime_type="image/jpeg", path=artifact_path(hash_, name), width=width, height=height,
        size=size, metadata=msgspec.json.decode(metadata),
    )  # fmt: skip


def artifact_path(hash_: bytes, name: str) -> str:
    """What an artefact is known by outside."""
    text = hash_.hex()
    return f"cache/{text[:2]}/{text[2:4]}/{text}/{name}"


def _open(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    try:
        db.set_busy_timeout(10_000)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        version = next(db.execute("PRAGMA user_version"))[0]
        if version == 0:
            with db:
                db.execute(_SCHEMA)
                db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        elif version != SCHEMA_VERSION:
            raise apsw.SchemaChangeError(f"schema {version}")
    except BaseException:
        db.close()
        raise
    return db
