"""Writing the files of a snapshot or of a collection below one directory, and nowhere else.

Every folder on the way is opened from the one above without following a link, so that neither a stored name nor a
link that was put there leads out.  A file is there whole or not at all; all of it is on disk at the end.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from proto.errors import OperationError
from proto.ops.documents.change import DocumentsRestore, Restored, RestoreResult
from services.documents.store import globs, objects, rows, snapshots
from services.documents.store.compress import Codec, DamagedContent

MAX_NAMED = 1000
FSYNC_EACH = 64
"""With more files than this, one flush of everything is cheaper than one for each."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to be restored: its path below the directory, and the document's own for messages and patterns."""

    path: str
    origin: str
    hash: bytes
    modified_ns: int
    mode: int


@dataclass(slots=True)
class Outcome:
    """What was done."""

    restored: int = 0
    skipped: int = 0
    bytes: int = 0
    files: list[Restored] = field(default_factory=list)

    def add(self, wanted: Wanted, reason: str) -> None:
        one = Restored(path=wanted.path, hash=wanted.hash.hex(), reason=reason)
        if reason:
            self.skipped += 1
            self.files.insert(0, one)
        else:
            self.restored += 1
            self.files.append(one)
        del self.files[MAX_NAMED:]


def of_snapshot(db: apsw.Connection, id_: str, directory: str) -> list[Wanted]:
    """The files of a snapshot."""
    base = directory.rstrip("/") + "/"
    return [
        Wanted(one.path.removeprefix(base), one.path, one.hash, one.modified_ns, one.mode & 0o777)
        for one in snapshots.entries(db, id_)
    ]


def of_collection(db: apsw.Connection, name: str) -> list[Wanted]:
    """The files of a collection; those that came from files keep their places relative to one another."""
    found = rows.conditions(collection=name)
    where = found.where
    listed = db.execute(
        "SELECT document.path, object.hash, document.modified_ns FROM document"
        f" JOIN object ON object.id = document.object{where} ORDER BY document.path",
        found.values,
    ).fetchall()
    folders = [os.path.dirname(str(path)) for path, _, _ in listed if str(path).startswith("/")]
    base = os.path.commonpath(folders).rstrip("/") + "/" if folders else "/"
    wanted: list[Wanted] = []
    for path, hash_, modified_ns in listed:
        assert isinstance(hash_, bytes)
        assert isinstance(modified_ns, int)
        wanted.append(Wanted(str(path).removeprefix(base), str(path), hash_, modified_ns, 0o644))
    return wanted


def matching(wanted: Sequence[Wanted], include: Sequence[str], exclude: Sequence[str]) -> list[Wanted]:
    """Those whose path, below the directory or where it came from, matches."""
    included = globs.matcher(include) if include else None
    excluded = globs.matcher(exclude) if exclude else None

    def admits(one: Wanted) -> bool:
        paths = ("/" + one.path.lstrip("/"), one.origin)
        return (included is None or any(map(included, paths))) and not (excluded and any(map(excluded, paths)))

    return [one for one in wanted if admits(one)]


def restored(
    db: apsw.Connection, codec: Codec, params: DocumentsRestore, target: Path, progress: Callable[[int, int], None]
) -> RestoreResult:
    """Write what `params` asks for below `target`.

    Raises:
        OperationError: there is no such snapshot or collection.
        OSError: the directory itself cannot be made.
    """
    if params.snapshot_id is not None:
        snapshot = snapshots.find(db, params.snapshot_id)
        if snapshot is None:
            raise OperationError(f"Snapshot not found: {params.snapshot_id}", field="snapshot_id")
        wanted = of_snapshot(db, snapshot.id, snapshot.directory)
    else:
        assert params.collection is not None
        wanted = of_collection(db, params.collection)
        if not wanted:
            raise OperationError(f"Collection not found: {params.collection}", field="collection")
    wanted = matching(wanted, params.include_patterns, params.exclude_patterns)
    outcome = restore(
        db, codec, wanted, target, overwrite=params.overwrite, dry_run=params.dry_run,
        progress=lambda done: progress(done, len(wanted)),
    )  # fmt: skip
    return RestoreResult(
        files_restored=outcome.restored,
        skipped=outcome.skipped,
        bytes_restored=outcome.bytes,
        files=outcome.files,
        output_directory=str(target),
        dry_run=params.dry_run,
    )


def restore(
    db: apsw.Connection,
    codec: Codec,
    wanted: Sequence[Wanted],
    target: Path,
    *,
    overwrite: bool,
    dry_run: bool,
    progress: Callable[[int], None],
) -> Outcome:
    """Write the files.  Raises OSError: the directory itself cannot be made."""
    outcome = Outcome()
    if not dry_run:
        target.mkdir(parents=True, exist_ok=True)
    elif not target.is_dir():
        target = Path("/nonexistent")
    each = len(wanted) <= FSYNC_EACH
    written: set[str] = set()
    touched: set[str] = set()

    def one_file(one: Wanted, parts: Sequence[str] | None) -> str:
        """Answers why it is skipped, or nothing."""
        if parts is None:
            return "its name leads out of the output directory"
        place = "/".join(parts)
        if place in written:
            return "another document has the same place"
        stored = objects.by_hash(db, one.hash)
        if stored is None:
            return "its content was deleted"
        if dry_run:
            reason = "" if overwrite or not _is_there(target, parts) else "exists already"
        else:
            reason = _write(db, codec, stored, one, target, parts, overwrite=overwrite, sync=each)
            touched.add("/".join(parts[:-1]))
        if not reason:
            written.add(place)
            outcome.bytes += stored.size
        return reason

    for done, one in enumerate(wanted):
        if done % 64 == 0:
            progress(done)
        try:
            reason = one_file(one, _parts(one.path))
        except OSError as error:
            is_in_the_way = error.errno in (errno.ELOOP, errno.ENOTDIR)
            reason = "a link or a file stands in the way" if is_in_the_way else error.strerror or "cannot be written"
        except DamagedContent as error:
            reason = f"the stored content is damaged: {error}"
        outcome.add(one, reason)
    if not dry_run and outcome.restored:
        _sync(target, touched if each else None)
    return outcome


def _sync(target: Path, folders: Iterable[str] | None) -> None:
    """Make the names in these folders durable; None: everything there is."""
    if folders is None:
        os.sync()
        return
    for folder in folders:
        with _folder(target, folder.split("/") if folder else []) as descriptor:
            os.fsync(descriptor)


def _parts(path: str) -> list[str] | None:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or any("\0" in part for part in parts):
        return None
    return parts


def _is_there(target: Path, parts: Sequence[str]) -> bool:
    return os.path.lexists(target.joinpath(*parts))


@contextmanager
def _folder(target: Path, parts: Sequence[str]) -> Iterator[int]:
    """The folder below the target, made where it is missing; no link is followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(target, flags)
    try:
        for part in parts:
            try:
                deeper = os.open(part, flags, dir_fd=descriptor)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=descriptor)
                deeper = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


def _write(
    db: apsw.Connection,
    codec: Codec,
    stored: objects.Stored,
    one: Wanted,
    target: Path,
    parts: Sequence[str],
    *,
    overwrite: bool,
    sync: bool,
) -> str:
    """Write one file; answers why not, or nothing.  Raises OSError, DamagedContent."""
    with _folder(target, parts[:-1]) as folder:
        name = parts[-1]
        if not overwrite:
            try:
                os.lstat(name, dir_fd=folder)
            except FileNotFoundError:
                pass
            else:
                return "exists already"
        temporary = f".linckia-new-{secrets.token_hex(8)}"
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in objects.stream(db, codec, stored):
                    file.write(piece)
                file.flush()
                os.fchmod(descriptor, one.mode or 0o644)
                os.utime(descriptor, ns=(one.modified_ns, one.modified_ns))
                if sync:
                    os.fsync(descriptor)
            if overwrite:
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                return ""
            # Unlike a rename, this never replaces what somebody put there a moment ago.
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return "exists already"
        finally:
            # After a rename there is none.
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
    return ""
