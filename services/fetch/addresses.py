"""Which addresses may be reached: those of the Internet, and those that the settings allow.

A download is asked for by a client, or by a page that a client has read, so it must not become a way to this machine,
to the networks behind it, or to the metadata service of a cloud.  A name is looked up once and the connection goes to
an address that was checked: a second look-up, which could answer otherwise, never happens.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from typing import TypeAlias

import trio

from proto.errors import Forbidden, OperationError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})
"""Metadata services at addresses that look like any other (Azure's); the rest are link-local or private."""

_NOT_PUBLIC = ipaddress.ip_network("192.0.0.0/24")
"""Assignments of the protocol itself, and a metadata service among them; Python's own list has a part of it."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")
_EMBEDDED_BITS = 0xFFFFFFFF


class Allowed:
    """The hosts and networks that are reached although they are not on the Internet."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Raises ValueError for what is neither a host nor a network."""
        self._networks: list[Network] = []
        self._hosts: set[str] = set()
        self._domains: list[str] = []
        for entry in entries:
            text = entry.strip().rstrip(".").lower()
            if (network := _network(text.strip("[]"))) is not None:
                self._networks.append(network)
            elif text.startswith(("*.", ".")) and _is_name(text.lstrip("*.")):
                self._domains.append("." + text.lstrip("*."))
            elif _is_name(text):
                self._hosts.add(text)
            else:
                raise ValueError(f"fetch.allow: {entry!r} is neither a host, an address nor a network")

    def host(self, name: str) -> bool:
        """Whether this very name is allowed, whatever address it has."""
        name = name.rstrip(".").lower()
        return name in self._hosts or any(name.endswith(domain) for domain in self._domains)

    def address(self, address: Address) -> bool:
        return any(
            address.version == network.version and address in network
            for address in _meanings(address)
            for network in self._networks
        )


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


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
        return [ipaddress.IPv4Address(int(address) & _EMBEDDED_BITS)]
    if address in _NAT64_LOCAL:
        return [ipaddress.IPv6Address("::")]
    meanings: list[Address] = [address]
    if address.sixtofour is not None:
        meanings.append(address.sixtofour)
    if address.teredo is not None:
        meanings += address.teredo
    return meanings


async def resolve(host: str, port: int, allowed: Allowed) -> list[str]:
    """The addresses of a host that may be reached, in the resolver's order.

    Raises:
        OperationError: the name has no address.
        Forbidden: it has, and none of them may be reached.
    """
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
            f"{where} is not on the Internet; the setting fetch.allow (LINCKIA_FETCH_ALLOW) may list it",
            field="url",
        )
    return may
