"""The command line's end of the control socket: synchronous, and mostly the standard library alone.

A large result of a service comes as its service packed it, which needs msgspec to read.

Errors are `ControlError`s whose message is ready to be shown.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linckia.proto.control.address import connect, socket_path
from linckia.proto.json_types import JsonObject

READ_BYTES = 256 * 1024
"""About what the socket holds: a long answer is taken in few pieces."""


class ControlError(Exception):
    """The kernel could not be asked, or did not answer."""


class NoKernel(ControlError):
    """No kernel holds the data directory."""


class KernelGone(ControlError):
    """The kernel closed the connection, or died, before it had answered."""


class CallFailed(ControlError):
    """The kernel answered with a failure; `failure` has the fields of `proto.errors.Failure`."""

    def __init__(self, failure: JsonObject) -> None:
        super().__init__(str(failure.get("message", "")))
        self.failure = dict(failure)


class Client:
    """One connection to the kernel that holds `data_dir`; a context manager.  Raises NoKernel, ControlError."""

    def __init__(self, data_dir: Path) -> None:
        try:
            self._socket = connect(data_dir)
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoKernel(
                f"no kernel is running for {data_dir}; start one with `linckia serve PATH…`, or name another "
                "data directory with --data"
            ) from None
        except OSError as error:
            raise ControlError(f"cannot reach the kernel at {socket_path(data_dir)}: {error.strerror}") from error
        self._lines = self._socket.makefile("rb", buffering=READ_BYTES)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels whatever was not answered yet."""
        self._lines.close()
        self._socket.close()

    def call(
        self,
        name: str,
        params: Mapping[str, object],
        *,
        timeout_s: float | None = None,
        on_progress: Callable[[JsonObject], None] | None = None,
    ) -> Any:
        """The result of one call.  Raises CallFailed; KernelGone: a call that writes may have happened."""
        request: JsonObject = {"call": name, "params": params, "progress": on_progress is not None}
        if timeout_s is not None:
            request["timeout_s"] = timeout_s
        self._send(request, ())
        gone = f"the kernel ended while {name} was running; whether it was done is not known"
        return self._answer("result", gone, on_progress)

    def attach(
        self, surface: str, roots: Sequence[str] | None, *descriptors: int, read_only: bool = False,
        timeout_s: float | None = None,
    ) -> JsonObject:  # fmt: skip
        """Hand the descriptors over; returns as soon as the kernel serves them.  `wait_detached` waits for the end.

        Answers its `pid` and `roots`, and whether it is `ephemeral`: ends with its last client.

        Args:
            read_only: join no kernel whose clients may change something.
            descriptors: input, output, and the memory of the session (`services.front.transport.session_memory`).

        Raises CallFailed: it does not serve this surface, has other roots, or is not read-only; KernelGone: nothing was
        read from the descriptors; TimeoutError.
        """
        self._socket.settimeout(None if timeout_s is None else max(timeout_s, 0.001))
        self._send({"attach": {"surface": surface, "roots": roots, "read_only": read_only}}, descriptors)
        attached: JsonObject = self._answer("attached", "the kernel ended before it had answered")
        self._socket.settimeout(None)
        return attached

    def step_aside(self, roots: Sequence[str], *, read_only: bool) -> None:
        """Have a kernel that was started for its clients end, so that one that stays goes on with their sessions.

        Raises CallFailed: it stays itself, or has other settings; KernelGone.
        """
        self._send({"step_aside": {"roots": roots, "read_only": read_only}}, ())
        self._answer("aside", "the kernel ended before it had answered")

    def wait_detached(self) -> str:
        """Why the MCP session has ended here: the `client` left, the kernel was `stopped`, or it was `replaced` by
        another, where the session goes on.  Raises CallFailed, KernelGone."""
        return str(self._answer("detached", "the kernel has died")["reason"])

    def _send(self, message: Mapping[str, object], descriptors: Sequence[int]) -> None:
        data = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        try:
            sent = socket.send_fds(self._socket, [data], list(descriptors)) if descriptors else 0
            self._socket.sendall(data[sent:])
        except OSError as error:
            raise KernelGone(f"the kernel ended before the request was sent: {error.strerror}") from error

    def _answer(self, key: str, gone: str, on_progress: Callable[[JsonObject], None] | None = None) -> Any:
        """What a message has under `key`.  Raises CallFailed; KernelGone: the connection was closed first."""
        # A connection that is reset was closed as well.
        with contextlib.suppress(ConnectionResetError):
            while (line := self._lines.readline()).endswith(b"\n"):
                message: JsonObject = json.loads(line)
                if "failure" in message:
                    raise CallFailed(message["failure"])
                if key in message:
                    return message[key]
                if "body" in message:
                    return self._body(message["body"], gone)
                if on_progress is not None and "progress" in message:
                    on_progress(message["progress"])
        raise KernelGone(gone)

    def _body(self, size: int, gone: str) -> Any:
        """The result of that many bytes.  Raises CallFailed, KernelGone."""
        body = self._lines.read(size)
        if len(body) < size:
            raise KernelGone(gone)
        import msgspec  # the command line starts without it

        from linckia.proto.frames import read_body

        try:
            # Bytes as base64, as in JSON.
            return msgspec.to_builtins(read_body(body))
        except msgspec.DecodeError as error:
            why = f"the service answered what is no result: {error}"
            raise CallFailed({"kind": "internal", "message": why}) from None
