"""Backups on a server with SFTP: keys, aliases and known hosts are those of OpenSSH.

The connection runs in a thread of its own with asyncio, for which asyncssh is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import threading
import urllib.parse
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Final, TypeVar

import asyncssh

from proto.backup import BackupFailed
from services.backup.places import FOLDERS, Missing, bounded, lost

T = TypeVar("T")

CONNECT_S: Final = 30.0
_NEW: Final = asyncssh.FXF_WRITE | asyncssh.FXF_CREAT | asyncssh.FXF_EXCL
ALIVE_S: Final = 15.0
"""Interval between questions to a silent server; after four without an answer, the connection is lost."""


class Sftp:
    """A folder on a server; its path begins with `~/` below the user's home there."""

    def __init__(self, name: str, url: urllib.parse.SplitResult) -> None:
        self.name = name
        self._url = url
        path = urllib.parse.unquote(url.path).rstrip("/")
        self._path = (path.removeprefix("/~").lstrip("/") or ".") if path.startswith("/~") else path or "/"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sftp", daemon=True)
        self._thread.start()
        self._stack = contextlib.AsyncExitStack()
        try:
            self._client = self._run(self._connect())
        except BaseException:
            self.close()
            raise

    async def _connect(self) -> asyncssh.SFTPClient:
        options: dict[str, Any] = {}
        if self._url.username:
            options["username"] = urllib.parse.unquote(self._url.username)
        if self._url.port:
            options["port"] = self._url.port
        host = self._url.hostname or ""
        try:
            connection = await self._stack.enter_async_context(
                asyncssh.connect(
                    host, connect_timeout=CONNECT_S, keepalive_interval=ALIVE_S, keepalive_count_max=4,
                    password=None, preferred_auth="publickey", **options,
                )
            )  # fmt: skip
            return await self._stack.enter_async_context(connection.start_sftp_client())
        except (asyncssh.KeyImportError, asyncssh.ConfigParseError) as error:
            raise BackupFailed(f"cannot use the keys or settings in ~/.ssh for {host}: {error}") from None
        except asyncssh.HostKeyNotVerifiable:
            raise BackupFailed(
                f"the host key of {host} is not the one in ~/.ssh/known_hosts, or not in it: check it by `ssh {host}`"
            ) from None
        except asyncssh.PermissionDenied:
            raise BackupFailed(f"{host} accepts none of the SSH keys of this user: check it by `ssh {host}`") from None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work in the thread, and return its result. Raises OSError for what goes wrong on the way."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (asyncssh.Error, asyncio.CancelledError) as error:
            raise lost(self.name, str(error)) from None
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise
            raise lost(self.name, error.strerror or str(error)) from None

    def _at(self, path: str) -> str:
        return posixpath.join(self._path, path)

    def prepare(self) -> None:
        self._run(self._prepare())

    async def _prepare(self) -> None:
        await self._client.makedirs(self._path, exist_ok=True)
        for folder in FOLDERS:
            if folder.count("/") == 0:
                await self._make_folder(folder)
        await asyncio.gather(*(self._make_folder(folder) for folder in FOLDERS if "/" in folder))

    async def _make_folder(self, folder: str) -> None:
        try:
            await self._client.mkdir(self._at(folder))
        except asyncssh.SFTPError:
            if not await self._client.isdir(self._at(folder)):
                raise

    def put(self, path: str, content: bytes) -> None:
        self._run(self._put(self._at(path), content))

    async def _put(self, path: str, content: bytes) -> None:
        try:
            file = await self._client.open(path, _NEW, encoding=None)
        except asyncssh.SFTPError:
            # The version of the protocol that OpenSSH speaks has no code for this.
            if await self._client.lexists(path):
                raise FileExistsError(path) from None
            raise
        async with file:
            await file.write(content)
            with contextlib.suppress(asyncssh.SFTPOpUnsupported):
                await file.fsync()

    def get(self, path: str, most: int) -> bytes:
        content = self._run(self._get(path, most))
        if content is None:
            raise Missing(f"{path} is missing in {self.name}")
        return bounded(content, path, most, self.name)

    async def _get(self, path: str, most: int) -> bytes | None:
        content: Any = None
        with contextlib.suppress(asyncssh.SFTPNoSuchFile):
            async with await self._client.open(self._at(path), "rb") as file:
                content = await file.read(most + 1)
        return content if content is None else bytes(content)

    def listing(self, folder: str) -> Iterator[tuple[str, int]]:
        yield from self._run(self._list(folder))

    async def _list(self, folder: str) -> list[tuple[str, int]]:
        inner = [each for each in FOLDERS if each.startswith(f"{folder}/")] or [folder]
        limit = asyncio.Semaphore(32)

        async def one(each: str) -> list[tuple[str, int]]:
            async with limit:
                return [found async for found in self._entries(each)]

        return [each for part in await asyncio.gather(*map(one, inner)) for each in part]

    async def _entries(self, folder: str) -> AsyncIterator[tuple[str, int]]:
        try:
            async for entry in self._client.scandir(self._at(folder)):
                if entry.attrs.type == asyncssh.FILEXFER_TYPE_REGULAR:
                    yield f"{folder}/{entry.filename!s}", entry.attrs.size or 0
        except asyncssh.SFTPNoSuchFile:
            pass

    def delete(self, path: str) -> None:
        self._run(self._delete(self._at(path)))

    async def _delete(self, path: str) -> None:
        with contextlib.suppress(asyncssh.SFTPNoSuchFile):
            await self._client.remove(path)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
