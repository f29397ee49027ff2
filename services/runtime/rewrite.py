"""Writes files for clients: a file is read whole, changed by a function and replaced whole, or created.

A client names the content that it means to replace by its hash (`if_match`). When a call returns, the change is on
disk; a kill at any time leaves the old file or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from proto.errors import LinckiaError, OperationError
from services.runtime import change_log, keyed
from services.runtime.change_log import Change
from services.runtime.replace import CannotReplace, ChangedMeanwhile, create_file, hold, replace_file
from services.runtime.roots import OutsideRoots, Roots, printable

MAX_BYTES = 64 * 1024 * 1024

_ATTEMPTS = 20
"""A program that writes to the file at every attempt to replace it is writing continuously."""


class TooLarge(Exception):
    """The file is too large to be read as one text."""


class Contended(Exception):
    """The file was not changed: others kept writing to it, or it may not be replaced."""


class Rewritten(NamedTuple):
    """A file's real path, and its content before and after.

    `links` counts its hard links; the other links keep the old content.
    """

    path: str
    before: bytes
    after: bytes
    links: int = 1


def content_hash(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal, which `if_match` is compared with."""
    return hashlib.sha256(data).hexdigest()


def check_match(data: bytes, if_match: str | None) -> None:
    """Raise OperationError if the client expects different content."""
    found = content_hash(data)
    if if_match is not None and if_match.strip().lower().removeprefix("sha256:") != found:
        raise OperationError(
            f"`if_match`: the file has changed: its hash is {found}, not {if_match[:80]}; read it again",
            field="if_match", data={"expected": if_match[:80], "found": found},
        )  # fmt: skip


def read_whole(path: str, roots: Roots, most: int = MAX_BYTES) -> bytes:
    """Return the bytes of a regular file. Raises OSError, OutsideRoots, Denied, TooLarge."""
    descriptor, status = roots.open(path)
    with open(descriptor, "rb") as file:
        return bounded(file, status.st_size, most)


def bounded(file: BinaryIO, size: int, most: int) -> bytes:
    """Return the whole content of an open file that had `size` bytes. Raises OSError, TooLarge."""
    if size > most:
        raise TooLarge(f"{size} bytes, more than the limit of {most}")
    data = file.read(size + 1)  # not `most`: the requested size is allocated first, 1 ms for 16 MiB
    if len(data) > size:
        data += file.read(most + 1 - len(data))
    if len(data) > most:
        raise TooLarge(f"grew beyond {most} bytes while it was read")
    return data


def rewrite(
    path: str, roots: Roots, change: Callable[[bytes], bytes], *, field: str = "path", if_match: str | None = None,
    dry_run: bool = False, replacing: Callable[[Rewritten], int | None] | None = None, most: int = MAX_BYTES,
    answer: Callable[[Rewritten], object] | None = None,
) -> Rewritten:  # fmt: skip
    """Replace the content of a regular file below the roots with `change` of it; blocks.

    A symbolic link is followed to its target, which must also be below the roots, and remains a link.

    Args:
        change: called again if another program changed the file meanwhile.
        replacing: called just before the file is replaced, while other edits wait, and again if that is retried;
            returns the id of the former content in the trash, if it is there.
        answer: returns the answer to the call being served, which is stored first if that has an idempotency key.

    Raises:
        Denied: the file may not be written; names the field.
        OSError, OutsideRoots, TooLarge, Contended: nothing was written.
        OperationError: `if_match` does not match; and whatever `change` raises.
    """
    for _ in range(_ATTEMPTS):
        real = os.path.realpath(path)
        # Checked first, so that no folder outside the roots is locked.
        before = read_whole(real, roots, most)
        roots.check(real, write=True, field=field)
        try:
            with contextlib.nullcontext() if dry_run else hold(Path(real)):
                before = before if dry_run else read_whole(real, roots, most)
                check_match(before, if_match)
                status = os.stat(real, follow_symlinks=False)
                done = Rewritten(real, before, change(before), status.st_nlink)
                if not dry_run and done.after != before:
                    kept = None if replacing is None else replacing(done)
                    written = Change(
                        "write", real, before=before, after=done.after, mode=stat.S_IMODE(status.st_mode), trash_id=kept
                    )
                    shape = None if answer is None else partial(answer, done)
                    with (
                        change_log.recorded([written]),
                        _keyed(done.path, before, done.after, shape) as intended,
                    ):
                        replace_file(Path(real), before, done.after, written=intended)
                return done
        except ChangedMeanwhile:
            continue
        except CannotReplace as error:
            raise Contended(str(error)) from None
    raise Contended(f"{printable(path)} is continuously written by other programs")


@contextlib.contextmanager
def _keyed(
    path: str, before: bytes | None, after: bytes, answer: Callable[[], object] | None
) -> Iterator[Callable[[], None]]:
    """Store the answer of a call with an idempotency key before the block changes the file.

    The block writes the new content meanwhile, and calls the given function before the content gets the file's name.
    """
    call = keyed.serving()
    if call is None or answer is None:
        yield _nothing
        return
    assert call.transaction is not None
    assert call.store is not None
    body = change_log.named(answer(), begins=True)
    intended = call.store(lambda db: keyed.intend(db, call, path, before, after, body))
    try:
        yield intended
    except BaseException:
        with contextlib.suppress(LinckiaError):
            intended()
        with call.transaction() as db:
            keyed.settle_own(db, call, done=False)
        raise


def _nothing() -> None:
    """Wait for nothing."""


def create(
    path: str, roots: Roots, content: bytes, *, field: str = "path", answer: Callable[[], object] | None = None
) -> None:
    """Create a file at a real path that does not exist, and its parent directories; blocks. `answer` is as in
    `rewrite`.

    Raises:
        Denied: the file may not be written; names the field.
        FileExistsError: the path exists.
        OSError, OutsideRoots, Contended: nothing was written.
    """
    root = roots.root_of(path)
    if root is None or not roots.holds(path):
        raise OutsideRoots(f"{printable(path)} is outside the roots: {', '.join(roots.reachable) or 'there are none'}")
    roots.check(path, write=True, field=field)
    above, name = os.path.split(path)
    made = [Change("folder", each) for each in missing_folders(above)]
    with (
        change_log.recorded(made),
        open_below(roots, root, os.path.relpath(above, root), sync=True) as folder,
    ):
        try:
            new = Change("create", path, after=content)
            with (
                hold(Path(path), is_new=True),
                change_log.recorded([new]),
                _keyed(path, None, content, answer) as intended,
            ):
                create_file(folder, name, content, written=intended)
        except CannotReplace as error:
            raise Contended(str(error)) from None


def missing_folders(path: str) -> list[str]:
    """Return the folders that have to be made so that there is one at a real path, the highest first."""
    missing: list[str] = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing[::-1]


@contextlib.contextmanager
def open_below(roots: Roots, top: str, path: str, *, sync: bool = False) -> Iterator[int]:
    """Open the folder at a path below another, creating missing ones (with `sync`, on disk). No link is followed.

    Raises OSError, OutsideRoots, Denied.
    """
    descriptor = roots.open_folder(top, write=True)
    try:
        for part in path.split("/"):
            if part in ("", "."):
                continue
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=descriptor)
                if sync:
                    os.fsync(descriptor)
            deeper = roots.open_folder(part, descriptor, write=True)
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def naming_errors(path: str, field: str = "path", roots: Roots | None = None) -> Iterator[None]:
    """Convert errors about a file to OperationErrors that name the file and the field. With `roots`, the error for a
    missing file also suggests similar names in its folder."""
    try:
        yield
    except LinckiaError:
        raise
    except FileNotFoundError:
        near = "" if roots is None else roots.similar(path)
        raise OperationError(f"`{field}`: File not found: {path[:1000]}{near}", field=field) from None
    except (OSError, TooLarge) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise OperationError(f"`{field}`: {path[:1000]}: {why}", field=field) from None
    except (OutsideRoots, Contended) as error:
        # The messages of these errors already name it.
        raise OperationError(f"`{field}`: {error}", field=field) from None
