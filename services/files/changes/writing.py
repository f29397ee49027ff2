"""Writes files with the index updated to match, and their previous content kept in the trash.

Like every change on disk, a write is recorded before it begins, so that the next start can complete it after a crash.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import astuple

from proto.errors import LinckiaError
from services.files import paths
from services.files.changes import disk
from services.files.changes.following import Follow
from services.files.index.tree import Tree
from services.files.paths import FileRoots
from services.files.store import schema
from services.files.store.database import Note, remove_note, write_note
from services.runtime import keyed, rewrite
from services.runtime.change_log import named
from services.runtime.replace import create_file
from services.runtime.rewrite import Rewritten


@dataclass(slots=True)
class _Noted:
    path: str
    intent: int
    trash_id: int | None


class Writing:
    """Writes files; blocks. Writes to different files may be concurrent; writes to the same file are serialized."""

    def __init__(self, tree: Tree, roots: FileRoots, data_dir: Path, defer: Callable[[int], None]) -> None:
        """Create a writer.

        Args:
            owe: called for a recorded change that the index could not follow.
        """
        self._defer = defer
        self._database = tree.database
        self._roots = roots
        self._follow = Follow(tree)
        self._trash = data_dir / "trash"

    def rewrite(
        self, path: str, change: Callable[[bytes], bytes], *, if_match: str | None, dry_run: bool = False,
        keep: bool = False, answer: Callable[[Rewritten, int | None], object],
    ) -> tuple[Rewritten, int | None]:  # fmt: skip
        """Change the file at a clean path with `runtime.rewrite`, and raise the same errors. With `keep`, its previous
        content goes to the trash, and the trash id is returned. `answer` makes the answer to the call of both."""
        noted: _Noted | None = None

        def replacing(done: Rewritten) -> int | None:
            nonlocal noted
            if noted is not None:
                self._undo(noted)
            kind = "trash" if keep else "edit"
            answered = partial(answer, done)
            noted = self._begin(paths.to_text(done.path), kind, done.path, done.before, done.after, answered)
            if noted.trash_id is not None:
                self._put_into_trash(noted.trash_id, done)
            return noted.trash_id

        try:
            done = rewrite.rewrite(
                paths.to_os(path), self._roots.all, change, if_match=if_match, dry_run=dry_run, replacing=replacing
            )
        except BaseException:
            if noted is not None:
                self._undo(noted)
            raise
        if noted is not None:
            self._finish(noted, [noted.path])
        return done, None if noted is None else noted.trash_id

    def create(self, path: str, content: bytes, answer: Callable[[], object]) -> None:
        """Create a file, and missing parent directories, at a clean real path where nothing exists. Raises the same
        errors as `runtime.rewrite.create`."""
        made = [each for each in _down_to(path) if not os.path.lexists(paths.to_os(each))] or [path]
        real = paths.to_os(path)
        noted = self._begin(made[0], "edit", real, None, content, lambda trash_id: answer())
        try:
            rewrite.create(real, self._roots.all, content)
        except BaseException:
            # Directories may have been created.
            self._finish(noted, made, done=False)
            raise
        self._finish(noted, made)

    def _begin(
        self, path: str, kind: str, file: str, before: bytes | None, after: bytes,
        answer: Callable[[int | None], object],
    ) -> _Noted:  # fmt: skip
        """Record a change at `path`, which makes `file` have the content `after`."""
        trash_id = None
        note = Note(path, schema.FILE, len(before or b""), time.time_ns())
        with self._database.transaction() as db:
            if kind == "trash":
                db.execute("INSERT INTO trash(path, kind, size, deleted) VALUES(?,?,?,?)", astuple(note))
                trash_id = db.last_insert_rowid()
            # No inode is stored: it identifies something moved, and this is not a move.
            db.execute(
                "INSERT INTO intent(kind, source, target, inode, device, trash_id) VALUES(?,?,NULL,0,0,?)",
                (kind, path, trash_id),
            )
            noted = _Noted(path, db.last_insert_rowid(), trash_id)
            if (call := keyed.serving()) is not None:
                keyed.intend(db, call, file, before, after, named(answer(trash_id), begins=True))
        if trash_id is not None:
            self._trash.mkdir(mode=0o700, exist_ok=True)
            write_note(self._trash, trash_id, note)
        return noted

    def _put_into_trash(self, trash_id: int, done: Rewritten) -> None:
        status = os.stat(done.path, follow_symlinks=False)
        with disk.open_at(str(self._trash), disk.O_READ_FOLDER) as folder:
            create_file(folder, str(trash_id), done.before)
            with disk.open_at(str(trash_id), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, folder) as kept:
                with contextlib.suppress(PermissionError):
                    os.fchown(kept, status.st_uid, status.st_gid)
                os.fchmod(kept, stat.S_IMODE(status.st_mode))

    def _finish(self, noted: _Noted, made: Sequence[str], *, done: bool = True) -> None:
        """Update the index after a write, from the first directory that was created downwards. If the index has no room
        now, it follows later: a successful write must not be reported as failed."""
        try:
            with self._database.transaction() as db:
                for path in made:
                    self._follow.seen(db, path)
                db.execute("DELETE FROM intent WHERE id = ?", (noted.intent,))
                if (call := keyed.serving()) is not None:
                    keyed.settle_own(db, call, done=done)
        except LinckiaError:
            self._defer(noted.intent)

    def _undo(self, noted: _Noted) -> None:
        """Discard the record of a file that was not written."""
        if noted.trash_id is not None:
            (self._trash / str(noted.trash_id)).unlink(missing_ok=True)
        try:
            with self._database.transaction() as db:
                if noted.trash_id is not None:
                    db.execute("DELETE FROM trash WHERE id = ?", (noted.trash_id,))
                    remove_note(self._trash, noted.trash_id)
                db.execute("DELETE FROM intent WHERE id = ?", (noted.intent,))
                if (call := keyed.serving()) is not None:
                    keyed.settle_own(db, call, done=False)
        except LinckiaError:
            self._defer(noted.intent)


def _down_to(path: str) -> list[str]:
    """Return the directories above a clean path, the highest first, and the path itself."""
    return [*reversed(list(paths.ancestors(path))), path]
