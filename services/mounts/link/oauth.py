"""Tokens for servers that require OAuth, by the SDK's providers; kept in the adapter's folder, readable by its user.

With `authorization_code`, a person opens an address that is written to the log; the answer arrives at a port of this
machine's loopback interface. Tokens are refreshed before they expire, also those from before a restart.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec
import trio
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from mcp.shared.exceptions import MCPDeprecationWarning
from pydantic import AnyUrl

from proto.host.durable import replace_file
from proto.mounts import OAuthClient
from services.mounts.process.environment import Secrets

FILE: Final = "oauth.json"
EARLY_S: Final = 60.0
"""A token is refreshed this long before it expires, or in the middle of a shorter life."""

REQUEST_BYTES: Final = 16 * 1024
REQUEST_S: Final = 10.0
"""Time for a request to arrive and to be answered."""

_DONE: Final = (b"200 OK", b"Linckia has the answer. You can close this window.")
_UNKNOWN: Final = (b"400 Bad Request", b"This does not answer the authorization that Linckia waits for.")

Login = Callable[[str], None]
"""Shows the address of a login that is waited for; empty: none is."""

_log = logging.getLogger("linckia.mount")


class _Kept(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The content of the file; tokens and metadata as the SDK's models write them."""

    port: int = 0
    tokens: dict[str, Any] | None = None
    client: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    expires_at: float | None = None


class Storage:
    """The SDK's `TokenStorage`, in a file.

    Attributes:
        provider: whose metadata is kept with the tokens, since refreshing needs it.
    """

    provider: OAuthClientProvider

    def __init__(self, folder: Path, secrets: Secrets) -> None:
        self._path = folder / FILE
        self._secrets = secrets
        self.kept = _Kept()
        with contextlib.suppress(OSError, msgspec.DecodeError):
            self.kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)

    def save(self) -> None:
        """Write the file (0600). Raises OSError."""
        replace_file(self._path, msgspec.json.encode(self.kept))

    async def get_tokens(self) -> OAuthToken | None:
        if self.kept.tokens is None:
            return None
        context = self.provider.context
        if self.kept.metadata is not None:
            context.oauth_metadata = OAuthMetadata.model_validate(self.kept.metadata)
        context.token_expiry_time = self.kept.expires_at
        return self._secret(OAuthToken.model_validate(self.kept.tokens))

    async def set_tokens(self, tokens: OAuthToken) -> None:
        context = self.provider.context
        self.kept.tokens = self._secret(tokens).model_dump(mode="json", exclude_none=True)
        if context.oauth_metadata is not None:
            self.kept.metadata = context.oauth_metadata.model_dump(mode="json", exclude_none=True)
        expires_in = tokens.expires_in
        usable_s = None if expires_in is None else expires_in - min(EARLY_S, expires_in / 2)
        self.kept.expires_at = None if usable_s is None else time.time() + usable_s
        # The SDK itself would only refresh an expired token.
        context.token_expiry_time = self.kept.expires_at
        await trio.to_thread.run_sync(self.save)

    def _secret(self, tokens: OAuthToken) -> OAuthToken:
        for value in (tokens.access_token, tokens.refresh_token):
            if value:
                self._secrets.add(value)
        return tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None if self.kept.client is None else OAuthClientInformationFull.model_validate(self.kept.client)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.kept.client = client_info.model_dump(mode="json", exclude_none=True)
        await trio.to_thread.run_sync(self.save)


class Loopback:
    """The end of an authorization on this machine: shows the address to open, and waits for what comes back."""

    def __init__(self, mount: str, port: int, login: Login) -> None:
        self._mount = mount
        self._port = port
        self._login = login
        self._state: str | None = None
        """What the answer must repeat; only who saw the address knows it."""

    @property
    def redirect_uri(self) -> str:
        return f"http://127.0.0.1:{self._port}/callback"

    async def show(self, url: str) -> None:
        """Write the address to the log and to the status."""
        self._state = _query(url).get("state")
        self._login(url)
        _log.warning("mcp.%s: open this address in a browser to authorize Linckia: %s", self._mount, url)

    async def wait(self) -> AuthorizationCodeResult:
        """Wait for the browser. Raises OSError if the port is taken, ValueError if the person refused."""
        result: dict[str, str] = {}
        came = trio.Event()

        async def hear(stream: trio.SocketStream) -> None:
            with trio.move_on_after(REQUEST_S):
                found = self._answer_in(await _target(stream))
                await _reply(stream, *(_DONE if found else _UNKNOWN))
                if found:
                    result.update(found)
                    came.set()

        listeners = await trio.open_tcp_listeners(self._port, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            # A browser may open connections that it does not use, and any program of this machine can.
            nursery.start_soon(trio.serve_listeners, hear, listeners)
            await came.wait()
            nursery.cancel_scope.cancel()
        self._login("")
        if "code" not in result:
            raise ValueError(f"authorization was refused: {result['error']!r}")
        return AuthorizationCodeResult(code=result["code"], state=result.get("state"), iss=result.get("iss"))

    def _answer_in(self, target: str) -> dict[str, str]:
        """Return the answer to this authorization in a request's target; empty if it has none.

        Any program of this machine and any page in the browser can send a request, but does not know the state.
        """
        found = _query(target)
        if urlsplit(target).path != "/callback" or not found.keys() & {"code", "error"}:
            return {}
        return found if found.get("state") == self._state else {}


def _query(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


async def _target(stream: trio.SocketStream) -> str:
    """Return the target of a browser's request."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < REQUEST_BYTES and (more := await _some(stream)):
        head += more
    return head.split(b" ")[1].decode("latin-1") if head.count(b" ") >= 2 else "/"


async def _some(stream: trio.SocketStream) -> bytes:
    try:
        return bytes(await stream.receive_some(4096))
    except trio.BrokenResourceError:
        return b""


async def _reply(stream: trio.SocketStream, status: bytes, text: bytes) -> None:
    page = b"<!doctype html><title>Linckia</title><p>" + text
    reply = b"HTTP/1.1 %b\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
    with contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(reply % (status, len(page), page))


def provider_for(
    url: str, client: OAuthClient, *, mount: str, secret: str, folder: Path, secrets: Secrets, login: Login
) -> OAuthClientProvider:
    """Return what authorizes requests to a server.

    Args:
        secret: the client's, or empty.
        folder: where tokens are kept.
        login: shows the address that a person must open.

    Raises OSError.
    """
    storage = Storage(folder, secrets)
    scope = " ".join(client.scopes) or None
    if client.flow == "client_credentials":
        with warnings.catch_warnings():
            # Without `issuer`, the SDK warns that the server itself names who gets the secret.
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            storage.provider = ClientCredentialsOAuthProvider(
                url, storage, client.client_id, secret, scope=scope, issuer=client.issuer or None
            )
        return storage.provider
    if not storage.kept.port:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            storage.kept.port = free.getsockname()[1]
        storage.save()
    loopback = Loopback(mount, storage.kept.port, login)
    uris: list[AnyUrl] = [AnyUrl(loopback.redirect_uri)]
    metadata = OAuthClientMetadata(redirect_uris=uris, client_name="Linckia", scope=scope)
    if client.client_id:
        storage.kept.client = OAuthClientInformationFull(
            client_id=client.client_id, client_secret=secret or None, redirect_uris=uris
        ).model_dump(mode="json", exclude_none=True)
    storage.provider = OAuthClientProvider(
        url, metadata, storage, redirect_handler=loopback.show, callback_handler=loopback.wait
    )
    return storage.provider
