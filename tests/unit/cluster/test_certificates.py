"""Each link to a node has certificates of its own, which work for that link only."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import threading
from pathlib import Path

import pytest
import trio

pytest.importorskip("cryptography", reason="certificates need linckia[ray]")

from cryptography import x509
from cryptography.exceptions import InvalidTag

from proto.wire.nng_link import Certificates, NngLink, stream_pair
from services.cluster import certificates
from services.cluster.certificates import JOIN_LASTS, ROTATED_AFTER, Authority, kernel_name
from services.cluster.relay import relay

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(autouse=True)
def _now() -> None:
    """Begin at the present time: certificates last ten minutes, less than a whole run of the tests may take."""
    global NOW  # noqa: PLW0603
    NOW = datetime.datetime.now(datetime.UTC)


LARGEST = 1024 * 1024


def kernel_end(authority: Authority, name: str, trusts: Authority | None = None) -> NngLink:
    """The kernel's end of the link of `name`."""
    own = authority.for_kernel(name, NOW)
    trusted = (trusts or authority).pem
    return NngLink.listening(
        "tls+tcp://127.0.0.1:0",
        Certificates(own.certificate, own.key, trusted, peer_name=name),
        max_message_bytes=LARGEST,
    )


def node_end(
    folder: Path, port: int, authority: Authority, name: str, server: str, trusts: Authority | None = None
) -> ssl.SSLSocket:
    """The node's connection, with a certificate for `name`, to a kernel that must be `server`."""
    key = certificates.new_key()
    path = folder / "own.pem"
    certificate = authority.for_node(certificates.request_for(key), name, NOW)
    path.write_text(certificate + certificates.private_pem(key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=(trusts or authority).pem)
    context.load_cert_chain(path)
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 5), server_hostname=server)


def is_refused(end: ssl.SSLSocket) -> bool:
    """Whether the other end closes the connection before it says anything of its own."""
    with end:
        end.settimeout(5)
        # What every end of a link says first.
        end.sendall(b"\0SP\0\0\x11\0\0")
        try:
            seen = b""
            while data := end.recv(100):
                seen += data
        except TimeoutError:
            return False
        except OSError:
            return True
        return len(seen) <= 8


async def test_a_service_talks_to_the_kernel_through_the_relay(tmp_path: Path) -> None:
    authority = Authority(NOW)
    link = kernel_end(authority, "embed.1")
    end = await trio.to_thread.run_sync(node_end, tmp_path, link.port, authority, "embed.1", kernel_name("embed.1"))
    ours, theirs = stream_pair()
    read, write = os.pipe()
    heard: list[bytes] = []
    thread = threading.Thread(target=relay, args=(end, ours, read, heard.append))
    thread.start()
    service = NngLink.inherited(theirs.detach(), max_message_bytes=LARGEST)
    with trio.fail_after(10):
        for size in (1, 300_000, 900_000):
            await service.send(b"x" * size)
            assert await link.receive() == b"x" * size
            await link.send(b"y" * size)
            assert await service.receive() == b"y" * size
        os.write(write, b"a line of the log\n")
        await service.send(b"end")
        assert await link.receive() == b"end"
        link.close()
        await trio.to_thread.run_sync(thread.join)
        ours.close()
        await service.gone.wait()
    assert heard in ([b"a line of the log\n"], [])
    service.close()
    end.close()
    for fd in (read, write):
        os.close(fd)


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_the_kernel_refuses_another_authority_and_another_name(tmp_path: Path, wrong: str) -> None:
    authority = Authority(NOW)
    other = Authority(NOW) if wrong == "authority" else authority
    name = "embed.2" if wrong == "name" else "embed.1"
    link = kernel_end(authority, "embed.1")
    try:
        end = await trio.to_thread.run_sync(
            node_end, tmp_path, link.port, other, name, kernel_name("embed.1"), authority
        )
        assert await trio.to_thread.run_sync(is_refused, end)
    finally:
        link.close()


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_a_node_refuses_another_authority_and_another_name(tmp_path: Path, wrong: str) -> None:
    authority = Authority(NOW)
    other = Authority(NOW) if wrong == "authority" else authority
    server = kernel_name("embed.2" if wrong == "name" else "embed.1")
    link = kernel_end(other, "embed.1", trusts=authority)
    try:
        with pytest.raises(ssl.SSLCertVerificationError):
            await trio.to_thread.run_sync(node_end, tmp_path, link.port, authority, "embed.1", server)
    finally:
        link.close()


def test_a_certificate_lasts_ten_minutes_and_is_for_one_end() -> None:
    authority = Authority(NOW)
    for pem in (
        authority.for_kernel("embed.1", NOW).certificate,
        authority.for_node(certificates.request_for(certificates.new_key()), "embed.1", NOW),
    ):
        found = x509.load_pem_x509_certificate(pem.encode())
        assert found.not_valid_after_utc - NOW <= JOIN_LASTS
        assert len(list(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)) == 1
        assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_the_authority_is_replaced_every_day() -> None:
    authority = Authority(NOW)
    assert not authority.is_due(NOW + ROTATED_AFTER - datetime.timedelta(seconds=1))
    assert authority.is_due(NOW + ROTATED_AFTER)
    assert Authority(NOW).pem != authority.pem


def test_the_driver_chooses_the_name_whatever_the_request_says() -> None:
    request = certificates.request_for(certificates.new_key())
    certificate = x509.load_pem_x509_certificate(Authority(NOW).for_node(request, "embed.1", NOW).encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["embed.1"]


def test_settings_can_be_read_by_their_node_only() -> None:
    key, other = certificates.new_key(), certificates.new_key()
    sealed = certificates.seal(b"settings", certificates.public_key(certificates.request_for(key)))
    assert certificates.unseal(sealed, key) == b"settings"
    with pytest.raises(InvalidTag):
        certificates.unseal(sealed, other)
    with pytest.raises(InvalidTag):
        certificates.unseal(sealed[:-1] + bytes([sealed[-1] ^ 1]), key)
