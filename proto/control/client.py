"""The command line's end of the control socket: synchronous, and mostly limited to the standard library.

Typed calls and large results, which arrive as their service packed them, require msgspec.

Errors are `ControlError`s, whose messages can be shown to users.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from proto.control.address import connect, socket_path
from proto.json_types import JsonObject

if TYPE_CHECKING:
    from proto.operation import Params

R = TypeVar("R")

READ_BYTES = 256 * 1024
"""About the size of the socket's buffer, so that a long reply is read in few pieces."""


class ControlError(Exception):
    """The kernel could not be reached, or did not reply."""


class NoKernel(ControlError):
    """No kernel holds the data directory."""


class KernelGone(ControlError):
    """The kernel closed the connection, or died, before it had replied."""


class CallFailed(ControlError):
    """The kernel replied with a failure; `failure` has the fields of `proto.errors.Failure`."""

    def __init__(self, failure: JsonObject) -> None:
        super().__init__(str(failure.get("message", "")))
        self.failure = dict(failure)


class Client:
    """A connection to the kernel that holds `data_dir`; a context manager. Raises NoKernel, ControlError."""

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
        """Close the connection, which cancels pending requests."""
        self._lines.close()
        self._socket.close()

    def call(
        self,
        params: Params[R],
        *,
        timeout_s: float | None = None,
        on_progress: Callable[[JsonObject], None] | None = None,
        key: str | None = None,
    ) -> R:
        """Call the operation of these parameters and return its result. Raises CallFailed; KernelGone: a write may have
        been done.

        Args:
            key: idempotency key, with which the call can be repeated.
        """
        import msgspec  # like the types, imported only when needed, so that commands start quickly

        from proto.operation import operation_of

        op = operation_of(params)
        given: JsonObject = msgspec.to_builtins(params)
        answer = self.call_named(op.name, given, timeout_s=timeout_s, on_progress=on_progress, key=key)
        try:
            return op.decoders[1](msgspec.Raw(msgspec.json.encode(answer)))
        except msgspec.DecodeError as error:
            raise _invalid(op.service, error) from None

    def call_named(
        self,
        name: str,
        params: Mapping[str, object],
        *,
        timeout_s: float | None = None,
        on_progress: Callable[[JsonObject], None] | None = None,
        key: str | None = None,
    ) -> Any:
        """Call an operation whose types are not known here, and return its result as JSON; otherwise like `call`."""
        request: JsonObject = {"call": name, "params": params, "progress": on_progress is not None}
        if timeout_s is not None:
            request["timeout_s"] = timeout_s
        if key is not None:
            request["key"] = key
        self._send(request, ())
        gone = f"the kernel ended while {name} was running; it may or may not have been done"
        return self._answer("result", gone, on_progress)

    def attach(
        self, surface: str, roots: Sequence[str] | None, *descriptors: int, read_only: bool = False,
        timeout_s: float | None = None,
    ) -> JsonObject:  # fmt: skip
        """Pass the descriptors to the kernel; return as soon as it serves them. `wait_detached` waits for the end.

        Returns the kernel's `pid` and `roots`, and whether it is `ephemeral`, that is, ends with its last client.

        Args:
            read_only: do not join a kernel whose clients may make changes.
            descriptors: input, output, and the session's memory file (`services.front.transport.session_memory`).

        Raises CallFailed: it does not serve this surface, has other roots, or is not read-only; KernelGone: nothing was
        read from the descriptors; TimeoutError.
        """
        self._socket.settimeout(None if timeout_s is None else max(timeout_s, 0.001))
        self._send({"attach": {"surface": surface, "roots": roots, "read_only": read_only}}, descriptors)
        attached: JsonObject = self._answer("attached", "the kernel ended before it replied")
        self._socket.settimeout(None)
        return attached

    def step_aside(self, roots: Sequence[str], *, read_only: bool) -> None:
        """Ask a kernel that was started for its clients to end, so that a permanent one continues their sessions.

        Raises CallFailed: it is permanent itself, or has other settings; KernelGone.
        """
        self._send({"step_aside": {"roots": roots, "read_only": read_only}}, ())
        self._answer("aside", "the kernel ended before it replied")

    def wait_detached(self) -> str:
        """Wait for the end of the MCP session here, and return the reason: the `client` left, the kernel was `stopped`,
        or it was `replaced` by another kernel, which continues the session. Raises CallFailed, KernelGone."""
        return str(self._answer("detached", "the kernel has died")["reason"])

    def _send(self, message: Mapping[str, object], descriptors: Sequence[int]) -> None:
        data = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        try:
            sent = socket.send_fds(self._socket, [data], list(descriptors)) if descriptors else 0
            self._socket.sendall(data[sent:])
        except OSError as error:
            raise KernelGone(f"the kernel ended before the request was sent: {error.strerror}") from error

    def _answer(self, key: str, gone: str, on_progress: Callable[[JsonObject], None] | None = None) -> Any:
        """Return the value under `key` in a reply. Raises CallFailed; KernelGone: the connection was closed first."""
        # A reset connection counts as closed.
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
        """Read a result of that many bytes. Raises CallFailed, KernelGone."""
        body = self._lines.read(size)
        if len(body) < size:
            raise KernelGone(gone)
        import msgspec

        from proto.wire.frames import read_body

        try:
            # Bytes as base64, as in JSON.
            return msgspec.to_builtins(read_body(body))
        except msgspec.DecodeError as error:
            raise _invalid("the service", error) from None


def _invalid(service: str, error: Exception) -> CallFailed:
    return CallFailed({"kind": "internal", "message": f"{service} returned an invalid result: {error}"})
