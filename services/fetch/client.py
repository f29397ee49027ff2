"""One GET, to an address that was checked: one of the Internet, or one that the settings allow.

A download is asked for by a client, or by a page that a client has read, so it must not become a way to this machine,
to the networks behind it, or to the metadata service of a cloud.  A name is looked up once and the connection goes to
an address that was checked: a second look-up, which could answer otherwise, never happens.  Redirects are followed by
hand, each like a URL of its own.  Nothing of the environment (proxies, netrc) and no cookie goes along, and no response
is decoded but on purpose.
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

from linckia.proto.errors import Forbidden, InvalidParams, OperationError

MAX_REDIRECTS = 10
CONNECT_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 30.0
"""Without a single byte; a slow server that sends some is bounded by the download's own time."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})
"""Metadata services at addresses that look like any other (Azure's); the rest are link-local or private."""

_NOT_PUBLIC = ipaddress.ip_network("192.0.0.0/24")
"""Assignments of the protocol itself, and a metadata service among them; Python's own list has a part of it."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")


class Allowed:
    """The hosts and networks that are reached although they are not on the Internet."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Raises ValueError for what is neither a host nor a network."""
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
                raise ValueError(f"fetch.allow: {entry!r} is neither a host, an address nor a network")

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


def is_public(address: Address) -> bool:
    """Whether the address is on the Internet, and so is every other that it stands for."""
    return all(
        meant.is_global
        and not (meant.is_multicast or meant.is_reserved or meant.is_unspecified)
        and meant not in _METADATA
        and meant not in _NOT_PUBLIC
        for meant in _meanings(address)
    )


def _meanings(address: Address) -> list[Address]:
    """The address and the IPv4 address within it, if it has one (mapped, 6to4, Teredo, NAT64)."""
    if address.version == 4:
        return [address]
    if address.ipv4_mapped is not None:
        # The same thing as its IPv4 address, and not global by itself.
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
    """The addresses of a host that may be reached, in the resolver's order.  Raises OperationError (the name has no
    address), Forbidden (it has, and none of them may be reached)."""
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OperationError(f"{host} cannot be found: {error.strerror}", field="url") from None
    except UnicodeError:
        raise OperationError(f"{host[:100]!r} is not the name of a host", field="url") from None
    addresses = list(dict.fromkeys(str(entry[4][0]).split("%", 1)[0] for entry in found))
    if allowed.host(host):
        return addresses
    parsed = [ipaddress.ip_address(address) for address in addresses]
    may = [str(address) for address in parsed if is_public(address) or allowed.address(address)]
    if not may:
        where = host if addresses == [host] else f"{host} is {', '.join(addresses)}, which"
        raise Forbidden(
            f"{where} is not on the Internet; the setting fetch.allow (LINCKIA_FETCH_ALLOW) may list it", field="url"
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
        """The response to a GET of `url`, whatever its status but a redirect's; its own URL; the number of redirects.

        Raises:
            Forbidden: this URL, or one that it redirects to, may not be reached.
            OperationError: there is no such host, or too many redirects.
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

    async def addresses(self, url: httpx2.URL) -> list[str]:
        """The addresses of the URL's host that may be reached.  Raises as `resolve` does."""
        port = url.port or (443 if url.scheme == "https" else 80)
        return await resolve(url.raw_host.decode("ascii"), port, self._allowed)

    @contextlib.asynccontextmanager
    async def _hop(self, url: httpx2.URL, headers: Mapping[str, str]) -> AsyncIterator[httpx2.Response]:
        """The response of the first address that takes a connection."""
        host, addresses = url.raw_host.decode("ascii"), await self.addresses(url)
        sent = {"Host": url.netloc.decode("ascii"), **self._headers, **headers}
        self._tls = self._tls or httpx2.create_ssl_context()
        timeout = httpx2.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        # A client a hop, so that nothing of one host is carried to the next.
        async with httpx2.AsyncClient(verify=self._tls, trust_env=False, timeout=timeout) as client:
            for address in addresses:
                # The URL names the address that was checked, the header and the certificate the host.
                at, named = url.copy_with(host=address), {"sni_hostname": host}
                request = client.build_request("GET", at, headers=sent, extensions=named)
                try:
                    response = await client.send(request, stream=True, follow_redirects=False)
                    break
                except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                    if _is_certificate(error):
                        raise OperationError(f"{host} has no certificate to trust: {error}", field="url") from None
                    if address == addresses[-1]:
                        raise
            yield response


def _is_certificate(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def parse(url: str) -> httpx2.URL:
    """The URL, if it is one to download from.  Raises InvalidParams, which says what is wrong with it."""
    try:
        # The path is measured once it is written out.
        parsed = httpx2.URL(url).copy_with(fragment=None)
    except (httpx2.InvalidURL, ValueError) as error:
        raise InvalidParams(f"`url` is none: {error}", field="url") from None
    if parsed.scheme not in ("http", "https"):
        raise InvalidParams(f"`url`: only http and https, not {parsed.scheme or 'nothing'!r}", field="url")
    if not parsed.host:
        raise InvalidParams("`url` names no host", field="url")
    if parsed.userinfo:
        raise InvalidParams("`url` holds a user or a password, which would be stored with the document", field="url")
    return parsed


def _next(url: httpx2.URL, location: str) -> httpx2.URL:
    """Where a redirect leads, if that may be followed."""
    try:
        target = parse(str(url.join(location)))
    except (InvalidParams, httpx2.InvalidURL, ValueError) as error:
        raise OperationError(f"{url} redirects to what cannot be followed: {error}", field="url") from None
    if url.scheme == "https" and target.scheme != "https":
        raise Forbidden(f"{url} redirects from https to http", field="url")
    return target
