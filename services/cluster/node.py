"""What runs on a node: a Ray actor that starts one process and connects it with the kernel's machine.

It is a service, or the host of a mounted server: a child process with a folder and a session of its own, and a service
with a sandbox of its own, as on the kernel's machine. Its crash does not affect Ray's worker, and it dies with the
worker. Only `place` needs Ray.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from pathlib import Path

import msgspec

from proto.host.environment import environment, of_programs
from proto.host.models import hub
from proto.names import module
from proto.wire.launch import LaunchConfig
from services.cluster import certificates
from services.cluster.relay import relay, rest_of

SERVICE = module("services.runtime.main")

PREFIX = "linckia-node-"
"""Folders of services are named like this and contain the pid of their worker."""

CONNECT_S = 3.0
LAST_WORDS_BYTES = 4096


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """How a process is started and connected: its module, what that is told (of a service, the launch configuration in
    JSON), its additional environment, the address of the other end and the name in its certificate, and this end's
    certificate with its authority, in PEM."""

    module: str
    launch: bytes
    env: dict[str, str]
    url: str
    server_name: str
    certificate: str
    authority: str


class NodeActor:
    """One service process on this node. The methods block; Ray calls them in threads."""

    def __init__(self) -> None:
        self._key = certificates.new_key()
        self._started = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._tail = b""

    def request(self) -> str:
        """Return a request for the certificate of this join. The private key never leaves this process."""
        return certificates.request_for(self._key)

    def place(self) -> tuple[str, str]:
        """Return the id and the address of this node."""
        import ray

        return str(ray.get_runtime_context().get_node_id()), str(ray.util.get_node_ip_address())

    def start(self, sealed: bytes) -> int:
        """Connect to the kernel and start the service of the sealed `Join`; return its pid. Raises OSError."""
        join = msgspec.msgpack.decode(certificates.unseal(sealed, self._key), type=Join)
        # The thread that starts the child must live as long as the child, since its end would kill the child.
        threading.Thread(target=self._live, args=(join,), name=PREFIX, daemon=True).start()
        self._started.wait()
        if self._error is not None:
            raise OSError(str(self._error))
        assert self._process is not None
        return self._process.pid

    def wait(self) -> tuple[int, str]:
        """Wait until the service has ended; return its code as `subprocess` has it, and its last words."""
        self._ended.wait()
        assert self._process is not None
        lines = [line for line in self._tail.decode("utf-8", "replace").splitlines() if line.strip()]
        return self._process.returncode, _message(lines[-1]) if lines else ""

    def signal(self, number: int) -> None:
        """Send a signal to the service; a stopped one is continued to handle it."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)

    def _live(self, join: Join) -> None:
        with contextlib.ExitStack() as stack:
            # The last of all, since the worker may be killed as soon as it is known.
            stack.callback(self._ended.set)
            try:
                folder = new_folder()
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                tls = stack.enter_context(self._connected(join, folder))
                ours, theirs = socket.socketpair()
                stack.enter_context(ours)
                read, write = os.pipe()
                stack.callback(os.close, read)
                try:
                    process = _spawn(join, theirs.fileno(), write, folder)
                finally:
                    theirs.close()
                    os.close(write)
                self._process = process
            except BaseException as error:  # noqa: BLE001  # reported by `start`, in another thread
                self._error = error
                self._started.set()
                return
            self._started.set()
            relay(tls, ours, read, self._heard)
            # Without its link the service ends by itself.
            ours.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            rest_of(read, self._heard)

    def _heard(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-LAST_WORDS_BYTES:]
        # Ray keeps its workers' output.
        os.write(2, data)

    def _connected(self, join: Join, folder: Path) -> ssl.SSLSocket:
        """Return the connection to the kernel. Raises OSError: no connection, or the other end is not that kernel."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=join.authority)
        # The library reads certificates from files only.
        own = folder / "join.pem"
        try:
            own.touch(mode=0o600)
            own.write_text(join.certificate + certificates.private_pem(self._key), encoding="ascii")
            context.load_cert_chain(own)
        finally:
            own.unlink(missing_ok=True)
        url = urllib.parse.urlsplit(join.url)
        plain = socket.create_connection((url.hostname or "", url.port or 0), timeout=CONNECT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname=join.server_name)


def here(launch: LaunchConfig, data_dir: Path) -> LaunchConfig:
    """Return the launch configuration for this node: its own parent, folder, users and places of models."""
    walls = launch.confinement
    if walls is not None:
        walls = msgspec.structs.replace(
            walls, read=(*walls.read, str(hub(os.environ))), write=(), user=None, folders=()
        )
    return msgspec.structs.replace(
        launch, parent_pid=os.getpid(), data_dir=str(data_dir), roots=(), read_only=(), confinement=walls
    )


def _spawn(join: Join, link_fd: int, log_fd: int, folder: Path) -> subprocess.Popen[bytes]:
    told, env = join.launch, environment(join.env)
    if join.module == SERVICE:
        told = msgspec.json.encode(here(msgspec.json.decode(told, type=LaunchConfig), folder / "data"))
    else:
        env |= of_programs()
    with os.fdopen(os.memfd_create("launch"), "wb") as file:
        file.write(told)
        file.seek(0)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", join.module, str(file.fileno()), str(link_fd)],
            stdin=subprocess.DEVNULL, stdout=log_fd, stderr=log_fd, pass_fds=(file.fileno(), link_fd),
            env=env, cwd=folder, start_new_session=True,
        )  # fmt: skip


def new_folder() -> Path:
    """Return a new folder for this worker's process, and remove those of workers that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def _message(line: str) -> str:
    """Return the text of a log line, which is JSON unless something else wrote it."""
    try:
        found = msgspec.json.decode(line, type=dict[str, object]).get("message", line)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return line
    return str(found)
