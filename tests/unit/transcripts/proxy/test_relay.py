"""Everything that a client and a server send each other passes byte for byte, and is recorded afterwards."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
import trio
import trio.testing

from services.transcripts.proxy import relay
from services.transcripts.proxy.relay import Upstream
from tests.unit.transcripts.proxy.rig import Between, proxied, read_all, read_until, reply_with

BODY = b'{"model": "m", "messages": []}'
ZIPPED = gzip.compress(BODY, mtime=0)
CHUNKED = b'6;name="v"\r\n{"mode\r\n18\r\nl": "m", "messages": []}\r\n0\r\nX-Sum: 1\r\n\r\n'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def post(*headers: bytes, body: bytes = BODY, target: bytes = b"/v1/chat/completions") -> bytes:
    lines = [b"POST " + target + b" HTTP/1.1", b"Host: proxy.example:1", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def length(body: bytes) -> bytes:
    return b"Content-Length: %d" % len(body)


REQUESTS = {
    "with a length": (post(length(BODY)), BODY, BODY[-6:]),
    "in chunks": (post(b"Transfer-Encoding: chunked", body=CHUNKED), BODY, b"X-Sum: 1\r\n\r\n"),
    "compressed": (post(b"Content-Encoding: gzip", length(ZIPPED), body=ZIPPED), ZIPPED, ZIPPED[-4:]),
    "headers as nobody writes them": (
        post(b"AUTHORIZATION:Bearer  secret-of-mine", b"x-Odd:\t a  b ", length(BODY), b"Keep-Alive: 5"),
        BODY,
        BODY[-6:],
    ),
    "a key in the query": (post(length(BODY), target=b"/v1/messages?key=secret-of-mine"), BODY, BODY[-6:]),
}  # fmt: skip


@pytest.mark.parametrize("piece", [0, 1, 13])
@pytest.mark.parametrize(("request_", "body", "end"), REQUESTS.values(), ids=REQUESTS)
async def test_a_request_arrives_as_it_was_sent_but_for_the_host(
    request_: bytes, body: bytes, end: bytes, piece: int
) -> None:
    async with proxied(reply_with(OK, after=end)) as between:
        assert await between.say(request_, piece=piece) == OK
        expected = request_.replace(b"proxy.example:1", between.upstream.encode())
        assert [bytes(seen) for seen in between.seen] == [expected]
        (exchange,) = between.recorded
        assert bytes(exchange.request) == body
        assert bytes(exchange.response) == b"{}"
        assert "secret-of-mine" not in repr(exchange)


SSE = b'data: {"a": 1}\n\ndata: [DONE]\n\n'
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
RESPONSES = {
    "with a length": (_HEAD + b"Content-Length: %d\r\n\r\n" % len(SSE) + SSE, SSE),
    "in chunks": (_HEAD + b"transfer-encoding: CHUNKED\r\n\r\n10;x=y\r\n" + SSE[:16] + b"\r\n%x\r\n" % (len(SSE) - 16)
                  + SSE[16:] + b"\r\n0\r\nTrailer: t\r\n\r\n", SSE),
    "until the end": (_HEAD + b"Connection: close\r\n\r\n" + SSE, SSE),
    "compressed": (_HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(ZIPPED) + ZIPPED, ZIPPED),
    "after others": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
                     + _HEAD + b"Content-Length: %d\r\n\r\n" % len(SSE) + SSE, SSE),
    "an error": (b"HTTP/1.1 529 Overloaded\r\nRetry-After: 3\r\nContent-Length: 4\r\n\r\nwait", b"wait"),
    "nothing": (b"HTTP/1.1 204 No Content\r\nX-Id: 1\r\n\r\n", b""),
}  # fmt: skip


@pytest.mark.parametrize("piece", [0, 1, 13])
@pytest.mark.parametrize(("response", "body"), RESPONSES.values(), ids=RESPONSES)
async def test_a_reply_comes_back_as_it_was_sent(response: bytes, body: bytes, piece: int) -> None:
    async with proxied(reply_with(response, after=BODY, piece=piece)) as between:
        assert await between.say(post(length(BODY))) == response
        (exchange,) = between.recorded
        assert bytes(exchange.response) == body


@pytest.mark.parametrize(
    "response",
    [b"this is no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nx", b"HTTP/1.1 200 OK\r\n"],
)
async def test_other_replies_pass_unrecorded(response: bytes) -> None:
    async with proxied(reply_with(response, after=BODY)) as between:
        assert await between.say(post(length(BODY))) == response
        assert not between.recorded


async def test_bytes_that_are_no_request_pass_too() -> None:
    sent = b"\x16\x03\x01 no HTTP at all\r\n\r\n"
    async with proxied(reply_with(OK)) as between:
        assert await between.say(sent) == OK
        assert bytes(between.seen[0]) == sent


async def test_each_piece_of_a_stream_is_passed_on_at_once() -> None:
    arrived = [trio.Event() for _ in range(5)]

    async def answer(stream: trio.abc.Stream, between: Between) -> None:
        await read_until(stream, between.seen[-1], BODY)
        await stream.send_all(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for number, event in enumerate(arrived):
            await stream.send_all(b"2\r\n%d\n\r\n" % number)
            # Nothing more comes before this has.
            await event.wait()
        await stream.send_all(b"0\r\n\r\n")

    async with proxied(answer) as between, await between.connect() as client:
        await client.send_all(post(length(BODY)))
        got = bytearray()
        for number, event in enumerate(arrived):
            await read_until(client, got, b"2\r\n%d\n\r\n" % number)
            assert not between.recorded
            event.set()
        await read_until(client, got, b"0\r\n\r\n")
        await client.aclose()
        await between.left.wait()
        assert bytes(between.recorded[0].response) == b"0\n1\n2\n3\n4\n"


@pytest.mark.parametrize("ahead", [False, True], ids=["one after the other", "sent ahead"])
async def test_a_connection_is_kept_and_each_exchange_recorded_once(ahead: bool) -> None:
    async def answer(stream: trio.abc.Stream, between: Between) -> None:
        for number in range(3):
            body = b'{"number": %d}' % number
            await _until_holds(stream, between.seen[-1], body)
            await stream.send_all(b"HTTP/1.1 200 OK\r\n" + length(body) + b"\r\n\r\n" + body)

    async with proxied(answer) as between:
        bodies = [b'{"number": %d}' % number for number in range(3)]
        async with await between.connect() as client:
            got = bytearray()
            if ahead:
                await client.send_all(b"".join(post(length(body), body=body) for body in bodies))
            for body in bodies:
                if not ahead:
                    await client.send_all(post(length(body), body=body))
                await _until_holds(client, got, body)
            assert await read_all(client) == b""
        assert len(between.seen) == 1
        recorded = [(bytes(exchange.request), bytes(exchange.response)) for exchange in between.recorded]
        assert recorded == [(body, body) for body in bodies]


async def _until_holds(stream: trio.abc.ReceiveStream, seen: bytearray, what: bytes) -> None:
    while what not in seen:
        data = await stream.receive_some()
        assert data, bytes(seen)
        seen += data


async def test_a_reply_to_HEAD_has_no_body() -> None:
    async def answer(stream: trio.abc.Stream, between: Between) -> None:
        await read_until(stream, between.seen[-1], b"\r\n\r\n")
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
        await _until_holds(stream, between.seen[-1], BODY)
        await stream.send_all(OK)

    async with proxied(answer) as between, await between.connect() as client:
        await client.send_all(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
        got = bytearray()
        await read_until(client, got, b"99\r\n\r\n")
        await client.send_all(post(length(BODY)))
        await read_until(client, got, b"{}")
        assert await read_all(client) == b""
        assert [exchange.method for exchange in between.recorded] == [b"HEAD", b"POST"]


@pytest.mark.parametrize("framing", [b"Content-Length: 1000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1000\r\n"])
async def test_a_reply_that_breaks_off_breaks_off_for_the_client_and_a_stream_is_recorded_so_far(
    framing: bytes,
) -> None:
    response = _HEAD + framing + SSE
    async with proxied(reply_with(response, after=BODY)) as between:
        assert await between.say(post(length(BODY))) == response
        await between.left.wait()
        (exchange,) = between.recorded
        assert (bytes(exchange.response), exchange.partial) == (SSE, True)


async def test_an_interrupted_reply_without_streaming_is_not_recorded() -> None:
    response = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    async with proxied(reply_with(response, after=BODY)) as between:
        assert await between.say(post(length(BODY))) == response
        assert not between.recorded


async def test_the_server_learns_that_a_client_has_left() -> None:
    async def answer(stream: trio.abc.Stream, between: Between) -> None:
        await read_until(stream, between.seen[-1], BODY)
        while True:
            await stream.send_all(_HEAD + b"Content-Length: 100000000\r\n\r\n" + bytes(10_000))

    async with proxied(answer) as between:
        client = await between.connect()
        await client.send_all(post(length(BODY)))
        await client.receive_some()
        await client.aclose()
        await between.left.wait()
        while not between.recorded:
            await trio.lowlevel.checkpoint()
        (exchange,) = between.recorded
        assert exchange.partial
        assert len(exchange.response) >= 10_000 - len(_HEAD)


async def test_a_reply_is_recorded_as_far_as_it_was_sent_if_the_client_leaves() -> None:
    async def answer(stream: trio.abc.Stream, between: Between) -> None:
        await read_until(stream, between.seen[-1], BODY)
        await stream.send_all(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + SSE[:16] + b"\r\n")
        await read_all(stream)

    async with proxied(answer) as between:
        client = await between.connect()
        await client.send_all(post(length(BODY)))
        await _until_holds(client, bytearray(), SSE[:16])
        await client.aclose()
        await between.left.wait()
        while not between.recorded:
            await trio.lowlevel.checkpoint()
        (exchange,) = between.recorded
        assert (bytes(exchange.response), exchange.partial) == (SSE[:16], True)


async def test_a_client_that_closes_its_sending_side_still_gets_its_reply() -> None:
    async def answer(stream: trio.abc.Stream, between: Between) -> None:
        between.seen[-1] += await read_all(stream)
        await stream.send_all(OK)

    async with proxied(answer) as between, await between.connect() as client:
        await client.send_all(post(length(BODY)))
        await client.send_eof()
        assert await read_all(client) == OK


async def test_a_connection_that_becomes_another_protocol_passes_raw() -> None:
    switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"

    async def answer(stream: trio.abc.Stream, between: Between) -> None:
        await read_until(stream, between.seen[-1], b"\r\n\r\n")
        await stream.send_all(switch + b"\x81\x01a")
        await read_until(stream, between.seen[-1], b"\x81\x81abcd\x00")
        await stream.send_all(b"\x88\x00")

    async with proxied(answer) as between, await between.connect() as client:
        await client.send_all(
            b"GET /v1/realtime HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        )
        got = bytearray()
        await read_until(client, got, switch + b"\x81\x01a")
        await client.send_all(b"\x81\x81abcd\x00")
        assert await read_all(client) == b"\x88\x00"


async def test_an_unreachable_upstream_is_reported() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        upstream = Upstream.parse(f"http://127.0.0.1:{free.getsockname()[1]}")
        async with trio.open_nursery() as nursery:

            async def serve(stream: trio.SocketStream) -> None:
                await relay.Relay(upstream, lambda exchange: None).run(stream)

            listeners = await nursery.start(trio.serve_tcp, serve, 0)
            async with await trio.testing.open_stream_to_socket_listener(listeners[0]) as client:
                await client.send_all(post(length(BODY)))
                head, _, body = (await read_all(client)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 502 ")
            assert "cannot be reached" in json.loads(body)["error"]["message"]
            nursery.cancel_scope.cancel()


async def test_an_upstream_may_have_a_path_of_its_own() -> None:
    async with proxied(reply_with(OK, after=BODY), path="/api/") as between:
        await between.say(post(length(BODY)))
        assert between.seen[0].startswith(b"POST /api/v1/chat/completions HTTP/1.1\r\n")


async def test_messages_over_the_limit_pass_unrecorded() -> None:
    body = bytes(2000) + b"end"
    response = b"HTTP/1.1 200 OK\r\n" + length(body) + b"\r\n\r\n" + body
    async with proxied(reply_with(response, after=b"end"), max_bytes=1000) as between:
        assert await between.say(post(length(body), body=body)) == response
        assert not between.recorded


async def test_the_way_to_the_upstream_may_be_encrypted(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
        f" -addext subjectAltName=DNS:localhost -keyout {key} -out {certificate}"
    )
    try:
        await trio.run_process(command.split(), capture_stderr=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no certificate can be made: {error}")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(certificate))
    response, body = RESPONSES["in chunks"]
    async with proxied(reply_with(response, after=BODY), tls=(server, client)) as between:
        assert await between.say(post(length(BODY), b"Connection: close")) == response
        assert bytes(between.recorded[0].response) == body

    async def listen(stream: trio.abc.Stream, between: Between) -> None:
        between.seen[-1] += await read_all(stream)

    # One that nobody vouches for is not spoken to.
    async with proxied(listen, tls=(server, ssl.create_default_context())) as between:
        assert (await between.say(post(length(BODY)))).startswith(b"HTTP/1.1 502 ")
        assert not any(between.seen)


@pytest.mark.parametrize("url", ["ftp://h", "api.openai.com", "https://", "https://u:p@h", "https://h/?key=x"])
def test_an_invalid_upstream_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"upstream|not the address"):
        Upstream.parse(url)
