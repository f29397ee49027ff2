"""The service `fetch`: what is at a URL becomes a document, once every byte of it is here and is what it should be.

Settings: `allow` (hosts and networks that are reached although they are not on the Internet), `max_bytes`,
`timeout_s`.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import trio
from msgspec import Meta

from proto.errors import Executed, Forbidden, OperationError, Timeout
from proto.ops.documents.change import DocumentsPutBegin
from proto.ops.fetch import Download, DownloadAllowed, DownloadCheck, Downloaded
from services.fetch import partial as partials
from services.fetch.addresses import Allowed
from services.fetch.client import Client, parse
from services.fetch.naming import name_of
from services.fetch.partial import Partial
from services.fetch.receive import Received, receive
from services.fetch.storing import store
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.runtime.storage import disk_full

GIB = 1024**3
USER_AGENT = "linckia-fetch"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[services.fetch]`."""

    allow: list[str] = []
    max_bytes: Annotated[int, Meta(ge=1)] = 4 * GIB
    timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 3600.0


class Fetch:
    """Downloads, each URL one at a time."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._client = Client(Allowed(settings.allow), USER_AGENT)
        self._folder = folder
        self._locks: weakref.WeakValueDictionary[str, trio.Lock] = weakref.WeakValueDictionary()

    @handles(Download)
    async def download(self, params: Download, context: Context) -> Downloaded:
        try:
            return await self._download(params, context)
        except OSError as error:
            full = disk_full(error, self._folder)
            raise full or OperationError(f"{params.url}: it cannot be kept: {error.strerror}") from error

    @handles(DownloadCheck)
    async def check(self, params: DownloadCheck, context: Context) -> DownloadAllowed:
        parsed = parse(params.url)
        try:
            addresses = await self._client.addresses(parsed)
        except (Forbidden, OperationError) as error:
            return DownloadAllowed(allowed=False, addresses=[], reason=str(error))
        return DownloadAllowed(allowed=True, addresses=addresses)

    async def _download(self, params: Download, context: Context) -> Downloaded:
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
        of = "" if partial.source.total is None else f" of {partial.source.total}"
        raise Timeout(
            f"{url}: {partial.size}{of} bytes were received within {limit_s:.3g} s; the next call goes on from there",
            executed=Executed.NO,
        )

    async def _into_store(self, params: Download, url: str, partial: Partial, context: Context) -> Downloaded:
        received, digests = await self._checked(params, url, partial, context)
        size, source = partial.size, partial.source
        name = params.name or name_of(received.url, source.disposition)
        begin = DocumentsPutBegin(
            path=url,
            name=name,
            tags=params.tags,
            metadata=params.metadata,
            collection=params.collection,
            mimeType=params.mimeType or source.mime_type,
        )
        added = await store(
            context,
            begin,
            partial,
            digests["sha256"],
            lambda sent: context.progress(size + sent, 2 * size, f"storing {name}"),
        )
        await trio.to_thread.run_sync(partial.drop)
        algorithm = params.checksum.split(":")[0] if params.checksum else "sha256"
        return Downloaded(
            hash=added.hash or digests["sha256"],
            url=received.url,
            path=url,
            name=added.name,
            size=size,
            mime_type=params.mimeType or source.mime_type,
            is_new=added.is_new,
            checksum=f"{algorithm}:{digests[algorithm]}",
            resumed_from=received.resumed_from,
            redirects=received.redirects,
        )

    async def _checked(
        self, params: Download, url: str, partial: Partial, context: Context
    ) -> tuple[Received, dict[str, str]]:
        """Receive the body and compare its checksum; what does not fit is thrown away."""
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
            await trio.to_thread.run_sync(partial.restart, partials.Source())
            if not received.pieced:
                raise OperationError(
                    f"{url} has the checksum {algorithm}:{digests[algorithm]}, not {params.checksum}; nothing was "
                    "stored",
                    field="checksum",
                )
            # Pieces of two versions, perhaps: once more, from the start.


def read_settings(given: dict[str, Any]) -> Settings:
    """Raises ValueError naming the setting."""
    try:
        settings = msgspec.convert(given, Settings)
    except msgspec.ValidationError as error:
        raise ValueError(f"settings of fetch: {error}") from None
    Allowed(settings.allow)
    return settings


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    # They would log every request, at the address that it went to.
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    settings = read_settings(env.settings)
    folder = env.data_dir / "partial"
    await trio.to_thread.run_sync(partials.sweep, folder)
    env.info(allow=", ".join(settings.allow) or "the Internet only")
    yield Handlers(Fetch(settings, folder))
