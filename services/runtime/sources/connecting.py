"""What the hold of a file needs of the server: connections, tables, numbers of locks, and what its errors mean."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec
import psycopg
from psycopg import errors, sql

from proto.errors import OperationError, Unavailable
from services.runtime.storage import DiskFull

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

CONNECT_S = 5
STATEMENT_S = 15
RETRY_MS = 500

LEAST_SERVER = 150_000
VERSION = 1

_TABLES = """
CREATE TABLE source_version(version int NOT NULL);
-- The kernel whose processes hold the files, and since when.
CREATE TABLE source_active(kernel text NOT NULL, machine text NOT NULL, since timestamptz NOT NULL DEFAULT now());
CREATE TABLE source_files(
    number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    -- Of the file; grows by one with each commit.
    generation bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0,
    opening bigint NOT NULL DEFAULT 0
);
-- Who has opened a file, and at which generation.
CREATE TABLE source_openings(
    file int NOT NULL REFERENCES source_files ON DELETE CASCADE, opening bigint NOT NULL, generation bigint NOT NULL,
    kernel text NOT NULL, machine text NOT NULL, at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY(file, opening)
);
CREATE TABLE source_pages(
    file int NOT NULL REFERENCES source_files ON DELETE CASCADE, number bigint NOT NULL, bytes bytea NOT NULL,
    PRIMARY KEY(file, number)
);
-- Compressed in the row, since a page of its own table would cost two more reads.
ALTER TABLE source_pages ALTER COLUMN bytes SET STORAGE MAIN;
"""


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel tells a service about its source databases on a server.

    Attributes:
        dsn_env: the variable that has the connection string.
        kernel: identity of the data directory.
        machine: name of the kernel for people.
        databases: their names, in the service's folder.
        derived: names of the databases that are derived from them, on this machine.
    """

    dsn_env: str
    schema: str = "linckia"
    kernel: str
    machine: str
    databases: tuple[str, ...]
    derived: tuple[str, ...] = ()


class Lost(Exception):
    """Another kernel has held the file meanwhile, so what this process remembers may be old."""


class NotSent(Unavailable):
    """The server was not asked, or refused: nothing was changed."""


def connect(dsn: str, schema: str, name: str) -> Connection:
    """Connect; `name` is what the server calls the session. Raises OperationError, psycopg.Error."""
    connection: Connection = psycopg.connect(
        dsn, connect_timeout=CONNECT_S, application_name=name, autocommit=True,
        keepalives_idle=5, keepalives_interval=2, keepalives_count=3, tcp_user_timeout=10_000,
    )  # fmt: skip
    try:
        if (version := connection.info.server_version) < LEAST_SERVER:
            raise OperationError(f"PostgreSQL {version // 10_000} is too old; 15 or newer is needed")
        for setting, value in (
            ("search_path", schema),
            ("statement_timeout", f"{STATEMENT_S}s"),
            ("lock_timeout", f"{CONNECT_S}s"),
            ("synchronous_commit", "on"),
            ("default_transaction_isolation", "read committed"),
            # The server notices that this machine is lost, and ends the session with its lock.
            ("tcp_keepalives_idle", "5"),
            ("tcp_keepalives_interval", "2"),
            ("tcp_keepalives_count", "3"),
            ("tcp_user_timeout", "12000"),
            ("jit", "off"),
        ):
            connection.execute("SELECT set_config(%s, %s, false)", (setting, value))
        connection.prepare_threshold = 2
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: Connection, schema: str) -> None:
    """Create the tables unless they are there. Raises OperationError for those of another version."""
    found = connection.execute("SELECT to_regclass('source_version')").fetchone()
    if found is None or found[0] is None:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        connection.execute(_TABLES)
        connection.execute("INSERT INTO source_version VALUES (%s)", (VERSION,))
    version = connection.execute("SELECT version FROM source_version").fetchone()
    if version is None or version[0] != VERSION:
        raise OperationError(
            f"the source tables in schema {schema!r} have version {version and version[0]}, but this program "
            f"needs {VERSION}"
        )


def lock_number(schema: str, of: str) -> int:
    """Return the number of an advisory lock."""
    return int.from_bytes(hashlib.blake2b(f"linckia {schema} {of}".encode(), digest_size=8).digest(), signed=True)


_FULL = (errors.DiskFull, errors.OutOfMemory, errors.InsufficientResources)


@contextlib.contextmanager
def meaning() -> Iterator[None]:
    """Raise the server's errors as ours."""
    try:
        yield
    except Lost as error:
        raise NotSent(str(error), retry_after_ms=RETRY_MS) from error
    except _FULL as error:
        raise DiskFull(f"the PostgreSQL server has no room: {_line(error)}") from error
    except psycopg.Error as error:
        said = _line(error)
        if isinstance(error, (errors.InvalidPassword, errors.InvalidAuthorizationSpecification)):
            raise OperationError(f"the PostgreSQL server refuses: {said}") from error
        text = f"the PostgreSQL server is not available: {said}"
        refused = (error.sqlstate is not None and not error.sqlstate.startswith(("08", "57P"))) or isinstance(
            error, psycopg.errors.ConnectionTimeout
        )
        if refused or "connection to server" in said or "connection failed" in said:
            raise NotSent(text, retry_after_ms=RETRY_MS) from error
        raise Unavailable(text, retry_after_ms=RETRY_MS) from error


def _line(error: BaseException) -> str:
    text: str = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
