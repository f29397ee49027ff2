"""Who has which name beside Linckia's own tools and prompts: whoever had it first, through restarts.

A mounted server that offers a name which another one has gets a name with a digest instead (`Wanted.other`), and a
flag. A server keeps its names while it does not offer them, since its lists may be shorter for a while. A front
releases names whose server is no longer in the settings.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from proto.host.durable import replace_file
from proto.mounts import Flag, Holder, MountNames, Taken, Wanted
from services.mounts.offers.canonical import SINGULAR
from services.mounts.offers.hidden import visible
from services.runtime.storage import disk_full

FILE: Final = "_names.json"
"""No mount can have this name."""

MAX_UNUSED: Final = 4096
"""Names of a mount that it holds without offering them; beyond that, the oldest become free."""

_log = logging.getLogger("linckia.service")

Table = dict[str, Holder]


class Names:
    """The table and its file; functions block."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.table = MountNames()
        try:
            self.table = msgspec.json.decode(self._path.read_bytes(), type=MountNames)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            aside = self._path.with_suffix(".damaged")
            _log.error("%s: unreadable, kept as %s; names are assigned again: %s", self._path, aside.name, error)
            self._path.rename(aside)

    def give(self, wanted: Iterable[Wanted], released: Iterable[Taken]) -> MountNames:
        """Give names, in this order of precedence where nobody has one yet. Raises DiskFull, and OSError of others."""
        tables = {"tools": dict(self.table.tools), "prompts": dict(self.table.prompts)}
        for each in released:
            if tables[each.kind].get(each.name) == each.holder:
                del tables[each.kind][each.name]
        refused: list[Wanted] = []
        for kind, table in tables.items():
            refused += _given(table, [each for each in wanted if each.kind == kind])
        self._store(MountNames(**tables, refused=refused))
        return self.table

    def forget(self, mount: str) -> None:
        """Free all names of a mount. Raises DiskFull, and OSError of other kinds."""
        tables = {
            kind: {name: each for name, each in table.items() if each.mount != mount}
            for kind, table in (("tools", self.table.tools), ("prompts", self.table.prompts))
        }
        self._store(MountNames(**tables, refused=[each for each in self.table.refused if each.mount != mount]))

    def flags_of(self, mount: str) -> Iterator[Flag]:
        """Yield the collisions of a mount's names with those of others."""
        for kind, table in (("tools", self.table.tools), ("prompts", self.table.prompts)):
            for name, each in table.items():
                if each.mount == mount and each.wanted:
                    yield _collision(kind, table, each.own, each.wanted, f"it is offered as {name}")
            for refused in self.table.refused:
                if refused.kind == kind and refused.mount == mount:
                    yield _collision(kind, table, refused.own, refused.name, "it is not offered")

    def _store(self, table: MountNames) -> None:
        if table == self.table:
            return
        try:
            replace_file(self._path, msgspec.json.encode(table))
        except OSError as error:
            raise disk_full(error, self._path) or error from None
        self.table = table


def _given(table: Table, wanted: list[Wanted]) -> list[Wanted]:
    """Give names in a table, and return whoever gets none."""
    had = {(each.mount, each.own): name for name, each in table.items()}
    present = {(each.mount, each.own) for each in wanted}
    for each in wanted:
        # The settings may have renamed it.
        if (name := had.get((each.mount, each.own))) is not None and name not in (each.name, each.other):
            del table[name], had[each.mount, each.own]
    refused: list[Wanted] = []
    for each in wanted:
        key = (each.mount, each.own)
        for name in (each.other,) if each.is_taken else (each.name, each.other):
            holder = table.get(name)
            if holder is None or (holder.mount, holder.own) == key:
                break
        else:
            refused.append(each)
            continue
        if (before := had.get(key)) is not None and before != name:
            table.pop(before, None)
        table[name] = Holder(mount=each.mount, own=each.own, wanted="" if name == each.name else each.name)
    _bound(table, present)
    return refused


def _bound(table: Table, present: set[tuple[str, str]]) -> None:
    """Free the oldest names of mounts that hold too many without offering them."""
    unused = [name for name, each in table.items() if (each.mount, each.own) not in present]
    counts = Counter(table[name].mount for name in unused)
    for name in unused:
        mount = table[name].mount
        if counts[mount] > MAX_UNUSED:
            counts[mount] -= 1
            del table[name]


def _collision(kind: str, table: Table, own: str, wanted: str, fate: str) -> Flag:
    holder = table.get(wanted)
    whose = "one of Linckia's own" if holder is None else f"{visible(holder.own)[:80]} of {holder.mount}"
    return Flag(
        kind="collision",
        where=f"{SINGULAR[kind]} {visible(own)[:80]}",
        detail=f"the name {wanted} belongs to {whose}; {fate}",
    )
