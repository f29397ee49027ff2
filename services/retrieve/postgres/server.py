"""Connections to the PostgreSQL server, transactions on them, and what their failures mean.

Everything here blocks and runs in worker threads. A connection that fails is closed, never reused. Losing the server
fails calls with Unavailable; the next call connects again.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, LiteralString, TypeAlias, TypeVar

import psycopg
from pgvector.psycopg import register_vector
from psycopg import errors, sql

from proto.errors import Executed, LinckiaError, OperationError, Unavailable
from services.retrieve.postgres.schema import TABLES, TABLES_VERSION, UPGRADES
from services.runtime.storage import DiskFull

T = TypeVar("T")
Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

CONNECT_S = 5
"""How long a connection attempt may take."""

STATEMENT_S = 60
"""How long a statement may take, except for building an index: the deadline of a write."""

READ_S, WRITE_S = 130.0, 55.0
"""How long a transaction may take before its connection is broken. Whoever gives up a read earlier breaks it then."""

LOCK_S = 10.0
"""The same for a lock between kernels."""

UPGRADE_S = 5
"""How long a change of the tables may wait for those who use them."""

RETRY_MS = 1000
TRIES = 5
"""How often a transaction is tried that conflicts with another one."""

LEAST_SERVER, LEAST_VECTOR = 150_000, (0, 8)

_CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected)
_FULL = (errors.DiskFull, errors.OutOfMemory, errors.InsufficientResources)
_LOST = (psycopg.OperationalError, psycopg.InterfaceError, errors.QueryCanceled, errors.ReadOnlySqlTransaction)


class Lease:
    """The use of a connection, which another thread may abort, since a server that hangs applies no timeout.

    Args:
        limit_s: how long it may take.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._until = math.inf
        self._guard = threading.Lock()
        self._connection: Connection | None = None
        self._aborted = False

    def begin(self, connection: Connection) -> None:
        """Use `connection` from now on.  Raises Unavailable if aborted already."""
        with self._guard:
            if self._aborted:
                raise Unavailable("the call was given up", retry_after_ms=RETRY_MS)
            self._connection = connection
            self._until = time.monotonic() + self._limit_s

    def end(self) -> None:
        with self._guard:
            self._connection = None

    def is_overdue(self) -> bool:
        return time.monotonic() > self._until

    def abort(self) -> None:
        """Break the connection, so that the thread that uses it gets an error.  Does not block."""
        with self._guard:
            self._aborted = True
            if self._connection is not None and not self._connection.closed:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as twin:
                    twin.shutdown(socket.SHUT_RDWR)


class Server:
    """One server, by its connection string, and the schema in it that belongs to Linckia.

    Args:
        dsn: as libpq takes it: `postgresql://user:password@host/database`.
        schema: made if it does not exist.
    """

    def __init__(self, dsn: str, schema: str = "linckia") -> None:
        self._dsn = dsn
        self.schema = schema
        self._idle: list[Connection] = []
        self._guard = threading.Lock()
        """Held for moments only: the event loop takes it too."""
        self._preparing = threading.Lock()
        self._leases: set[Lease] = set()
        self._prepared = False
        self._closed = False
        self._locks: Connection | None = None
        self._held: set[int] = set()
        self._locking = threading.Lock()

    # Connections

    @contextlib.contextmanager
    def connection(self, lease: Lease | None = None) -> Iterator[Connection]:
        """Lend a connection, in no transaction.

        Raises:
            Unavailable: the server cannot be reached, or was lost meanwhile.
            DiskFull: the server has no room.
            OperationError: it refuses.
        """
        lease = lease or Lease(READ_S)
        with _meaning():
            connection = self._take()
            try:
                with self._leased(lease, connection):
                    yield connection
            except BaseException:
                # Whatever it was doing, nothing of it goes on.
                with contextlib.suppress(psycopg.Error):
                    if not connection.closed:
                        connection.rollback()
                self._give(connection)
                raise
            self._give(connection)

    @contextlib.contextmanager
    def _leased(self, lease: Lease, connection: Connection) -> Iterator[None]:
        lease.begin(connection)
        with self._guard:
            self._leases.add(lease)
        try:
            yield
        finally:
            with self._guard:
                self._leases.discard(lease)
            lease.end()

    def end_overdue(self) -> None:
        """Break the connections on which the server has not answered in time, as when it hangs.  Does not block."""
        with self._guard:
            overdue = [lease for lease in self._leases if lease.is_overdue()]
        for lease in overdue:
            lease.abort()

    def _take(self) -> Connection:
        with self._guard:
            if self._closed:
                raise Unavailable("the service is ending", retry_after_ms=RETRY_MS)
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed and not connection.broken:
                    return connection
        return self._connect()

    def _give(self, connection: Connection) -> None:
        usable = not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._guard:
            if usable and not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self) -> Connection:
        connection: Connection = psycopg.connect(
            self._dsn, connect_timeout=CONNECT_S, application_name="linckia", autocommit=True,
            keepalives_idle=5, keepalives_interval=2, keepalives_count=3, tcp_user_timeout=10_000,
        )  # fmt: skip
        try:
            self._prepare(connection)
            for name, value in (
                ("search_path", f"{self.schema}, public"),
                ("statement_timeout", f"{STATEMENT_S}s"),
                ("lock_timeout", f"{STATEMENT_S // 2}s"),
                ("idle_in_transaction_session_timeout", f"{STATEMENT_S}s"),
                # A write is confirmed once it is on disk, whatever the server's own setting is.
                ("synchronous_commit", "on"),
                ("jit", "off"),
            ):
                connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            register_vector(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: Connection) -> None:
        """Create the extension and the tables, once per process and database."""
        with self._preparing:
            if not self._prepared:
                self._prepare_now(connection)
                self._prepared = True

    def _prepare_now(self, connection: Connection) -> None:
        if (version := connection.info.server_version) < LEAST_SERVER:
            raise OperationError(f"PostgreSQL {version // 10_000} is too old; 15 or newer is needed")
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"tables {self.schema}",))
            self._prepare_extension(connection)
            self._prepare_tables(connection)

    def _prepare_extension(self, connection: Connection) -> None:
        found = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
        if found is None:
            try:
                with connection.transaction():
                    connection.execute("CREATE EXTENSION vector SCHEMA public")
            except (errors.InsufficientPrivilege, errors.FeatureNotSupported, errors.UndefinedFile) as error:
                raise OperationError(
                    f"the database has no extension `vector` and it cannot be created ({_line(error)}); install "
                    "pgvector 0.8 or newer, and have an administrator run CREATE EXTENSION vector"
                ) from None
            found = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
        version = str(found[0]) if found is not None else "0"
        if tuple(map(int, version.split(".")[:2])) < LEAST_VECTOR:
            raise OperationError(f"pgvector {version} is too old; 0.8 is needed: ALTER EXTENSION vector UPDATE")

    def _prepare_tables(self, connection: Connection) -> None:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.schema)))
        connection.execute("SELECT set_config('search_path', %s, true)", (f"{self.schema}, public",))
        connection.execute("CREATE TABLE IF NOT EXISTS tables_version (version int NOT NULL)")
        found = connection.execute("SELECT version FROM tables_version").fetchone()
        if found is None:
            connection.execute(TABLES)
            connection.execute("INSERT INTO tables_version VALUES (%s)", (TABLES_VERSION,))
            return
        version = int(found[0])
        # All changes are in the caller's transaction. Whoever waits for a table makes all others wait for it.
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{UPGRADE_S}s",))
        while version in UPGRADES:
            connection.execute(UPGRADES[version])
            version += 1
            connection.execute("UPDATE tables_version SET version = %s", (version,))
        if version != TABLES_VERSION:
            raise OperationError(
                f"the tables in schema {self.schema!r} have version {version}, but this program needs {TABLES_VERSION}"
            )

    # Transactions

    def read(self, work: Callable[[Connection], T], lease: Lease | None = None) -> T:
        """Run `work` on one snapshot, which it cannot change."""
        for last in (False, True):
            try:
                with self.connection(lease) as connection, connection.transaction():
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    return work(connection)
            except Unavailable as error:
                # An idle connection does not notice that the server restarted; a new one tells.
                if last or not _was_lost(error):
                    raise
                self.rest()
        raise AssertionError

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction.  On return it is on the server's disk.

        `work` runs again if the transaction conflicts with another one, or if the connection was lost and the
        transaction with it. If the connection is lost during COMMIT, the server is asked whether it committed.

        Raises:
            Unavailable: nothing was changed.
            MaybeCommitted: the server was lost during COMMIT, and could not be asked.
            DiskFull: nothing was changed.
        """
        for tried in range(TRIES):
            last = tried == TRIES - 1
            number: str | None = None
            try:
                with self.connection(Lease(WRITE_S)) as connection:
                    try:
                        connection.execute("BEGIN")
                        result = work(connection)
                        row = connection.execute("SELECT pg_current_xact_id_if_assigned()::text").fetchone()
                        number = row[0] if row is not None else None
                        connection.execute("COMMIT")
                        return result
                    except _CONFLICTS:
                        if last:
                            raise
                        connection.rollback()
                        continue
            except Unavailable as error:
                if number is not None and self._committed(number):
                    return result
                if last or tried > 0 or not _was_lost(error):
                    raise
                self.rest()
        raise AssertionError

    def _committed(self, number: str) -> bool:
        """Return whether the transaction committed whose COMMIT was not answered.  Raises MaybeCommitted."""
        until = time.monotonic() + 2 * CONNECT_S
        while True:
            try:
                with self.connection() as connection:
                    row = connection.execute("SELECT pg_xact_status(%s::xid8)", (number,)).fetchone()
                if row is not None and row[0] in ("committed", "aborted"):
                    return bool(row[0] == "committed")
            except LinckiaError:
                pass
            if time.monotonic() > until:
                raise MaybeCommitted(
                    "the connection to the PostgreSQL server was lost during a commit, whose outcome is unknown",
                    executed=Executed.MAYBE, retry_after_ms=RETRY_MS,
                )  # fmt: skip
            time.sleep(0.1)

    # Locks between kernels

    def try_lock(self, key: str) -> bool:
        """Try to become the only kernel that does `key`; return whether it is.  It is until the connection is lost."""
        with self._locking, _meaning():
            connection = self._locks
            try:
                if connection is None or connection.closed or connection.broken:
                    self._locks, self._held = None, set()
                    connection = self._locks = self._connect()
                with self._leased(Lease(LOCK_S), connection):
                    number = connection.execute("SELECT hashtextextended(%s, 0)", (f"{self.schema} {key}",)).fetchone()
                    assert number is not None
                    if number[0] in self._held:
                        return True
                    row = connection.execute("SELECT pg_try_advisory_lock(%s)", number).fetchone()
                if row is not None and row[0]:
                    self._held.add(number[0])
                    return True
                return False
            except psycopg.Error:
                if connection is not None:
                    connection.close()
                raise

    def unlock(self, key: str) -> None:
        """Let another kernel do `key`.  Does nothing if this one does not hold it."""
        with self._locking, _meaning():
            connection = self._locks
            if connection is None or connection.closed or connection.broken:
                return
            try:
                with self._leased(Lease(LOCK_S), connection):
                    number = connection.execute("SELECT hashtextextended(%s, 0)", (f"{self.schema} {key}",)).fetchone()
                    assert number is not None
                    if number[0] in self._held:
                        connection.execute("SELECT pg_advisory_unlock(%s)", number)
                        self._held.discard(number[0])
            except psycopg.Error:
                connection.close()
                raise

    @contextlib.contextmanager
    def unbounded(self, lease: Lease | None = None) -> Iterator[Connection]:
        """Open a connection for statements that may take long or do not run in transactions, such as of an index."""
        with _meaning():
            connection = self._connect()
            try:
                connection.execute("SET statement_timeout = 0")
                with contextlib.suppress(psycopg.Error):
                    # So that the server stops, too, if the lease is aborted. Not every system can.
                    connection.execute("SET client_connection_check_interval = '1s'")
                with self._leased(lease or Lease(math.inf), connection):
                    yield connection
            finally:
                connection.close()

    def close(self) -> None:
        """Close all connections that are not in use; those in use close when they are returned."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in (*idle, *([self._locks] if self._locks is not None else [])):
            connection.close()

    def rest(self) -> None:
        """Close the connections that are not in use."""
        with self._guard:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class MaybeCommitted(Unavailable):
    """Nobody could say whether a transaction committed.

    Every write of a collection may be repeated with the same effect, so it counts as not available, to be tried again.
    """


@contextlib.contextmanager
def _meaning() -> Iterator[None]:
    """Raise the server's errors as ours."""
    try:
        yield
    except _FULL as error:
        raise DiskFull(f"the PostgreSQL server has no room: {_line(error)}") from error
    except errors.UndefinedTable as error:
        raise Gone(f"the collection was removed meanwhile: {_line(error)}", retry_after_ms=0) from error
    except errors.ProgramLimitExceeded as error:
        # It is an OperationalError of psycopg, but does not pass.
        raise OperationError(f"the PostgreSQL server refuses: {_line(error)}") from error
    except _LOST as error:
        refused = isinstance(error, (errors.InvalidPassword, errors.InvalidAuthorizationSpecification))
        if refused or "authentication failed" in str(error):
            raise OperationError(f"the PostgreSQL server refuses: {_line(error)}") from error
        unavailable = Unavailable(f"the PostgreSQL server is not available: {_line(error)}", retry_after_ms=RETRY_MS)
        raise unavailable from error
    except psycopg.Error as error:
        raise OperationError(f"the PostgreSQL server refuses: {_line(error)}") from error


class Gone(Unavailable):
    """The collection's tables no longer exist."""


def _was_lost(error: Unavailable) -> bool:
    """Whether the connection was lost: not a new one refused, and not a statement that took too long."""
    cause = error.__cause__
    if not isinstance(cause, psycopg.Error) or _is_refused(cause):
        return False
    # https://www.postgresql.org/docs/current/errcodes-appendix.html; a lost connection often leaves no code.
    return cause.sqlstate is None or cause.sqlstate.startswith(("08", "57P", "25P03"))


def _is_refused(cause: psycopg.Error) -> bool:
    return isinstance(cause, (psycopg.errors.ConnectionTimeout,)) or "connection to server" in str(cause)


def _line(error: BaseException) -> str:
    text: str = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def parts(schema: LiteralString | str, number: int) -> dict[str, sql.Identifier]:
    """Return the tables of collection `number`, to format statements with."""
    names = ("groups", "group_values", "items", "vectors", "outbox")
    return {name: sql.Identifier(schema, f"{name}_{number}") for name in names}
