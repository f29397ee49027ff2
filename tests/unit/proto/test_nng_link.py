"""The nng link: joined messages, an end that dies or lies, threads, and certificates over the loopback."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from proto.wire.channel import LinkClosed
from proto.wire.nng_link import Certificates, NngLink, stream_pair

LARGEST = 1 << 20
HANDSHAKE = b"\x00SP\x00\x00\x11\x00\x00"
"""What an nng end sends first: the protocol's name, version 0, and Pair1's number (RFC "SP over TCP")."""


def pair() -> tuple[NngLink, NngLink]:
    one, other = (NngLink.inherited(end.detach(), max_message_bytes=LARGEST) for end in stream_pair())
    return one, other


async def until_closed(link: NngLink) -> list[bytes]:
    """Return everything received until the link is closed."""
    received: list[bytes] = []
    with contextlib.suppress(LinkClosed), trio.fail_after(20):
        while True:
            received.append(await link.receive())
    return received


async def test_messages_sent_together_arrive_apart_and_in_order() -> None:
    one, other = pair()
    with contextlib.closing(one), contextlib.closing(other), trio.fail_after(20):
        messages = [b"a", b"b" * 70_000, b"c" * 3]
        await one.send_together(messages)
        await one.send(b"last")
        assert [await other.receive() for _ in range(4)] == [*messages, b"last"]


async def test_the_death_of_one_end_is_seen_by_the_other_after_what_it_had_sent() -> None:
    one, other = pair()
    with contextlib.closing(one), trio.fail_after(20):
        await other.send(b"last words")
        assert await one.receive() == b"last words"
        other.close()
        with pytest.raises(LinkClosed):
            await one.receive()
        with pytest.raises(LinkClosed):
            await one.send(b"too late")


async def test_closing_an_end_wakes_its_own_tasks() -> None:
    one, other = pair()

    async def wait(receive: bool) -> None:
        with contextlib.suppress(LinkClosed):
            while True:
                await (one.receive() if receive else one.send(b"x" * 60_000))
        ended.append(receive)

    ended: list[bool] = []

    with contextlib.closing(other), trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, True)
            nursery.start_soon(wait, False)
            await trio.testing.wait_all_tasks_blocked()
            one.close()
    assert sorted(ended) == [False, True]


@contextlib.asynccontextmanager
async def raw_peer() -> AsyncIterator[tuple[NngLink, trio.SocketStream]]:
    """A link, and its other end as a socket that nng has greeted."""
    ours, theirs = stream_pair()
    peer = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
    with contextlib.closing(NngLink.inherited(ours.detach(), max_message_bytes=LARGEST)) as link:
        async with peer:
            with trio.fail_after(20):
                assert await peer.receive_some(len(HANDSHAKE)) == HANDSHAKE
            yield link, peer


def framed(data: bytes) -> bytes:
    """As nng sends a message of Pair1 over a stream: the length, one hop, and the data."""
    body = struct.pack(">I", 1) + data
    return struct.pack(">Q", len(body)) + body


def joined(*messages: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(message)) + message for message in messages)


async def test_a_peer_that_speaks_the_protocol_is_heard() -> None:
    async with raw_peer() as (link, peer):
        with trio.fail_after(20):
            await peer.send_all(HANDSHAKE + framed(joined(b"one", b"two")))
            assert [await link.receive(), await link.receive()] == [b"one", b"two"]


@pytest.mark.parametrize(
    "data",
    [
        HANDSHAKE + framed(b""),
        HANDSHAKE + framed(b"\x00\x00"),
        HANDSHAKE + framed(joined(b"")),
        HANDSHAKE + framed(struct.pack(">I", 10) + b"short"),
        HANDSHAKE + framed(joined(b"fine") + b"\xff\xff\xff\xff\x00"),
        HANDSHAKE + struct.pack(">Q", 2 * LARGEST) + b"x" * 100,
    ],
    ids=["nothing", "half-a-length", "no-bytes", "cut", "too-long-inside", "too-long"],
)
async def test_an_invalid_message_ends_the_link(data: bytes) -> None:
    async with raw_peer() as (link, peer):
        with contextlib.suppress(trio.BrokenResourceError):
            await peer.send_all(data)
        assert await until_closed(link) == []


async def test_a_peer_that_does_not_shake_hands_is_never_heard() -> None:
    async with raw_peer() as (link, peer):
        await peer.send_all(b"GET / HTTP/1.1\r\n\r\n")
        with trio.fail_after(20), contextlib.suppress(trio.BrokenResourceError):
            while await peer.receive_some():
                pass
        assert link.try_receive() is None


@given(st.binary(max_size=300))
def test_no_bytes_of_a_peer_do_more_than_end_the_link(data: bytes) -> None:
    async def run() -> None:
        async with raw_peer() as (link, peer):
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await peer.send_all(HANDSHAKE + framed(data))
            await peer.aclose()
            assert all(await until_closed(link))

    trio.run(run)


def test_nng_has_few_threads_and_none_before_the_first_link() -> None:
    code = """
import os, trio
from proto.wire.nng_link import NngLink, stream_pair
def threads(): return len(os.listdir("/proc/self/task"))
async def main():
    print(threads())
    link = NngLink.inherited(stream_pair()[0].detach(), max_message_bytes=1000)
    print(threads())
    link.close()
trio.run(main)
"""
    found = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True)
    before, after = map(int, found.stdout.split())
    assert before == 1
    assert after <= 8


@dataclass
class Authority:
    """A certificate authority of these tests."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        self.path = self.folder / f"{self.name}.pem"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._builder(self._subject, self._key).add_extension(constraints, critical=True)
        self.path.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )

    def certificates(self, name: str, trusts: Authority) -> Certificates:
        """A certificate for `localhost` signed by this authority, of an end that trusts those of another."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        signed = self._builder(subject, key).add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        own, secret = self.folder / f"{self.name}-{name}.pem", self.folder / f"{self.name}-{name}.key"
        own.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return Certificates(own, secret, trusts.path, server_name="localhost")


@contextlib.asynccontextmanager
async def over_tls(listener: Certificates, dialler: Certificates) -> AsyncIterator[tuple[NngLink, NngLink]]:
    with (
        contextlib.closing(NngLink.listening("tls+tcp://127.0.0.1:0", listener, max_message_bytes=LARGEST)) as one,
        contextlib.closing(
            NngLink.dialled(f"tls+tcp://127.0.0.1:{one.port}", dialler, max_message_bytes=LARGEST)
        ) as other,
    ):
        yield one, other


async def test_two_machines_with_certificates_are_linked(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    async with over_tls(ours.certificates("kernel", ours), ours.certificates("node", ours)) as (kernel, node):
        with trio.fail_after(20):
            await node.send_together([b"hello", b"x" * 500_000])
            assert [await kernel.receive(), await kernel.receive()] == [b"hello", b"x" * 500_000]
            await kernel.send(b"welcome")
            assert await node.receive() == b"welcome"
            node.close()
            with pytest.raises(LinkClosed):
                await kernel.receive()


async def test_a_peer_without_a_certificate_of_the_authority_is_refused(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    with contextlib.closing(
        NngLink.listening("tls+tcp://127.0.0.1:0", ours.certificates("kernel", ours), max_message_bytes=LARGEST)
    ) as kernel:
        url = f"tls+tcp://127.0.0.1:{kernel.port}"
        # The dialling end may learn only after its handshake that its certificate was not accepted.
        with contextlib.suppress(OSError, LinkClosed):
            node = NngLink.dialled(url, others.certificates("node", ours), max_message_bytes=LARGEST)
            with contextlib.closing(node):
                await node.send(b"let me in")
                assert await until_closed(node) == []
        assert kernel.try_receive() is None
        with pytest.raises(OSError, match="cannot connect"):
            NngLink.dialled(url, ours.certificates("node", others), max_message_bytes=LARGEST)


async def test_invalid_certificate_files_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    with pytest.raises(ValueError, match=r"broken\.pem"):
        NngLink.listening("tls+tcp://127.0.0.1:0", Certificates(broken, broken, broken), max_message_bytes=LARGEST)
    absent = tmp_path / "absent.pem"
    with pytest.raises(FileNotFoundError):
        NngLink.dialled("tls+tcp://127.0.0.1:1", Certificates(absent, absent, absent), max_message_bytes=LARGEST)


def test_plain_tcp_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        ours = Authority(tmp_path, "ours")
        with contextlib.closing(
            NngLink.listening("tls+tcp://127.0.0.1:0", ours.certificates("kernel", ours), max_message_bytes=LARGEST)
        ) as kernel:
            with socket.create_connection(("127.0.0.1", kernel.port)) as plain:
                plain.settimeout(20)
                plain.sendall(HANDSHAKE + framed(joined(b"let me in")))
                with contextlib.suppress(ConnectionResetError):
                    while plain.recv(1000):
                        pass
            assert kernel.try_receive() is None

    trio.run(run)
