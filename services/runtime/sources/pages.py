"""A VFS of SQLite whose files are on a PostgreSQL server: what is committed there, in memory as far as it fits.

Each transaction of SQLite is one commit of the server, made when SQLite syncs the file. SQLite's journal is in memory:
a transaction that has not come to its sync has changed nothing but this process's memory, and one that has is
complete. Readers see the state in which their transaction began, whatever is committed meanwhile, so a writer waits
for no reader and no reader for it.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import apsw

from proto.errors import LinckiaError
from services.runtime.database import elsewhere
from services.runtime.sources.server import BLOCK, PageServer

CACHE_BYTES = 64 * 1024 * 1024
AHEAD = 32
"""Blocks read at once where the one before was read last."""


class RemoteFile:
    """A file on the server, as the connections of this process share it."""

    def __init__(self, path: Path, server: PageServer) -> None:
        self.path = path
        self.server = server
        self.failure: LinckiaError | None = None
        """Why the server did not do what SQLite asked for last."""
        self.version = 0
        self.writer: _Handle | None = None
        self.guard = threading.RLock()
        """Held while any of this is changed. Whoever needs the server's guard too takes that first."""
        self._pages: OrderedDict[int, bytes] = OrderedDict()
        self._older: dict[int, list[tuple[int, bytes]]] = {}
        """Former contents of blocks, each with the last version that has it, oldest first."""
        self._pinned: dict[_Handle, int] = {}
        self._last = -2
        self.size = server.bytes

    def check(self) -> None:
        """Raise Unavailable unless what is in memory is current."""
        self.server.check()

    def pin(self, handle: _Handle) -> tuple[int, int]:
        """Keep the current version readable for a handle; return it with the file's size."""
        with self.guard:
            self._pinned[handle] = self.version
            return self.version, self.size

    def unpin(self, handle: _Handle) -> None:
        with self.guard:
            self._pinned.pop(handle, None)
            if self._older:
                oldest = min(self._pinned.values(), default=self.version + 1)
                for number, versions in [*self._older.items()]:
                    kept = [each for each in versions if each[0] >= oldest]
                    if kept:
                        self._older[number] = kept
                    else:
                        del self._older[number]

    def block(self, number: int, version: int) -> bytes:
        """Return a block as it was in `version`. Raises Unavailable."""
        with self.guard:
            if (found := self._known(number, version)) is not None:
                return found
        # The server's guard orders this with commits.
        with self.server.guard:
            with self.guard:
                if (found := self._known(number, version)) is not None:
                    return found
                ahead = AHEAD if number == self._last + 1 else 1
            loaded = self.server.load(number, ahead)
            with self.guard:
                for each in range(number, number + ahead):
                    if each not in self._pages and (data := loaded.get(each)) is not None:
                        self._put(each, data)
                self._last = number + ahead - 1
                return self._known(number, version) or bytes(BLOCK)

    def _known(self, number: int, version: int) -> bytes | None:
        for until, data in self._older.get(number, ()):
            if until >= version:
                return data
        if (found := self._pages.get(number)) is not None:
            self._pages.move_to_end(number)
        return found

    def _put(self, number: int, data: bytes) -> None:
        self._pages[number] = data
        self._pages.move_to_end(number)
        while len(self._pages) > CACHE_BYTES // BLOCK:
            self._pages.popitem(last=False)

    def commit(self, blocks: dict[int, bytes], size: int) -> int:
        """Store blocks on the server, and return the new version. Raises what `PageServer.commit` does."""
        with self.server.guard:
            with self.guard:
                before = {number: data for number in blocks if (data := self._pages.get(number)) is not None}
                end = -(-self.size // BLOCK)
                # What is cut off, others may still read.
                cut = range(-(-size // BLOCK), end)
                missing = [n for n in (*blocks, *cut) if n < end and n not in before]
            if missing:
                # Even if nobody reads now: somebody may begin to before the commit is done.
                before |= self.server.load_these(missing)
            changed = {number: data for number, data in blocks.items() if before.get(number) != data}
            if not changed and size == self.size:
                return self.version
            self.server.commit(changed, size)
            with self.guard:
                if self._pinned.keys() - {self.writer}:
                    for number in (*changed, *cut):
                        if number < end:
                            self._older.setdefault(number, []).append((self.version, before.get(number, bytes(BLOCK))))
                for number, data in changed.items():
                    self._put(number, data)
                for number in cut:
                    self._pages.pop(number, None)
                self.version += 1
                self.size = size
                return self.version


class _Handle:
    """A connection's use of a file: what SQLite calls its `sqlite3_file`."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._level = apsw.SQLITE_LOCK_NONE
        self._version, self._size = 0, 0
        self._changed: dict[int, bytes] = {}

    def xRead(self, amount: int, offset: int) -> bytes:
        if self._level == apsw.SQLITE_LOCK_NONE:
            # Of the header, before the first lock; SQLite reads it again under the lock.
            self._version, self._size = self._file.pin(self)
            self._file.unpin(self)
        amount = max(0, min(amount, self._size - offset))
        if not amount:
            return b""
        first, start = divmod(offset, BLOCK)
        last = (offset + amount - 1) // BLOCK
        if first == last:
            return self._block(first)[start : start + amount]
        return b"".join(self._block(number) for number in range(first, last + 1))[start : start + amount]

    def _block(self, number: int) -> bytes:
        if (changed := self._changed.get(number)) is not None:
            return changed
        try:
            return self._file.block(number, self._version)
        except LinckiaError as error:
            self._file.failure = error
            raise _failed(apsw.SQLITE_IOERR_READ, error) from error

    def xWrite(self, data: bytes, offset: int) -> None:
        data = bytes(data)
        at = 0
        while at < len(data):
            number, start = divmod(offset + at, BLOCK)
            part = data[at : at + BLOCK - start]
            if len(part) < BLOCK:
                whole = bytearray(self._block(number) if number * BLOCK < self._size else bytes(BLOCK))
                whole[start : start + len(part)] = part
                part, at = bytes(whole), at + len(part)
            else:
                at += BLOCK
            self._changed[number] = part
        self._size = max(self._size, offset + len(data))

    def xTruncate(self, size: int) -> None:
        self._size = size
        for number in [number for number in self._changed if number * BLOCK >= size]:
            del self._changed[number]

    def xSync(self, flags: int) -> None:
        if self._level < apsw.SQLITE_LOCK_RESERVED:
            return
        changed, self._changed = self._changed, {}
        try:
            self._version = self._file.commit(changed, self._size)
        except LinckiaError as error:
            self._size = self._file.size
            self._file.failure = error
            raise _failed(apsw.SQLITE_IOERR_FSYNC, error) from error
        self._file.pin(self)

    def xFileSize(self) -> int:
        return self._size if self._level != apsw.SQLITE_LOCK_NONE else self._file.size

    def xLock(self, level: int) -> None:
        if level <= self._level:
            return
        with self._file.guard:
            if self._level == apsw.SQLITE_LOCK_NONE:
                self._version, self._size = self._file.pin(self)
            if level >= apsw.SQLITE_LOCK_RESERVED and self._file.writer is not self:
                if self._file.writer is not None or self._version != self._file.version:
                    raise apsw.BusyError("another connection writes")
                self._file.writer = self
            self._level = level

    def xUnlock(self, level: int) -> None:
        with self._file.guard:
            if level < apsw.SQLITE_LOCK_RESERVED and self._file.writer is self:
                # What was not synced was rolled back.
                self._changed.clear()
                self._file.writer = None
                self._version, self._size = self._file.pin(self)
            if level == apsw.SQLITE_LOCK_NONE:
                self._file.unpin(self)
            self._level = level

    def xCheckReservedLock(self) -> bool:
        return self._file.writer is not None

    def xFileControl(self, operation: int, pointer: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return BLOCK

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_ATOMIC | apsw.SQLITE_IOCAP_SAFE_APPEND | apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE

    def xClose(self) -> None:
        self.xUnlock(apsw.SQLITE_LOCK_NONE)


def _failed(code: int, error: LinckiaError) -> apsw.Error:
    failed: Any = apsw.IOError(str(error))
    failed.result, failed.extendedresult = apsw.SQLITE_IOERR, code
    found: apsw.Error = failed
    return found


class PagesVfs(apsw.VFS):
    """Opens the files on the server, and gives others to the system's VFS."""

    def __init__(self) -> None:
        self.files: dict[str, RemoteFile] = {}
        super().__init__(elsewhere.VFS, "", makedefault=False)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path in self.files:
            flags[1] = flags[0]
            return _Handle(self.files[path])
        return super().xOpen(name, flags)

    def _is_beside(self, path: str) -> bool:
        return any(path.startswith((f"{each}-", each)) for each in self.files)

    def xAccess(self, path: str, flags: int) -> bool:
        if path in self.files:
            return True
        return not self._is_beside(path) and super().xAccess(path, flags)

    def xDelete(self, path: str, sync_dir: bool) -> None:
        if not self._is_beside(path):
            super().xDelete(path, sync_dir)

    def xFullPathname(self, path: str) -> str:
        return path if path in self.files else super().xFullPathname(path)


@functools.cache
def _vfs() -> PagesVfs:
    return PagesVfs()


def mounted(path: Path, server: PageServer) -> RemoteFile:
    """Make a held file available to SQLite under its path."""
    file = _vfs().files[str(path)] = elsewhere.files[path] = RemoteFile(path, server)
    return file
