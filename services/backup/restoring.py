"""A data directory from a backup: made whole and verified beside its place, and then put there by one rename."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from linckia.proto.backup import BackupFailed, File, Hold, Manifest, Program
from linckia.proto.durable import sync_folder
from linckia.proto.manifest import Keep
from linckia.proto.stores import Stores
from linckia.services.backup.target import Damaged, Target, opened


def restore(
    source: Path, data_dir: Path, program: Program, hold: Hold, *, at: str | None = None, replace: bool = False
) -> tuple[Manifest, Path | None]:
    """Make `data_dir` what the snapshot `at` (the beginning of its id; None: the newest) says.

    Args:
        hold: keeps kernels out of one that is there.
        replace: move one that is there aside; answered is where to.

    Raises BackupFailed: nothing was changed; OSError.
    """
    if not source.exists():
        raise BackupFailed(f"there is no backup {source}")
    with opened(source) as target, _free(data_dir, hold, replace=replace) as occupied:
        manifest = _chosen(target, at, program)
        with _beside(data_dir) as folder:
            _fill(target, manifest, folder, program.stores)
            aside = None
            if occupied:
                aside = data_dir.with_name(f"{data_dir.name}.replaced-{time.strftime('%Y%m%dT%H%M%S')}")
                data_dir.rename(aside)
            try:
                # An empty folder gives way to it; one that a kernel has just begun to use does not.
                folder.rename(data_dir)
            except OSError as error:
                if aside is not None:
                    aside.rename(data_dir)
                raise BackupFailed(
                    f"{data_dir} cannot be put in place ({error.strerror}): name a folder that is no mount point, and "
                    "that no kernel is being started in"
                ) from error
        sync_folder(data_dir.parent)
    return manifest, aside


@contextlib.contextmanager
def _free(data_dir: Path, hold: Hold, *, replace: bool) -> Iterator[bool]:
    """Keep kernels out of it; given is whether anything is there.  Raises BackupFailed."""
    if not data_dir.is_dir() or not os.listdir(data_dir):
        yield False
        return
    if not replace:
        raise BackupFailed(f"{data_dir} is not empty; name another with --data, or move it aside with --replace")
    with hold(data_dir):
        yield True


def _chosen(target: Target, at: str | None, program: Program) -> Manifest:
    names = [name for name in target.names() if at is None or name.startswith(at)]
    if not names:
        raise BackupFailed(f"there is no snapshot {at or ''} in {target.path}; see linckia backup --list {target.path}")
    if at is not None and len(names) > 1 and at not in names:
        raise BackupFailed(f"{at} stands for {len(names)} snapshots; write more of one: {', '.join(names)}")
    manifest = target.manifest(at if at in names else names[-1])
    if manifest.data_format > program.data_format:
        raise BackupFailed(
            f"the snapshot {manifest.id} was made by Linckia {manifest.version} (data format {manifest.data_format}); "
            f"this is {program.version}, which reads up to {program.data_format}: use that version or a newer one"
        )
    return manifest


@contextlib.contextmanager
def _beside(data_dir: Path) -> Iterator[Path]:
    """A new folder beside it; what earlier ones that were killed have left is removed."""
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


def _fill(target: Target, manifest: Manifest, folder: Path, stores: Stores) -> None:
    """Raises Damaged, OSError."""
    folders = []
    links = {file.path for file in manifest.files if file.link}
    if len({file.path for file in manifest.files}) < len(manifest.files):
        raise Damaged(f"the snapshot {manifest.id} names a file twice")
    for file in manifest.files:
        path, within = folder / file.path, Path(file.path)
        if within.is_absolute() or ".." in within.parts or not links.isdisjoint(map(str, within.parents)):
            raise Damaged(f"the snapshot {manifest.id} names a file outside of the data directory: {file.path}")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file.link:
            path.symlink_to(file.link)
        elif file.sha256 is None:
            path.mkdir(mode=0o700, exist_ok=True)
            folders.append((path, file))
        else:
            _write(target, file, path)
        if os.geteuid() == 0 and stores.keep_of(file.path) is Keep.ITEMS:
            # Files of the user's, and not of a service's user.
            os.chown(path, *file.owner, follow_symlinks=False)
    for path, file in reversed(folders):
        path.chmod(file.mode)
        sync_folder(path)
    sync_folder(folder)


def _write(target: Target, file: File, path: Path) -> None:
    whole = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as stream:
        for name in file.chunks:
            block = target.get(name)
            whole.update(block)
            stream.write(block)
        stream.flush()
        # Not to run as another user: it may be root's from now on.
        os.fchmod(descriptor, file.mode & 0o777)
        os.fsync(descriptor)
    if file.sha256 not in ("", whole.hexdigest()):
        raise Damaged(f"{file.path} is not what was backed up")
    os.utime(path, ns=(file.modified_ns, file.modified_ns))
