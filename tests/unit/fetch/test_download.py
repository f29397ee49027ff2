"""Downloads over real connections: stored once they are whole and right, and resumed after an interruption."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.errors import Forbidden, InvalidParams, LinckiaError, OperationError, Timeout
from services.fetch import receive
from services.fetch.client import Allowed, Client
from services.fetch.operations import Download, DownloadCheck
from services.fetch.partial import KEPT_S, DownloadSource, Partial, sweep
from tests.unit.fetch.rig import Request, fetching

BODY = bytes(range(256)) * 10_000
"""2.5 MB: more than two blocks."""


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "BACKOFF_S", 0.0)


async def whole(request: Request) -> None:
    await request.ranged(BODY)


async def test_the_content_of_a_url_becomes_a_document(tmp_path: Path) -> None:
    async with fetching(tmp_path, whole) as rig:
        url = rig.url("/a/data%20set.csv?x=1#part")
        done = await rig.call(Download(url=url, tags=["t"], metadata=["k=v"], collection="c"))
        data, begun = rig.only()
        assert data == BODY
        assert (begun.path, begun.name) == (rig.url("/a/data%20set.csv?x=1"), "data set.csv")
        assert (begun.tags, begun.metadata, begun.collection) == (["t"], ["k=v"], "c")
        assert (done.hash, done.size) == (hashlib.sha256(BODY).hexdigest(), len(BODY))
        assert done.checksum == f"sha256:{done.hash}"
        assert rig.site.asked[0].headers["host"] == f"127.0.0.1:{rig.site.port}"
        assert list(rig.kept.iterdir()) == []


@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "md5"])
async def test_a_right_checksum_is_verified(tmp_path: Path, algorithm: str) -> None:
    async with fetching(tmp_path, whole) as rig:
        checksum = f"{algorithm}:{hashlib.new(algorithm, BODY).hexdigest().upper()}"
        assert (await rig.call(Download(url=rig.url(), checksum=checksum))).checksum == checksum.lower()


async def test_a_wrong_checksum_stores_nothing(tmp_path: Path) -> None:
    async with fetching(tmp_path, whole) as rig:
        with pytest.raises(OperationError, match=r"nothing was stored") as caught:
            await rig.call(Download(url=rig.url(), checksum="sha256:" + "0" * 64))
        assert caught.value.failure.field == "checksum"
        assert rig.store.begun == 0
        # A download with a wrong checksum is not resumed.
        assert (await rig.call(Download(url=rig.url()))).resumed_from == 0


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://user:secret@example.org/", InvalidParams),
        ("http:///nothing", InvalidParams),
        ("http://exa mple.invalid/", OperationError),
        ("http://name.invalid/", OperationError),
    ],
)
async def test_an_invalid_url_is_refused(tmp_path: Path, url: str, error: type[LinckiaError]) -> None:
    async with fetching(tmp_path, whole) as rig:
        with pytest.raises(error) as caught:
            await rig.call(Download(url=url))
        assert caught.value.failure.field == "url"


async def test_the_loopback_is_refused_under_every_name_unless_allowed(tmp_path: Path) -> None:
    async with fetching(tmp_path, whole, allow=[]) as rig:
        for host in ("127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0"):
            with pytest.raises(Forbidden, match=r"not on the public Internet; allow it with fetch\.allow"):
                await rig.call(Download(url=rig.url(host=host)))
        assert rig.site.asked == []


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("http://169.254.169.254/latest/meta-data/", Forbidden),
        ("http://10.0.0.1/", Forbidden),
        ("http://localhost:{port}/", Forbidden),
        ("file:///etc/passwd", OperationError),
        ("ftp://example.org/x", OperationError),
        ("http://user:pass@127.0.0.1:{port}/", OperationError),
        ("/round", OperationError),
    ],
)
async def test_a_redirect_is_checked_like_the_url_itself(
    tmp_path: Path, location: str, error: type[LinckiaError], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Allowed by address alone; by any other name it is as strange as the next host.
    async def redirect(request: Request) -> None:
        await request.answer("302 Found", location=location.replace("{port}", str(rig.site.port)))

    async with fetching(tmp_path, redirect, allow=["127.0.0.1"]) as rig:
        if "localhost" in location:
            rig.site.answer = redirect
            monkeypatch.setattr("services.fetch.client.Allowed.address", lambda self, address: False)
            monkeypatch.setattr("services.fetch.client.Allowed.host", lambda self, name: name == "127.0.0.1")
        with pytest.raises(error):
            await rig.call(Download(url=rig.url()))
        assert rig.documents == {}


async def test_a_name_is_looked_up_once_and_the_address_that_was_checked_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = trio.socket.getaddrinfo
    answers = ["127.0.0.1", "10.0.0.1"]

    async def rebinding(host: str, *args: Any, **kwargs: Any) -> object:
        return await looked_up(answers.pop(0) if host == "rebinding.test" else host, *args, **kwargs)

    monkeypatch.setattr("trio.socket.getaddrinfo", rebinding)
    async with fetching(tmp_path, whole) as rig:
        await rig.call(Download(url=rig.url(host="rebinding.test")))
        assert answers == ["10.0.0.1"]
        assert rig.site.asked[0].headers["host"] == f"rebinding.test:{rig.site.port}"
        with pytest.raises(Forbidden):
            await rig.call(Download(url=rig.url(host="rebinding.test")))


async def test_a_redirect_is_followed_and_reported(tmp_path: Path) -> None:
    async def answer(request: Request) -> None:
        if request.target == "/start":
            await request.answer("301 Moved Permanently", b"gone", location="/there/report.pdf")
        else:
            await request.ranged(BODY)

    async with fetching(tmp_path, answer) as rig:
        done = await rig.call(Download(url=rig.url("/start")))
        assert (done.path, done.url, done.redirects) == (rig.url("/start"), rig.url("/there/report.pdf"), 1)
        assert done.name == "report.pdf"
        assert rig.only()[0] == BODY


async def test_a_broken_download_is_resumed(tmp_path: Path) -> None:
    async def answer(request: Request) -> None:
        await request.ranged(BODY, until=len(rig.site.asked) * 1_000_000)

    async with fetching(tmp_path, answer) as rig:
        await rig.call(Download(url=rig.url()))
        assert rig.only()[0] == BODY
        ranges = [request.headers.get("range") for request in rig.site.asked]
        assert ranges == [None, "bytes=1000000-", "bytes=2000000-"]
        assert rig.site.asked[1].headers["if-range"] == '"v1"'


async def test_a_later_call_resumes_a_failed_download(tmp_path: Path) -> None:
    async def answer(request: Request) -> None:
        if broken:
            await request.ranged(BODY, until=1_500_000)
        else:
            await request.ranged(BODY)

    broken = True
    async with fetching(tmp_path, answer) as rig:
        with pytest.raises(OperationError, match=rf"received 1500000 of {len(BODY)} bytes; the next call resumes"):
            await rig.call(Download(url=rig.url()))
        assert rig.documents == {}
        await rig.bench.stop("fetch")
        await rig.bench.start("fetch")
        broken = False
        assert (await rig.call(Download(url=rig.url()))).resumed_from == 1_500_000
        assert rig.only()[0] == BODY


async def test_content_that_changed_meanwhile_is_downloaded_whole(tmp_path: Path) -> None:
    other = BODY[::-1]

    async def answer(request: Request) -> None:
        if len(rig.site.asked) == 1:
            await request.ranged(BODY, until=1_000_000)
        else:
            await request.ranged(other, etag='"v2"')

    async with fetching(tmp_path, answer) as rig:
        await rig.call(Download(url=rig.url()))
        assert rig.only()[0] == other


async def test_without_a_validator_two_answers_are_never_put_together(tmp_path: Path) -> None:
    async def answer(request: Request) -> None:
        sent = BODY[:1_000_000] if len(rig.site.asked) == 1 else BODY
        await request.answer("200 OK", sent, content_length=str(len(BODY)))

    async with fetching(tmp_path, answer) as rig:
        await rig.call(Download(url=rig.url()))
        assert [request.headers.get("range") for request in rig.site.asked] == [None, None]
        assert rig.only()[0] == BODY


async def test_a_resumed_download_with_a_wrong_checksum_is_fetched_again(tmp_path: Path) -> None:
    async def answer(request: Request) -> None:
        # A server that says nothing of versions, and has another one for each of the first two requests.
        if len(rig.site.asked) == 1:
            await request.answer("200 OK", b"x" * 1_000_000, content_length=str(len(BODY)))
        elif start := request.headers.get("range"):
            assert start == "bytes=1000000-"
            content_range = f"bytes 1000000-{len(BODY) - 1}/{len(BODY)}"
            await request.answer("206 Partial Content", BODY[1_000_000:], content_range=content_range)
        else:
            await request.answer("200 OK", BODY)

    async with fetching(tmp_path, answer) as rig:
        checksum = f"md5:{hashlib.md5(BODY).hexdigest()}"
        await rig.call(Download(url=rig.url(), checksum=checksum))
        assert rig.only()[0] == BODY


async def test_a_download_that_was_whole_already_is_not_asked_for_again(tmp_path: Path) -> None:
    async with fetching(tmp_path, whole) as rig:
        rig.store.lose = 3
        with pytest.raises(OperationError, match="no such upload"):
            await rig.call(Download(url=rig.url()))
        assert (await rig.call(Download(url=rig.url()))).resumed_from == len(BODY)
        assert rig.site.asked[-1].headers["range"] == f"bytes={len(BODY)}-"
        assert rig.only()[0] == BODY


async def test_an_upload_that_the_store_lost_is_made_again(tmp_path: Path) -> None:
    async with fetching(tmp_path, whole) as rig:
        rig.store.lose = 1
        await rig.call(Download(url=rig.url()))
        assert rig.store.begun == 2
        assert rig.store.uploads == {}


@pytest.mark.parametrize("status", ["404 Not Found", "401 Unauthorized", "204 No Content", "304 Not Modified"])
async def test_a_status_without_content_is_an_error(tmp_path: Path, status: str) -> None:
    async def answer(request: Request) -> None:
        await request.answer(status, b"")

    async with fetching(tmp_path, answer) as rig:
        with pytest.raises(OperationError, match=rf"the server returned {status[:3]}"):
            await rig.call(Download(url=rig.url()))
        assert len(rig.site.asked) == 1


async def test_a_server_that_is_busy_is_asked_again_but_not_for_ever(tmp_path: Path) -> None:
    async def answer(request: Request) -> None:
        if len(rig.site.asked) < 3:
            await request.answer("503 Service Unavailable", retry_after="0")
        else:
            await request.ranged(BODY)

    async with fetching(tmp_path, answer) as rig:
        await rig.call(Download(url=rig.url()))

        async def busy(request: Request) -> None:
            await request.answer("503 Service Unavailable", retry_after="0")

        rig.site.answer = busy
        rig.site.asked.clear()
        with pytest.raises(OperationError, match="503"):
            await rig.call(Download(url=rig.url("/other")))
        assert len(rig.site.asked) == receive.ATTEMPTS


async def test_a_long_body_is_refused_before_it_is_read_or_where_it_passes_the_limit(tmp_path: Path) -> None:
    async def announced(request: Request) -> None:
        await request.answer("200 OK", b"", content_length=str(10**15))
        await trio.sleep_forever()

    async def endless(request: Request) -> None:
        await request.answer("200 OK", b"", transfer_encoding="chunked")
        while True:
            await request.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")

    for answer in (announced, endless):
        async with fetching(tmp_path, answer, max_bytes=3_000_000) as rig:
            with pytest.raises(OperationError, match="at most 3000000 bytes"):
                await rig.call(Download(url=rig.url(), max_bytes=10**9))
            assert all(path.stat().st_size < 1000 for path in rig.kept.iterdir())


async def test_a_slow_body_ends_with_the_time_and_is_kept(tmp_path: Path) -> None:
    async def answer(request: Request) -> None:
        await request.answer("200 OK", b"first ", content_length="100", etag='"v"')
        await trio.sleep_forever()

    async with fetching(tmp_path, answer) as rig:
        said = ""
        # On a busy machine the time may end before the first bytes come.
        with trio.fail_after(60):
            while "received 6 of 100 bytes" not in said:
                with pytest.raises(Timeout, match=r"received \d+( of 100)? bytes within 0\.3 s") as late:
                    await rig.call(Download(url=rig.url(), timeout_s=0.3))
                said = str(late.value)
        assert rig.documents == {}


async def test_a_coded_body_is_stored_decoded(tmp_path: Path) -> None:
    async def answer(request: Request) -> None:
        assert request.headers["accept-encoding"] == "identity"
        await request.answer("200 OK", gzip.compress(BODY), content_encoding="gzip", etag='"v"')

    async with fetching(tmp_path, answer) as rig:
        await rig.call(Download(url=rig.url()))
        assert rig.only()[0] == BODY

        async def strange(request: Request) -> None:
            await request.answer("200 OK", b"?", content_encoding="br")

        rig.site.answer = strange
        with pytest.raises(OperationError, match="encoded as br"):
            await rig.call(Download(url=rig.url("/strange")))

        async def bomb(request: Request) -> None:
            await request.answer("200 OK", gzip.compress(b"\0" * 20_000_000), content_encoding="gzip")

        rig.site.answer = bomb
        with pytest.raises(OperationError, match="at most 1000000 bytes"):
            await rig.call(Download(url=rig.url("/bomb"), max_bytes=1_000_000))


async def test_a_plain_answer_of_an_old_server_ends_with_the_connection(tmp_path: Path) -> None:
    async def answer(request: Request) -> None:
        await request.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<p>hello")

    async with fetching(tmp_path, answer) as rig:
        done = await rig.call(Download(url=rig.url("/")))
        assert (rig.only()[0], done.mime_type, done.name) == (b"<p>hello", "text/html", "127.0.0.1")


async def test_an_empty_body_is_a_document(tmp_path: Path) -> None:
    async def answer(request: Request) -> None:
        await request.answer("200 OK", content_disposition='attachment; filename="../../etc/pass wd"')

    async with fetching(tmp_path, answer) as rig:
        done = await rig.call(Download(url=rig.url("/")))
        assert (rig.only()[0], done.name) == (b"", "pass wd")


async def test_progress_counts_the_bytes_of_the_whole(tmp_path: Path) -> None:
    async with fetching(tmp_path, whole) as rig:
        progress_text: list[tuple[int, int | None]] = []
        partial = Partial(tmp_path / "kept", rig.url())
        partial.open()
        try:
            await receive.receive(
                Client(Allowed(["127.0.0.1"]), "test"),
                rig.url(),
                partial,
                max_bytes=len(BODY),
                has_checksum=False,
                report=lambda done, total: progress_text.append((done, total)),
            )
        finally:
            partial.close()
        done = [n for n, _ in progress_text]
        assert len(done) > 2
        assert done == sorted(done)
        assert progress_text[-1] == (len(BODY), len(BODY))


async def test_two_calls_for_one_url_do_not_disturb_each_other(tmp_path: Path) -> None:
    async with fetching(tmp_path, whole) as rig, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(rig.call, Download(url=rig.url()))
    assert rig.only()[0] == BODY
    assert rig.store.begun == 3


async def test_clients_can_ask_whether_a_url_is_allowed(tmp_path: Path) -> None:
    async with fetching(tmp_path, whole) as rig:
        assert (await rig.call(DownloadCheck(url=rig.url()))).addresses == ["127.0.0.1"]
        refused = await rig.call(DownloadCheck(url="http://10.0.0.1/"))
        assert not refused.allowed
        assert "not on the public Internet" in refused.reason
        assert rig.site.asked == []


def test_only_bytes_known_to_be_on_disk_are_resumed(tmp_path: Path) -> None:
    partial = Partial(tmp_path, "http://example.org/")
    partial.open()
    partial.restart(DownloadSource(validator='"v"', total=100))
    partial.append(b"right")
    partial.close()
    data = next(tmp_path.glob("*.part"))
    # A power failure may leave a length that the bytes have not got to.
    data.write_bytes(data.read_bytes() + bytes(20))
    partial = Partial(tmp_path, "http://example.org/")
    partial.open()
    assert (partial.size, partial.source.validator) == (5, '"v"')
    partial.append(b" on")
    assert partial.read(0) == b"right on"
    partial.drop()
    assert list(tmp_path.iterdir()) == []


def test_abandoned_downloads_are_removed(tmp_path: Path) -> None:
    for name, age_s in (("old", KEPT_S + 1), ("new", KEPT_S - 1)):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (0, 1_000_000_000 - age_s))
    sweep(tmp_path, now=1_000_000_000)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_the_certificate_must_be_the_hosts_though_its_address_is_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    await trio.run_process([*command, *names, "-keyout", str(key), "-out", str(cert)], capture_stderr=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    async with fetching(tmp_path, whole, tls=context, allow=["127.0.0.1", "localhost"]) as rig:
        with pytest.raises(OperationError, match="no trusted certificate"):
            await rig.call(Download(url=rig.url(host="localhost")))
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        await rig.bench.stop("fetch")
        await rig.bench.start("fetch")
        with pytest.raises(OperationError, match="no trusted certificate"):
            await rig.call(Download(url=rig.url(host="127.0.0.1")))
        await rig.call(Download(url=rig.url(host="localhost")))
        assert rig.only()[0] == BODY
        assert rig.site.asked[-1].headers["host"] == f"localhost:{rig.site.port}"
