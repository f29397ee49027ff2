"""Receives a complete body, however often the connection fails: each attempt resumes where the last one ended.

It resumes with `Range` and `If-Range`: a server whose content has changed returns all of the new content. Without a
validator from the server, each attempt starts over, unless a checksum will verify the result.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import httpx2
import trio

from proto.errors import OperationError
from services.fetch.client import Client
from services.fetch.partial import BLOCK_BYTES, DownloadSource, Partial

ATTEMPTS = 5
"""Most successive attempts without progress; an attempt that makes progress does not count."""

BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0

_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that are worth a retry."""

_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")

Report = Callable[[int, int | None], None]
"""Called with the number of bytes received, and the total if it is known."""

_log = logging.getLogger("linckia.fetch")


class Received(NamedTuple):
    """The result of a download; the body is in the `Partial`."""

    url: str
    redirects: int
    resumed_from: int
    pieced: bool
    """True if the body came in more than one response."""


class _Again(Exception):
    """The attempt failed in a way that may be temporary."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


async def receive(
    client: Client, url: str, partial: Partial, *, max_bytes: int, has_checksum: bool, report: Report
) -> Received:
    """Receive the whole body of `url` into `partial`. Raises OperationError if it is unavailable or longer than
    `max_bytes`, which includes the progress, and the errors of `Client.get`."""
    resumed_from = partial.size
    failures = 0
    while True:
        before = partial.size
        try:
            final, redirects, pieced = await _attempt(client, url, partial, max_bytes, has_checksum, report)
        except (_Again, httpx2.TransportError, httpx2.DecodingError) as error:
            failures = 0 if partial.size > before > 0 else failures + 1
            what = str(error) or type(error).__name__
            if failures >= ATTEMPTS:
                kept = f"{partial.progress_text}; the next call resumes there" if partial.size else "received nothing"
                raise OperationError(f"{url}: {what}; {kept}", field="url") from None
            wait_s = min(BACKOFF_S * 2**failures, MAX_BACKOFF_S)
            if isinstance(error, _Again) and error.wait_s is not None:
                wait_s = min(error.wait_s, MAX_BACKOFF_S)
            _log.info("%s: %s; retrying in %.1f s from byte %d", url, what, wait_s, partial.size)
            await trio.sleep(wait_s)
        else:
            # The last response may have been the whole body, whatever was received before.
            return Received(final, redirects, resumed_from if pieced else 0, pieced)


async def _attempt(
    client: Client, url: str, partial: Partial, max_bytes: int, has_checksum: bool, report: Report
) -> tuple[str, int, bool]:
    validator = partial.source.validator
    headers = {"Range": f"bytes={partial.size}-"} if partial.size and (validator or has_checksum) else {}
    if headers and validator:
        headers["If-Range"] = validator
    async with client.get(url, headers) as (response, final, redirects):
        pieced = response.status_code != 200
        if await _prepare(response, final, partial):
            await _read(response, partial, max_bytes, report)
    total = partial.source.total
    if total is not None and partial.size != total:
        raise _Again(f"the server closed after {partial.size} of {total} bytes")
    return final, redirects, pieced


async def _prepare(response: httpx2.Response, url: str, partial: Partial) -> bool:
    """Prepare `partial` for the body. Returns False if nothing is missing."""
    status = response.status_code
    if status in (206, 416) and partial.size:
        match = _RANGE.fullmatch(response.headers.get("content-range", ""))
        start, total = match.groups() if match else (None, None)
        if status == 416 and start is None and total == str(partial.size):
            return False
        if status == 206 and start == str(partial.size) and total in ("*", str(partial.source.total or total)):
            return True
        partial.restart(DownloadSource())
        raise _Again("the server did not return the requested part of the content")
    if status != 200:
        said = f"the server returned {status} {response.reason_phrase}".rstrip()
        if status in _AGAIN:
            raise _Again(said, _retry_after(response))
        raise OperationError(f"{url}: {said}", field="url")
    await trio.to_thread.run_sync(partial.restart, _source(response, url))
    return True


def _source(response: httpx2.Response, url: str) -> DownloadSource:
    """Describe the body of a 200 response, and whether it can be resumed."""
    headers = response.headers
    codings = {coding.strip().lower() for coding in headers.get("content-encoding", "").split(",")} - {"", "identity"}
    if codings - _CODINGS:
        raise OperationError(f"{url}: encoded as {', '.join(codings)}, which was not requested and cannot be decoded")
    mime_type = headers.get("content-type", "").split(";")[0].strip().lower()
    length = headers.get("content-length", "")
    is_plain = not codings
    return DownloadSource(
        # Encoded content cannot be resumed from an offset in the decoded bytes.
        validator=_validator(response) if is_plain else "",
        total=int(length) if is_plain and length.isascii() and length.isdecimal() else None,
        mime_type=mime_type if re.fullmatch(r"[^/\s]+/[^/\s]+", mime_type) else None,
        disposition=headers.get("content-disposition"),
    )


def _validator(response: httpx2.Response) -> str:
    """Return a strong validator (RFC 9110, 8.8): an entity tag, or a date earlier than the response."""
    tag: str = response.headers.get("etag", "")
    if tag.startswith('"') and tag.endswith('"') and len(tag) > 1:
        return tag
    modified: str = response.headers.get("last-modified", "")
    try:
        given, changed = map(parsedate_to_datetime, (response.headers.get("date", ""), modified))
        return modified if (given - changed).total_seconds() >= 1 else ""
    except (ValueError, TypeError):
        return ""


def _retry_after(response: httpx2.Response) -> float | None:
    said: str = response.headers.get("retry-after", "")
    return float(said) if said.isascii() and said.isdecimal() else None


async def _read(response: httpx2.Response, partial: Partial, max_bytes: int, report: Report) -> None:
    total = partial.source.total
    if total is not None and total > max_bytes:
        await _refuse(partial, f"the content is {total} bytes long", max_bytes)
    waiting: list[bytes] = []
    size = 0
    encoded = bool(response.headers.get("content-encoding"))
    too_long = trio.CancelScope()
    try:
        # Leaving the loop early would leave the library's generators open; when cancelled, they close in order.
        with too_long:
            async for data in response.aiter_bytes() if encoded else response.aiter_raw():
                if too_long.cancel_called:
                    continue
                waiting.append(data)
                size += len(data)
                if partial.size + size > max_bytes:
                    waiting.clear()
                    too_long.cancel()
                elif size >= BLOCK_BYTES:
                    await trio.to_thread.run_sync(partial.append, b"".join(waiting))
                    waiting.clear()
                    size = 0
                    report(partial.size, total)
    finally:
        # Also after a failed connection: less than a block, into the page cache.
        if waiting:
            partial.append(b"".join(waiting))
    if too_long.cancel_called:
        await _refuse(partial, "the content is longer", max_bytes)
    report(partial.size, total)


async def _refuse(partial: Partial, what: str, max_bytes: int) -> None:
    partial.restart(DownloadSource())
    raise OperationError(
        f"{what}, but at most {max_bytes} bytes are downloaded; raise `max_bytes`, up to the setting fetch.max_bytes",
        field="url",
    )
