"""Fetches the keys of the issuer whose tokens the front accepts, since the front has no network access.

The URL comes from the settings, and the one named by the issuer's metadata must be equally trustworthy: https, unless
it is on this machine, and a public Internet address, unless it is the issuer's own host or in `fetch.allow`. Nothing
that a client sends influences it, and redirects are not followed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpx2
import msgspec
import trio

from proto.errors import InvalidParams, OperationError, Unavailable
from proto.ops.fetch import IssuerKeySet
from proto.wire.front import is_loopback
from services.fetch.client import Allowed, Client, parse

MAX_BYTES = 256 * 1024
TIMEOUT_S = 10.0
"""Timeout for each document."""


class _Metadata(msgspec.Struct):
    """Metadata of an authorization server (RFC 8414) or an OpenID provider."""

    issuer: str
    jwks_uri: str


class Issuer:
    """Reads the keys of an issuer.

    Args:
        jwks_url: the URL of the keys; if empty, the metadata names it.
        allow: hosts and networks that may be accessed although they are not on the public Internet.
    """

    def __init__(self, issuer: str, jwks_url: str, allow: Iterable[str], user_agent: str) -> None:
        self._issuer = issuer
        self._jwks_url = jwks_url
        named = (httpx2.URL(url).host for url in (issuer, jwks_url) if url)
        self._client = Client(Allowed([*allow, *named]), user_agent)

    async def keys(self) -> IssuerKeySet:
        """Fetch the keys. Raises OperationError, Forbidden or Unavailable, which name the document and the reason."""
        url = self._jwks_url or await self._jwks_uri()
        found: IssuerKeySet = await self._read(url, IssuerKeySet)
        return found

    async def _jwks_uri(self) -> str:
        wrong: list[str] = []
        for url in metadata_urls(self._issuer):
            try:
                metadata: _Metadata = await self._read(url, _Metadata)
            except OperationError as error:
                wrong.append(str(error))
                continue
            if metadata.issuer == self._issuer:
                return metadata.jwks_uri
            wrong.append(f"{url} belongs to the issuer {metadata.issuer!r}")
        raise OperationError(f"no metadata found for the issuer {self._issuer}: {'; '.join(wrong)}")

    async def _read(self, url: str, tp: Any) -> Any:
        try:
            if not is_trustworthy(parsed := parse(url)):
                raise OperationError(f"{url}: https is required, except on this machine")
            with trio.fail_after(TIMEOUT_S):
                return msgspec.json.decode(await self._body(str(parsed)), type=tp)
        except InvalidParams as error:
            raise OperationError(f"{url}: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise OperationError(f"{url}: {error}") from None
        except (httpx2.TransportError, trio.TooSlowError) as error:
            raise Unavailable(f"{url}: {error or type(error).__name__}") from None

    async def _body(self, url: str) -> bytes:
        body = bytearray()
        async with self._client.get(url, {"Accept": "application/json"}, max_redirects=0) as (response, _, _):
            if response.status_code != 200 or response.headers.get("content-encoding", "identity") != "identity":
                raise OperationError(f"{url}: the server returned {response.status_code}")
            # Leaving the loop early would leave the library's own generators open.
            async for data in response.aiter_raw():
                if len(body) <= MAX_BYTES:
                    body += data
        if len(body) > MAX_BYTES:
            raise OperationError(f"{url}: longer than {MAX_BYTES} bytes")
        return bytes(body)


def metadata_urls(issuer: str) -> list[str]:
    """Return the possible URLs of an issuer's metadata, as defined by RFC 8414 and by OpenID Connect Discovery."""
    url = httpx2.URL(issuer)
    path = url.path.rstrip("/")
    return [
        str(url.copy_with(path=f"/.well-known/oauth-authorization-server{path}")),
        str(url.copy_with(path=f"{path}/.well-known/openid-configuration")),
    ]


def is_trustworthy(url: httpx2.URL) -> bool:
    """True if nobody in between can change the content of the URL."""
    return url.scheme == "https" or is_loopback(url.host)
