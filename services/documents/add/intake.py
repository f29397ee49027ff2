"""Files on their way into the store: which have changed, read, hashed and compressed in groups, by a few threads.

A file that has not changed since it was last added (same size, times and inode) is not even opened.
"""

from __future__ import annotations

import binascii
import hashlib
import os
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import apsw
import msgspec

from services.documents.add.folders import Walk
from services.documents.add.places import open_beside, open_folder
from services.documents.store.compress import Codec
from services.documents.store.kinds import SNIFF_BYTES, nature
from services.documents.store.objects import CHUNKED_FROM_BYTES, Block, Content
from services.documents.store.training import Trainer
from services.runtime.roots import OutsideRoots

GROUP_FILES = 256
GROUP_BYTES = 8 * 1024 * 1024
GROUP_SAME = 2048
READ_BYTES = 1024 * 1024
_RACY_NS = 20_000_000
"""Time stamps tick with the kernel's timer: shortly after a change, another may go unseen."""


class Held(msgspec.Struct, frozen=True, gc=False):
    """What the store knows of a path."""

    stamp: str
    document: int
    object: int


class Same(msgspec.Struct, frozen=True, gc=False):
    """A file that is stored as it is already."""

    path: str
    document: int
    object: int
    size: int
    modified_ns: int
    mode: int


class Raw(msgspec.Struct, frozen=True, gc=False):
    """A file that was read."""

    path: str
    stamp: str
    modified_ns: int
    mode: int
    hash: bytes
    data: bytes


class Taken(msgspec.Struct, frozen=True, gc=False):
    """A document, such as a file that was read, ready to be stored."""

    path: str
    stamp: str
    modified_ns: int
    mode: int
    content: Content
    name: str | None = None
    """Of the document; None: what its path ends with."""


@dataclass(slots=True)
class Group:
    """Some files of a walk: those that are the same, and the names of those to be read."""

    same: list[Same] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Ready:
    """Some files, ready to be stored, in so many bytes; `alone` are the names of those to be read by themselves."""

    bytes: int = 0
    taken: list[Taken] = field(default_factory=list)
    same: list[Same] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)


def stamp_of(status: os.stat_result, now_ns: int) -> str:
    """What tells this version of a file from a later one; empty where a later one might look the same."""
    if now_ns - max(status.st_ctime_ns, status.st_mtime_ns) < _RACY_NS:
        return ""
    told = b"%d:%d:%d:%d" % (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    return binascii.b2a_base64(hashlib.blake2b(told, digest_size=12).digest(), newline=False).decode()


def known(db: apsw.Connection, directory: str) -> dict[str, Held]:
    """What the store knows of each path below a directory."""
    base = directory.rstrip("/")
    query = "SELECT path, stamp, id, object FROM document WHERE path>=? AND path<? AND stamp <> ''"
    return {
        path: Held(stamp, id_, object_) for path, stamp, id_, object_ in db.execute(query, (base + "/", base + "0"))
    }


def groups(walk: Walk, held: Mapping[str, Held]) -> Iterator[Group]:
    """The files of a walk; blocks while it looks at them."""
    base = walk.directory.rstrip("/") + "/"
    group = Group()
    size = 0
    now_ns = time.time_ns()
    for name, status in walk.files():
        path = base + name
        before = held.get(path)
        if before is not None and before.stamp == stamp_of(status, now_ns):
            group.same.append(
                Same(path, before.document, before.object, status.st_size, status.st_mtime_ns, status.st_mode)
            )
        else:
            group.names.append(name)
            size += status.st_size
        if len(group.names) >= GROUP_FILES or size >= GROUP_BYTES or len(group.same) >= GROUP_SAME:
            yield group
            group, size, now_ns = Group(), 0, time.time_ns()
    yield group


def read(directory: str, names: Sequence[str], roots: Sequence[str], trainer: Trainer) -> list[Raw | str]:
    """The files of a group; blocks.

    A large one, and one that cannot be read, is only named: it is read by itself, and that says why it cannot be.
    """
    found: list[Raw | str] = []
    now_ns = time.time_ns()
    opened, folder = -1, ""
    try:
        for name in names:
            path = os.path.join(directory, name)
            above, _, last = path.rpartition("/")
            raw: Raw | None = None
            try:
                if opened < 0 or above != folder:
                    if opened >= 0:
                        os.close(opened)
                        opened = -1
                    opened, folder = open_folder(above, roots), above
                raw = _read(path, *open_beside(opened, last), now_ns)
            except (OSError, OutsideRoots):
                raw = None
            if raw is not None:
                trainer.see(raw.data, is_text=b"\0" not in raw.data[:SNIFF_BYTES])
            found.append(raw or name)
    finally:
        if opened >= 0:
            os.close(opened)
    return found


def _read(path: str, descriptor: int, status: os.stat_result, now_ns: int) -> Raw | None:
    """A file that is not large, or None; the descriptor is closed."""
    try:
        if status.st_size >= CHUNKED_FROM_BYTES:
            return None
        # One byte more than there should be: a file that has grown meanwhile is seen to.
        data = os.read(descriptor, status.st_size + 1)
        while len(data) != status.st_size:
            more = os.read(descriptor, READ_BYTES)
            if not more:
                break
            data += more
            if len(data) >= CHUNKED_FROM_BYTES:
                return None
    finally:
        os.close(descriptor)
    stamp = stamp_of(status, now_ns) if len(data) == status.st_size else ""
    return Raw(path, stamp, status.st_mtime_ns, status.st_mode, hashlib.sha256(data).digest(), data)


def pack(read_: Sequence[Raw | str], there: Container[bytes], mime: str | None, codec: Codec) -> Ready:
    """What was read, compressed unless the store has it; blocks."""
    ready = Ready(alone=[one for one in read_ if isinstance(one, str)])
    raws = [one for one in read_ if not isinstance(one, str)]
    new = {one.hash: one.data for one in raws if one.hash not in there}
    blocks = dict(zip(new, codec.pack_many(list(new.values())), strict=True))
    ready.bytes = sum(len(block) for _, block in blocks.values())
    for one in raws:
        kind = nature(one.data[:SNIFF_BYTES], one.path, mime)
        number, block = blocks.get(one.hash, (0, None))
        content = Content(one.hash, len(one.data), kind, Block(number, block))
        ready.taken.append(Taken(one.path, one.stamp, one.modified_ns, one.mode, content))
    return ready
