"""Restores a data directory: it is built and verified next to its final place, then moved there with one rename."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from proto.backup import Access, BackupFailed, File, Hold, Manifest, Program
from proto.host.durable import sync_folder
from proto.manifest import Keep
from proto.stores import Stores
from services.backup.beneath import Tree
from services.backup.checking import check
from services.backup.packing import CHUNK_BYTES
from services.backup.places import Damaged, Lost
from services.backup.sources import Chosen, Sources


def restore(
    places: Sequence[str], data_dir: Path, program: Program, hold: Hold, access: Access, *, at: str | None = None,
    replace: bool = False,
) -> tuple[Manifest, Path | None, list[str]]:  # fmt: skip
    """Restore the snapshot `at` (a prefix of its id; None means the newest whole one) of any place to `data_dir`.

    Returns its manifest, where an existing data directory was moved, and what was wrong with the places.

    Args:
        hold: keeps kernels from using an existing data directory.
        replace: move an existing data directory aside.

    Raises BackupFailed if nothing was changed, and OSError.
    """
    with Sources(places, data_dir, access) as sources, _free(data_dir, hold, replace=replace) as occupied:
        for chosen in sources.chosen(at, program):
            with _beside(data_dir) as folder:
                try:
                    _fill(chosen, folder, program.stores)
                except (Damaged, Lost) as error:
                    sources.pass_over(error)
                    continue
                aside = _put_in_place(folder, data_dir, occupied=occupied)
            sync_folder(data_dir.parent)
            return chosen.manifest, aside, sources.remarks
    raise BackupFailed("; ".join(sources.remarks))


def _put_in_place(folder: Path, data_dir: Path, *, occupied: bool) -> Path | None:
    """Rename the restored folder. Returns where the existing one was moved. Raises BackupFailed."""
    aside = None
    if occupied:
        aside = data_dir.with_name(f"{data_dir.name}.replaced-{time.strftime('%Y%m%dT%H%M%S')}")
        data_dir.rename(aside)
    try:
        # This replaces an empty folder, but not one that a kernel has just started to use.
        folder.rename(data_dir)
    except OSError as error:
        if aside is not None:
            aside.rename(data_dir)
        raise BackupFailed(
            f"cannot move the restored data to {data_dir} ({error.strerror}): choose a folder that is not a "
            "mount point, and in which no kernel is starting"
        ) from error
    return aside


@contextlib.contextmanager
def _free(data_dir: Path, hold: Hold, *, replace: bool) -> Iterator[bool]:
    """Keep kernels out of the data directory. Yields whether it contains anything. Raises BackupFailed."""
    if not data_dir.is_dir() or not os.listdir(data_dir):
        yield False
        return
    if not replace:
        raise BackupFailed(f"{data_dir} is not empty; choose another one with --data, or move it aside with --replace")
    with hold(data_dir):
        yield True


@contextlib.contextmanager
def _beside(data_dir: Path) -> Iterator[Path]:
    """Create a folder next to the data directory, and remove those of earlier restores that were killed."""
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{data_dir.name}.restoring-"
    for left in data_dir.parent.glob(f"{prefix}*"):
        with contextlib.suppress(BlockingIOError), _alone(left):
            shutil.rmtree(left)
    folder = data_dir.parent / f"{prefix}{os.getpid()}"
    folder.mkdir(mode=0o700)
    with _alone(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _fill(chosen: Chosen, folder: Path, stores: Stores) -> None:
    """Write all files of a snapshot. Raises BackupFailed or OSError."""
    folders, manifest = [], chosen.manifest
    check(manifest, folder)
    # Those of all files, in their order, so that the next ones are read meanwhile.
    blocks = chosen.blocks()
    with Tree(folder) as tree:
        for file in manifest.files:
            if file.link:
                tree.make_link(file.path, file.link)
            elif file.sha256 is None:
                tree.make_folder(file.path)
                folders.append(file)
            else:
                _write(blocks, file, tree.create(file.path))
            if os.geteuid() == 0 and stores.keep_of(file.path) is Keep.ITEMS:
                # These files belong to the user, not to a service's user.
                tree.change_owner(file.path, file.owner)
        for file in reversed(folders):
            tree.finish_folder(file.path, file.mode)
    sync_folder(folder)


def _write(blocks: Iterator[bytes], file: File, descriptor: int) -> None:
    """Write the content of a new file, of exactly the promised size, and close it. Raises Damaged or OSError."""
    whole, left = hashlib.sha256(), file.size
    with open(descriptor, "wb") as stream:
        for _ in file.chunks:
            block = next(blocks)
            if len(block) != min(left, CHUNK_BYTES):
                raise Damaged(f"{file.path} does not have its size of {file.size} bytes")
            left -= len(block)
            whole.update(block)
            stream.write(block)
        if file.sha256 not in ("", whole.hexdigest()):
            raise Damaged(f"{file.path} differs from what was backed up")
        stream.flush()
        # Drop set-user-ID bits: the file may belong to root from now on.
        os.fchmod(descriptor, file.mode & 0o777)
        os.fsync(descriptor)
        os.utime(descriptor, ns=(file.modified_ns, file.modified_ns))
