"""A real HTTP server on the loopback with scripted answers, and a store that keeps the data it receives."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import trio

from proto import ops
from proto.errors import OperationError
from proto.ops.documents.change import (
    AddResult,
    DocumentsPutAbandon,
    DocumentsPutBegin,
    DocumentsPutCommit,
    DocumentsPutPiece,
    UploadAbandoned,
    UploadBegun,
    UploadProgress,
)
from services.fetch import main
from services.runtime.handlers import Context, Environment, Handlers
from tests.in_process import Bench, services_in_process

Stream: TypeAlias = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class Request:
    """What the server was asked, and the way to answer."""

    def __init__(self, stream: Stream, target: str, headers: dict[str, str]) -> None:
        self._stream = stream
        self.target = target
        self.headers = headers

    async def answer(self, status: str, body: bytes = b"", **headers: str) -> None:
        """A whole answer; `Content-Length` is the body's unless it is given."""
        named = {name.replace("_", "-").lower(): value for name, value in headers.items()}
        if "transfer-encoding" not in named:
            named.setdefault("content-length", str(len(body)))
        lines = [f"HTTP/1.1 {status}", "connection: close", *(f"{name}: {value}" for name, value in named.items())]
        await self._stream.send_all("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def send(self, data: bytes) -> None:
        """More of the body."""
        await self._stream.send_all(data)

    async def ranged(self, body: bytes, *, etag: str = '"v1"', until: int | None = None) -> None:
        """The body from where it was asked for, cut off at `until`."""
        start = 0
        asked = self.headers.get("range", "")
        if asked and self.headers.get("if-range", etag) == etag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(body) > 0:
            await self.answer("416 Range Not Satisfiable", content_range=f"bytes */{len(body)}")
            return
        rest = body[start:]
        status = "206 Partial Content" if start else "200 OK"
        extra = {"content_range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
        sent = rest if until is None else body[start:until]
        await self.answer(status, sent, content_length=str(len(rest)), etag=etag, **extra)


Answer = Callable[[Request], Awaitable[None]]


class Site:
    """The server; `asked` keeps every request."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self._tls = tls
        self.asked: list[Request] = []
        self.port = 0

    def url(self, path: str = "/file.txt", host: str = "127.0.0.1") -> str:
        return f"http{'s' if self._tls else ''}://{host}:{self.port}{path}"

    async def serve(self, connection: trio.SocketStream) -> None:
        stream: Stream = connection
        if self._tls is not None:
            stream = trio.SSLStream(connection, self._tls, server_side=True, https_compatible=True)
            try:
                await stream.do_handshake()
            except trio.BrokenResourceError:
                return  # The client does not like the certificate.
        async with stream:
            received = b""
            while b"\r\n\r\n" not in received:
                data = await stream.receive_some()
                if not data:
                    return
                received += data
            first, *lines = received.decode("latin-1").split("\r\n\r\n")[0].split("\r\n")
            pairs = (line.split(": ", 1) for line in lines)
            request = Request(stream, first.split()[1], {name.lower(): value for name, value in pairs})
            self.asked.append(request)
            with contextlib.suppress(trio.BrokenResourceError):
                await self.answer(request)


class Store:
    """Stands for the service of documents: committed contents by path."""

    def __init__(self) -> None:
        self.documents: dict[str, tuple[bytes, DocumentsPutBegin]] = {}
        self.uploads: dict[str, tuple[DocumentsPutBegin, bytearray]] = {}
        self.begun = 0
        self.lose = 0
        """How many uploads are lost when they should be committed, as by a crash."""

    @contextlib.asynccontextmanager
    async def open_service(self, env: Environment) -> AsyncIterator[Handlers]:
        handlers = Handlers()

        @handlers.handle(DocumentsPutBegin)
        async def begin(params: DocumentsPutBegin, context: Context) -> UploadBegun:
            self.begun += 1
            self.uploads[str(self.begun)] = (params, bytearray())
            return UploadBegun(upload_id=str(self.begun))

        @handlers.handle(DocumentsPutPiece)
        async def piece(params: DocumentsPutPiece, context: Context) -> UploadProgress:
            received = self.uploads[params.upload_id][1]
            assert params.offset == len(received)
            assert len(params.data) <= 1024 * 1024
            received += params.data
            return UploadProgress(received=len(received))

        @handlers.handle(DocumentsPutCommit)
        async def commit(params: DocumentsPutCommit, context: Context) -> AddResult:
            begun, received = self.uploads.pop(params.upload_id)
            if self.lose:
                self.lose -= 1
                raise OperationError("there is no such upload")
            data = bytes(received)
            assert len(data) == params.size
            assert params.sha256 == hashlib.sha256(data).hexdigest()
            self.documents[begun.path] = (data, begun)
            return AddResult(
                hash=params.sha256, path=begun.path, name=begun.name or "", size=len(data), is_new=True,
                documents_added=1, documents_updated=0, documents_unchanged=0, files=1, bytes_stored=len(data),
                failed=[], failed_count=0, skipped=0, snapshot_id=None, text_waiting=0,
            )  # fmt: skip

        @handlers.handle(DocumentsPutAbandon)
        async def abandon(params: DocumentsPutAbandon, context: Context) -> UploadAbandoned:
            return UploadAbandoned(was_there=self.uploads.pop(params.upload_id, None) is not None)

        async def not_here(params: object, context: Context) -> None:
            raise OperationError("this store takes uploads only")

        for operation in ops.load().of_service("documents"):
            handlers.by_name.setdefault(operation.name, (operation, not_here))
        yield handlers


class Rig:
    """`fetch`, the store and the server."""

    def __init__(self, bench: Bench, store: Store, site: Site, folder: Path) -> None:
        self.bench = bench
        self.call = bench.call
        self.documents = store.documents
        self.store = store
        self.site = site
        self.url = site.url
        self.kept = folder / "fetch" / "partial"

    def only(self) -> tuple[bytes, DocumentsPutBegin]:
        """The one document there is."""
        (found,) = self.documents.values()
        return found


@contextlib.asynccontextmanager
async def fetching(
    folder: Path, answer: Answer, *, tls: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[Rig]:
    """Run the service with the loopback allowed, unless `settings` say otherwise."""
    store = Store()
    given = {"allow": ["127.0.0.1"], **settings}
    services = {"documents": store.open_service, "fetch": main.open_service}
    async with (
        serving(answer, tls) as site,
        services_in_process(services, folder, settings={"fetch": given}) as bench,
    ):
        yield Rig(bench, store, site, folder)


@contextlib.asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    """The server alone."""
    site = Site(answer, tls)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        site.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, site.serve, [listener])
        yield site
        nursery.cancel_scope.cancel()
