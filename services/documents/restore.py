"""Write stored contents to files: a single one, or those of a snapshot or collection below a directory.

Every folder is opened relative to its parent without following links, so neither a stored name nor a planted link can
lead outside. Files are written atomically, and everything is on disk at the end.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import apsw

from proto.errors import OperationError
from proto.suggestions import did_you_mean
from services.documents.operations.change import DocumentsRestore, Restored, RestoreResult
from services.documents.store import globs, objects, rows, snapshots
from services.documents.store.compress import DamagedContent
from services.documents.store.objects import Stored
from services.documents.store.snapshots import SnapshotEntry
from services.runtime.rewrite import open_below
from services.runtime.roots import OutsideRoots, Roots

MAX_NAMED = 1000
FSYNC_EACH = 64
"""With more files than this, one sync of everything is cheaper than one fsync per file."""
_EXISTS = "already exists"


def _of_snapshot(db: apsw.Connection, id_: str) -> tuple[str, list[SnapshotEntry]]:
    """Return the directory of a snapshot, and its entries."""
    snapshot = snapshots.find(db, id_)
    return snapshot.directory.rstrip("/") + "/", list(snapshots.entries(db, snapshot.id))


def _of_collection(db: apsw.Connection, name: str) -> tuple[str, list[SnapshotEntry]]:
    """Return the common base directory of a collection, and its entries.  Files keep their relative locations."""
    found = rows.conditions(collection=name)
    query = (
        "SELECT document.path, object.hash, document.modified_ns FROM document"
        f" JOIN object ON object.id = document.object{found.where} ORDER BY document.path"
    )
    listed = [SnapshotEntry(path, hash_, 0, 0, at_ns, 0) for path, hash_, at_ns in db.execute(query, found.values)]
    if not listed:
        near = did_you_mean(name, (each for (each,) in db.execute("SELECT name FROM collection LIMIT 5000")))
        raise OperationError(f"Collection not found: {name}{near}", field="collection")
    folders = [os.path.dirname(one.path) for one in listed if one.path.startswith("/")]
    return os.path.commonpath(folders).rstrip("/") + "/" if folders else "/", listed


def _wanted(db: apsw.Connection, params: DocumentsRestore) -> tuple[str, list[SnapshotEntry]]:
    """Return the base directory to strip, and the entries whose relative or absolute path matches the patterns."""
    if params.snapshot_id is not None:
        base, listed = _of_snapshot(db, params.snapshot_id)
    else:
        base, listed = _of_collection(db, str(params.collection))

    def relative(one: SnapshotEntry) -> str:
        return one.path.removeprefix(base).lstrip("/")

    # What is exactly the path or name of an entry is no pattern.
    known = {
        form for one in listed for form in (one.path, relative(one), "/" + relative(one), os.path.basename(one.path))
    }
    included, excluded = (
        globs.matcher([globs.literal(each) if each in known else each for each in patterns])
        for patterns in (params.include_patterns or ["*"], params.exclude_patterns)
    )

    def admits(one: SnapshotEntry) -> bool:
        paths = ("/" + relative(one), one.path)
        return any(map(included, paths)) and not any(map(excluded, paths))

    return base, [one for one in listed if admits(one)]


def restore(
    db: apsw.Connection, params: DocumentsRestore, target: Path, roots: Roots,
    progress: Callable[[int, int], None],
) -> RestoreResult:  # fmt: skip
    """Write the requested files below `target`.

    Raises:
        OperationError: the snapshot or collection does not exist.
        OSError: the directory itself cannot be created.
    """
    base, wanted = _wanted(db, params)
    if not params.dry_run:
        target.mkdir(parents=True, exist_ok=True)
    each = len(wanted) <= FSYNC_EACH
    written: set[str] = set()
    restored: list[Restored] = []
    skipped: list[Restored] = []
    size = 0
    for done, one in enumerate(wanted):
        if done % 64 == 0:
            progress(done, len(wanted))
        try:
            place, stored = _place(one.path.removeprefix(base)), objects.by_hash(db, one.hash)
            refusal = "" if place is None else roots.refusal(str(target / place), write=True)
            if place is None:
                reason = "its name leads outside the output directory"
            elif place in written:
                reason = "another document has the same path"
            elif stored is None:
                reason = "its content was deleted"
            elif params.dry_run:
                there = not params.overwrite and os.path.lexists(target / place)
                reason = refusal or (_EXISTS if there else "")
            else:
                write = partial(_write, db, stored, roots, target, place)
                reason = refusal or write(overwrite=params.overwrite, sync=each, like=one)
            if not reason and place is not None and stored is not None:
                written.add(place)
                size += stored.size
        except OSError as error:
            is_in_the_way = error.errno in (errno.ELOOP, errno.ENOTDIR)
            reason = "a link or file is in the way" if is_in_the_way else error.strerror or "cannot be written"
        except (OutsideRoots, DamagedContent) as error:
            why = str(error)
            reason = why if isinstance(error, OutsideRoots) else f"the stored content is damaged: {why}"
        (skipped if reason else restored).append(
            Restored(path=one.path.removeprefix(base), hash=one.hash.hex(), reason=reason)
        )
    if written and not params.dry_run:
        _sync(roots, target, {os.path.dirname(place) for place in written} if each else None)
    return RestoreResult(
        files_restored=len(restored), skipped=len(skipped), bytes_restored=size,
        files=[*skipped[::-1], *restored][:MAX_NAMED], output_directory=str(target), dry_run=params.dry_run,
    )  # fmt: skip


def _sync(roots: Roots, target: Path, folders: Iterable[str] | None) -> None:
    """Make the names in these folders durable; None: everything there is."""
    if folders is None:
        os.sync()
        return
    for folder in folders:
        with open_below(roots, str(target), folder) as descriptor:
            os.fsync(descriptor)


def _place(path: str) -> str | None:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return None if not parts or ".." in parts or "\0" in path else "/".join(parts)


def _write(
    db: apsw.Connection, stored: Stored, roots: Roots, target: Path, place: str, *,
    like: SnapshotEntry | None = None, overwrite: bool = True, sync: bool = True,
) -> str:  # fmt: skip
    """Write one file atomically.  Returns why it was skipped, or an empty string.

    Raises OSError, OutsideRoots, DamagedContent.
    """
    above, _, name = place.rpartition("/")
    temporary = f".linckia-new-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open_below(roots, str(target), above) as folder:
        if not overwrite:
            with suppress(FileNotFoundError):
                os.lstat(name, dir_fd=folder)
                return _EXISTS
        descriptor = os.open(temporary, flags, 0o644 if like is None else 0o600, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(objects.stream(db, stored))
                file.flush()
                if like is not None:
                    os.fchmod(descriptor, like.mode & 0o777 or 0o644)
                    os.utime(descriptor, ns=(like.modified_ns, like.modified_ns))
                if sync:
                    os.fsync(descriptor)
            if overwrite:
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            else:
                # Unlike a rename, a link never replaces an existing file.
                os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return _EXISTS
        finally:
            # It no longer exists after a rename.
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
    return ""


def copy_to(db: apsw.Connection, stored: Stored, target: Path, roots: Roots) -> None:
    """Write a content to a file atomically; it is on disk on return.  Raises OperationError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(db, stored, roots, target.parent, target.name)
        _sync(roots, target.parent, [""])
    except OSError as error:
        raise OperationError(f"{target} cannot be written: {error.strerror}", field="outputPath") from None
    except OutsideRoots as error:
        raise OperationError(str(error), field="outputPath") from None
    except DamagedContent as error:
        raise damage_error(db, error) from None


def damage_error(db: apsw.Connection, error: DamagedContent) -> Exception:
    """Return the exception for the caller who wanted this content.  Unreadable pages have the database's own."""
    if isinstance(error.__cause__, apsw.CorruptError):
        return error.__cause__
    return OperationError(
        f"the stored content is damaged: {error}. Restore {db.db_filename('main')} from a backup, or delete the"
        " document and add it again"
    )
