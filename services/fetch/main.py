"""The service `fetch`: stores the content of a URL as a document, once it is complete and verified.

Settings: `allow` (hosts and networks that may be accessed although they are not on the public Internet), `max_bytes`,
`timeout_s`.
"""

from __future__ import annotations

import contextlib
import logging
import re
import urllib.parse
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import httpx2
import msgspec
import trio
from msgspec import Meta

from proto.errors import Executed, Forbidden, LinckiaError, MaybeExecuted, OperationError, Timeout, Unavailable
from proto.ops.documents import change as documents
from proto.ops.fetch import AlertPost, IssuerKeys, IssuerKeySet
from services.fetch import operations as ops
from services.fetch import partial as partials
from services.fetch.client import Allowed, Client, is_address, parse
from services.fetch.issuer import Issuer
from services.fetch.partial import Partial
from services.fetch.receive import Received, receive
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.runtime.storage import disk_full

USER_AGENT = "linckia-fetch"
STORE_ATTEMPTS = 3
"""An upload is lost when the document service's process dies; its next generation accepts a new one."""

_EXTENDED = re.compile(r"filename\*\s*=\s*(?P<charset>[\w-]+)'[^']*'(?P<name>[^;\s]+)", re.IGNORECASE)
_QUOTED = re.compile(r'filename\s*=\s*"(?P<name>(?:[^"\\]|\\.)*)"', re.IGNORECASE)
_TOKEN = re.compile(r"filename\s*=\s*(?P<name>[^;\s\"]+)", re.IGNORECASE)


class FetchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `[services.fetch]`."""

    allow: list[str] = []
    """Private hosts and networks to download from."""
    max_bytes: Annotated[int, Meta(ge=1)] = 4 * 1024**3
    """Maximum size of a download."""
    timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 3600.0
    """Seconds for one download."""
    issuer: str = ""
    """`http.oauth.issuer`, set by the kernel, as is `jwks_url`."""
    jwks_url: str = ""
    """See `issuer`."""


class Fetch:
    """Downloads URLs; each URL is downloaded by one call at a time."""

    def __init__(self, settings: FetchSettings, folder: Path) -> None:
        self._settings = settings
        self._client = Client(Allowed(settings.allow), USER_AGENT)
        self._folder = folder
        self._locks: weakref.WeakValueDictionary[str, trio.Lock] = weakref.WeakValueDictionary()

    @handles(ops.Download)
    async def download(self, params: ops.Download, context: Context) -> ops.Downloaded:
        try:
            return await self._download(params, context)
        except OSError as error:
            full = disk_full(error, self._folder)
            raise full or OperationError(f"{params.url}: cannot be stored: {error.strerror}") from error

    @handles(ops.DownloadCheck)
    async def check(self, params: ops.DownloadCheck, context: Context) -> ops.DownloadAllowed:
        parsed = parse(params.url)
        try:
            addresses = await self._client.addresses(parsed)
        except (Forbidden, OperationError) as error:
            return ops.DownloadAllowed(allowed=False, addresses=[], reason=str(error))
        return ops.DownloadAllowed(allowed=True, addresses=addresses)

    @handles(IssuerKeys)
    async def issuer_keys(self, params: IssuerKeys, context: Context) -> IssuerKeySet:
        settings = self._settings
        if not settings.issuer:
            raise OperationError("no issuer is configured; see [http.oauth]")
        return await Issuer(settings.issuer, settings.jwks_url, settings.allow, USER_AGENT).keys()

    @handles(AlertPost)
    async def alert_post(self, params: AlertPost, context: Context) -> None:
        """Send to an address that the operator wrote as a number, wherever it is, or to a public host."""
        host = parse(params.hook).host
        is_number = host == "localhost" or is_address(host)
        client = Client(Allowed([*self._settings.allow, *([host] if is_number else [])]), USER_AGENT)
        try:
            status = await client.post(params.hook, params.body)
        except httpx2.HTTPError as error:
            raise OperationError(f"{host}: {error or type(error).__name__}") from None
        if status >= 300:
            raise OperationError(f"{host} answered {status}")

    async def _download(self, params: ops.Download, context: Context) -> ops.Downloaded:
        url = str(parse(params.url))
        limit_s = self._settings.timeout_s if params.timeout_s is None else params.timeout_s
        lock = self._locks.setdefault(url, trio.Lock())
        partial = Partial(self._folder, url)
        with trio.move_on_after(limit_s):
            async with lock:
                await trio.to_thread.run_sync(partial.open)
                try:
                    return await self._into_store(params, url, partial, context)
                finally:
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(partial.close)
        raise Timeout(
            f"{url}: {partial.progress_text} within {limit_s:.3g} s; the next call resumes there", executed=Executed.NO
        )

    async def _into_store(self, params: ops.Download, url: str, partial: Partial, context: Context) -> ops.Downloaded:
        received, digests = await self._checked(params, url, partial, context)
        size, source = partial.size, partial.source
        mime_type = params.mimeType or source.mime_type
        begin = documents.DocumentsPutBegin(
            path=url,
            name=params.name or name_of(received.url, source.disposition),
            tags=params.tags,
            metadata=params.metadata,
            collection=params.collection,
            mimeType=mime_type,
        )
        for attempt in range(1, STORE_ATTEMPTS + 1):
            try:
                added = await _store(context, begin, partial, digests["sha256"])
                break
            except (Unavailable, MaybeExecuted, OperationError):
                if attempt == STORE_ATTEMPTS:
                    raise
        await trio.to_thread.run_sync(partial.drop)
        algorithm = params.checksum.split(":")[0] if params.checksum else "sha256"
        return ops.Downloaded(
            hash=added.hash or digests["sha256"],
            url=received.url,
            path=url,
            name=added.name,
            size=size,
            mime_type=mime_type,
            is_new=added.is_new,
            checksum=f"{algorithm}:{digests[algorithm]}",
            resumed_from=received.resumed_from,
            redirects=received.redirects,
        )

    async def _checked(
        self, params: ops.Download, url: str, partial: Partial, context: Context
    ) -> tuple[Received, dict[str, str]]:
        """Receive the body and compare its checksum; discard it if the checksum differs."""
        algorithm, _, wanted = (params.checksum or "sha256:").partition(":")

        def report(done: int, total: int | None) -> None:
            context.progress(done, None if total is None else 2 * total, f"receiving {url}")

        while True:
            received = await receive(
                self._client,
                url,
                partial,
                max_bytes=min(params.max_bytes or self._settings.max_bytes, self._settings.max_bytes),
                has_checksum=bool(wanted),
                report=report,
            )
            digests = await trio.to_thread.run_sync(partial.digest, algorithm, "sha256")
            if not wanted or digests[algorithm] == wanted.lower():
                return received, digests
            await trio.to_thread.run_sync(partial.restart, partials.DownloadSource())
            if not received.pieced:
                raise OperationError(
                    f"{url} has the checksum {algorithm}:{digests[algorithm]}, not {params.checksum}; nothing was"
                    " stored",
                    field="checksum",
                )
            # It may consist of parts of two versions: retry once from the start.


async def _store(
    context: Context, begin: documents.DocumentsPutBegin, partial: Partial, sha256: str
) -> documents.AddResult:
    """Upload a finished download to the document service in pieces, so that neither process holds all of it."""
    size = partial.size
    upload_id = (await context.call(begin)).upload_id
    try:
        offset = 0
        while offset < size:
            data = await trio.to_thread.run_sync(partial.read, offset)
            await context.call(documents.DocumentsPutPiece(upload_id=upload_id, offset=offset, data=data))
            offset += len(data)
            context.progress(size + offset, 2 * size, f"storing {begin.name}")
        return await context.call(documents.DocumentsPutCommit(upload_id=upload_id, size=size, sha256=sha256))
    except BaseException:
        # The document service discards abandoned uploads eventually.
        with trio.move_on_after(1.0, shield=True), contextlib.suppress(LinckiaError):
            await context.call(documents.DocumentsPutAbandon(upload_id=upload_id))
        raise


def name_of(url: str, disposition: str | None) -> str:
    """Return the name of a download from its `Content-Disposition` (RFC 6266), else from its URL; never a path."""
    said = _from_header(disposition) if disposition else ""
    parts = urllib.parse.urlsplit(url)
    last = urllib.parse.unquote(parts.path.rstrip("/").rsplit("/", 1)[-1])
    return _plain(said) or _plain(last) or _plain(parts.hostname or "") or "download"


def _from_header(disposition: str) -> str:
    if match := _EXTENDED.search(disposition):
        try:
            return urllib.parse.unquote(match["name"], encoding=match["charset"], errors="strict")
        except (LookupError, UnicodeError):
            return ""
    if match := _QUOTED.search(disposition):
        return re.sub(r"\\(.)", r"\1", match["name"])
    return match["name"] if (match := _TOKEN.search(disposition)) else ""


def _plain(name: str) -> str:
    last = re.split(r"[/\\]", name)[-1]
    clean = "".join(c for c in last if c.isprintable()).strip().strip(".").strip()
    return clean[-255:]


def read_settings(given: dict[str, Any]) -> FetchSettings:
    """Parse the settings. Raises ValueError, which names the setting."""
    try:
        settings = msgspec.convert(given, FetchSettings)
    except msgspec.ValidationError as error:
        raise ValueError(f"[services.fetch]: {error}") from None
    Allowed(settings.allow)
    return settings


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    # They would log every request with its address.
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    settings = read_settings(env.settings)
    folder = env.data_dir / "partial"
    await trio.to_thread.run_sync(partials.sweep, folder)
    env.info(allow=", ".join(settings.allow) or "public Internet only")
    yield Handlers(Fetch(settings, folder))
