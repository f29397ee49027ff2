"""Serves files below the roots, and files made from them, over HTTP, whole or in ranges.

The service sends the bytes in chunks and checks where the path really leads. Served content must not run scripts: pages
and scripts are sent as downloads, in a sandbox, with their declared type (`nosniff`).
"""

from __future__ import annotations

import email.utils
import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from proto.errors import LinckiaError
from proto.http import FILE_CHUNK_BYTES, FileChunk
from proto.operation import Operation
from proto.origin import Origin
from services.front.transport.access import ORIGIN
from services.runtime.dispatch import Dispatcher

_INLINE_TYPES = ("image/", "video/", "audio/", "application/pdf", "text/plain", "text/markdown", "text/csv")
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@dataclass
class ContentEndpoint:
    """The endpoint of an operation that returns chunks of a file; `failed` converts its errors to responses."""

    dispatcher: Dispatcher
    operation: Operation[object]
    failed: Callable[[LinckiaError], Response]

    async def answer(self, request: Request) -> Response:
        """Answer with 200, 206, 304 or 416; 403 outside the roots, 404 if there is no such file."""
        path, origin = request.query_params.get("path", ""), request.scope[ORIGIN]
        try:
            first = await self._chunk(origin, path, 0, 0)
        except LinckiaError as error:
            return self.failed(error)
        headers = _headers(path, first)
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if known & {headers["ETag"], "*"}:
            return Response(status_code=304, headers=headers)
        start, end, status = 0, first.size, 200
        wanted = _RANGE.fullmatch(request.headers.get("range", "").strip())
        if wanted and request.headers.get("if-range", headers["ETag"]) in (headers["ETag"], headers["Last-Modified"]):
            part = _part(wanted, first.size)
            if part is None:
                return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{first.size}"})
            if part != (0, 0):
                (start, end), status = part, 206
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{first.size}"
        headers["Content-Length"] = str(end - start)
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers, media_type=first.mime_type)
        body = self._body(origin, path, first.version, start, end)
        return StreamingResponse(body, status_code=status, headers=headers, media_type=first.mime_type)

    async def _body(self, origin: Origin, path: str, version: str, start: int, end: int) -> AsyncIterator[bytes]:
        while start < end:
            chunk = await self._chunk(origin, path, start, min(FILE_CHUNK_BYTES, end - start))
            if chunk.version != version or not chunk.data:
                # The sent bytes cannot be taken back; the client sees from the length that the rest is missing.
                raise ConnectionAbortedError(f"{path} changed while it was being sent")
            start += len(chunk.data)
            yield chunk.data

    async def _chunk(self, origin: Origin, path: str, offset: int, limit: int) -> FileChunk:
        params = self.operation.parse({"path": path, "offset": offset, "limit": limit})
        return msgspec.convert(await self.dispatcher.call(self.operation, params, origin=origin), FileChunk)


def _headers(path: str, chunk: FileChunk) -> dict[str, str]:
    name = os.path.basename(path)
    is_inline = chunk.mime_type.startswith(_INLINE_TYPES) and "svg" not in chunk.mime_type
    return {
        "ETag": f'"{hashlib.sha256(chunk.version.encode()).hexdigest()[:32]}"',
        "Last-Modified": email.utils.formatdate(chunk.modified, usegmt=True),
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
        "Cross-Origin-Resource-Policy": "same-site",
        "Content-Disposition": f"{'inline' if is_inline else 'attachment'}; filename*=UTF-8''{quote(name, safe='')}",
    }


def _part(requested: re.Match[str], size: int) -> tuple[int, int] | None:
    """Return the start and end of a range; (0, 0) if the header is ignored, None if it is unsatisfiable."""
    first, last = requested[1], requested[2]
    if not first and not last:
        return 0, 0
    if not first:
        return (max(0, size - int(last)), size) if int(last) and size else None
    start = int(first)
    if last and int(last) < start:
        return 0, 0
    if start >= size:
        return None
    return start, min(size, int(last) + 1) if last else size
