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
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
import trio
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.utils import is_valid_client_metadata_url, issuers_match
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
from services.mounts.process.environment import Secrets, SettingProblem

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
    server: str = ""
    """The address that the tokens are for."""
    tokens: dict[str, Any] | None = None
    client: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    bound: list[str] = []
    """Client that the settings name, and the issuer that has accepted it."""
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

    def forget(self) -> None:
        """Drop the tokens, and where they are refreshed."""
        self.kept.tokens = self.kept.metadata = self.kept.expires_at = None

    def serve(self, url: str) -> None:
        """Keep only the port if the file is of another server, so that this one sees nothing of it. Raises OSError."""
        before, self.kept.server = self.kept.server, url
        if before not in ("", url):
            self.kept = _Kept(port=self.kept.port, server=url)
            self.save()

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
        before = self.kept.client or {}
        if before.get("issuer") != client_info.issuer or before.get("client_id") != client_info.client_id:
            # Otherwise, a refresh after a restart would show the new client to the old issuer.
            self.forget()
        self.kept.client = client_info.model_dump(mode="json", exclude_none=True)
        await trio.to_thread.run_sync(self.save)


class Provider(OAuthClientProvider):
    """The SDK's provider for logins of persons, with a client from the settings (`client`) if they name one.

    Credentials go only to the issuer that they belong to: the one in the settings, or the one that has accepted them.
    """

    def __init__(self, url: str, client: OAuthClient, secret: str, storage: Storage, loopback: Loopback) -> None:
        self._client = client
        self._storage = storage
        self._is_document = is_valid_client_metadata_url(client.client_id)
        metadata = OAuthClientMetadata(
            redirect_uris=[AnyUrl(loopback.redirect_uri)],
            client_name="Linckia",
            scope=" ".join(client.scopes) or None,
            # A program of this machine: its redirects lead to 127.0.0.1, and it can keep no secret from its user.
            application_type="native",
        )
        before = str((storage.kept.metadata or {}).get("issuer", ""))
        if client.issuer and before and not issuers_match(before, client.issuer):
            storage.forget()
        document = client.client_id if self._is_document else None
        super().__init__(url, metadata, storage, loopback.show, loopback.wait, client_metadata_url=document)
        if self._is_document or not client.client_id:
            return
        if (storage.kept.client or {}).get("client_id") != client.client_id:
            storage.forget()
        storage.kept.client = OAuthClientInformationFull(
            client_id=client.client_id, client_secret=secret or None, redirect_uris=metadata.redirect_uris
        ).model_dump(mode="json", exclude_none=True)

    def _select_authorization_server(self, advertised: list[str]) -> str:
        """Prefer the server that the settings name."""
        return next(
            (each for each in advertised if issuers_match(each, self._client.issuer)),
            super()._select_authorization_server(advertised),
        )

    def _expected_issuer(self) -> str:
        issuer = super()._expected_issuer()
        named, bound = self._client.issuer, self._storage.kept.bound
        if named and not issuers_match(issuer, named):
            raise OAuthFlowError(f"the server sends logins to {issuer!r}, but oauth.issuer is {named!r}")
        is_bound = not named and self._is_registered and bound[:1] == [self._client.client_id]
        if is_bound and not issuers_match(bound[1], issuer):
            raise OAuthFlowError(
                f"the server now sends logins to {issuer!r}; oauth.client_id belongs to {bound[1]!r} and is not shown "
                f"to others. If this is right, set oauth.issuer to {issuer!r}"
            )
        return issuer

    @property
    def _is_registered(self) -> bool:
        """Whether somebody has registered the client, and its identifier is in the settings."""
        return bool(self._client.client_id) and not self._is_document

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Authorize a request. Raises OAuthFlowError and its kin, which say what to set."""
        flow = super().async_auth_flow(request)
        try:
            sent = await anext(flow)
            while True:
                if sent is not request:
                    self._check_registration(sent)
                sent = await flow.asend((yield sent))
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    def _check_registration(self, sent: httpx2.Request) -> None:
        """Raise OAuthRegistrationError if the SDK is about to guess where to register."""
        found = self.context.oauth_metadata
        if found is None or found.registration_endpoint is not None or not sent.url.path.endswith("/register"):
            return
        issuer = str(found.issuer)
        documents = "it reads documents of clients: set oauth.client_id to the https address of one, or"
        if not found.client_id_metadata_document_supported:
            documents = "and it reads no documents of clients:" if self._is_document else "so"
        raise OAuthRegistrationError(
            f"{issuer} registers no clients by itself; {documents} register one there (a native app, with the redirect "
            f"address {self._redirect}), and set oauth.client_id to its identifier"
        )

    @property
    def _redirect(self) -> str:
        return "".join(map(str, (self.context.client_metadata.redirect_uris or [])[:1]))

    async def _exchange_token_authorization_code(
        self, auth_code: str, code_verifier: str, **more: Any
    ) -> httpx2.Request:
        self._choose_method()
        return await super()._exchange_token_authorization_code(auth_code, code_verifier, **more)

    async def _refresh_token(self) -> httpx2.Request:
        self._choose_method()
        return await super()._refresh_token()

    def _choose_method(self) -> None:
        """Say how the secret of a client from the settings is sent: as the issuer supports it, by default in a header
        (RFC 8414)."""
        info, found = self.context.client_info, self.context.oauth_metadata
        if info is None or not self._is_registered:
            return
        supported = (found.token_endpoint_auth_methods_supported if found else None) or ["client_secret_basic"]
        in_body = "client_secret_basic" not in supported and "client_secret_post" in supported
        method = "client_secret_post" if in_body else "client_secret_basic"
        info.token_endpoint_auth_method = method if info.client_secret else "none"

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        if self._is_registered:
            self._storage.kept.bound = [self._client.client_id, self._expected_issuer()]
        await super()._handle_token_response(response)


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

    Raises OSError, SettingProblem.
    """
    storage = Storage(folder, secrets)
    storage.serve(url)
    scope = " ".join(client.scopes) or None
    if client.flow == "client_credentials":
        with warnings.catch_warnings():
            # Without `issuer`, the SDK warns that the server itself names who gets the secret.
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            storage.provider = ClientCredentialsOAuthProvider(
                url, storage, client.client_id, secret, scope=scope, issuer=client.issuer or None
            )
        return storage.provider
    if "://" in client.client_id and not is_valid_client_metadata_url(client.client_id):
        raise SettingProblem(
            "oauth.client_id: an address must be that of a document, such as https://example.org/linckia.json"
        )
    if client.redirect_port:
        storage.kept.port = client.redirect_port
    elif not storage.kept.port:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            storage.kept.port = free.getsockname()[1]
        storage.save()
    loopback = Loopback(mount, storage.kept.port, login)
    storage.provider = Provider(url, client, secret, storage, loopback)
    return storage.provider
