"""A client's session: the negotiated revision, its requests in flight, and its open questions.

A local client has one session for its pipe.  An HTTP client with a handshake has one in each front that serves it.  A
request without a session (2026-07-28, or stateless HTTP) gets a session of its own.  This module does not need the SDK,
which takes a second to import.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, Self

import msgspec
import trio
from msgspec import UnsetType

from proto.json_types import JsonObject
from proto.mcp import RequestId
from proto.origin import Origin
from services.front.protocol.client_requests import DEFAULT_LEVEL
from services.front.protocol.messages import Envelope, correlation_key, notification

if TYPE_CHECKING:
    from mcp_types import InitializeRequestParams

MAX_CHARACTERS = 8192
"""Longest state that the kernel keeps for one session; the oldest subscriptions beyond it are dropped."""

MAX_SUBSCRIPTIONS = 4096
"""Most subscriptions of one session; a further one replaces the oldest."""


class SessionState(msgspec.Struct, omit_defaults=True):
    """The state that a client has set since its handshake.

    `level` is the lowest level of log lines that it wants, `uris` are the resources that it subscribed to, and `ended`
    means that the session must not be used any more.
    """

    level: str = DEFAULT_LEVEL
    uris: list[str] = []
    ended: bool = False

    def subscribe(self, uri: str) -> None:
        if uri not in self.uris:
            self.uris.append(uri)
            del self.uris[:-MAX_SUBSCRIPTIONS]

    def unsubscribe(self, uri: str) -> None:
        if uri in self.uris:
            self.uris.remove(uri)

    def become(self, other: SessionState) -> None:
        """Copy the state that the session has in another front."""
        self.level, self.uris[:] = other.level, other.uris

    def encoded(self) -> str:
        """Return the state as JSON; the oldest subscriptions beyond `MAX_CHARACTERS` are dropped."""
        state = self
        while len(text := msgspec.json.encode(state).decode()) > MAX_CHARACTERS:
            state = msgspec.structs.replace(state, uris=state.uris[max(1, len(state.uris) // 8) :])
        return text


read_state = msgspec.json.Decoder(SessionState).decode
"""Decodes what `encoded` returned.  Raises msgspec.DecodeError."""


class McpSession:
    """One client's session, as far as this front knows it.

    Args:
        state: the state that the client has set since its handshake, if another front served it before.
        duplex: whether the session is a pipe, on which the client's first request decides the era.
        reachable: whether the client can answer questions; without a session it cannot.
    """

    def __init__(self, state: SessionState | None = None, *, duplex: bool = False, reachable: bool = True) -> None:
        self.state = SessionState() if state is None else state
        self.duplex = duplex
        self.reachable = reachable
        self.modern: bool | None = None
        """Whether the client speaks a revision without a handshake (2026-07-28); None before its first request."""
        self.version: str | None = None
        """The revision that the handshake agreed on."""
        self.client: JsonObject = {}
        """The parameters of `initialize`, as the client sent them."""
        self.client_params: InitializeRequestParams | None = None
        """The parameters of `initialize` as parsed by the SDK; None until the SDK needs them."""
        self.initialized = False
        """Whether the client has said that it is ready."""
        self.calls: dict[RequestId, trio.CancelScope] = {}
        """Requests in flight, by their correlation key."""
        self._questions: dict[RequestId, _Question] = {}
        self.in_flight = 0
        self.used_at = 0.0

    def __enter__(self) -> Self:
        """Count an HTTP request of the session, which must not be forgotten meanwhile."""
        self.in_flight += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.in_flight -= 1
        self.used_at = trio.current_time()

    @property
    def is_open(self) -> bool:
        """Whether requests other than `initialize` and `ping` may be served."""
        return self.version is not None or self.initialized

    @property
    def admits_requests(self) -> bool:
        """Whether the era is decided, and requests other than `initialize` and `ping` may be served."""
        return self.modern is not None and (self.modern or self.is_open)

    @property
    def capabilities(self) -> Mapping[str, object]:
        """The capabilities that the client declared in its handshake, unchecked."""
        declared = self.client.get("capabilities")
        return declared if isinstance(declared, dict) else {}

    def open(self, params: JsonObject, version: str) -> None:
        """Set the session's state after `initialize` was accepted with these parameters."""
        self.modern, self.client, self.version, self.client_params = False, params, version, None

    def send(self, message: bytes) -> None:
        """Send a message that belongs to no request; dropped if the client does not listen for such messages."""

    async def changed(self) -> None:
        """Persist `state` after a change, before the client's request is answered."""

    def receive(self, message: Envelope) -> RequestId | None:
        """Handle a notification, or the response to a question.

        Returns the key of the request that the message withdraws, if it withdraws one.
        """
        if isinstance(message.method, UnsetType):
            self._resolve(message)
        elif message.method == "notifications/initialized":
            self.initialized = True
        elif message.method == "notifications/cancelled":
            return self._withdraw(message)
        return None

    def _resolve(self, response: Envelope) -> None:
        if isinstance(response.id, int | str):
            question = self._questions.get(correlation_key(response.id))
            if question is not None:
                question.response = response
                question.answered.set()

    def _withdraw(self, message: Envelope) -> RequestId | None:
        if isinstance(message.params, UnsetType):
            return None
        try:
            key = correlation_key(msgspec.json.decode(message.params, type=_Cancelled).request_id)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if (scope := self.calls.get(key)) is not None:
            scope.cancel()
        return key

    async def ask(self, method: str, params: Mapping[str, object] | None, channel: Channel) -> Envelope:
        """Send a request to the client on `channel` and wait for its response.

        Cancellation tells the client that the answer is no longer needed.
        """
        # Random, because several fronts may ask the same client, and one that died may have asked before.
        question_id = secrets.randbits(52)
        question = self._questions[question_id] = _Question()
        message: JsonObject = {"jsonrpc": "2.0", "id": question_id, "method": method}
        channel.send(msgspec.json.encode(message if not params else {**message, "params": params}))
        try:
            await question.answered.wait()
        except trio.Cancelled:
            reason = {"requestId": question_id, "reason": "the request that needed the answer has ended"}
            channel.send(notification("notifications/cancelled", reason))
            raise
        finally:
            del self._questions[question_id]
        assert question.response is not None
        return question.response

    def close(self) -> None:
        """Cancel all requests in flight."""
        for scope in self.calls.values():
            scope.cancel()


class Channel(Protocol):
    """Carries the messages that belong to one request: its response stream, or the client's pipe."""

    def send(self, message: bytes) -> None:
        """Send a message; never blocks, and drops it if the client has gone."""

    async def room(self) -> None:
        """Wait while too many messages are unread by the client."""


class Request:
    """A request in flight, registered in its session from its creation until `done`.

    Args:
        nursery: for background tasks of the request; lives at least as long as the request.
        origin: who calls.
        headers: the HTTP headers, for revisions whose headers must match the message.
    """

    def __init__(
        self,
        envelope: Envelope,
        session: McpSession,
        channel: Channel,
        nursery: trio.Nursery,
        origin: Origin,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        assert isinstance(envelope.id, int | str)
        assert isinstance(envelope.method, str)
        self.id: RequestId = envelope.id
        self.key = correlation_key(envelope.id)
        self.method = envelope.method
        self.envelope = envelope
        self.session = session
        self.channel = channel
        self.nursery = nursery
        self.origin = origin
        self.headers = headers
        self.scope = session.calls[self.key] = trio.CancelScope()
        """Scope of the handler; withdrawing the request cancels it."""

    def done(self) -> None:
        # If the client has reused the id, the key belongs to the later request.
        if self.session.calls.get(self.key) is self.scope:
            del self.session.calls[self.key]


class _Question:
    def __init__(self) -> None:
        self.answered = trio.Event()
        self.response: Envelope | None = None


class _Cancelled(msgspec.Struct):
    request_id: RequestId = msgspec.field(name="requestId")
