"""Makes a backup: copies the pieces of a moment into a target, verifies them, and records the outcome."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from pathlib import Path

import msgspec

from proto import backup as outcomes
from proto.backup import Access, BackupFailed, File, Made, Manifest, OnProgress, Program
from services.backup.moment import Moment
from services.backup.packing import CHUNK_BYTES, FORMAT
from services.backup.piece import Piece, Unreadable
from services.backup.places import Damaged, is_remote
from services.backup.sealed import Sealed
from services.backup.target import Archive, Target, opened

_FULL = (errno.ENOSPC, errno.EDQUOT)


def backup(
    data_dir: Path, to: str, program: Program, access: Access, keep: int | None = None, *, background: bool = False,
    on_progress: OnProgress | None = None,
) -> Made:  # fmt: skip
    """Back up a data directory to a folder, an archive or a remote place, whether or not a kernel is using it.

    Args:
        keep: number of its snapshots to keep in the folder; None keeps all.
        background: lower the priority of this process for good, once writers are released.
        on_progress: called with the bytes read so far and in all.

    Raises BackupFailed: nothing was made, and earlier snapshots are unchanged.
    """
    began, to = time.time(), to if is_remote(to) else str(Path(to).resolve())
    before = outcomes.known(data_dir).get(to)
    if not data_dir.is_dir():
        raise BackupFailed(f"data directory {data_dir} does not exist")
    if not is_remote(to) and Path(to).is_relative_to(data_dir):
        raise BackupFailed(f"{to} is inside the data directory; choose a location outside it, best on another disk")
    try:
        with opened(to, data_dir, access, write=True) as target:
            last = before.snapshot if before else ""
            made = _made(data_dir, to, program, target, keep, last, background=background, on_progress=on_progress)
    except (BackupFailed, OSError) as error:
        _note(data_dir, to, began, before, error=(why := in_words(error, data_dir, to)))
        raise BackupFailed(why) from error
    except BaseException as error:
        _note(data_dir, to, began, before, error=f"interrupted ({type(error).__name__})")
        raise
    _note(data_dir, to, began, before, made=made)
    return made


def _made(
    data_dir: Path, to: str, program: Program, target: Target, keep: int | None, last: str, *, background: bool,
    on_progress: OnProgress | None,
) -> Made:  # fmt: skip
    with Moment(data_dir, program.stores) as moment:
        if background:
            # Not earlier, since writers were waiting.
            os.nice(10)
        taken = set() if isinstance(target, Archive) else set(target.names())
        # A name is never used again, even if somebody has removed its snapshot.
        name = new_name(moment.at, taken | {last})
        files: list[File] = []
        pieces = list(moment.pieces)
        done, total = 0, sum(piece.size for piece in pieces)
        for piece in pieces:
            if on_progress is not None:
                on_progress(done, total)
            done += piece.size
            try:
                files.append(copied(piece, target))
            except Unreadable as error:
                moment.left_out(piece.path, str(error))
        manifest = described(moment, program, data_dir, name, files)
        problems = manifest.problems
        target.commit(manifest)
        if isinstance(target, Sealed) and last and last not in taken:
            problems.append(f"the snapshot {last} is no longer in {to}: it was the latest, and was removed there")
        kept = 0
        if keep is not None:
            try:
                kept = target.prune(str(data_dir), keep)
            except (BackupFailed, OSError, msgspec.DecodeError) as error:
                problems.append(f"old snapshots were not removed: {error}")
        return Made(
            snapshot=name, to=to, at=moment.at, stores=len(moment.schemas), files=len(files),
            size=sum(file.size for file in files), new=target.new_bytes, held_ms=round(moment.held_s * 1000, 1),
            kept=kept or len(target.names()), verified=not isinstance(target, Sealed), problems=problems,
        )  # fmt: skip


def new_name(at: float, used: set[str]) -> str:
    """Return a name for the snapshot of a time."""
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
    return next(each for n in range(1, 10_000) if (each := name if n == 1 else f"{name}-{n:04}") not in used)


def described(moment: Moment, program: Program, data_dir: Path, name: str, files: list[File]) -> Manifest:
    """Return the manifest of a snapshot."""
    return Manifest(
        format=FORMAT, version=program.version, data_format=program.data_format, id=name, at=moment.at,
        data_dir=str(data_dir), schemas=moment.schemas, problems=moment.problems, files=files,
    )  # fmt: skip


def copied(piece: Piece, target: Target) -> File:
    """Put a piece's content into a target. Raises Unreadable, BackupFailed or OSError."""
    whole, size, chunks = hashlib.sha256(), 0, []
    for block in piece.blocks(CHUNK_BYTES):
        whole.update(block)
        size += len(block)
        chunks.append(target.put(block))
    status = piece.status
    sha256 = None if piece.source is None else "" if len(chunks) == 1 else whole.hexdigest()
    return File(
        path=piece.path, mode=stat.S_IMODE(status.st_mode), modified_ns=status.st_mtime_ns, size=size,
        sha256=sha256, chunks=tuple(chunks), link=piece.target,
        owner=(status.st_uid, status.st_gid),
    )  # fmt: skip


def _note(
    data_dir: Path, to: str, began: float, before: outcomes.Outcome | None, *, made: Made | None = None,
    error: str = "",
) -> None:  # fmt: skip
    outcome = msgspec.structs.replace(before or outcomes.Outcome(to=to, at=began), at=began, error=error)
    if made is not None:
        outcome = msgspec.structs.replace(outcome, succeeded=made.at, snapshot=made.snapshot, problems=made.problems)
    # A data directory that cannot be written is no reason for a backup to fail; the schedule knows about it anyway.
    with contextlib.suppress(OSError):
        outcomes.note(data_dir, outcome)


def in_words(error: Exception, data_dir: Path, to: str) -> str:
    """Return why no backup was made, for people."""
    if isinstance(error, OSError) and error.errno in _FULL and str(data_dir) in str(error.filename):
        return f"no space left in {data_dir}, where a backup needs some for file names: free some space"
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"no space left for the backup at {to}: free some, or choose another place; earlier snapshots are intact"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename and error.filename != to else ""
        return f"cannot back up to {to}: {where}{error.strerror or os.strerror(error.errno or 0)}"
    if isinstance(error, Damaged) and not is_remote(to):
        return f"{error}; try again, and if it happens again, choose another location: the disk of {to} may be failing"
    return str(error)
