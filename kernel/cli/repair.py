"""`linckia doctor --repair`: puts right what can be, and says of the rest which store it is and what to do.

Derived databases that are damaged are removed, for their services to make again.  Sources are looked at and never
touched.  All but the modes of files waits for a kernel to end: it may be about to use them.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from linckia.kernel import data_format
from linckia.kernel.cli.findings import Finding, Verdict
from linckia.proto.backup import known
from linckia.proto.control.address import CannotHold, locked
from linckia.proto.manifest import Keep
from linckia.proto.removal import remove
from linckia.proto.stores import LOGS, foreign, shown

SECRET = (
    "token",
    "tokens.json",
    "session.key",
    "mandates.key",
    "services/transcripts/transcripts.db*",
    "audit/*",
    "proxy/spool/*",
)
"""For their owner alone."""

LEFT_BEHIND = (
    "kernel.sock", "*.new", "backup.staging/*", "services/*/tmp/*", "services/*/*.before-v*.part", "proxy/spool/*.part",
)  # fmt: skip
"""By processes that died; nothing uses them once no kernel runs."""


def repaired(data_dir: Path) -> Iterator[Finding]:
    """What was done, and what could not be."""
    if not data_dir.is_dir():
        return
    for path in sorted(each for pattern in SECRET for each in data_dir.glob(pattern)):
        if _closed(path):
            yield Finding("repair", Verdict.OK, f"{path} is for its owner alone again; others could read it")
    try:
        with locked(data_dir, wait_s=0):
            yield from _left_behind(data_dir)
            for path in sorted(data_dir.glob("services/*/*.db")):
                yield from _database(data_dir, path)
            yield from _aside(data_dir)
    except CannotHold as error:
        yield Finding("repair", Verdict.NOTE, f"the stores were not looked at: {error}", "linckia stop, then again")


def _closed(path: Path) -> bool:
    """Whether others could read it, and now cannot.  What a service may have linked there stays as it is."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_mode & 0o077 and not foreign(status, path.parent.lstat().st_uid):
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & 0o700)
                return True
        finally:
            os.close(descriptor)
    return False


def _left_behind(data_dir: Path) -> Iterator[Finding]:
    each_found = (each for pattern in LEFT_BEHIND for each in data_dir.glob(pattern))
    # A service that was taken over may have put a link in the place of its folder.
    found = list(dict.fromkeys(each.parent if each.parent.is_symlink() else each for each in each_found))
    for path in found:
        remove(path)
    if found:
        names = ", ".join(shown(str(path.relative_to(data_dir))) for path in found[:5])
        more = f", and {len(found) - 5} more" if len(found) > 5 else ""
        yield Finding("repair", Verdict.OK, f"removed what dead processes left: {names}{more}")


def _database(data_dir: Path, path: Path) -> Iterator[Finding]:
    name = shown(str(path.relative_to(data_dir)))
    if why := _not_its_own(path):
        yield Finding(
            name, Verdict.BAD, f"{name}{why}, as a service that was taken over may leave it; it was not opened",
            "look what it is and remove it",
        )  # fmt: skip
        return
    damage = damage_of(path)
    if not damage:
        return
    if _is_derived(name):
        for end in ("", *LOGS):
            path.with_name(path.name + end).unlink(missing_ok=True)
        yield Finding("repair", Verdict.OK, f"{name} was damaged ({damage}) and is removed; it is made again")
        return
    yield Finding(
        name, Verdict.BAD, f"{path} is damaged ({damage}), and no index: it cannot be made again. What can be read of "
        "it is served", _remedy(data_dir, path),
    )  # fmt: skip


def _not_its_own(path: Path) -> str:
    """Which file of a database is not its service's alone, and why.  SQLite opens and changes all of them by name."""
    owner = path.parent.lstat().st_uid
    for end in ("", *LOGS):
        with contextlib.suppress(FileNotFoundError):
            if why := foreign(path.with_name(path.name + end).lstat(), owner):
                return f"{end} {why}"
    return ""


def _is_derived(path: str) -> bool:
    return data_format.program().stores.keep_of(path) is Keep.DERIVED


def damage_of(path: Path) -> str:
    """What SQLite finds wrong with a database; empty where that is nothing."""
    real, flags = path.parent.resolve() / path.name, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
    try:
        with contextlib.closing(apsw.Connection(str(real), flags=flags)) as db:
            db.set_busy_timeout(5000)
            ((verdict,),) = db.execute("PRAGMA quick_check(1)").fetchall()
    except (apsw.CorruptError, apsw.NotADBError) as error:
        return str(error)
    except apsw.SQLError as error:
        # Its tables need a function that only the service has.
        return "" if "no such" in str(error) else str(error)
    return "" if verdict == "ok" else str(verdict).strip()


def _remedy(data_dir: Path, path: Path) -> str:
    made = [each for each in known(data_dir).values() if each.succeeded]
    by_hand = f"save what can be read: sqlite3 {path} .recover | sqlite3 recovered.db"
    if not made:
        return by_hand
    newest = max(made, key=lambda each: each.succeeded or 0)
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(newest.succeeded))
    return f"linckia restore-backup {newest.to} --at {newest.snapshot} --replace (of {at}), or {by_hand}"


def _aside(data_dir: Path) -> Iterator[Finding]:
    """What services have put aside as damaged."""
    for path in sorted(data_dir.glob("services/*/*.damaged-*")):
        name = shown(str(path.relative_to(data_dir)))
        if _is_derived(name.partition(".damaged-")[0]):
            remove(path)
            yield Finding("repair", Verdict.OK, f"removed {name}, which was put aside as damaged and made again")
        else:
            kept = f"{name} was put aside as damaged; what could be read of it is in its successor"
            yield Finding("repair", Verdict.NOTE, kept, "remove it once you miss nothing")
