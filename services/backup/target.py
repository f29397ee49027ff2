"""Where backups are stored: a folder with many snapshots, a tar file with one, or a place with encrypted ones.

Contents are split into chunks, each stored once under its SHA-256, compressed; a snapshot is a manifest that lists the
chunks of each file. It is written last, after all chunks are on disk and have been read back, so interrupted backups do
not count. Chunks that no manifest refers to are removed, but never while a manifest is unreadable.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from proto.backup import Access, BackupFailed, Manifest, OnProgress
from proto.host.durable import replace_file, sync_folder
from services.backup.connecting import connected
from services.backup.packing import (
    MAX_MANIFEST_BYTES,
    MAX_PACKED_BYTES,
    chunks_of,
    decode,
    encode,
    outlived,
    packed,
    unpacked,
    users_of,
)
from services.backup.places import Damaged, Local, Missing, is_remote, is_sealed
from services.backup.sealed import Sealed
from services.backup.sealing import own_key

SNAPSHOTS, CHUNKS = "snapshots", "chunks"
ENDING = ".json.zst"


def _content(path: Path, most: int) -> bytes:
    """Return a file of at most `most` bytes. Raises Damaged or OSError."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise Damaged(f"{path} is larger than any file of a backup")
    return content


class Folder:
    """A folder of snapshots; a context manager that locks it.

    Raises BackupFailed if it is not a backup folder or another backup to it is in progress, and OSError.
    """

    def __init__(self, path: Path, *, write: bool = False) -> None:
        self.path = path
        self.new_bytes = 0
        """Number of bytes that this backup has added."""
        self._write = write
        self._added: dict[str, Path] = {}
        self._known: set[str] = set()
        self._lock = -1

    def __enter__(self) -> Folder:
        if self._write:
            for folder in (self.path, self.path / CHUNKS, self.path / SNAPSHOTS):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for left in (self.path / SNAPSHOTS).glob("*.new"):
                left.unlink()
        elif not (self.path / SNAPSHOTS).is_dir():
            raise BackupFailed(f"{self.path} contains no backups")
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, (fcntl.LOCK_EX if self._write else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise BackupFailed(f"another command is using {self.path}; wait until it ends") from None
        return self

    def __exit__(self, *_: object) -> None:
        # Free the space of chunks that no manifest refers to; after a kill, the next backup does.
        for path in self._added.values():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        os.close(self._lock)

    def put(self, block: bytes) -> str:
        """Store a block. Returns its name. Raises OSError."""
        name = hashlib.sha256(block).hexdigest()
        if name in self._known:
            return name
        path = self._chunk(name)
        try:
            unpacked(name, _content(path, MAX_PACKED_BYTES))
        except (FileNotFoundError, Damaged):
            # A damaged chunk is repaired, for earlier snapshots too.
            content = packed(block)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._added[name] = path
            replace_file(path, content, sync=False)
            self.new_bytes += len(content)
        self._known.add(name)
        return name

    def get(self, name: str) -> bytes:
        """Return a chunk. Raises Damaged or OSError."""
        try:
            return unpacked(name, _content(self._chunk(name), MAX_PACKED_BYTES))
        except FileNotFoundError:
            raise Missing(f"the chunk {name} is missing in {self.path}") from None

    def commit(self, manifest: Manifest) -> None:
        """Flush everything to disk, read back the added chunks, and write the manifest. Raises OSError or Damaged."""
        _sync_file_system(self._lock)
        for name, path in self._added.items():
            with path.open("rb") as file:
                # Not from the page cache.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                unpacked(name, file.read())
        path = self.path / SNAPSHOTS / f"{manifest.id}{ENDING}"
        content = encode(manifest)
        replace_file(path, content)
        self.new_bytes += len(content)
        _sync_file_system(self._lock)
        self._added.clear()

    def names(self) -> list[str]:
        """Return the names of the snapshots, oldest first."""
        return sorted(path.name.removesuffix(ENDING) for path in (self.path / SNAPSHOTS).glob(f"*{ENDING}"))

    def manifest(self, name: str) -> Manifest:
        """Return a manifest. Raises Damaged, BackupFailed or OSError."""
        return decode(name, _content(self.path / SNAPSHOTS / f"{name}{ENDING}", MAX_MANIFEST_BYTES))

    def prune(self, data_dir: str, keep: int) -> int:
        """Remove all snapshots of a data directory except the newest `keep` and the newest one without problems,
        then chunks that are no longer needed. Returns how many are left. Raises BackupFailed if a manifest cannot be
        read."""
        manifests = [self.manifest(name) for name in self.names()]
        kept, gone = outlived(manifests, data_dir, keep)
        for name in gone:
            (self.path / SNAPSHOTS / f"{name}{ENDING}").unlink()
        needed = chunks_of(each for each in manifests if each.id not in gone)
        for path in (self.path / CHUNKS).glob("*/*"):
            if path.name not in needed:
                path.unlink()
        return len(kept)

    def _chunk(self, name: str) -> Path:
        return self.path / CHUNKS / name[:2] / name


class Archive:
    """A tar archive with one snapshot; same interface as `Folder`."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        self.path = path
        self.new_bytes = 0
        self._write = write
        self._unfinished = path.with_name(f"{path.name}.new")
        self._known: set[str] = set()
        self._members: dict[str, tarfile.TarInfo] = {}
        """By name; filled by the first read."""

    def __enter__(self) -> Archive:
        if self._write:
            self._unfinished.unlink(missing_ok=True)
            descriptor = os.open(self._unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        else:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self._stream = open(descriptor, "w+b" if self._write else "rb")  # closed in __exit__
        try:
            self._tar = tarfile.open(fileobj=self._stream, mode="w" if self._write else "r:")
        except (tarfile.TarError, RecursionError) as error:
            self._stream.close()
            raise BackupFailed(f"{self.path} is not a backup: {error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        if self._write:
            self._unfinished.unlink(missing_ok=True)

    def put(self, block: bytes) -> str:
        name = hashlib.sha256(block).hexdigest()
        if name not in self._known:
            self._known.add(name)
            self._add(f"{CHUNKS}/{name}", packed(block))
        return name

    def _add(self, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), 0o600
        self._tar.addfile(member, io.BytesIO(content))
        self.new_bytes += len(content)

    def get(self, name: str) -> bytes:
        return unpacked(name, self._read(f"{CHUNKS}/{name}", MAX_PACKED_BYTES))

    def _read(self, name: str, most: int) -> bytes:
        try:
            if not self._members:
                self._members = {each.name: each for each in self._tar.getmembers()}
            member = self._members[name]
            # The content of a sparse member may be any number of times larger than the archive.
            if not member.isreg() or member.issparse() or member.size > most:
                raise Damaged(f"{self.path} is damaged: {name} is not such a file")
            content = self._tar.extractfile(member)
            assert content is not None
            return content.read()
        except (KeyError, tarfile.TarError, RecursionError) as error:
            raise Damaged(f"{self.path} is damaged: {error}") from None

    def commit(self, manifest: Manifest) -> None:
        self._add(f"{SNAPSHOTS}/{manifest.id}{ENDING}", encode(manifest))
        self._tar.close()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        os.posix_fadvise(self._stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self._stream.seek(0)
        self._tar = tarfile.open(fileobj=self._stream, mode="r:")  # noqa: SIM115  # closed with the stream
        for name in self._known:
            self.get(name)
        self._unfinished.rename(self.path)
        sync_folder(self.path.parent)

    def names(self) -> list[str]:
        prefix = f"{SNAPSHOTS}/"
        try:
            names = self._tar.getnames()
        except (tarfile.TarError, RecursionError) as error:
            raise Damaged(f"{self.path} is damaged: {error}") from None
        return [each[len(prefix) : -len(ENDING)] for each in names if each.startswith(prefix)]

    def manifest(self, name: str) -> Manifest:
        return decode(name, self._read(f"{SNAPSHOTS}/{name}{ENDING}", MAX_MANIFEST_BYTES))

    def prune(self, data_dir: str, keep: int) -> int:
        return 1


Target = Folder | Archive | Sealed


def opened(to: str | Path, data_dir: Path, access: Access, *, write: bool = False) -> Target:
    """Open a backup: a remote place by its URL, an archive if the name ends in `.tar`, otherwise a folder.

    Args:
        data_dir: where the key may be.

    Raises BackupFailed or OSError.
    """
    if is_remote(to):
        return Sealed(connected(str(to), access.endpoint), data_dir, access, write=write)
    path = Path(to)
    if path.suffix == ".tar":
        if write and (access.encrypt or access.append_only):
            raise BackupFailed("an archive is neither encrypted nor added to; name a folder")
        return Archive(path, write=write)
    if is_sealed(path) or (access.encrypt and write):
        if (path / SNAPSHOTS).is_dir() and not is_sealed(path):
            raise BackupFailed(f"{path} contains backups that are not encrypted; name another folder")
        return Sealed(Local(path), data_dir, access, write=write)
    if access.append_only and write:
        raise BackupFailed(f"only encrypted backups are append-only, and those in {path} are not encrypted")
    return Folder(path, write=write)


def snapshots(to: str, data_dir: Path, access: Access) -> list[Manifest | str]:
    """Return the snapshots in a target, oldest first, or why one cannot be read. Raises BackupFailed or OSError."""
    with opened(to, data_dir, access) as target:
        return list(listed(target))


def verify(
    to: str, data_dir: Path, access: Access, on_progress: OnProgress | None = None
) -> tuple[int, int, list[str]]:
    """Read everything in a target. Returns the numbers of snapshots and of chunks, and what is damaged. Raises
    BackupFailed or OSError."""
    with opened(to, data_dir, access) as target:
        found = list(listed(target))
        manifests = [each for each in found if isinstance(each, Manifest)]
        problems = [each for each in found if isinstance(each, str)]
        users = users_of(manifests)
        for done, (name, outcome) in enumerate(each_of(target, users)):
            if on_progress is not None:
                on_progress(done, len(users))
            if isinstance(outcome, Damaged):
                problems.append(f"{outcome}; {users[name]}")
                if isinstance(target, Sealed):
                    target.mark(name)
        return len(manifests), len(users), problems


def each_of(target: Target, names: Iterable[str]) -> Iterator[tuple[str, bytes | Damaged]]:
    """Yield chunks, or why one cannot be read. Raises OSError."""
    if isinstance(target, Sealed):
        yield from target.each(names)
        return
    for name in names:
        try:
            yield name, target.get(name)
        except Damaged as error:
            yield name, error


def key(data_dir: Path) -> str:
    """Return the key of a data directory's backups, which is made if there is none. Raises BackupFailed or OSError."""
    return own_key(data_dir).text


def listed(target: Target) -> Iterator[Manifest | str]:
    """Yield the snapshots, oldest first, or why one cannot be read."""
    for name in target.names():
        try:
            yield target.manifest(name)
        except (BackupFailed, msgspec.DecodeError) as error:
            yield str(error)


def _sync_file_system(descriptor: int) -> None:
    """Sync the file system of an open file, which is faster than an fsync for each chunk. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
