"""Writing stored contents to files: one, or those of a snapshot or of a collection below a directory and nowhere else.

Every folder on the way is opened from the one above without following a link, so that neither a stored name nor a
link that was put there leads out.  A file is there whole or not at all; all of it is on disk at the end.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import apsw

from proto.errors import OperationError
from proto.near import did_you_mean
from proto.ops.documents.change import DocumentsRestore, Restored, RestoreResult
from services.documents.store import globs, objects, rows, snapshots
from services.documents.store.compress import Codec, DamagedContent
from services.documents.store.objects import Stored
from services.runtime.rewrite import open_below
from services.runtime.roots import OutsideRoots, Roots

MAX_NAMED = 1000
FSYNC_EACH = 64
"""With more files than this, one flush of everything is cheaper than one for each."""
_EXISTS = "exists already"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A file to be restored: its path below the directory, and the document's own for messages and patterns."""

    path: str
    origin: str
    hash: bytes
    modified_ns: int
    mode: int


def _of_snapshot(db: apsw.Connection, id_: str) -> list[_Wanted]:
    snapshot = snapshots.find(db, id_)
    base = snapshot.directory.rstrip("/") + "/"
    return [
        _Wanted(one.path.removeprefix(base), one.path, one.hash, one.modified_ns, one.mode & 0o777)
        for one in snapshots.entries(db, snapshot.id)
    ]


def _of_collection(db: apsw.Connection, name: str) -> list[_Wanted]:
    """Those that came from files keep their places relative to one another."""
    found = rows.conditions(collection=name)
    query = (
        "SELECT document.path, object.hash, document.modified_ns FROM document"
        f" JOIN object ON object.id = document.object{found.where} ORDER BY document.path"
    )
    listed: list[tuple[str, bytes, int]] = list(db.execute(query, found.values))
    if not listed:
        near = did_you_mean(name, (each for (each,) in db.execute("SELECT name FROM collection LIMIT 5000")))
        raise OperationError(f"Collection not found: {name}{near}", field="collection")
    folders = [os.path.dirname(path) for path, _, _ in listed if path.startswith("/")]
    base = os.path.commonpath(folders).rstrip("/") + "/" if folders else "/"
    return [_Wanted(path.removeprefix(base), path, hash_, at_ns, 0o644) for path, hash_, at_ns in listed]


def _matching(wanted: Sequence[_Wanted], include: Sequence[str], exclude: Sequence[str]) -> list[_Wanted]:
    """Those whose path, below the directory or where it came from, matches."""
    included = globs.matcher(include or ["*"])
    excluded = globs.matcher(exclude)

    def admits(one: _Wanted) -> bool:
        paths = ("/" + one.path.lstrip("/"), one.origin)
        return any(map(included, paths)) and not any(map(excluded, paths))

    return [one for one in wanted if admits(one)]


def restore(
    db: apsw.Connection, codec: Codec, params: DocumentsRestore, target: Path, roots: Roots,
    progress: Callable[[int, int], None],
) -> RestoreResult:  # fmt: skip
    """Write what `params` asks for below `target`.

    Raises:
        OperationError: there is no such snapshot or collection.
        OSError: the directory itself cannot be made.
    """
    if params.snapshot_id is not None:
        wanted = _of_snapshot(db, params.snapshot_id)
    else:
        assert params.collection is not None
        wanted = _of_collection(db, params.collection)
    wanted = _matching(wanted, params.include_patterns, params.exclude_patterns)
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
            place, stored = _place(one.path), objects.by_hash(db, one.hash)
            refusal = "" if place is None else roots.refusal(str(target / place), write=True)
            if place is None:
                reason = "its name leads out of the output directory"
            elif place in written:
                reason = "another document has the same place"
            elif stored is None:
                reason = "its content was deleted"
            elif params.dry_run:
                there = not params.overwrite and os.path.lexists(target / place)
                reason = refusal or (_EXISTS if there else "")
            else:
                overwrite = params.overwrite
                reason = refusal or _write(db, codec, stored, one, roots, target, place, overwrite=overwrite, sync=each)
            if not reason and place is not None and stored is not None:
                written.add(place)
                size += stored.size
        except OSError as error:
            is_in_the_way = error.errno in (errno.ELOOP, errno.ENOTDIR)
            reason = "a link or a file stands in the way" if is_in_the_way else error.strerror or "cannot be written"
        except (OutsideRoots, DamagedContent) as error:
            why = str(error)
            reason = why if isinstance(error, OutsideRoots) else f"the stored content is damaged: {why}"
        (skipped if reason else restored).append(Restored(path=one.path, hash=one.hash.hex(), reason=reason))
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
    db: apsw.Connection, codec: Codec, stored: Stored, one: _Wanted, roots: Roots, target: Path, place: str, *,
    overwrite: bool, sync: bool,
) -> str:  # fmt: skip
    """Write one file; answers why not, or nothing.  Raises OSError, OutsideRoots, DamagedContent."""
    above, _, name = place.rpartition("/")
    with open_below(roots, str(target), above) as folder:
        if not overwrite:
            with suppress(FileNotFoundError):
                os.lstat(name, dir_fd=folder)
                return _EXISTS
        temporary = f".linckia-new-{secrets.token_hex(8)}"
        try:
            _write_new(db, codec, stored, temporary, folder, wanted=one, sync=sync)
            if overwrite:
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            else:
                # Unlike a rename, this never replaces what somebody put there a moment ago.
                os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return _EXISTS
        finally:
            # After a rename there is none.
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
    return ""


def copy_to(db: apsw.Connection, codec: Codec, stored: Stored, target: Path, roots: Roots) -> None:
    """Write the content to a file, whole or not at all; once this returns it is on disk.

    Raises:
        OperationError: it cannot be written, or is damaged.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_below(roots, str(target.parent), "") as folder:
            temporary = f".linckia-new-{secrets.token_hex(8)}"
            try:
                _write_new(db, codec, stored, temporary, folder)
                os.rename(temporary, target.name, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
            os.fsync(folder)
    except OSError as error:
        raise OperationError(f"{target} cannot be written: {error.strerror}", field="outputPath") from None
    except OutsideRoots as error:
        raise OperationError(str(error), field="outputPath") from None
    except DamagedContent as error:
        raise told(db, error) from None


def _write_new(
    db: apsw.Connection, codec: Codec, stored: Stored, path: str, folder: int, *,
    wanted: _Wanted | None = None, sync: bool = True,
) -> None:  # fmt: skip
    """Write a content to a file that is not there.  Raises OSError, DamagedContent."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644 if wanted is None else 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(objects.stream(db, codec, stored))
        file.flush()
        if wanted is not None:
            os.fchmod(descriptor, wanted.mode or 0o644)
            os.utime(descriptor, ns=(wanted.modified_ns, wanted.modified_ns))
        if sync:
            os.fsync(descriptor)


def told(db: apsw.Connection, error: DamagedContent) -> Exception:
    """What the caller of one content is told; of a page that cannot be read, the database tells."""
    if isinstance(error.__cause__, apsw.CorruptError):
        return error.__cause__
    return OperationError(
        f"the stored content is damaged: {error}. Put a copy of {db.db_filename('main')} back that was made before, or"
        " delete the document and add it again"
    )
