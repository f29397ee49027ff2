"""Links to servers elsewhere: Streamable HTTP, or the older SSE, by the SDK's transports.

The SDK's answers to failures (an expired session, a broken connection) look like answers of the server. So every HTTP
exchange is watched below it: whether the server has certainly not acted on a request is only known there.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
import msgspec
import trio
from mcp.client.auth.exceptions import OAuthFlowError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, PARSE_ERROR, jsonrpc_message_adapter
from msgspec import UNSET
from pydantic import ValidationError

from proto.mcp import MODERN_VERSIONS, VERSION
from services.mounts.link import messages
from services.mounts.link.connections import Connect, Connection
from services.mounts.link.links import Begun, LinkEnded
from services.mounts.link.messages import Message, NotJson, Received, Unreadable, number_of
from services.mounts.process.environment import AdapterSettings, Secrets, headers_of, secret_of, url_of

CONNECT_S: Final = 30.0
SESSION_HEADER: Final = "mcp-session-id"

_OLDER: Final = (400, 404, 405)
"""Statuses with which servers answer that know only the older transport."""

_PINGS: Final = frozenset({"ping", "server/discover"})
_ACCEPTED: Final = 202
_FAILED: Final = 599
"""Status in place of a response that never came."""

_log = logging.getLogger("linckia.mount")


Streams = tuple[Any, Any]
"""What a transport of the SDK yields: messages come from the first and go to the second."""


class _Identified(msgspec.Struct):
    id: int | str | None = None
    method: str = ""

    @property
    def number(self) -> int:
        """The id of a request of ours; -1 in anything else, such as a reply to a request of the server."""
        return self.id if isinstance(self.id, int) and self.method else -1


class _Outcome(msgspec.Struct):
    """The end of a request that got no reply from the server, or none that can be read."""

    cause: str
    begun: bool
    ends_link: bool
    unreadable: bool = False
    ignored: bool = False


class Watch(httpx2.AsyncBaseTransport):
    """Notes the outcome of each request, by its JSON-RPC id.

    A ping that fails ends nothing: other requests of the same session may get their replies. `greeted` says whether the
    server is known, so that requests without effect are pings.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, host: str) -> None:
        self._inner = inner
        self._host = host
        self.outcomes: dict[int, _Outcome] = {}
        self.status = 0
        self.greeted = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        asked = _asked(request)
        number, is_ping = asked.number, self.greeted and asked.method in _PINGS
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            if request.method != "POST":
                raise
            return self._lost(request, number, error, is_ping=is_ping)
        self.status = response.status_code
        if is_ping:
            return response
        if response.status_code >= 400 and request.method == "POST":
            has_session = SESSION_HEADER in request.headers
            if response.status_code == 404 and has_session:
                self._note(number, _Outcome("the server has ended the session", begun=False, ends_link=True))
            elif response.status_code == 400 and has_session and b"session" in (await response.aread()).lower():
                self._note(number, _Outcome("the server does not know the session", begun=False, ends_link=True))
            else:
                reason = f"{self._host} answers HTTP {response.status_code} {response.reason_phrase}".strip()
                self._note(number, _Outcome(reason, begun=response.status_code >= 500, ends_link=False))
        elif number >= 0 and _has_reply(response):
            return await self._with_reply(request, response, number)
        return response

    def _lost(
        self, request: httpx2.Request, number: int, error: httpx2.TransportError, *, is_ping: bool = False
    ) -> httpx2.Response:
        not_delivered = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        what = "cannot connect" if not_delivered else "lost the connection"
        cause = f"{what} to {self._host}: {_reason(error)}"
        self._note(number, _Outcome(cause, begun=not not_delivered, ends_link=not is_ping, ignored=is_ping))
        return httpx2.Response(_FAILED, request=request)

    async def _with_reply(self, request: httpx2.Request, response: httpx2.Response, number: int) -> httpx2.Response:
        """Return a response with the reply to the request, or with an error if the body is no reply to it.

        The SDK has the last word on JSON: it reads NaN, for example.
        """
        problem = ""
        try:
            body = await _body(response)
            body, problem = _reply(body, number)
        except httpx2.TransportError as error:
            return self._lost(request, number, error)
        except NotJson as error:
            problem = str(error)
            body = messages.error(number, PARSE_ERROR, problem)
        if problem:
            self._note(number, _Outcome(problem, begun=True, ends_link=False, unreadable=True))
        headers = {name: value for name, value in response.headers.items() if name.lower() not in _OF_THE_BODY}
        return httpx2.Response(response.status_code, headers=headers, content=body, request=request)

    def _note(self, number: int, outcome: _Outcome) -> None:
        self.outcomes[number] = outcome

    async def aclose(self) -> None:
        await self._inner.aclose()


def _asked(request: httpx2.Request) -> _Identified:
    try:
        return msgspec.json.decode(request.content, type=_Identified)
    except (msgspec.DecodeError, httpx2.RequestNotRead):
        return _Identified()


_OF_THE_BODY: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def _has_reply(response: httpx2.Response) -> bool:
    """Whether the body should be one reply."""
    is_json = response.headers.get("content-type", "").lower().startswith("application/json")
    return is_json and response.is_success and response.status_code != _ACCEPTED


async def _body(response: httpx2.Response) -> bytes:
    """Return the body of a response. Raises NotJson if it is too long."""
    body = bytearray()
    try:
        async with contextlib.aclosing(response.aiter_bytes()) as parts:
            async for data in parts:
                body += data
                if len(body) > messages.MAX_BYTES:
                    raise NotJson(f"it has more than {messages.MAX_BYTES >> 20} MiB")
    finally:
        await response.aclose()
    return bytes(body)


def _reply(body: bytes, number: int) -> tuple[bytes, str]:
    """Return what to read as the reply to a request, and why that may not be possible.

    Raises NotJson if the body certainly is no reply to it.
    """
    try:
        found = messages.parse(body)[0]
    except NotJson as error:
        return body, str(error)
    except IndexError:
        return body, "it is an empty list"
    if isinstance(found, Unreadable):
        return body, found.problem
    if found.method is not UNSET:
        raise NotJson("it is a request or notification instead of the reply")
    if found.id is None and found.error is not UNSET:
        # The server could not read the id of the request.
        return messages.encode(Message("2.0", id=number, error=found.error)), ""
    if number_of(found.id) != number:
        raise NotJson(f"it replies to request {found.id!r:.40} instead of {number}")
    return body, ""


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


SETTLE_S = 1.0
"""How long a link that ends waits for the replies to its other requests."""


class HttpLink:
    """A link by one of the SDK's transports. `run` must run."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._version = ""
        self._begun: dict[int, Begun] = {}
        self._lists: set[int] = set()
        self._mirrored: dict[str, dict[tuple[str, ...], str]] = {}
        """Arguments that tools want to have in headers (`x-mcp-header`), by tool."""
        self._cause = "the connection has ended"
        self._ended_by = ""
        """Why the link ends, while other requests in flight may still get their own replies."""
        self._settle_until = math.inf
        self._into, self._received = trio.open_memory_channel[Received](0)
        self._write: Any = None

    async def run(
        self,
        transport: AbstractAsyncContextManager[Streams],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Receive until the transport ends."""
        is_open = False
        try:
            with self._into:
                async with transport as (read, self._write):
                    is_open = True
                    task_status.started()
                    async for item in read:
                        if isinstance(item, SessionMessage):
                            await self._into.send(_from_sdk(item))
                        elif isinstance(item, ValidationError):
                            await self._into.send(_refused(item))
        except* (
            httpx2.HTTPError,
            OAuthFlowError,
            OSError,
            ValueError,
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
        ) as group:
            self._cause = f"lost the connection: {_reason(group)}" if is_open else f"cannot connect: {_reason(group)}"
        if not is_open:
            task_status.started()

    async def send(self, message: bytes, begun: Begun) -> int:
        if self._write is None or self._ended_by:
            raise LinkEnded(self._ended_by or self._cause)
        sent = messages.parse(message)[0]
        assert isinstance(sent, Message)
        if isinstance(sent.id, int) and sent.method is not UNSET:
            self._begun[sent.id] = begun
            if sent.method == "tools/list":
                self._lists.add(sent.id)
        begun(True)
        try:
            await self._write.send(
                SessionMessage(
                    jsonrpc_message_adapter.validate_json(message, by_name=False),
                    metadata=ClientMessageMetadata(headers=self._headers(sent)),
                )
            )
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise LinkEnded(self._cause) from None
        return 0

    def is_unread(self, position: int) -> bool:
        return False

    def _headers(self, message: Message) -> dict[str, str]:
        if not self._version:
            meta = messages.value(messages.members(message.params).get("_meta", UNSET))
            probed = meta.get(VERSION) if isinstance(meta, dict) else None
            version = probed if isinstance(probed, str) else ""
        else:
            version = self._version
        if not version:
            return {}
        headers = {MCP_PROTOCOL_VERSION_HEADER: version}
        if version in MODERN_VERSIONS and isinstance(message.method, str) and message.id is not UNSET:
            headers[MCP_METHOD_HEADER] = message.method
            if (key := NAME_BEARING_METHODS.get(message.method)) is not None:
                name = messages.value(messages.members(message.params).get(key, UNSET))
                if isinstance(name, str):
                    headers[MCP_NAME_HEADER] = encode_header_value(name)
                if message.method == "tools/call" and (mirrored := self._mirrored.get(name)):
                    arguments = messages.value(messages.members(message.params).get("arguments", UNSET))
                    headers |= mcp_param_headers(mirrored, arguments if isinstance(arguments, dict) else {})
        return headers

    def _learn(self, result: msgspec.Raw | msgspec.UnsetType) -> None:
        """Note which arguments the listed tools want to have in headers."""
        tools = messages.value(messages.members(result).get("tools", UNSET))
        for tool in tools if isinstance(tools, list) else ():
            schema = tool.get("inputSchema") if isinstance(tool, dict) else None
            if schema is not None and find_invalid_x_mcp_header(schema) is None:
                self._mirrored[tool.get("name")] = x_mcp_header_map(schema)

    async def receive(self) -> list[Received]:
        while True:
            if self._ended_by and not self._begun:
                raise LinkEnded(self._ended_by)
            with trio.CancelScope(deadline=self._settle_until) as settling:
                try:
                    message = await self._received.receive()
                except trio.EndOfChannel:
                    raise LinkEnded(self._ended_by or self._cause) from None
            if settling.cancelled_caught:
                raise LinkEnded(self._ended_by)
            if found := self._take(message):
                return found

    def _take(self, message: Received) -> list[Received]:
        """Return the message as the client gets it; an empty list if it ends the link."""
        if isinstance(message, Unreadable):
            self._begun.pop(message.id, None)
            self._lists.discard(message.id)
            return [message]
        number = message.id if isinstance(message.id, int) and message.method is UNSET else -1
        begun = self._begun.pop(number, None)
        if number in self._lists:
            self._lists.discard(number)
            self._learn(message.result)
        outcome = self._watch.outcomes.pop(number, None)
        code, text = messages.error_of(message)
        if outcome is None and code == CONNECTION_CLOSED and text.startswith("SSE stream "):
            if text.endswith(" byte limit."):
                return [Unreadable(number, f"it has more than {messages.MAX_BYTES >> 20} MiB")]
            outcome = _Outcome(f"lost the connection: {text}", begun=True, ends_link=True)
        if code == PARSE_ERROR and text.startswith("Failed to parse SSE message: "):
            return [Unreadable(number, "it is not a JSON-RPC message")]
        if outcome is not None and message.error is not UNSET:
            if outcome.ignored:
                return []
            if outcome.unreadable and code == PARSE_ERROR:
                return [Unreadable(number, outcome.cause)]
            if outcome.ends_link:
                if begun is not None:
                    begun(outcome.begun)
                # Each request in flight learns from its own reply whether it was delivered.
                self._ended_by = self._ended_by or outcome.cause
                self._settle_until = min(self._settle_until, trio.current_time() + SETTLE_S)
                return []
            if code == INTERNAL_ERROR and text == "Server returned an error response":
                return messages.parse(messages.error(message.id or 0, code, outcome.cause))
        return [message]

    def negotiated(self, version: str) -> None:
        self._version = version
        self._watch.greeted = True


def _refused(error: ValidationError) -> Unreadable:
    """Return what the SDK could not read; over the older transport it does not say what that replies to."""
    problem = "it is not a JSON-RPC message"
    given = error.errors(include_url=False, include_context=False)[0]["input"]
    written = given.encode() if isinstance(given, str) else messages.encode(given) if isinstance(given, dict) else b""
    try:
        return messages.unreadable(written, problem)
    except NotJson:
        return Unreadable(messages.UNKNOWN, problem)


def _from_sdk(item: SessionMessage) -> Received:
    written = msgspec.json.encode(item.message.model_dump(by_alias=True, mode="json", exclude_unset=True))
    return messages.parse(written)[0]


class HttpConnection(Connection):
    """A link by HTTP."""

    def __init__(self, link: HttpLink, watch: Watch) -> None:
        super().__init__(link)
        self._watch = watch

    @property
    def speaks_otherwise(self) -> bool:
        return self._watch.status in _OLDER


def _auth(
    settings: AdapterSettings,
    url: str,
    given: Mapping[str, str],
    secrets: Secrets,
    folder: Path,
    login: Callable[[str], None],
) -> httpx2.Auth | None:
    """Return what authorizes requests, if the settings say so. Raises SettingProblem."""
    if settings.oauth is None:
        return None
    # These imports take a while, and few servers need them.
    from services.mounts.link.oauth import provider_for

    source = settings.oauth.client_secret_from
    secret = secret_of("oauth.client_secret_from", source, given, secrets) if source else ""
    return provider_for(
        url,
        settings.oauth,
        mount=settings.mount,
        secret=secret,
        folder=folder,
        secrets=secrets,
        login=login,
    )


def to_url(
    settings: AdapterSettings, given: Mapping[str, str], secrets: Secrets, folder: Path, login: Callable[[str], None]
) -> list[Connect]:
    """Return ways to connect to a URL, in the order in which they are tried. Raises SettingProblem.

    Args:
        folder: where tokens are kept.
        login: shows the address that a person must open, and "" once that is done.
    """
    for name in ("httpx2", "httpcore2", "mcp"):
        logging.getLogger(name).setLevel(logging.WARNING)
    headers = headers_of(settings, given, secrets)
    url = url_of(settings, given, secrets)
    host = httpx2.URL(url).netloc.decode()
    timeout = httpx2.Timeout(CONNECT_S, read=None)

    auth = _auth(settings, url, given, secrets, folder, login)

    def client(watch: Watch) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=watch, headers=headers, timeout=timeout, auth=auth)

    @asynccontextmanager
    async def streamable(watch: Watch) -> AsyncIterator[Streams]:
        async with (
            client(watch) as http,
            streamable_http_client(url, http_client=http, max_sse_event_size=messages.MAX_BYTES) as streams,
        ):
            yield streams

    def sse(watch: Watch) -> AbstractAsyncContextManager[Streams]:
        def factory(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
            return client(watch)

        return sse_client(url, httpx_client_factory=factory)

    def connecting(opened: Callable[[Watch], AbstractAsyncContextManager[Streams]]) -> Connect:
        @asynccontextmanager
        async def connect() -> AsyncIterator[Connection]:
            watch = Watch(httpx2.AsyncHTTPTransport(), host)
            link = HttpLink(watch)
            async with trio.open_nursery() as nursery:
                await nursery.start(link.run, opened(watch))
                yield HttpConnection(link, watch)
                with contextlib.suppress(Exception):
                    nursery.cancel_scope.cancel()

        return connect

    by_name = {"http": streamable, "sse": sse}
    transports = [by_name[settings.transport]] if settings.transport else [streamable, sse]
    return [connecting(opened) for opened in transports]
