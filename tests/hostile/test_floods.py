"""Floods of connections without a token, from one address, against a real front."""

from __future__ import annotations

import contextlib
import http.client
import resource
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.system.access.tokens import create
from tests.system.running import HTTP, RunningKernel, running

CONNECTIONS = 1100
"""More than `http.max_connections_per_peer`."""

OWN = "the-token-of-the-operator-of-this-kernel"

HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"

FLOODS = {
    "silent": b"",
    "half a head": HEAD + b"X-Half: a",
    "refused": HEAD + b"Content-Length: 0\r\n\r\n",
    "a wrong token": HEAD + b"Authorization: Bearer wrong\r\nContent-Length: 0\r\n\r\n",
    "half a body": HEAD + b"Content-Length: 1000\r\n\r\n{",
    "the page without a token": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    data = tmp_path_factory.mktemp("flooded")
    with running(data, options=HTTP, services=["echo"], token=True, environment={"LINCKIA_TOKEN": OWN}) as found:
        yield found


@pytest.fixture
def descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"a process may open {hard} files here, and this test needs {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def asked(connection: http.client.HTTPConnection, token: str) -> int:
    """Return the status of a request that needs a token."""
    connection.request("GET", "/ping", headers={"Authorization": f"Bearer {token}"})
    with connection.getresponse() as answer:
        answer.read()
        return answer.status


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("sent", FLOODS.values(), ids=FLOODS)
def test_clients_with_a_token_are_served_during_a_flood_without_one(kernel: RunningKernel, sent: bytes) -> None:
    url = urlsplit(kernel.status()["http_url"])
    address = (url.hostname, url.port)
    tokens = [OWN, create(kernel, f"flood-{len(sent)}")]
    with contextlib.ExitStack() as stack:
        before = [stack.enter_context(contextlib.closing(connect(url.netloc))) for _ in tokens]
        assert [asked(*each) for each in zip(before, tokens, strict=True)] == [200, 200]
        flood = []
        for _ in range(CONNECTIONS):
            flood.append(stack.enter_context(socket.create_connection(address, timeout=30)))
            if sent:
                # The server may already have closed it.
                with contextlib.suppress(ConnectionError):
                    flood[-1].sendall(sent)
        for token in tokens:
            with contextlib.closing(connect(url.netloc)) as new:
                assert asked(new, token) == 200
                assert asked(new, token) == 200
        assert [asked(*each) for each in zip(before, tokens, strict=True)] == [200, 200]
        read_to_end(flood[0])


def connect(netloc: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(netloc, timeout=30)


def read_to_end(connection: socket.socket) -> None:
    """Read until the server closes the connection. Raises TimeoutError if it does not."""
    connection.settimeout(10)
    with contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            pass
