"""The link over nng's Pair1: between each service and the kernel, and over tls+tcp to services on other machines.

On one machine, nng runs over one end of an inherited `stream_pair` (`socket://`): there is no path, no reconnecting,
and no doubt about identity; each generation of a service has its own link. Between machines, both ends present a
certificate, and a broken connection ends the link: nng must not reconnect on its own, since messages in between would
be lost. nng does not report an end that goes away before the handshake; in that case the kernel notices the process's
death, and a service dies with its kernel.

nng is driven through its readiness descriptors under trio, never through pynng's `asend` and `arecv`, since a cancelled
`asend` leaks its message. Frames that are ready together travel in one nng message, each preceded by its length,
because every nng message wakes a thread at both ends. Private names of pynng are used only in this file.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pynng
import trio

from proto.wire.channel import Link, LinkClosed

NNG_THREADS = {
    "NNG_INIT_NUM_TASK_THREADS": 2, "NNG_INIT_MAX_TASK_THREADS": 2, "NNG_INIT_NUM_EXPIRE_THREADS": 1,
    "NNG_INIT_MAX_EXPIRE_THREADS": 1, "NNG_INIT_NUM_POLLER_THREADS": 1, "NNG_INIT_MAX_POLLER_THREADS": 1,
    "NNG_INIT_NUM_RESOLVER_THREADS": 1,
}  # fmt: skip
"""nng's defaults are for servers with thousands of pipes; these reduce 13 threads per process to 7."""

_PIPE_QUEUE = 64
"""Messages that nng holds in each direction. They have 256 KiB at most and hardly ever more than 64: 16 MiB at
worst."""

_LENGTH = struct.Struct(">I")

_NO_RECONNECT_MS = 2**31 - 1

_lib, _ffi = pynng.lib, pynng.ffi
_AGAIN, _SENT = _lib.NNG_EAGAIN, 0


def stream_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected stream sockets, one for each process of a link."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


@functools.cache
def _limit_threads() -> None:
    """Set nng's thread limits, once per process, since nng reads them only at first use."""
    for name, count in NNG_THREADS.items():
        _lib.nng_init_set_parameter(getattr(_lib, name), count)


class Certificates:
    """Paths of PEM files: this end's certificate and key, and the authority that signed the other end's certificate."""

    def __init__(
        self, own: Path | str, key: Path | str, authority: Path | str, *, server_name: str = "", peer_name: str = ""
    ) -> None:
        """
        Args:
            own: the path of the file or, as a `str`, its text; likewise `key` and `authority`.
            server_name: the name that the dialling end expects in the other end's certificate.
            peer_name: the common name that the listening end expects; "" accepts any that the authority signed.
        """
        self._own, self._key, self._authority, self._server_name = own, key, authority, server_name
        self.peer_name = peer_name

    def config(self, *, dials: bool) -> Any:
        """Return nng's TLS configuration. Raises OSError: a file cannot be read; ValueError: no certificate or key."""
        own, key, authority = map(_pem, (self._own, self._key, self._authority))
        mode = pynng.TLSConfig.MODE_CLIENT if dials else pynng.TLSConfig.MODE_SERVER
        try:
            # The other end must always present a certificate of this authority.
            return pynng.TLSConfig(
                mode, server_name=self._server_name or None, ca_string=authority, own_key_string=key,
                own_cert_string=own, auth_mode=pynng.TLSConfig.AUTH_MODE_REQUIRED,
            )  # fmt: skip
        except pynng.NNGException as error:
            files = [str(each) for each in (self._own, self._key, self._authority) if isinstance(each, Path)]
            named = " or ".join(files) or "the certificate, key or authority"
            raise ValueError(f"{named} is not in PEM: {error}") from error


def _pem(given: Path | str) -> str:
    return given if isinstance(given, str) else given.read_text("ascii")


class NngLink(Link):
    """One end of a link. Must be created inside trio, with one of the class methods."""

    joins = True

    def __init__(self, attach: Callable[[Any], None], *, max_message_bytes: int) -> None:
        _limit_threads()
        # The default of 0 means unlimited. A message beyond the limit drops the pipe. pynng has no types.
        self._socket: Any = pynng.Pair1(
            recv_max_size=max_message_bytes, recv_buffer_size=_PIPE_QUEUE, send_buffer_size=_PIPE_QUEUE
        )
        self._max_message_bytes = max_message_bytes
        self._received: collections.deque[bytes] = collections.deque()
        self._data, self._size = _ffi.new("void **"), _ffi.new("size_t *")
        self._closed = False
        self._peer_gone = False
        self.gone = trio.Event()
        """Set once the connected peer is gone."""
        token = trio.lowlevel.current_trio_token()

        def on_pipe_removed(_pipe: object) -> None:
            # Called in a thread of nng, about 2 ms after the peer's death. The event loop may have ended already.
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(self._on_peer_gone)

        self._socket.add_post_pipe_remove_cb(on_pipe_removed)
        try:
            attach(self._socket)
        except BaseException:
            self._socket.close()
            raise
        self._handle = self._socket.socket
        self._recv_fd: int = self._socket.recv_fd
        self._send_fd: int = self._socket.send_fd

    @classmethod
    def inherited(cls, fd: int, *, max_message_bytes: int) -> NngLink:
        """Use one end of a `stream_pair`; nng owns the descriptor from then on."""

        def attach(opened: Any) -> None:
            listener = _ffi.new("nng_listener *")
            pynng.check_err(_lib.nng_listener_create(listener, opened.socket, b"socket://"))
            pynng.check_err(_lib.nng_listener_start(listener[0], 0))
            pynng.check_err(_lib.nng_listener_set_int(listener[0], b"socket:fd", fd))

        return cls(attach, max_message_bytes=max_message_bytes)

    @classmethod
    def listening(cls, url: str, certificates: Certificates, *, max_message_bytes: int) -> NngLink:
        """Wait for the first peer with a certificate on `tls+tcp://HOST:PORT`. Raises OSError, ValueError."""
        config = certificates.config(dials=False)

        def refuse_others(pipe: Any) -> None:
            # Called in a thread of nng, after the handshake and before any message.
            if _peer_name(pipe) != certificates.peer_name:
                pipe.close()

        def attach(opened: Any) -> None:
            opened.tls_config = config
            opened.send_buffer_size = 4  # A ping waits for what nng holds, on a slow network for seconds.
            if certificates.peer_name:
                opened.add_pre_pipe_connect_cb(refuse_others)
            opened.listen(url)

        with _as_os_errors(url):
            return cls(attach, max_message_bytes=max_message_bytes)

    @classmethod
    def dialled(cls, url: str, certificates: Certificates, *, max_message_bytes: int) -> NngLink:
        """Connect to a listener at `url`; blocks until connected. Raises OSError, ValueError."""
        config = certificates.config(dials=True)

        def attach(opened: Any) -> None:
            opened.reconnect_time_min = opened.reconnect_time_max = _NO_RECONNECT_MS
            opened.tls_config = config
            opened.dial(url, block=True)

        with _as_os_errors(url):
            return cls(attach, max_message_bytes=max_message_bytes)

    @property
    def port(self) -> int:
        """Port of the TCP socket on which it listens."""
        return socket.ntohs(int(self._socket.listeners[0].local_address.port))

    def _on_peer_gone(self) -> None:
        self._peer_gone = True
        self.gone.set()
        if not self._closed:
            self._wake_waiters()

    def try_send(self, message: bytes) -> bool:
        return self.try_send_together([message])

    def try_send_together(self, messages: Sequence[bytes]) -> bool:
        if self._closed or self._peer_gone:
            raise LinkClosed
        data = b"".join([part for message in messages for part in (_LENGTH.pack(len(message)), message)])
        code = _lib.nng_send(self._handle, _ffi.from_buffer(data), len(data), _lib.NNG_FLAG_NONBLOCK)
        if code not in (_SENT, _AGAIN):
            raise LinkClosed
        return bool(code == _SENT)

    def try_receive(self) -> bytes | None:
        if self._closed:
            raise LinkClosed
        if not self._received and not self._take_in():
            return None
        return self._received.popleft()

    def put_back(self, messages: Sequence[bytes]) -> None:
        """Make messages that were received the next ones to be received."""
        self._received.extendleft(reversed(messages))

    def _take_in(self) -> bool:
        """Read an nng message if one has arrived, and add its messages to `_received`; return whether one had."""
        code = _lib.nng_recv(self._handle, self._data, self._size, _lib.NNG_FLAG_ALLOC | _lib.NNG_FLAG_NONBLOCK)
        if code == _AGAIN and not self._peer_gone:
            return False
        if code:
            raise LinkClosed
        try:
            data = bytes(_ffi.buffer(self._data[0], self._size[0]))
        finally:
            _lib.nng_free(self._data[0], self._size[0])
        at = 0
        while at < len(data):
            end = at + _LENGTH.size
            # Inconsistent lengths: the message is not ours.
            if end >= len(data) or (stop := end + _LENGTH.unpack_from(data, at)[0]) > len(data) or stop == end:
                raise LinkClosed
            self._received.append(data[end:stop])
            at = stop
        if not data:
            raise LinkClosed
        return True

    async def send(self, message: bytes) -> None:
        await self.send_together([message])

    async def send_together(self, messages: Sequence[bytes]) -> None:
        while not self.try_send_together(messages):
            await self._wait(self._send_fd)

    async def receive(self) -> bytes:
        while (message := self.try_receive()) is None:
            await self._wait(self._recv_fd)
        return message

    async def _wait(self, fd: int) -> None:
        # After `_wake_waiters`, the caller finds out why it was woken.
        with contextlib.suppress(trio.ClosedResourceError):
            await trio.lowlevel.wait_readable(fd)

    def _wake_waiters(self) -> None:
        for fd in (self._recv_fd, self._send_fd):
            trio.lowlevel.notify_closing(fd)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Waiters must leave epoll before the descriptors are closed, since their numbers may be reused.
        self._wake_waiters()
        self._socket.close()


def _peer_name(pipe: Any) -> str:
    """Return the common name in the certificate of a pipe's other end; "" if it has none."""
    name = _ffi.new("char **")
    if _lib.nng_pipe_get_string(pipe.pipe, b"tls-peer-cn", name):
        return ""
    try:
        return bytes(_ffi.string(name[0])).decode()
    finally:
        _lib.nng_strfree(name[0])


@contextlib.contextmanager
def _as_os_errors(url: str) -> Any:
    try:
        yield
    except pynng.NNGException as error:
        raise OSError(f"cannot connect over {url}: {error}") from error
