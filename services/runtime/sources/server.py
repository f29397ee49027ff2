"""The pages of one SQLite file on a PostgreSQL server, and this process's hold of them.

One process at a time holds a file: by a session lock on the connection through which all its pages go. Once the
connection is gone, so are the lock and every way of writing: nothing that a former holder does reaches the server. The
processes of one kernel hold their files together: while one of its connections lives, no other kernel takes any file.

A commit is one statement, so the server has all of its pages or none. If it is not answered, this process connects
again and takes the lock, which shows that the former connection has ended; the file's generation then says what became
of the commit. Everything here blocks and runs in worker threads.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

import psycopg

from proto.errors import Executed, Unavailable
from services.runtime.sources.connecting import (
    RETRY_MS,
    Connection,
    Lost,
    NotSent,
    connect,
    lock_number,
    meaning,
    prepare,
)

BLOCK = 4096
"""Bytes of one row: SQLite's usual page."""

LEASE_S = 8.0
"""How long after the server's last sign of life the pages in memory are read. The server notices a lost machine later
than that, so nobody else holds the file yet."""
HANGS_S = 20.0
"""How long the server may take to answer before the connection is broken."""
RESOLVE_S = 10.0
"""How long an unanswered commit is asked for."""
SETTLE_S = 0.5
"""Pause after taking a file from another kernel: by then one that is alive has noticed that its connection ended."""
KEPT_OPENINGS = 1000


class HeldElsewhere(Exception):
    """Another process holds the file; the message says which. `by_kernel` is whether it is one of another kernel."""

    def __init__(self, by: str, *, by_kernel: bool) -> None:
        super().__init__(by)
        self.by_kernel = by_kernel


class MaybeCommitted(Unavailable):
    """Nobody could say whether a transaction was committed."""


class Opened(NamedTuple):
    """A file as it was found when this process took it."""

    generation: int
    taken_from: str
    """The machine that held it before, if that was another kernel; else empty."""
    is_new: bool


class PageServer:
    """The hold of one file.

    Args:
        dsn: as libpq takes it.
        name: the file's name on the server, such as `memory/memory.db`.
        kernel: identity of this kernel, and `machine` its name for people.
    """

    def __init__(self, dsn: str, name: str, *, kernel: str, machine: str, schema: str = "linckia") -> None:
        self._dsn, self.name, self._schema = dsn, name, schema
        self.kernel, self._machine = kernel, machine
        self._token = secrets.token_hex(8)
        self.guard = threading.RLock()
        """Held while the connection is used."""
        self._connection: Connection | None = None
        self._waiting: Connection | None = None
        self._busy_since: float | None = None
        self._confirmed = float("-inf")
        self._backend = 0
        self.file = 0
        self.opening = 0
        self.generation = 0
        self.bytes = 0
        self.ended = ""
        """Why this process may not use the file any more; it then has to start anew."""
        self.closed = False

    # The hold

    def take(self, taken_over: Callable[[str], object] = lambda machine: None) -> Opened:
        """Take the hold.

        Args:
            taken_over: called with the machine that held the file before, if that was another kernel. If this process
                dies before it is done, the next one calls it too.

        Raises HeldElsewhere, Unavailable, OperationError.
        """
        with self.guard, meaning():
            connection = self._waiting
            if connection is None or connection.closed or connection.broken:
                connection = self._connect()
            try:
                opened = self._take_on(connection, taken_over)
            except HeldElsewhere:
                # To try again on.
                self._waiting = connection
                raise
            except BaseException:
                connection.close()
                raise
            self._waiting = None
            self._use(connection)
            return opened

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._backend = connection.info.backend_pid

    def _connect(self) -> Connection:
        return connect(self._dsn, self._schema, f"linckia {self._token}")

    def _take_on(self, connection: Connection, taken_over: Callable[[str], object]) -> Opened:
        """Take the locks on a new connection, and note the opening."""
        sent = time.monotonic()
        with connection.transaction():
            self._enter(connection)
            row = connection.execute("SELECT number FROM source_files WHERE name = %s", (self.name,)).fetchone()
            if row is None:
                row = connection.execute(
                    "INSERT INTO source_files(name) VALUES (%s) RETURNING number", (self.name,)
                ).fetchone()
            assert row is not None
            self.file = int(row[0])
            self._lock_file(connection)
            before = connection.execute(
                "SELECT kernel, machine FROM source_openings WHERE file = %s ORDER BY opening DESC LIMIT 1",
                (self.file,),
            ).fetchone()
            taken_from = str(before[1]) if before is not None and before[0] != self.kernel else ""
            if taken_from:
                taken_over(taken_from)
            state = connection.execute(
                "UPDATE source_files SET opening = opening + 1 WHERE number = %s RETURNING opening, generation, bytes",
                (self.file,),
            ).fetchone()
            assert state is not None
            self.opening, self.generation, self.bytes = map(int, state)
            connection.execute(
                "INSERT INTO source_openings(file, opening, generation, kernel, machine) VALUES (%s, %s, %s, %s, %s)",
                (self.file, self.opening, self.generation, self.kernel, self._machine),
            )
            connection.execute(
                "DELETE FROM source_openings WHERE file = %s AND opening < %s",
                (self.file, self.opening - KEPT_OPENINGS),
            )
        self._confirmed = sent
        return Opened(self.generation, taken_from, self.generation == 0)

    def _enter(self, connection: Connection) -> None:
        """Make this kernel the active one, in the caller's transaction. Raises HeldElsewhere."""
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(self._schema, "sources"),))
        prepare(connection, self._schema)
        active = connection.execute("SELECT kernel, machine, since FROM source_active").fetchone()
        if active is None or active[0] != self.kernel:
            if active is not None:
                free = connection.execute(
                    "SELECT pg_try_advisory_xact_lock(%s)", (lock_number(self._schema, f"kernel {active[0]}"),)
                ).fetchone()
                if free is None or not free[0]:
                    since = f"{active[2]:%Y-%m-%d %H:%M:%S %Z}"
                    raise HeldElsewhere(f"{active[1]}, since {since}", by_kernel=True)
            connection.execute("DELETE FROM source_active")
            values = (self.kernel, self._machine)
            connection.execute("INSERT INTO source_active(kernel, machine) VALUES (%s, %s)", values)
        # Beyond the transaction, until the connection ends.
        connection.execute("SELECT pg_advisory_lock_shared(%s)", (lock_number(self._schema, f"kernel {self.kernel}"),))

    def _lock_file(self, connection: Connection) -> None:
        if self._backend:
            # This process's former connection, in case the server does not know yet that it is lost.
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND application_name = %s"
                " AND pid <> pg_backend_pid()",
                (self._backend, f"linckia {self._token}"),
            )
        row = connection.execute(
            "SELECT pg_try_advisory_lock(%s)", (lock_number(self._schema, f"file {self.name}"),)
        ).fetchone()
        if row is None or not row[0]:
            raise HeldElsewhere(f"a former process of {self._machine}", by_kernel=False)

    def _again(self) -> Connection:
        """Return the connection; if it was lost, take the hold again. Raises Lost, HeldElsewhere, psycopg.Error."""
        if self.closed:
            raise Unavailable("the service is ending", retry_after_ms=RETRY_MS)
        if self.ended:
            raise Lost(self.ended)
        connection = self._connection
        if connection is not None and not connection.closed and not connection.broken:
            # What is sent to a server that has ended the connection would count as unanswered.
            if not _has_ended(connection):
                return connection
            connection.close()
        self._connection = None
        connection = self._connect()
        try:
            found = self._retake_on(connection)
            if found != self.generation:
                self._end(f"{self.name} was changed by somebody else")
        except HeldElsewhere as held:
            connection.close()
            if held.by_kernel:
                self._end(f"{self.name} is held by {held}")
            raise
        except BaseException:
            connection.close()
            raise
        self._use(connection)
        return connection

    def _end(self, why: str) -> NoReturn:
        self.ended = self.ended or why
        raise Lost(self.ended)

    def _retake_on(self, connection: Connection) -> int:
        """Take the locks on a new connection, and return the file's generation. Raises HeldElsewhere.

        Raises Lost if another process has opened the file since this one did.
        """
        sent = time.monotonic()
        with connection.transaction():
            self._enter(connection)
            self._lock_file(connection)
            row = connection.execute(
                "SELECT opening, generation FROM source_files WHERE number = %s", (self.file,)
            ).fetchone()
        if row is None or row[0] != self.opening:
            self._end(f"another process has held {self.name} meanwhile")
        self._confirmed = sent
        return int(row[1])

    # Use of the connection

    @contextlib.contextmanager
    def lent(self) -> Iterator[Connection]:
        """Lend the connection. Raises Unavailable, DiskFull, OperationError."""
        with self.guard, meaning():
            try:
                connection = self._again()
            except HeldElsewhere as held:
                raise NotSent(f"{self.name} is still held by {held}", retry_after_ms=RETRY_MS) from held
            sent = self._busy_since = time.monotonic()
            try:
                yield connection
                self._confirmed = sent
            except psycopg.Error:
                if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    connection.close()
                raise
            finally:
                self._busy_since = None

    def confirm(self) -> None:
        """Ask the server for a sign of life. Raises Unavailable."""
        with self.lent() as connection:
            found = connection.execute("SELECT generation FROM source_files WHERE number = %s", (self.file,)).fetchone()
            if found is None or found[0] != self.generation:
                self._end(f"{self.name} was changed by somebody else")

    def check(self) -> None:
        """Raise Unavailable unless what this process has in memory is current."""
        if self.ended:
            raise Unavailable(self.ended, retry_after_ms=RETRY_MS)
        if self.guard.acquire(blocking=False):
            try:
                gone = self._connection is None or self._connection.closed or _has_ended(self._connection)
            finally:
                self.guard.release()
        else:
            # Another thread uses it, and notices.
            gone = False
        if gone or time.monotonic() - self._confirmed > LEASE_S:
            if gone and self._connection is not None:
                with self.guard:
                    self._connection.close()
            self.confirm()

    def end_overdue(self) -> None:
        """Break the connection if the server has not answered in time, as when it hangs. Does not block."""
        since, connection = self._busy_since, self._connection
        if since is not None and connection is not None and time.monotonic() - since > HANGS_S:
            with contextlib.suppress(OSError, psycopg.Error):
                twin = socket.socket(fileno=os.dup(connection.fileno()))
                with twin:
                    twin.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the hold."""
        with self.guard:
            self.closed = True
            for connection in (self._connection, self._waiting):
                if connection is not None:
                    connection.close()

    # Pages

    def load(self, first: int, count: int) -> dict[int, bytes]:
        """Return the blocks in this range that are there. Raises Unavailable."""
        with self.lent() as connection:
            rows = connection.execute(
                "SELECT number, bytes FROM source_pages WHERE file = %s AND number >= %s AND number < %s",
                (self.file, first, first + count), binary=True,
            ).fetchall()  # fmt: skip
        return dict(rows)

    def load_these(self, numbers: Sequence[int]) -> dict[int, bytes]:
        """Return these blocks, as far as they are there. Raises Unavailable."""
        with self.lent() as connection:
            rows = connection.execute(
                "SELECT number, bytes FROM source_pages WHERE file = %s AND number = ANY(%s)",
                (self.file, [*numbers]), binary=True,
            ).fetchall()  # fmt: skip
        return dict(rows)

    def commit(self, blocks: Mapping[int, bytes], size: int) -> None:
        """Store blocks, and the size of the file in bytes; on return they are on the server's disk.

        Raises:
            Unavailable, DiskFull: nothing was changed.
            MaybeCommitted: the server could not be asked; this process has to start anew.
        """
        with self.guard:
            for last in (False, True):
                try:
                    with self.lent() as connection:
                        self._send(connection, blocks, size)
                    break
                except Unavailable as error:
                    # What the server refused has a code of its own; anything else may have been carried out.
                    if isinstance(error, NotSent):
                        raise
                    if self._resolved(error):
                        break
                    if last or self.ended:
                        raise NotSent(str(error), retry_after_ms=RETRY_MS) from error
            self.generation += 1
            self.bytes = size

    def _send(self, connection: Connection, blocks: Mapping[int, bytes], size: int) -> None:
        numbers = [*blocks]
        values = {
            "size": size, "file": self.file, "generation": self.generation, "opening": self.opening,
            "numbers": numbers, "bytes": [blocks[number] for number in numbers], "end": -(-size // BLOCK),
        }  # fmt: skip
        moved = connection.execute(_CUT if size < self.bytes else _COMMIT, values).fetchone()
        if moved is None or moved[0] != 1:
            self._end(f"{self.name} was changed by somebody else")

    def _resolved(self, error: Unavailable) -> bool:
        """Return whether the commit happened that was not answered. Raises MaybeCommitted."""
        mine, until = self.generation + 1, time.monotonic() + RESOLVE_S
        if self._connection is not None:
            self._connection.close()
        while True:
            with contextlib.suppress(psycopg.Error):
                connection = self._connect()
                try:
                    found = self._retake_on(connection)
                    self._use(connection)
                    return found == mine
                except HeldElsewhere:
                    next_ = self._generation_of_the_next(connection)
                except Lost:
                    next_ = self._generation_of_the_next(connection)
                if self._connection is not connection:
                    connection.close()
                if next_ is not None:
                    self.ended = self.ended or f"another kernel has held {self.name} meanwhile"
                    return next_ >= mine
            if time.monotonic() > until:
                break
            time.sleep(0.1)
        self.ended = self.ended or f"the outcome of a commit of {self.name} is unknown"
        raise MaybeCommitted(
            "the connection to the PostgreSQL server was lost during a commit, whose outcome is unknown",
            executed=Executed.MAYBE, retry_after_ms=RETRY_MS,
        ) from error  # fmt: skip

    def _generation_of_the_next(self, connection: Connection) -> int | None:
        """Return the generation at which the process opened the file that held it after this one, if there is one."""
        row = connection.execute(
            "SELECT generation FROM source_openings WHERE file = %s AND opening = %s", (self.file, self.opening + 1)
        ).fetchone()
        return None if row is None else int(row[0])


_MOVED = """
WITH moved AS (
    UPDATE source_files SET generation = generation + 1, bytes = %(size)s
    WHERE number = %(file)s AND generation = %(generation)s AND opening = %(opening)s RETURNING number
), stored AS (
    INSERT INTO source_pages(file, number, bytes)
    SELECT moved.number, p.number, p.bytes
    FROM moved, unnest(%(numbers)b::bigint[], %(bytes)b::bytea[]) p(number, bytes)
    ON CONFLICT (file, number) DO UPDATE SET bytes = excluded.bytes
)"""
_COMMIT = _MOVED + " SELECT count(*) FROM moved"
_CUT = (
    _MOVED
    + ", cut AS (DELETE FROM source_pages p USING moved WHERE p.file = moved.number AND p.number >= %(end)s)"
    + " SELECT count(*) FROM moved"
)


def _has_ended(connection: Connection) -> bool:
    """Return whether the server has ended an idle connection."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
