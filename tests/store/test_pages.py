"""SQLite's pages on a server: whole transactions or none, whoever dies when, and one holder at a time."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import apsw
import psycopg
import pytest

from proto.errors import Executed, Unavailable
from services.runtime.database import Database, Kind, Schema, elsewhere
from services.runtime.sources import server as server_module
from services.runtime.sources.pages import mounted
from services.runtime.sources.server import HeldElsewhere, MaybeCommitted
from tests.postgres import PostgresServer
from tests.store.pages import PATH, TABLES, connected, held, server_of
from tests.system.running import REPOSITORY, wait_until

POSTGRES = {"fsync": "off", "max_connections": "40"}


def test_readers_see_one_state_and_writers_wait_for_nobody(server: PostgresServer, schema: str) -> None:
    with held(server, schema) as file:
        writer, reader = connected(), connected()
        writer.execute(TABLES).fetchall()
        reader.execute("BEGIN")
        before = reader.execute("SELECT sum(of), count(*) FROM filler").fetchall()
        for number in range(1, 4):
            writer.execute("UPDATE filler SET of=?, text=hex(randomblob(1500))", (number,))
        writer.execute("DELETE FROM filler WHERE id > 5")
        writer.execute("VACUUM")
        assert reader.execute("SELECT sum(of), count(*) FROM filler").fetchall() == before
        assert reader.execute("SELECT count(*) FROM filler WHERE length(text) = 3000").get == 40
        assert reader.pragma("integrity_check") == "ok"
        reader.execute("ROLLBACK")
        assert reader.execute("SELECT sum(of), count(*) FROM filler").fetchall() == [(15, 5)]
        assert file._older == {}
        writer.close()
        reader.close()


def test_random_transactions_are_as_in_a_file(tmp_path: Path, server: PostgresServer, schema: str) -> None:
    chance = random.Random(7)
    with held(server, schema):
        here, there = apsw.Connection(str(tmp_path / "peer.db")), connected()
        for one in (here, there):
            one.pragma("cache_size", 10)
            one.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, text); CREATE INDEX i ON t(text)").fetchall()
        for _ in range(60):
            changes = [
                chance.choice(
                    (
                        f"INSERT INTO t(text) SELECT printf('%.*c', {chance.randrange(1, 9000)}, 'x') || value"
                        f" FROM json_each('[{','.join(map(str, range(chance.randrange(1, 60))))}]')",
                        f"UPDATE t SET text = text || 'y' WHERE id % 7 = {chance.randrange(7)}",
                        f"DELETE FROM t WHERE id % 5 = {chance.randrange(5)}",
                        "SAVEPOINT one; DELETE FROM t; ROLLBACK TO one; RELEASE one",
                    )
                )
                for _ in range(chance.randrange(1, 4))
            ]
            end = chance.choice(("COMMIT", "COMMIT", "ROLLBACK"))
            for one in (here, there):
                one.execute("BEGIN IMMEDIATE")
                for change in changes:
                    one.execute(change).fetchall()
                one.execute(end)
            query = "SELECT id, text FROM t ORDER BY id"
            assert there.execute(query).fetchall() == here.execute(query).fetchall()
        there.execute("VACUUM")
        assert there.pragma("integrity_check") == "ok"
        there.close()
        fresh = connected()
        assert fresh.execute(query).fetchall() == here.execute(query).fetchall()
        fresh.close()


@pytest.fixture
def child(server: PostgresServer, schema: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(kernel: str, dsn: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.store.pages_child", dsn or server.dsn, schema, kernel]
        started.append(subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "begun\n"
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()
        assert each.stdout is not None
        each.stdout.close()


def test_a_killed_writer_leaves_whole_transactions(
    server: PostgresServer, schema: str, child: Callable[[str], subprocess.Popen[str]]
) -> None:
    chance = random.Random(3)
    for round_ in range(8):
        process = child(f"kernel {round_ % 2}")
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(5)]
        threading.Timer(chance.uniform(0, 0.02), process.kill).start()
        acknowledged += map(int, process.stdout.read().split())
        process.wait()
        other = server_of(server, schema, "looks")
        wait_until(partial(_took, other))
        elsewhere.files.clear()
        mounted(Path(PATH), other)
        found = connected()
        assert found.pragma("integrity_check") == "ok"
        last = int(found.execute("SELECT max(number) FROM done").get)
        assert last in (acknowledged[-1], acknowledged[-1] + 1)
        assert found.execute("SELECT DISTINCT of FROM filler").fetchall() == [(last,)]
        found.close()
        other.close()


def _took(server: server_module.PageServer) -> bool:
    try:
        server.take()
    except HeldElsewhere:
        return False
    return True


def test_a_stopped_holder_writes_nothing_after_another_has_taken_over(
    server: PostgresServer, schema: str, child: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = child("first")
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(3)]
    process.send_signal(signal.SIGSTOP)
    other = server_of(server, schema, "second")
    with pytest.raises(HeldElsewhere, match="first"):
        other.take()
    # As the server does once it finds that the machine is lost.
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE starts_with(application_name, 'linckia ')"
            " AND application_name <> %s",
            (f"linckia {other._token}",),
        )
    wait_until(lambda: _took(other))
    elsewhere.files.clear()
    mounted(Path(PATH), other)
    mine = connected()
    before = int(mine.execute("SELECT max(number) FROM done").get)
    mine.execute("INSERT INTO done VALUES(1000000)")
    process.send_signal(signal.SIGCONT)
    # It ends with the error of a COMMIT that was refused.
    acknowledged += map(int, process.stdout.read().split())
    assert process.wait() != 0
    assert max(acknowledged) <= before
    assert [each for (each,) in mine.execute("SELECT number FROM done WHERE number > ?", (before,))] == [1_000_000]
    assert mine.pragma("integrity_check") == "ok"
    mine.close()
    other.close()


def test_writes_go_on_after_the_server_was_killed(server: PostgresServer, schema: str) -> None:
    with held(server, schema) as file:
        connection = connected()
        connection.execute(TABLES).fetchall()
        for number in range(1, 5):
            server.kill()
            server.start()
            connection.execute("INSERT INTO done VALUES(?)", (number,))
        assert connection.execute("SELECT count(*) FROM done").get == 4
        assert not file.server.ended
        server.kill()
        with pytest.raises(apsw.IOError):
            connection.execute("INSERT INTO done VALUES(99)")
        assert isinstance(file.failure, Unavailable)
        server.start()
        assert connection.execute("SELECT max(number) FROM done").get == 4
        connection.execute("INSERT INTO done VALUES(5)")
        assert connection.pragma("integrity_check") == "ok"
        connection.close()


class Cut:
    """A relay to the server that loses what the server answers to the next statement that changes pages."""

    def __init__(self, port: int, *, deliver: bool) -> None:
        self._to, self._deliver = port, deliver
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.armed = threading.Event()
        self.cut = threading.Event()
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._serve)

    def _start(self, serve: Callable[..., None], *arguments: socket.socket) -> None:
        self._threads.append(threading.Thread(target=serve, args=arguments, daemon=True))
        self._threads[-1].start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            there = socket.create_connection(("127.0.0.1", self._to))
            self._sockets += [client, there]
            self._start(self._up, client, there)
            self._start(self._down, client, there)

    def _up(self, client: socket.socket, there: socket.socket) -> None:
        while data := _received(client):
            if self.armed.is_set() and not self.cut.is_set() and len(data) > 4096:
                self.cut.set()
                if not self._deliver:
                    break
            with contextlib.suppress(OSError):
                there.sendall(data)
        _end(there)
        _end(client)

    def _down(self, client: socket.socket, there: socket.socket) -> None:
        while data := _received(there):
            if self.cut.is_set() and self.armed.is_set():
                # The answer to COMMIT is lost with the connection.
                self.armed.clear()
                break
            with contextlib.suppress(OSError):
                client.sendall(data)
        _end(client)
        _end(there)

    def refuse(self) -> None:
        """Accept no more connections."""
        _end(self._listener)

    def close(self) -> None:
        for each in self._sockets:
            _end(each)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()


def _received(one: socket.socket) -> bytes:
    try:
        return one.recv(1 << 20)
    except OSError:
        return b""


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("deliver", [True, False])
def test_a_commit_whose_answer_is_lost_is_asked_for(server: PostgresServer, schema: str, deliver: bool) -> None:
    relay = Cut(server.port, deliver=deliver)
    dsn = server.dsn.replace(f":{server.port}/", f":{relay.port}/")
    with held(server, schema, dsn=dsn) as file:
        connection = connected()
        connection.execute(TABLES).fetchall()
        relay.armed.set()
        connection.execute("INSERT INTO done VALUES(1)")
        assert relay.cut.is_set()
        connection.execute("INSERT INTO done VALUES(2)")
        assert not file.server.ended
        connection.close()
        assert file.server.generation == _generation(server, schema)
        fresh = connected()
        assert fresh.execute("SELECT number FROM done").fetchall() == [(1,), (2,)]
        fresh.close()
    relay.close()


def _generation(server: PostgresServer, schema: str) -> int:
    with psycopg.connect(server.dsn) as admin:
        row = admin.execute(f"SELECT generation FROM {schema}.source_files").fetchone()
    assert row is not None
    return int(row[0])


def test_a_commit_of_which_nobody_knows_is_neither_confirmed_nor_denied(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "RESOLVE_S", 0.3)
    relay = Cut(server.port, deliver=True)
    dsn = server.dsn.replace(f":{server.port}/", f":{relay.port}/")
    with held(server, schema, dsn=dsn) as file:
        connection = connected()
        connection.execute(TABLES).fetchall()
        relay.refuse()
        relay.armed.set()
        with pytest.raises(apsw.IOError):
            connection.execute("INSERT INTO done VALUES(1)")
        assert isinstance(file.failure, MaybeCommitted)
        assert file.failure.failure.executed is Executed.MAYBE
        with pytest.raises(Unavailable, match="unknown"):
            file.check()
        connection.close()
    relay.close()


def test_one_kernel_holds_all_files(server: PostgresServer, schema: str) -> None:
    first = server_of(server, schema, "one")
    second = server_module.PageServer(server.dsn, "documents/packs.db", kernel="two", machine="two", schema=schema)
    first.take()
    with pytest.raises(HeldElsewhere, match="machine one, since"):
        second.take()
    first.close()
    wait_until(lambda: _took(second))
    first = server_of(server, schema, "one")
    with pytest.raises(HeldElsewhere, match="two, since"):
        first.take()
    first.close()
    second.close()


async def test_a_database_is_served_from_the_server(tmp_path: Path, server: PostgresServer, schema: str) -> None:
    path = tmp_path / "memory.db"
    pages = server_of(server, schema, "one")
    pages.take()
    mounted(path, pages)
    derived = Database(tmp_path / "index.db", Schema(1, "CREATE TABLE w(x)"), kind=Kind.DERIVED)
    tables = Schema(1, "CREATE TABLE t(x)")
    database = Database(path, tables, kind=Kind.SOURCE, attached={"idx": derived})
    await derived.write(lambda db: db.execute("INSERT INTO w VALUES(7)").fetchall())
    await database.write(lambda db: db.execute("INSERT INTO t VALUES(1)").fetchall())
    assert await database.read(lambda db: db.execute("SELECT x, (SELECT x FROM idx.w) FROM t").fetchall()) == [(1, 7)]
    assert await database.checkpoint()
    assert database.size_bytes() > 4096
    assert not path.exists()
    server.kill()
    with pytest.raises(Unavailable, match="PostgreSQL"):
        await database.write(lambda db: db.execute("INSERT INTO t VALUES(2)").fetchall())
    # What is in memory may be old by now.
    with pytest.raises(Unavailable, match="PostgreSQL"):
        await database.read(lambda db: db.execute("SELECT x FROM t").fetchall())
    server.start()
    assert await database.read(lambda db: db.execute("SELECT x FROM t").fetchall()) == [(1,)]
    database.close()
    derived.close()
    pages.close()
    elsewhere.files.pop(path)
    assert os.listdir(tmp_path)
