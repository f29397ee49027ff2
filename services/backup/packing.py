"""What all targets have in common: chunks and manifests as bytes, and which snapshots are kept."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Final, TypeVar

import msgspec

from proto.backup import BackupFailed, Manifest
from services.backup.places import Damaged
from services.shared import zstd

T = TypeVar("T")

FORMAT: Final = 1
"""Version of the format of manifests and chunks; a program reads those up to its own."""

CHUNK_BYTES: Final = 256 * 1024
"""Amount of a database that is copied again if a single row changes."""

MAX_PACKED_BYTES: Final = 2 * CHUNK_BYTES
"""More than any compressed chunk has."""

MAX_MANIFEST_BYTES: Final = 1 << 30
SMALL_MANIFEST_BYTES: Final = 16 << 20
MAX_MANIFEST_RATIO: Final = 64
"""A compressed manifest may unfold to `SMALL_MANIFEST_BYTES`, or to so many times its own size, up to
`MAX_MANIFEST_BYTES`. Real ones have a ratio below 20."""


class Head(msgspec.Struct, frozen=True):
    """The fields that manifests of every format have."""

    format: int
    version: str


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest, followed by its SHA-256 on a line of its own, compressed."""
    line = msgspec.json.encode(manifest)
    return packed(line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")


def decode(name: str, content: bytes) -> Manifest:
    """Decode a manifest. Raises Damaged, or BackupFailed if it was made by a newer program."""
    try:
        most = max(SMALL_MANIFEST_BYTES, MAX_MANIFEST_RATIO * len(content))
        line, _, rest = zstd.decompress(content, min(most, MAX_MANIFEST_BYTES)).partition(b"\n")
    except zstd.ZstdError:
        line, rest = b"", b""
    if hashlib.sha256(line).hexdigest().encode() != rest.strip():
        raise Damaged(f"the snapshot {name} is damaged: its checksum does not match")
    try:
        head = msgspec.json.decode(line, type=Head)
        if head.format > FORMAT:
            later = f"the snapshot {name} was made by Linckia {head.version}; use that version or a newer one"
            raise BackupFailed(later)
        return msgspec.json.decode(line, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"the snapshot {name} is damaged: {error}") from None


def packed(block: bytes) -> bytes:
    return zstd.Compressor(1).compress(block)


def unpacked(name: str, content: bytes) -> bytes:
    """Decompress a chunk. Raises Damaged if it does not have that name."""
    try:
        block = zstd.decompress(content, CHUNK_BYTES)
    except zstd.ZstdError:
        block = b""
    if hashlib.sha256(block).hexdigest() != name:
        raise Damaged(f"the chunk {name} is damaged: its checksum does not match")
    return block


def outlived(manifests: Sequence[Manifest], data_dir: str, keep: int) -> tuple[set[str], set[str]]:
    """Return which snapshots of a data directory are kept, and which are not: the newest `keep`, and the newest one
    without problems."""
    own = [each for each in manifests if each.data_dir == data_dir]
    whole = [each.id for each in own if not each.problems]
    kept = {each.id for each in own[-keep:]} | set(whole[-1:])
    return kept, {each.id for each in own} - kept


def chunks_of(manifests: Iterable[Manifest]) -> set[str]:
    """Return the chunks that snapshots refer to."""
    return {name for each in manifests for file in each.files for name in file.chunks}


def users_of(manifests: Iterable[Manifest]) -> dict[str, str]:
    """Return the chunks that snapshots refer to, with the newest file that has it, for people."""
    return {
        name: f"{file.path} of {each.id} has it" for each in manifests for file in each.files for name in file.chunks
    }


def ahead(pool: Executor, work: Callable[[str], T], names: Iterable[str], count: int) -> Iterator[tuple[str, T]]:
    """Yield the results of work for each name in order, with `count` of them under way."""
    waiting: deque[tuple[str, Future[T]]] = deque()
    for name in names:
        waiting.append((name, pool.submit(work, name)))
        if len(waiting) >= count:
            first, future = waiting.popleft()
            yield first, future.result()
    for first, future in waiting:
        yield first, future.result()
