"""One GET, redirects followed by hand: every hop's address is looked up, checked and connected to as it was checked.

Nothing of the environment (proxies, netrc) and no cookie goes along, and no response is decoded but on purpose.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping

import httpx2
import msgspec

from proto.errors import Forbidden, InvalidParams, OperationError
from services.fetch.addresses import Allowed, resolve

MAX_REDIRECTS = 10
CONNECT_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 30.0
"""Without a single byte; a slow server that sends some is bounded by the download's own time."""

_SCHEMES = ("http", "https")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Opened(msgspec.Struct, frozen=True):
    """A response whose body is to be read."""

    response: httpx2.Response
    url: str
    redirects: int


class Client:
    """Opens URLs within the limits of `allowed`."""

    def __init__(self, allowed: Allowed, user_agent: str) -> None:
        self._allowed = allowed
        self._user_agent = user_agent
        self._tls: ssl.SSLContext | None = None

    @contextlib.asynccontextmanager
    async def get(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[Opened]:
        """The response to a GET of `url`, whatever its status but a redirect's.

        Raises:
            Forbidden: this URL, or one that it redirects to, may not be reached.
            OperationError: there is no such host, or too many redirects.
            httpx2.TransportError: the connection failed.
        """
        parsed = parse(url)
        for redirects in range(MAX_REDIRECTS + 1):
            async with self._hop(parsed, headers) as response:
                location = response.headers.get("location")
                if response.status_code not in _REDIRECTS or location is None:
                    yield Opened(response, str(parsed), redirects)
                    return
            parsed = _next(parsed, location)
        raise OperationError(f"{url} redirects more than {MAX_REDIRECTS} times", field="url")

    async def addresses(self, url: httpx2.URL) -> list[str]:
        """The addresses of the URL's host that may be reached.  Raises as `resolve` does."""
        port = url.port or (443 if url.scheme == "https" else 80)
        return await resolve(url.raw_host.decode("ascii"), port, self._allowed)

    @contextlib.asynccontextmanager
    async def _hop(self, url: httpx2.URL, headers: Mapping[str, str]) -> AsyncIterator[httpx2.Response]:
        addresses = await self.addresses(url)
        sent = {
            "Host": url.netloc.decode("ascii"),
            "User-Agent": self._user_agent,
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            **headers,
        }
        timeout = httpx2.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        # A client a hop, so that nothing of one host is carried to the next.
        async with httpx2.AsyncClient(verify=self._context(), trust_env=False, timeout=timeout) as client:
            yield await _first(client, url, addresses, sent)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = httpx2.create_ssl_context()
        return self._tls


async def _first(
    client: httpx2.AsyncClient, url: httpx2.URL, addresses: list[str], headers: Mapping[str, str]
) -> httpx2.Response:
    """The response of the first address that takes a connection."""
    host = url.raw_host.decode("ascii")
    for address in addresses:
        # The URL names the address that was checked, the header and the certificate the host.
        request = client.build_request(
            "GET", url.copy_with(host=address), headers=dict(headers), extensions={"sni_hostname": host}
        )
        try:
            return await client.send(request, stream=True, follow_redirects=False)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            if _is_certificate(error):
                raise OperationError(f"{host} has no certificate to trust: {error}", field="url") from None
            if address == addresses[-1]:
                raise
    raise OperationError(f"{host} has no address", field="url")


def _is_certificate(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def parse(url: str) -> httpx2.URL:
    """The URL, if it is one to download from.

    Raises:
        InvalidParams: says what is wrong with it.
    """
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError) as error:
        raise InvalidParams(f"`url` is none: {error}", field="url") from None
    if parsed.scheme not in _SCHEMES:
        raise InvalidParams(f"`url`: only http and https, not {parsed.scheme or 'nothing'!r}", field="url")
    if not parsed.host:
        raise InvalidParams("`url` names no host", field="url")
    if parsed.userinfo:
        raise InvalidParams("`url` holds a user or a password, which would be stored with the document", field="url")
    return parsed.copy_with(fragment=None)


def _next(url: httpx2.URL, location: str) -> httpx2.URL:
    """Where a redirect leads, if that may be followed."""
    try:
        target = parse(str(url.join(location)))
    except (InvalidParams, httpx2.InvalidURL, ValueError) as error:
        raise OperationError(f"{url} redirects to what cannot be followed: {error}", field="url") from None
    if url.scheme == "https" and target.scheme != "https":
        raise Forbidden(f"{url} redirects from https to http", field="url")
    return target
