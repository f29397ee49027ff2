"""`linckia backup` and `restore`: work with or without a kernel, which takes no part in them."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from kernel.cli.care.data_format import program
from kernel.cli.care.exposure import require_out_of_reach
from kernel.cli.settings.layers import Flags, from_file
from kernel.cli.settings.loading import FILE_NAMES, load
from kernel.configure.config import BackupSettings, ConfigError, is_remote
from proto.backup import Access, BackupFailed, Hold, Made, Manifest, OnProgress, Program
from proto.control.address import AlreadyHeld, CannotHold, locked
from proto.control.commands import Failed, Usage
from proto.control.terminal import Bars, complain, counted, duration, say, show_answer, show_json, size
from proto.mounts import TABLE as MOUNTS
from proto.names import module

EXIT_INCOMPLETE = 4
"""Exit code if a backup was made but is incomplete; lines on stderr name the missing data."""

KEY: Final = "backup.key"
"""File in the data directory with the key of encrypted backups."""

KEEP_IT: Final = (
    "keep a copy of it away from this machine (`linckia backup --key` prints it). Without it, or a passphrase, nobody "
    "can read the backup once this disk is lost"
)


class Backups(Protocol):
    """The interface of `services.backup`, which is imported by name. Blocks. Raises BackupFailed, OSError."""

    def backup(
        self, data_dir: Path, to: str, program: Program, access: Access, keep: int | None = None, *,
        background: bool = False, on_progress: OnProgress | None = None,
    ) -> Made: ...  # fmt: skip

    def continuous(
        self, data_dir: Path, to: str, program: Program, access: Access, keep: int, every_s: float,
        is_wanted: Callable[[], bool],
    ) -> None: ...  # fmt: skip

    def restore(
        self, places: Sequence[str], data_dir: Path, program: Program, hold: Hold, access: Access, *,
        at: str | None = None, replace: bool = False,
    ) -> tuple[Manifest, Path | None, list[str]]: ...  # fmt: skip

    def snapshots(self, to: str, data_dir: Path, access: Access) -> list[Manifest | str]: ...

    def verify(
        self, to: str, data_dir: Path, access: Access, on_progress: OnProgress | None = None
    ) -> tuple[int, int, list[str]]: ...

    def key(self, data_dir: Path) -> str: ...


def _service() -> Backups:
    """Return the backup service, which is imported by name: only these commands load code of services."""
    return cast(Backups, importlib.import_module(module("services.backup")))


def backup(arguments: argparse.Namespace) -> int:
    """Make, list or verify backups, or print their key; return `EXIT_INCOMPLETE` if some data could not be copied.
    Raises Failed, Usage."""
    try:
        if arguments.key:
            return _print_key(arguments.data_dir)
        reads = arguments.list or arguments.verify
        settings = _settings(arguments)
        named = arguments.target or (settings and settings.to)
        if not named:
            raise Usage(
                "name a folder, FILE.tar, sftp://… or s3://… to back up to, or set `to` in [backup] of the settings"
            )
        to = _absolute(named)
        access = _access(arguments, settings if settings and settings.to == _real(to) else None)
        if arguments.keep is not None and arguments.keep < 1:
            raise Usage(f"--keep is {arguments.keep}; it must be 1 or more")
        if reads:
            return _list(to, arguments, access) if arguments.list else _verify(to, arguments, access)
        return _make(to, arguments, settings, access)
    except BackupFailed as error:
        raise Failed(str(error)) from None
    except OSError as error:
        raise Failed(_in_words(error)) from None


def _in_words(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)


def _make(to: str, arguments: argparse.Namespace, settings: BackupSettings | None, access: Access) -> int:
    served = _program(require_out_of_reach(None if is_remote(to) else Path(to), arguments, "the backup and its tokens"))
    # The number in the settings applies only to the destination in the settings.
    keep = arguments.keep or (settings.keep if settings and settings.to == _real(to) else None)
    if arguments.continuous:
        kernel = os.getppid()
        # It ends with the kernel that started it, however that ends.
        _service().continuous(
            arguments.data_dir, to, served, access, keep or 1, arguments.continuous, lambda: os.getppid() == kernel
        )
        return 0
    had_key = (arguments.data_dir / KEY).exists()
    with Bars("backing up", of_bytes=True) as show:
        made = _service().backup(
            arguments.data_dir, to, served, access, keep, background=arguments.background, on_progress=_shown(show)
        )
    for problem in made.problems:
        complain(problem)
    if arguments.json:
        show_json(msgspec.to_builtins(made))
    else:
        how = "verified" if made.verified else "encrypted; `--verify` reads it back"
        say(
            f"{made.snapshot}: {counted(made.stores, 'store')}, {counted(made.files, 'file')}, {size(made.size)}, "
            f"of which {size(made.new)} were added to {made.to}; {how}; writers waited {made.held_ms:.0f} ms"
        )
        if on_server := _on_server(arguments):
            say(f"{on_server} on the PostgreSQL server are not in it; pg_dump, or the server's own backup, has them")
    if not had_key and (arguments.data_dir / KEY).exists():
        complain(f"a key was made for this backup: {KEEP_IT}")
    return EXIT_INCOMPLETE if made.problems else 0


def _shown(show: Callable[[dict[str, Any]], None] | None) -> OnProgress | None:
    if show is None:
        return None
    return lambda done, total: show({"done": done, "total": total, "message": ""})


def _print_key(data_dir: Path) -> int:
    if not data_dir.is_dir():
        raise Failed(f"data directory {data_dir} does not exist")
    say(_service().key(data_dir))
    complain(f"this is the key of the encrypted backups of {data_dir}: {KEEP_IT}")
    return 0


def _verify(to: str, arguments: argparse.Namespace, access: Access) -> int:
    """Read all of a target; exit code 1 if something is damaged."""
    with Bars("reading") as show:
        count, chunks, problems = _service().verify(to, arguments.data_dir, access, _shown(show))
    for problem in problems:
        complain(problem)
    if arguments.json:
        show_json({"to": to, "snapshots": count, "chunks": chunks, "problems": problems})
    else:
        whole = "something is damaged" if problems else "everything is whole"
        say(f"{counted(count, 'snapshot')} with {counted(chunks, 'chunk')} in {to}: {whole}")
    return int(bool(problems))


def _absolute(named: str) -> str:
    return named if is_remote(named) else str(Path(named).expanduser().absolute())


def _real(to: str) -> str:
    return to if is_remote(to) else str(Path(to).resolve())


def _access(arguments: argparse.Namespace, settings: BackupSettings | None) -> Access:
    """Return how a target is used: as the command says, then as the settings say of this destination."""
    key, passphrase = arguments.key_file, arguments.passphrase_file or (settings and settings.passphrase_file)
    return Access(
        key_file=Path(key).expanduser() if key else None,
        passphrase_file=Path(passphrase).expanduser() if passphrase else None,
        endpoint=arguments.endpoint or (settings.endpoint if settings else ""),
        encrypt=getattr(arguments, "encrypt", False) or bool(settings and settings.encrypt),
        append_only=getattr(arguments, "append_only", False) or bool(settings and settings.append_only),
    )


def _on_server(arguments: argparse.Namespace) -> str:
    """Return what may be on a PostgreSQL server."""
    found = []
    with contextlib.suppress(ConfigError):
        config = load(Flags(data_dir=arguments.data), os.environ)
        if config.sources.store != "local":
            found.append("documents, conversations and memories")
        if config.services.get("retrieve", {}).get("dsn_env"):
            found.append("collections")
    return " and ".join(found)


def _program(packages: list[str]) -> Program:
    """Return the description of the data by a kernel with these external packages."""
    try:
        return program(packages)
    except ConfigError as error:
        complain(f"{error}: all files of the data directory are backed up")
        return program()


def restore(arguments: argparse.Namespace) -> int:
    """Restore a data directory. Raises Failed, Usage."""
    data_dir: Path = arguments.data_dir
    require_out_of_reach(data_dir, arguments, "the restored data and its tokens")
    settings = _settings(arguments)
    named = arguments.sources or ([settings.to] if settings else [])
    if not named:
        raise Usage("name the backup to restore: a folder, FILE.tar, sftp://… or s3://…")
    places = [*map(_absolute, named)]
    access = _access(arguments, settings if settings and settings.to in map(_real, places) else None)
    try:
        manifest, aside, remarks = _service().restore(
            places, data_dir, program(), without_kernel, access, at=arguments.at, replace=arguments.replace
        )
    except BackupFailed as error:
        raise Failed(f"{error}; nothing was changed") from None
    except OSError as error:
        raise Failed(_in_words(error)) from None
    for problem in remarks:
        complain(problem)
    for problem in manifest.problems:
        complain(f"in the backup: {problem}")
    if aside is not None:
        complain(f"the previous contents are now in {aside}")
    if servers := _mounted_servers(data_dir):
        complain(
            f"its settings have Linckia start other programs ([mcp.NAME]): {', '.join(servers)}; check them before the "
            "first start if somebody else made this backup"
        )
    say(
        f"{data_dir} is restored to its state at {_at(manifest)} ({manifest.id}): "
        f"{counted(len(manifest.files), 'file')}, {size(manifest.size)}, verified. "
        "Indexes are rebuilt when Linckia starts"
    )
    return 0


def _mounted_servers(data_dir: Path) -> list[str]:
    """Return the names of the servers that the settings in a data directory mount."""
    names: list[str] = []
    for path in map(data_dir.joinpath, FILE_NAMES):
        if path.is_file() and not path.is_symlink():
            with contextlib.suppress(ConfigError):
                tables = from_file(path).get(MOUNTS)
                names += map(str, tables) if isinstance(tables, dict) else ()
    return names


@contextlib.contextmanager
def without_kernel(data_dir: Path) -> Iterator[None]:
    try:
        with locked(data_dir, wait_s=0):
            yield
    except AlreadyHeld as error:
        raise BackupFailed(f"{error} Stop it before restoring") from None
    except CannotHold as error:
        raise BackupFailed(str(error)) from None


def _settings(arguments: argparse.Namespace) -> BackupSettings | None:
    try:
        return load(Flags(data_dir=arguments.data), os.environ).backup
    except ConfigError as error:
        if getattr(arguments, "target", None) or getattr(arguments, "sources", None):
            # A backup is needed most when something is wrong.
            return None
        raise Usage(str(error)) from None


def _at(manifest: Manifest) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.at))


def _list(to: str, arguments: argparse.Namespace, access: Access) -> int:
    """List the snapshots; exit code 1 if one cannot be read."""
    found = _service().snapshots(to, arguments.data_dir, access)
    there = [each for each in found if isinstance(each, Manifest)]
    for problem in found:
        if isinstance(problem, str):
            complain(problem)
    rows = [
        [each.id, _at(each), duration(max(0.0, time.time() - each.at)), size(each.size), each.version, each.data_dir]
        for each in there
    ]
    answer = [
        {"snapshot": each.id, "at": each.at, "version": each.version, "data_dir": each.data_dir, "size": each.size}
        | {"schemas": each.schemas, "problems": each.problems}
        for each in there
    ]
    show_answer(arguments.json, answer, ("SNAPSHOT", "MOMENT", "AGE", "SIZE", "VERSION", "DATA"), rows)
    return int(len(there) < len(found))
