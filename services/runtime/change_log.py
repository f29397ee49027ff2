"""The changes that a service makes to files, recorded on disk before each is made, so that they can be undone.

A record has the former content, who called, and the hashes before and after. It is followed by a mark of its end. After
the death of the process in between, the file itself says whether the change was made. `files` takes the records over
(`proto.ops.changes`); then the log is emptied.

Each record is appended and synced by itself: a tenth of a millisecond, where the change itself takes several.
"""

from __future__ import annotations

import contextlib
import contextvars
import fnmatch
import hashlib
import os
import secrets
import struct
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import trio
from msgspec import structs

from proto.errors import LinckiaError
from proto.ops.changes import ChangeRecord
from proto.origin import Origin
from services.runtime.storage import disk_full

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

R = TypeVar("R")

NAME = "changes.log"

MAX_TAKEN_BYTES = 8 * 1024 * 1024
"""Content per answer; more only if one record alone has more."""

EXCLUDED = (
    ".env",
    ".env.*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.kdbx",
    "id_rsa*",
    "id_ed25519*",
    ".netrc",
    ".pgpass",
)
"""Names of files that usually contain secrets: by default, their former content is not kept."""

MAX_DELTA_BYTES = 1024 * 1024
"""Largest new content that is recorded, too, for diffs and merges after others have changed the file."""

_HEAD = struct.Struct("<II")
_ID_CHARS = "abcdefghijkmnpqrstuvwxyz23456789"
_LEVEL = 1


class Who(msgspec.Struct, frozen=True, array_like=True):
    """The call that makes changes; `change` is the id that they share."""

    change: str
    operation: str
    client: str
    session: str
    task: str


class Taking(Protocol):
    """The parameters by which records are taken over."""

    @property
    def stored(self) -> list[int]: ...


class _Logged(NamedTuple):
    at: int
    length: int


class ChangeLog:
    """The log of one service. Methods block, and may be called by several threads."""

    def __init__(self, folder: Path, excluded: Sequence[str] = EXCLUDED) -> None:
        self._path = folder / NAME
        self._excluded = tuple(excluded)
        self._lock = threading.Lock()
        self._file: int | None = None
        self._size = 0
        self._last = 0
        self._waiting: dict[int, _Logged] = {}
        """Records that were not taken yet, by number."""
        self._ended: dict[int, bool | None] = {}

    def settle(self) -> None:
        """Note which changes an earlier process made before its death, if it left any: call this before others are
        made."""
        with self._lock:
            if self._file is None and self._path.exists() and self._path.stat().st_size:
                self._opened()

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    # Recording

    def begin(
        self, records: Sequence[ChangeRecord], contents: Sequence[tuple[bytes | None, bytes | None]]
    ) -> list[int]:
        """Record changes that are about to be made, and return their numbers once they are on disk.

        Raises:
            DiskFull: nothing was recorded, and nothing may be changed.
        """
        packed = []
        for record, (before, after) in zip(records, contents, strict=True):
            if before is None or record.lost:
                packed.append(record)
                continue
            # Usually a few bytes: most of a file stays as it was.
            delta = b"" if after is None or len(after) > MAX_DELTA_BYTES else _delta(before, after)
            packed.append(structs.replace(record, content=zstd.compress(before, level=_LEVEL), delta=delta))
        with self._lock:
            file = self._opened()
            numbers = []
            written = bytearray()
            places = []
            for record in packed:
                self._last = max(self._last + 1, time.time_ns())
                numbers.append(self._last)
                body = msgspec.msgpack.encode(structs.replace(record, number=self._last))
                places.append(_Logged(self._size + len(written) + _HEAD.size, len(body)))
                written += _HEAD.pack(len(body), zlib.crc32(body)) + body
            self._append(file, written)
            self._waiting.update(zip(numbers, places, strict=True))
        try:
            os.fdatasync(file)
        except OSError as error:
            self.end(numbers, is_done=False)
            raise disk_full(error, self._path) or error from None
        return numbers

    def end(self, numbers: Sequence[int], *, is_done: bool) -> None:
        """Note that changes were made, or that they were not."""
        with self._lock, contextlib.suppress(OSError):
            self._note_end(self._opened(), numbers, is_done=is_done)

    def _note_end(self, file: int, numbers: Sequence[int], *, is_done: bool) -> None:
        body = msgspec.msgpack.encode([list(numbers), is_done])
        # If there is no room for it, the files say so after a death.
        with contextlib.suppress(OSError, LinckiaError):
            self._append(file, _HEAD.pack(len(body), zlib.crc32(body)) + body)
        for number in numbers:
            self._ended[number] = is_done

    def lost(self, path: str) -> str:
        """Return why the content of a file is not kept; empty if it is."""
        name = os.path.basename(path)
        if any(fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(path, pattern) for pattern in self._excluded):
            return "the former content is not kept: files of this name are excluded, as they may contain secrets"
        return ""

    def _append(self, file: int, data: bytes | bytearray) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.pwrite(file, left, self._size + len(data) - len(left)) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(file, self._size)
            raise disk_full(error, self._path) or error from None
        self._size += len(data)

    # Taking over

    def take(self, stored: Sequence[int]) -> list[ChangeRecord]:
        """Forget the records with these numbers, and return as many others of changes that have ended as fit."""
        with self._lock:
            if self._file is None and not self._path.exists():
                return []
            file = self._opened()
            for number in stored:
                self._waiting.pop(number, None)
                self._ended.pop(number, None)
            if not self._waiting and self._size:
                os.ftruncate(file, 0)
                self._size = 0
            ready = [number for number in self._waiting if number in self._ended]
            taken: list[ChangeRecord] = []
            room = MAX_TAKEN_BYTES
            for number in ready:
                place = self._waiting[number]
                room -= place.length
                if taken and room < 0:
                    break
                record = msgspec.msgpack.decode(os.pread(file, place.length, place.at), type=ChangeRecord)
                taken.append(structs.replace(record, is_done=self._ended[number]))
            return taken

    async def taken(self, params: Taking, ctx: object) -> list[ChangeRecord]:
        """Serve the operation by which `files` takes the records over."""
        return await trio.to_thread.run_sync(self.take, params.stored)

    @property
    def waiting_bytes(self) -> int:
        """The size of the log."""
        return self._size

    def _opened(self) -> int:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._read()
        return self._file

    def _read(self) -> None:
        """Read what an earlier process left; an incomplete record at the end is removed."""
        assert self._file is not None
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        at = 0
        while at + _HEAD.size <= len(data):
            length, crc = _HEAD.unpack_from(data, at)
            body = data[at + _HEAD.size : at + _HEAD.size + length]
            # The checksum of nothing is 0: zeros at the end, after a loss of power, are no record.
            if not length or len(body) < length or zlib.crc32(body) != crc:
                break
            decoded = msgspec.msgpack.decode(body)
            if isinstance(decoded[0], list):
                self._ended.update(dict.fromkeys(decoded[0], decoded[1]))
            else:
                self._waiting[decoded[0]] = _Logged(at + _HEAD.size, length)
            at += _HEAD.size + length
        if at < len(data):
            os.ftruncate(self._file, at)
        self._size = at
        self._last = max(self._waiting, default=0)
        # These calls ended with their process, perhaps before they had changed anything. That is noted, since it cannot
        # be seen any more after later changes of the same files.
        judged: dict[bool, list[int]] = {True: [], False: []}
        for number, place in self._waiting.items():
            if number not in self._ended:
                record = msgspec.msgpack.decode(data[place.at : place.at + place.length], type=ChangeRecord)
                judged[was_made(record, self._path.parent / "trash")].append(number)
        for is_done, numbers in judged.items():
            if numbers:
                self._note_end(self._file, numbers, is_done=is_done)


_AS_TEXT = {0xDC00 + byte: 0x10FE00 + byte for byte in range(0x80, 0x100)}
_AS_PATH = {there: here for here, there in _AS_TEXT.items()}


def as_text(path: str) -> str:
    """Return a path with bytes that are not UTF-8 as characters from U+10FE80, as `files` writes it."""
    return path if path.isascii() else path.translate(_AS_TEXT)


def _delta(before: bytes, after: bytes) -> bytes:
    return zstd.compress(after, level=_LEVEL, zstd_dict=_dictionary(before))


def from_delta(before: bytes, delta: bytes) -> bytes:
    """Return the new content of a record."""
    return zstd.decompress(delta, zstd_dict=_dictionary(before))


def _dictionary(content: bytes) -> zstd.ZstdDict | None:
    # Shorter ones are refused.
    return zstd.ZstdDict(content, is_raw=True) if len(content) >= 8 else None


def was_made(record: ChangeRecord, trash: Path) -> bool:
    """Return whether a change was made whose process died before it could say so."""
    path, target = as_path(record.path), as_path(record.target)
    is_in_trash = record.trash_id is not None and os.path.lexists(trash / str(record.trash_id))
    match record.kind:
        case "write":
            return _digest(path) not in (record.before, None)
        case "create":
            return _digest(path) == record.after
        case "move":
            return os.path.lexists(target) and not os.path.lexists(path)
        case "trash":
            return is_in_trash
        case "restore":
            return not is_in_trash and os.path.lexists(target)
        case "copy":
            return os.path.lexists(target)
        case "folder":
            return os.path.isdir(path)
    return not os.path.lexists(path)


def _digest(path: str) -> bytes | None:
    """Return the SHA-256 of a file; None if it cannot be read."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None


def as_path(text: str) -> str:
    """Return the path that `as_text` has written."""
    return text if text.isascii() else text.translate(_AS_PATH)


# The call being served


class Serving:
    """The call being served, as far as its changes are concerned.

    Attributes:
        change: the id of its changes; empty until it is needed.
        has_begun: whether it has begun to make changes.
        lost: why some former content is not kept.
        undoes: the entry of the journal that the next change undoes.
    """

    def __init__(self, log: ChangeLog, operation: str, origin: Origin) -> None:
        self._log = log
        self._operation = operation
        self._origin = origin
        self.change = ""
        self.has_begun = False
        self.lost: list[str] = []
        self.undoes: int | None = None

    def who(self) -> Who:
        """Return who makes the changes, with their id."""
        origin = self._origin
        if not self.change:
            # A repeated call continues the changes of the first attempt.
            self.change = _id_of(origin.key) if origin.key else "".join(secrets.choice(_ID_CHARS) for _ in range(10))
        mandate, grant = origin.mandate, origin.grant
        client = mandate.who if mandate is not None else grant.name if grant is not None else origin.caller
        return Who(self.change, self._operation, client, origin.session, "" if mandate is None else mandate.source)


class Resumed(Serving):
    """A call whose changes are completed by another process than the one that began them."""

    def __init__(self, log: ChangeLog, who: Who) -> None:
        super().__init__(log, who.operation, Origin(who.client))
        self._who = who
        self.change = who.change

    def who(self) -> Who:
        return self._who


current: contextvars.ContextVar[Serving | None] = contextvars.ContextVar("changes", default=None)
"""The call being served, if it may change something; None for background work."""


def who() -> Who | None:
    """Return who makes the changes of the call being served."""
    serving = current.get()
    return None if serving is None else serving.who()


def go_on() -> None:
    """Note that an earlier attempt of the call being served has made changes, so that its answer has their id."""
    serving = current.get()
    if serving is not None:
        serving.has_begun = True
        serving.who()


def named(result: R, *, begins: bool = False) -> R:
    """Return the result of the call being served with the id of its changes, if it has made some (or `begins` to) and
    the result has a place for it."""
    serving = current.get()
    if serving is None or not hasattr(result, "change") or not (begins or serving.has_begun):
        return result
    serving.who()
    said = {"not_kept": "; ".join(dict.fromkeys(serving.lost))} if serving.lost and hasattr(result, "not_kept") else {}
    return structs.replace(result, change=serving.change, **said)  # type: ignore[type-var]


def _id_of(key: str) -> str:
    value = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())
    return "".join(_ID_CHARS[value >> (5 * place) & 31] for place in range(10))


class Change(NamedTuple):
    """A change that is about to be made. `before` is the content to keep; None if there is none."""

    kind: str
    path: str
    target: str = ""
    before: bytes | None = None
    after: bytes | None = None
    mode: int = 0
    size: int = 0
    trash_id: int | None = None


class Begun:
    """Changes that are recorded and about to be made."""

    def __init__(self, log: ChangeLog | None, numbers: Sequence[int]) -> None:
        self._log = log
        self._numbers = numbers

    def end(self, *, is_done: bool, only: Sequence[int] | None = None) -> None:
        """Note that they were made, or not; `only` are places in the list with which they began."""
        if self._log is not None and self._numbers:
            chosen = self._numbers if only is None else [self._numbers[index] for index in only]
            if chosen:
                self._log.end(chosen, is_done=is_done)


def begin(changes: Sequence[Change]) -> Begun:
    """Record changes of the call being served; does nothing for background work. Raises DiskFull."""
    serving = current.get()
    if serving is None or not changes:
        return Begun(None, ())
    serving.has_begun = True
    log, who = serving._log, serving.who()
    records, contents = [], []
    for each in changes:
        lost = log.lost(each.path) if each.before is not None else ""
        if lost:
            serving.lost.append(lost)
        records.append(
            ChangeRecord(
                0, who.change, who.operation, who.client, who.session, who.task, each.kind, as_text(each.path),
                as_text(each.target),
                before=b"" if each.before is None else hashlib.sha256(each.before).digest(),
                after=b"" if each.after is None else hashlib.sha256(each.after).digest(),
                mode=each.mode, size=each.size, trash_id=each.trash_id, lost=lost, undoes=serving.undoes,
            )
        )  # fmt: skip
        contents.append((each.before, each.after))
    return Begun(log, log.begin(records, contents))


@contextlib.contextmanager
def recorded(changes: Sequence[Change]) -> Iterator[None]:
    """Record changes that the block makes, all or none."""
    begun = begin(changes)
    try:
        yield
    except BaseException:
        begun.end(is_done=False)
        raise
    begun.end(is_done=True)
