"""Encrypted snapshots in any place: the same interface as `target.Folder`.

Nothing is ever overwritten. An object whose size differs from the one in its name was interrupted; it does not count,
and its content is put under another name. A snapshot is put last, after a listing has shown that all its chunks are
there.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Final

from proto.backup import Access, BackupFailed, Manifest
from services.backup import packing
from services.backup.places import Damaged, Missing, Place
from services.backup.sealing import KEY_FILE, PASSPHRASE, Key, WrongKey, key_in, own_key, passphrase_of, unwrapped

AT_ONCE: Final = 16
"""Objects under way: most of the time goes by until a server answers."""

OVERHEAD: Final = 64
"""More bytes than sealing adds."""


class Sealed:
    """A context manager. Raises BackupFailed, or OSError if the place cannot be reached or refuses."""

    def __init__(self, place: Place, data_dir: Path, access: Access, *, write: bool = False) -> None:
        self.path = place.name
        self.new_bytes = 0
        """Number of bytes that this backup has added."""
        self._place = place
        self._data_dir = data_dir
        self._access = access
        self._write = write
        self._under_way: set[str] = set()
        self._futures: list[Future[None]] = []
        self._free = threading.BoundedSemaphore(2 * AT_ONCE)
        self._there: dict[str, list[str]] | None = None

    def __enter__(self) -> Sealed:
        try:
            self._key = self._opened()
        except BaseException:
            self._place.close()
            raise
        self._pool = ThreadPoolExecutor(AT_ONCE, "backup")
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._place.close()

    # The key

    def _opened(self) -> Key:
        ids = {each.stem for each in self._objects("keys")}
        if not ids and not self._write:
            raise BackupFailed(f"{self.path} contains no backups")
        key = self._found_key(ids)
        if ids and key.id not in ids:
            raise WrongKey(f"{self.path} is encrypted with another key; name the right one with --key-file")
        if self._write:
            if not ids:
                self._place.prepare()
                self._put(f"keys/{key.id}", b"linckia backup\n")
            if passphrase := passphrase_of(self._access):
                self._keep_wrapped(key, passphrase)
        return key

    def _found_key(self, ids: set[str]) -> Key:
        own = self._data_dir / KEY_FILE
        if self._access.key_file is not None:
            return key_in(self._access.key_file)
        passphrase = passphrase_of(self._access)
        if own.exists() and (self._write or not passphrase or key_in(own).id in ids):
            return key_in(own)
        if self._write and not ids:
            return own_key(self._data_dir)
        if passphrase:
            for each in self._objects("passphrases"):
                content = self._place.get(each.path, 4096)
                if key := unwrapped(content, each.stem, passphrase):
                    return key
            raise WrongKey(f"the passphrase is not one of {self.path}, or its backups were made without one")
        raise WrongKey(
            f"{self.path} is encrypted, and its key is not in {self._data_dir}: name it with --key-file, or set "
            f"{PASSPHRASE}"
        )

    def _keep_wrapped(self, key: Key, passphrase: str) -> None:
        """Put a copy of the key that the passphrase encrypts, unless there is one."""
        for each in self._objects("passphrases"):
            if each.stem == key.id and unwrapped(self._place.get(each.path, 4096), key.id, passphrase):
                return
        self._put(f"passphrases/{key.id}.{secrets.token_hex(4)}", key.wrapped(passphrase))

    # Objects

    def _objects(self, folder: str) -> Iterator[_Object]:
        """Yield the whole objects below a folder."""
        return (each for each in self._all(folder) if each.is_whole)

    def _all(self, folder: str) -> Iterator[_Object]:
        return (_Object(path, size) for path, size in self._place.listing(folder))

    def _put(self, path: str, content: bytes) -> str:
        """Put an object, under another name if an interrupted one has its own. Returns its path."""
        whole = f"{path}.{len(content)}"
        try:
            self._place.put(whole, content)
        except FileExistsError:
            whole = f"{path}.{secrets.token_hex(4)}.{len(content)}"
            self._place.put(whole, content)
        self.new_bytes += len(content)
        return whole

    def _chunks(self) -> dict[str, list[str]]:
        """Return the paths of whole chunks by name, without those that were found damaged unless there is no other."""
        if self._there is None:
            self._there = self._listed_chunks()
        return self._there

    def _listed_chunks(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        marked = self._marked()
        for each in self._objects("chunks"):
            if not (self._write and each.path in marked):
                found.setdefault(each.stem, []).append(each.path)
        for paths in found.values():
            paths.sort(key=lambda path: path in marked)
        return found

    def _marked(self) -> set[str]:
        """Return the paths of the chunks that were found damaged."""
        marks = {each.stem for each in self._objects("damaged")}
        return {each.path for each in self._objects("chunks") if _mark(each.path) in marks} if marks else set()

    def put(self, block: bytes) -> str:
        """Store a block, in the background. Returns its SHA-256. Raises what an earlier one met."""
        sha256 = hashlib.sha256(block).hexdigest()
        name = self._key.name_of(sha256)
        if name not in self._chunks() and name not in self._under_way:
            self._under_way.add(name)
            self._free.acquire()
            try:
                self._futures.append(self._pool.submit(self._upload, name, block))
            except BaseException:
                self._free.release()
                raise
            if len(self._futures) > 4 * AT_ONCE:
                self._raise_failures(wait=False)
        return sha256

    def _upload(self, name: str, block: bytes) -> None:
        try:
            self._put(f"chunks/{name[:2]}/{name}", self._key.seal(f"chunks/{name}", packing.packed(block)))
        finally:
            self._free.release()

    def _raise_failures(self, *, wait: bool) -> None:
        waiting: list[Future[None]] = []
        for future in self._futures:
            if wait or future.done():
                future.result()
            else:
                waiting.append(future)
        self._futures = waiting

    def get(self, sha256: str) -> bytes:
        """Return a chunk. Raises Missing, Damaged or OSError."""
        name = self._key.name_of(sha256)
        wrong: Damaged = Missing(f"the chunk {name} is missing in {self.path}")
        for path in self._chunks().get(name, ()):
            try:
                return self._read(path, name, sha256)
            except Damaged as error:
                wrong = error
        raise wrong

    def _read(self, path: str, name: str, sha256: str) -> bytes:
        content = self._place.get(path, packing.MAX_PACKED_BYTES + OVERHEAD)
        return packing.unpacked(sha256, self._key.unseal(f"chunks/{name}", content))

    def has(self, sha256: str) -> bool:
        """Return whether a chunk is there, by the listing or because it was put since."""
        name = self._key.name_of(sha256)
        return name in self._chunks() or name in self._under_way

    def each(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | Damaged]]:
        """Yield chunks, or why one cannot be read; the next ones are read meanwhile. Raises OSError."""
        self._chunks()
        return packing.ahead(self._pool, self._outcome, names, AT_ONCE)

    def _outcome(self, sha256: str) -> bytes | Damaged:
        try:
            return self.get(sha256)
        except Damaged as error:
            return error

    # Snapshots

    def commit(self, manifest: Manifest, *, listing: bool = True) -> str:
        """Wait until everything is stored, look whether it is there, and put the manifest. Returns its object.

        Args:
            listing: whether to ask for a new listing, or to rely on the last one and on what was put since.

        Raises BackupFailed or OSError.
        """
        self._raise_failures(wait=True)
        if listing:
            self._forget_listing()
        if lacking := {name for file in manifest.files for name in file.chunks if not self.has(name)}:
            raise BackupFailed(f"{len(lacking)} chunks did not arrive in {self.path}; try again")
        path = f"snapshots/{manifest.id}"
        whole = self._put(path, self._key.seal(path, packing.encode(manifest)))
        if self.manifest(manifest.id) != manifest:
            raise Damaged(f"the snapshot {manifest.id} in {self.path} is not what was stored")
        return whole

    def remove(self, path: str) -> None:
        """Remove an object; chunks that only it refers to stay until `prune`. Raises OSError."""
        self._place.delete(path)

    def _forget_listing(self) -> None:
        self._there = None
        self._under_way.clear()

    def names(self) -> list[str]:
        """Return the names of the snapshots, oldest first."""
        return sorted({each.stem for each in self._objects("snapshots")})

    def manifest(self, name: str) -> Manifest:
        """Return a manifest. Raises Damaged, BackupFailed or OSError."""
        wrong: BackupFailed = Missing(f"the snapshot {name} is missing in {self.path}")
        for each in self._objects("snapshots"):
            if each.stem == name:
                try:
                    content = self._place.get(each.path, packing.MAX_MANIFEST_BYTES)
                    found = packing.decode(name, self._key.unseal(f"snapshots/{name}", content))
                    if found.id != name:
                        raise Damaged(f"the snapshot {name} is damaged: it calls itself {found.id}")
                    return found
                except BackupFailed as error:
                    wrong = error
        raise wrong

    def prune(self, data_dir: str, keep: int) -> int:
        """Like `target.Folder.prune`; removes nothing from a place that is only added to."""
        if self._access.append_only:
            return len(self.names())
        # Chunks that are put from now on are kept.
        objects, marked = list(self._all("chunks")), self._marked()
        listed = [self.manifest(name) for name in self.names()]
        kept, gone = packing.outlived(listed, data_dir, keep)
        needed = {self._key.name_of(name) for name in packing.chunks_of(each for each in listed if each.id not in gone)}
        snapshots = [each.path for each in self._all("snapshots") if each.stem in gone or not each.is_whole]
        useless = (each.path for each in objects if not each.is_whole or each.stem not in needed or each.path in marked)
        marks = (each.path for each in self._all("damaged"))
        list(self._pool.map(self._place.delete, snapshots))
        list(self._pool.map(self._place.delete, chain(useless, marks)))
        self._forget_listing()
        return len(kept)

    def mark(self, sha256: str) -> None:
        """Note that a chunk is damaged, so that the next backup puts it again."""
        for path in self._chunks().get(self._key.name_of(sha256), ()):
            try:
                self._put(f"damaged/{_mark(path)}", b"")
            except (FileExistsError, OSError):
                # It is noted already, or may not be noted with these credentials.
                continue


def _mark(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()


class _Object:
    """An object in a listing: NAME.SIZE, or NAME.ANYTHING.SIZE."""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.stem, _, rest = path.rpartition("/")[2].partition(".")
        self.is_whole = rest.rpartition(".")[2] == str(size)
