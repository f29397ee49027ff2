"""Which addresses count as the Internet, and what the settings may add."""

from __future__ import annotations

import ipaddress

import pytest

from proto.errors import Forbidden
from services.fetch.client import Allowed, is_public, resolve
from services.fetch.main import name_of


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c",
                                     "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"])  # fmt: skip
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "100.100.100.200", "192.0.0.192", "198.18.0.1", "192.0.2.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "168.63.129.16", "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::1",
        "2001:0:7f00:1::1",
    ],
)  # fmt: skip
def test_private_addresses_are_refused(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


async def test_settings_allow_hosts_networks_and_domains() -> None:
    allowed = Allowed(["10.0.0.0/8", "::1", "Printer.local.", "*.corp.example"])
    assert await resolve("10.2.3.4", 80, allowed) == ["10.2.3.4"]
    assert await resolve("::ffff:10.2.3.4", 80, allowed) == ["::ffff:a02:304"]
    assert await resolve("::1", 80, allowed) == ["::1"]
    assert allowed.host("printer.LOCAL")
    assert allowed.host("a.b.corp.example")
    assert not allowed.host("corp.example.org")
    with pytest.raises(Forbidden):
        await resolve("192.168.0.1", 80, allowed)
    assert await resolve("localhost", 80, Allowed(["localhost"]))


async def test_only_the_allowed_addresses_of_a_host_are_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(host: str, port: int, **kwargs: object) -> list[tuple[object, ...]]:
        return [(2, 1, 6, "", (address, port)) for address in ("127.0.0.1", "8.8.8.8", "10.0.0.1", "8.8.8.8")]

    monkeypatch.setattr("trio.socket.getaddrinfo", found)
    assert await resolve("mixed.example", 80, Allowed()) == ["8.8.8.8"]


@pytest.mark.parametrize("entry", ["http://example.org", "a b", "", "10.0.0.0/99", "user@host", "*"])
def test_settings_that_are_neither_hosts_nor_networks_are_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"fetch\.allow"):
        Allowed([entry])


@pytest.mark.parametrize(
    ("url", "disposition", "name"),
    [
        ("http://h/a/b.txt?q=1", None, "b.txt"),
        ("http://h/a/", None, "a"),
        ("http://host.example/", None, "host.example"),
        ("http://h/x", 'attachment; filename="r.pdf"', "r.pdf"),
        ("http://h/x", "attachment; filename=r.pdf; size=5", "r.pdf"),
        ("http://h/x", "attachment; filename=a.txt; filename*=UTF-8''n%C3%A4me.txt", "näme.txt"),
        ("http://h/x", "attachment; filename*=nonsense''%E4", "x"),
        ("http://h/x", 'attachment; filename="..\\\\..\\\\evil"', "evil"),
        ("http://h/..%2F..%2Fetc%2Fpasswd", None, "passwd"),
        ("http://h/" + "a" * 300, None, "a" * 255),
    ],
)
def test_names_are_plain(url: str, disposition: str | None, name: str) -> None:
    assert name_of(url, disposition) == name
