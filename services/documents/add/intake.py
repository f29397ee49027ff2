"""Files on their way into the store: which have changed, read, hashed and compressed in groups, by a few threads.

A file that has not changed since it was last added (same size, times and inode) is not even opened.
"""

from __future__ import annotations

import binascii
import contextlib
import hashlib
import os
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import apsw
import msgspec

from services.documents.add.folders import Walk
from services.documents.store.compress import Codec, Trainer
from services.documents.store.kinds import SNIFF_BYTES, nature
from services.documents.store.objects import CHUNKED_FROM_BYTES, Block, Content
from services.runtime.roots import OutsideRoots, Roots

GROUP_FILES = 256
GROUP_BYTES = 8 * 1024 * 1024
GROUP_SAME = 2048
READ_BYTES = 1024 * 1024
_RACY_NS = 20_000_000
"""Time stamps tick with the kernel's timer: shortly after a change, another may go unseen."""


class Held(NamedTuple):
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
    return {path: Held(*rest) for path, *rest in db.execute(query, (base + "/", base + "0"))}


def groups(walk: Walk, held: Mapping[str, Held]) -> Iterator[tuple[list[Same], list[str]]]:
    """The files of a walk: some that are the same, and the names of some to be read; blocks while it looks at them."""
    base = walk.directory.rstrip("/") + "/"
    same: list[Same] = []
    names: list[str] = []
    size = 0
    now_ns = time.time_ns()
    for name, status in walk.files():
        path = base + name
        before = held.get(path)
        if before is not None and before.stamp == stamp_of(status, now_ns):
            one = Same(path, before.document, before.object, status.st_size, status.st_mtime_ns, status.st_mode)
            same.append(one)
        else:
            names.append(name)
            size += status.st_size
        if len(names) >= GROUP_FILES or size >= GROUP_BYTES or len(same) >= GROUP_SAME:
            yield same, names
            same, names, size, now_ns = [], [], 0, time.time_ns()
    yield same, names


def read(directory: str, names: Sequence[str], roots: Roots, trainer: Trainer) -> list[Raw | str]:
    """The files of a group; blocks.

    A large one, and one that cannot be read, is only named: it is read by itself, and that says why it cannot be.
    """
    found: list[Raw | str] = []
    now_ns = time.time_ns()
    for name in names:
        raw = None
        with contextlib.suppress(OSError, OutsideRoots):
            raw = _read(os.path.join(directory, name), roots, now_ns)
        if raw is not None and b"\0" not in raw.data[:SNIFF_BYTES]:
            trainer.see(raw.data)
        found.append(raw or name)
    return found


def _read(path: str, roots: Roots, now_ns: int) -> Raw | None:
    """A file, unless it is large.  Raises OSError, OutsideRoots."""
    descriptor, status = roots.open(path)
    with open(descriptor, "rb", buffering=0) as file:
        if status.st_size >= CHUNKED_FROM_BYTES:
            return None
        # One byte more than there should be: a file that has grown meanwhile is seen to.
        data = file.read(status.st_size + 1) or b""
        while len(data) != status.st_size and (more := file.read(READ_BYTES)):
            data += more
            if len(data) >= CHUNKED_FROM_BYTES:
                return None
    stamp = stamp_of(status, now_ns) if len(data) == status.st_size else ""
    return Raw(path, stamp, status.st_mtime_ns, status.st_mode, hashlib.sha256(data).digest(), data)


def pack(read_: Sequence[Raw | str], there: Container[bytes], mime: str | None, codec: Codec) -> Ready:
    """What was read, compressed unless the store has it; blocks."""
    ready = Ready()
    blocks: dict[bytes, Block] = {}
    for one in read_:
        if isinstance(one, str):
            ready.alone.append(one)
            continue
        block = blocks.get(one.hash)
        if block is None:
            block = blocks[one.hash] = Block(0, None) if one.hash in there else Block(*codec.pack(one.data))
            ready.bytes += len(block.data or b"")
        content = Content(one.hash, len(one.data), nature(one.data[:SNIFF_BYTES], one.path, mime), block)
        ready.taken.append(Taken(one.path, one.stamp, one.modified_ns, one.mode, content))
    return ready
