"""`linckia doctor --repair`: repairs problems, and names the remedy for those it cannot repair.

Damaged derived databases are removed, so that their services rebuild them. Source databases are checked but never
changed. Everything except file modes requires that no kernel runs, since it might be using the files.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from kernel.cli.care import data_format
from kernel.cli.care.findings import Finding, Verdict
from proto.backup import known
from proto.control.address import CannotHold, locked
from proto.host.removal import remove
from proto.manifest import Keep
from proto.stores import LOGS, foreign, shown

SECRET = (
    "token",
    "tokens.json",
    "session.key",
    "mandates.key",
    "page.key",
    "services/transcripts/transcripts.db*",
    "linckia.toml",
    "history*.jsonl",
    "timeline.jsonl",
    "trends.jsonl",
    "mcp/*",
    "audit/*",
    "proxy/spool/*",
)
"""Files that only their owner may access."""

LEFT_BEHIND = (
    "kernel.sock", "*.new", "backup.staging/*", "services/*/tmp/*", "services/*/*.before-v*.part", "proxy/spool/*.part",
)  # fmt: skip
"""Leftovers of dead processes; nothing uses them once no kernel runs."""


def repaired(data_dir: Path) -> Iterator[Finding]:
    """Repair, and yield a finding for each problem."""
    if not data_dir.is_dir():
        return
    for path in sorted(each for pattern in SECRET for each in data_dir.glob(pattern)):
        if _closed(path):
            yield Finding("repair", Verdict.OK, f"{path} could be read by others; now only its owner can access it")
    try:
        with locked(data_dir, wait_s=0):
            yield from _left_behind(data_dir)
            for path in sorted(data_dir.glob("services/*/*.db")):
                yield from _database(data_dir, path)
            yield from _aside(data_dir)
    except CannotHold as error:
        yield Finding("repair", Verdict.NOTE, f"the stores were not checked: {error}", "linckia stop, then again")


def _closed(path: Path) -> bool:
    """Make a file private; return whether others had access. Links that a service may have made are left alone."""
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
    # A compromised service may have replaced its folder with a link.
    found = list(dict.fromkeys(each.parent if each.parent.is_symlink() else each for each in each_found))
    for path in found:
        remove(path)
    if found:
        names = ", ".join(shown(str(path.relative_to(data_dir))) for path in found[:5])
        more = f", and {len(found) - 5} more" if len(found) > 5 else ""
        yield Finding("repair", Verdict.OK, f"removed leftovers of dead processes: {names}{more}")


def _database(data_dir: Path, path: Path) -> Iterator[Finding]:
    name = shown(str(path.relative_to(data_dir)))
    if why := _not_its_own(path):
        yield Finding(
            name, Verdict.BAD, f"{name}{why}, possibly left by a compromised service; it was not opened",
            "inspect it and remove it",
        )  # fmt: skip
        return
    damage = damage_of(path)
    if not damage:
        return
    if _is_derived(name):
        for end in ("", *LOGS):
            path.with_name(path.name + end).unlink(missing_ok=True)
        yield Finding("repair", Verdict.OK, f"{name} was damaged ({damage}) and has been removed; it will be rebuilt")
        return
    yield Finding(
        name, Verdict.BAD, f"{path} is damaged ({damage}), and is not an index that can be rebuilt. Its readable part "
        "is served", _remedy(data_dir, path),
    )  # fmt: skip


def _not_its_own(path: Path) -> str:
    """Return which file of a database is foreign to its service, and why. SQLite opens and changes all of them."""
    owner = path.parent.lstat().st_uid
    for end in ("", *LOGS):
        with contextlib.suppress(FileNotFoundError):
            if why := foreign(path.with_name(path.name + end).lstat(), owner):
                return f"{end} {why}"
    return ""


def _is_derived(path: str) -> bool:
    return data_format.program().stores.keep_of(path) is Keep.DERIVED


def damage_of(path: Path) -> str:
    """Return what SQLite finds wrong with a database; "" if nothing."""
    real, flags = path.parent.resolve() / path.name, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
    try:
        with contextlib.closing(apsw.Connection(str(real), flags=flags)) as db:
            db.set_busy_timeout(5000)
            ((verdict,),) = db.execute("PRAGMA quick_check(1)").fetchall()
    except (apsw.CorruptError, apsw.NotADBError) as error:
        return str(error)
    except apsw.SQLError as error:
        # Its tables need a function that only the service defines.
        return "" if "no such" in str(error) else str(error)
    return "" if verdict == "ok" else str(verdict).strip()


def _remedy(data_dir: Path, path: Path) -> str:
    made = [each for each in known(data_dir).values() if each.succeeded]
    by_hand = f"save the readable part: sqlite3 {path} .recover | sqlite3 recovered.db"
    if not made:
        return by_hand
    newest = max(made, key=lambda each: each.succeeded or 0)
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(newest.succeeded))
    return f"linckia restore {newest.to} --at {newest.snapshot} --replace (of {at}), or {by_hand}"


def _aside(data_dir: Path) -> Iterator[Finding]:
    """Handle databases that services set aside as damaged."""
    for path in sorted(data_dir.glob("services/*/*.damaged-*")):
        name = shown(str(path.relative_to(data_dir)))
        if _is_derived(name.partition(".damaged-")[0]):
            remove(path)
            yield Finding("repair", Verdict.OK, f"removed {name}, which was set aside as damaged and rebuilt")
        else:
            leftover = f"{name} was set aside as damaged; its successor has everything that could be read"
            yield Finding("repair", Verdict.NOTE, leftover, "remove it once you have checked that nothing is missing")
