"""The files of the registry: `NAME.json` has the approved and the latest definitions of a mount.

A change is on disk when a function returns; a kill at any time leaves the old file or the new one. A damaged file is
kept as `NAME.json.damaged`, and `status` names it. If its mount is pinned, nothing is offered until somebody approves,
because the approved definitions are lost.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from proto.host.durable import replace_file, sync_folder
from proto.mounts import Definitions, Flag, is_name
from services.mounts.offers.canonical import Parsed, checked, needs_approval, version_of
from services.mounts.offers.flags import flags_of
from services.mounts.offers.shown import shown
from services.runtime.storage import disk_full

_SUFFIX, _DAMAGED = ".json", ".json.damaged"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A file's content."""

    pin: bool = False
    latest: Definitions
    latest_flags: list[Flag] = []
    """Flags for dropped entries, which are not kept themselves."""
    approved: Definitions | None = None
    """None: the latest ones are approved."""


class Kept:
    """A mount's definitions, approved and latest; immutable."""

    def __init__(self, latest: Parsed, approved: Parsed, *, pin: bool) -> None:
        self.needs_approval = latest is not approved and needs_approval(approved, latest)
        self.latest, self.pin = latest, pin
        self.approved = approved if self.needs_approval else latest
        self.held_back = pin and self.needs_approval
        self.seen = approved if self.held_back else latest
        """The definitions that are offered."""
        self.shown = shown(self.seen)
        """What clients see of them."""
        self.version = version_of(self.seen)
        self.flags = flags_of(self.seen)
        self.latest_flags = self.flags if self.seen is latest else flags_of(latest)

    def encoded(self) -> bytes:
        """Return the content of its file."""
        approved = self.approved.definitions if self.needs_approval else None
        dropped = self.latest.flags
        return msgspec.json.encode(
            Record(pin=self.pin, latest=self.latest.definitions, latest_flags=dropped, approved=approved)
        )


def decoded(data: bytes) -> Kept:
    """Decode the content of a file. Raises ValueError if it is damaged."""
    try:
        record = msgspec.json.decode(data, type=Record)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    latest = checked(record.latest)
    if latest.flags:
        raise ValueError(f"{latest.flags[0].where}: {latest.flags[0].detail}")
    latest = latest._replace(flags=record.latest_flags)
    return Kept(latest, latest if record.approved is None else checked(record.approved), pin=record.pin)


class Store:
    """The folder of the files; its functions block. Making it raises OSError if the folder cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.kept: dict[str, Kept] = {}
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            name = path.name.removesuffix(_SUFFIX)
            if not is_name(name):
                continue
            try:
                self.kept[name] = decoded(path.read_bytes())
            except (ValueError, OSError):
                path.rename(path.with_name(f"{name}{_DAMAGED}"))
                sync_folder(folder)

    def damaged(self) -> list[str]:
        """Return the damaged files whose mounts have no new one yet."""
        found = sorted(self._folder.glob(f"*{_DAMAGED}"))
        return [str(path) for path in found if self._is_lost(path.name.removesuffix(_DAMAGED))]

    def lost_approval(self, mount: str) -> bool:
        """Return whether the approved definitions of a mount are lost."""
        return self._is_lost(mount) and self._path(mount, _DAMAGED).exists()

    def put(self, mount: str, kept: Kept) -> None:
        """Store the definitions of a mount. Raises DiskFull, and OSError of other kinds."""
        path = self._path(mount, _SUFFIX)
        try:
            replace_file(path, kept.encoded())
        except OSError as error:
            raise disk_full(error, path) or error from None
        self.kept[mount] = kept

    def forget(self, mount: str) -> None:
        """Delete the files of a mount, a damaged one too. Raises DiskFull, and OSError of other kinds."""
        path = self._path(mount, _SUFFIX)
        try:
            # The damaged one first: alone, it would bring its warning back.
            for each in (self._path(mount, _DAMAGED), path.with_name(f"{path.name}.new"), path):
                with contextlib.suppress(FileNotFoundError):
                    each.unlink()
            sync_folder(self._folder)
        except OSError as error:
            raise disk_full(error, path) or error from None
        self.kept.pop(mount, None)

    def _is_lost(self, mount: str) -> bool:
        return mount not in self.kept

    def _path(self, mount: str, suffix: str) -> Path:
        return self._folder / f"{mount}{suffix}"
