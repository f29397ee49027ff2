"""Sends a single GET to a verified address: on the public Internet, or allowed by the settings.

A download is requested by a client, or by a page that a client has read, so it must not give access to this machine, to
the networks behind it, or to a cloud metadata service. A name is resolved once, and the connection goes to an address
that was verified: there is no second lookup, which could return something else. Redirects are followed by hand, each
checked like a URL of its own. Nothing from the environment (proxies, netrc) and no cookies are sent, and responses are
only decoded on purpose.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TypeAlias

import httpx2
import trio

from proto.errors import Forbidden, InvalidParams, OperationError

MAX_REDIRECTS = 10
CONNECT_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 30.0
"""Longest time without receiving any data; a slow server that keeps sending is limited by the download's own
timeout."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})
"""Metadata services at public addresses (Azure's); all others are link-local or private."""

_NOT_PUBLIC = ipaddress.ip_network("192.0.0.0/24")
"""IETF protocol assignments, including a metadata service; Python's own list covers only part of this network."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")


class Allowed:
    """Hosts and networks that may be accessed although they are not on the public Internet."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Raises ValueError if an entry is neither a host nor a network."""
        self._networks: list[Network] = []
        self._hosts: set[str] = set()
        self._domains: list[str] = []
        for entry in entries:
            text = entry.strip().rstrip(".").lower()
            with contextlib.suppress(ValueError):
                self._networks.append(ipaddress.ip_network(text.strip("[]"), strict=False))
                continue
            if text.startswith(("*.", ".")) and _is_name(text.lstrip("*.")):
                self._domains.append("." + text.lstrip("*."))
            elif _is_name(text):
                self._hosts.add(text)
            else:
                raise ValueError(f"fetch.allow: {entry!r} is not a host, an address or a network")

    def host(self, name: str) -> bool:
        name = name.rstrip(".").lower()
        return name in self._hosts or any(name.endswith(domain) for domain in self._domains)

    def address(self, address: Address) -> bool:
        return any(
            address.version == network.version and address in network
            for address in _meanings(address)
            for network in self._networks
        )


def _is_name(text: str) -> bool:
    return bool(text) and not set(text) & set("/:@[]* ")


def is_address(host: str) -> bool:
    """Return whether a host is written as a number."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def is_public(address: Address) -> bool:
    """True if the address, and every address that it stands for, is on the public Internet."""
    return all(
        meant.is_global
        and not (meant.is_multicast or meant.is_reserved or meant.is_unspecified)
        and meant not in _METADATA
        and meant not in _NOT_PUBLIC
        for meant in _meanings(address)
    )


def _meanings(address: Address) -> list[Address]:
    """Return the address, and the IPv4 address embedded in it, if any (mapped, 6to4, Teredo, NAT64)."""
    if address.version == 4:
        return [address]
    if address.ipv4_mapped is not None:
        # Equivalent to its IPv4 address, and not global by itself.
        return [address.ipv4_mapped]
    if address in _NAT64:
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    if address in _NAT64_LOCAL:
        return [ipaddress.IPv6Address("::")]
    meanings: list[Address] = [address]
    if address.sixtofour is not None:
        meanings.append(address.sixtofour)
    if address.teredo is not None:
        meanings += address.teredo
    return meanings


async def resolve(host: str, port: int, allowed: Allowed) -> list[str]:
    """Return the addresses of a host that may be accessed, in the resolver's order. Raises OperationError (the name has
    no address) or Forbidden (none of its addresses may be accessed)."""
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OperationError(f"cannot resolve {host}: {error.strerror}", field="url") from None
    except UnicodeError:
        raise OperationError(f"{host[:100]!r} is not a valid host name", field="url") from None
    addresses = list(dict.fromkeys(str(entry[4][0]).split("%", 1)[0] for entry in found))
    if allowed.host(host):
        return addresses
    parsed = [ipaddress.ip_address(address) for address in addresses]
    may = [str(address) for address in parsed if is_public(address) or allowed.address(address)]
    if not may:
        where = host if addresses == [host] else f"{host} ({', '.join(addresses)})"
        raise Forbidden(
            f"{where} is not on the public Internet; allow it with fetch.allow (LINCKIA_FETCH_ALLOW)", field="url"
        )
    return may


class Client:
    """Opens URLs within the limits of `allowed`."""

    def __init__(self, allowed: Allowed, user_agent: str) -> None:
        self._allowed = allowed
        self._headers = {"User-Agent": user_agent, "Accept": "*/*", "Accept-Encoding": "identity"}
        self._tls: ssl.SSLContext | None = None

    @contextlib.asynccontextmanager
    async def get(
        self, url: str, headers: Mapping[str, str], *, max_redirects: int = MAX_REDIRECTS
    ) -> AsyncIterator[tuple[httpx2.Response, str, int]]:
        """Send a GET. Yields the response, whatever its status except a redirect; its own URL; and the number of
        redirects.

        Raises:
            Forbidden: this URL, or one that it redirects to, may not be accessed.
            OperationError: the host is unknown, or there were too many redirects.
            httpx2.TransportError: the connection failed.
        """
        parsed = parse(url)
        for redirects in range(max_redirects + 1):
            async with self._hop(parsed, headers) as response:
                location = response.headers.get("location")
                if response.status_code not in _REDIRECTS or location is None:
                    yield response, str(parsed), redirects
                    return
            parsed = _next(parsed, location)
        raise OperationError(f"{url} redirects more than {max_redirects} times", field="url")

    async def post(self, url: str, body: bytes) -> int:
        """Send JSON, without following redirects; return the status. Raises the same errors as `get`."""
        sent = {"Content-Type": "application/json"}
        async with self._hop(parse(url), sent, "POST", body) as response:
            return response.status_code

    async def addresses(self, url: httpx2.URL) -> list[str]:
        """Return the addresses of the URL's host that may be accessed. Raises the same errors as `resolve`."""
        port = url.port or (443 if url.scheme == "https" else 80)
        return await resolve(url.raw_host.decode("ascii"), port, self._allowed)

    @contextlib.asynccontextmanager
    async def _hop(
        self, url: httpx2.URL, headers: Mapping[str, str], method: str = "GET", body: bytes | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """Yield the response of the first address that accepts a connection."""
        host, addresses = url.raw_host.decode("ascii"), await self.addresses(url)
        sent = {"Host": url.netloc.decode("ascii"), **self._headers, **headers}
        self._tls = self._tls or httpx2.create_ssl_context()
        timeout = httpx2.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        # Each hop has its own client, so that nothing of one host is carried over to the next.
        async with httpx2.AsyncClient(verify=self._tls, trust_env=False, timeout=timeout) as client:
            for address in addresses:
                # The URL has the verified address; the Host header and the certificate check have the host name.
                at, named = url.copy_with(host=address), {"sni_hostname": host}
                request = client.build_request(method, at, headers=sent, content=body, extensions=named)
                try:
                    response = await client.send(request, stream=True, follow_redirects=False)
                    break
                except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                    if _is_certificate(error):
                        raise OperationError(f"{host} has no trusted certificate: {error}", field="url") from None
                    if address == addresses[-1]:
                        raise
            yield response


def _is_certificate(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def parse(url: str) -> httpx2.URL:
    """Return the parsed URL. Raises InvalidParams, with the reason, if it cannot be downloaded from."""
    try:
        # Copying encodes the URL, which checks the length of the path.
        parsed = httpx2.URL(url).copy_with(fragment=None)
    except (httpx2.InvalidURL, ValueError) as error:
        raise InvalidParams(f"`url` is not a valid URL: {error}", field="url") from None
    if parsed.scheme not in ("http", "https"):
        raise InvalidParams(f"`url`: the scheme must be http or https, not {parsed.scheme or 'nothing'!r}", field="url")
    if not parsed.host:
        raise InvalidParams("`url` has no host", field="url")
    if parsed.userinfo:
        raise InvalidParams("`url` contains a user or password, which would be stored with the document", field="url")
    return parsed


def _next(url: httpx2.URL, location: str) -> httpx2.URL:
    """Return the target of a redirect, if it may be followed."""
    try:
        target = parse(str(url.join(location)))
    except (InvalidParams, httpx2.InvalidURL, ValueError) as error:
        raise OperationError(f"{url} redirects to an unusable URL: {error}", field="url") from None
    if url.scheme == "https" and target.scheme != "https":
        raise Forbidden(f"{url} redirects from https to http", field="url")
    return target
