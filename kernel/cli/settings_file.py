"""Edits `linckia.toml` in place: comments, layout and all other settings do not change."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from proto.control.commands import Failed
from proto.host.durable import replace_file

NAME = "linckia.toml"

REMOVED = object()
"""Value of a setting to remove."""


def edited(text: str, path: Sequence[str], value: object) -> str:
    """Return the TOML `text` with the setting at `path` changed, or removed. Raises Failed.

    A table at the end of the path is replaced as a whole.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document, expected = tomlkit.parse(text), tomllib.loads(text)
    except (TOMLKitError, tomllib.TOMLDecodeError) as error:
        raise Failed(f"{NAME} is not valid TOML: {error}") from None
    _put(document, path, _laid_out(value))
    _put(expected, path, value)
    changed = tomlkit.dumps(document)
    if tomllib.loads(changed) != expected:
        where = f"`{path[-1]}` in [{'.'.join(path[:-1])}]"
        raise Failed(f"this command cannot edit {NAME} as it is written; change {where} yourself")
    return changed


def _laid_out(value: object) -> object:
    """Return a table for a file: tables in it take one line each."""
    import tomlkit

    if not isinstance(value, Mapping):
        return value
    table = tomlkit.table()
    for name, each in value.items():
        inline = tomlkit.inline_table()
        if isinstance(each, Mapping):
            inline.update(each)
        table.add(name, inline if isinstance(each, Mapping) else each)
    return table


def _put(tables: MutableMapping[str, Any], path: Sequence[str], value: Any) -> None:
    """Set or remove the value at the end of the path. Raises Failed if the path leads through a value that is not a
    table."""
    import tomlkit

    first, *rest = path
    if rest and first in tables:
        if not isinstance(tables[first], MutableMapping):
            raise Failed(f"{NAME}: `{first}` must be a table")
        _put(tables[first], rest, value)
        if value is REMOVED and not tables[first]:
            del tables[first]
        return
    if value is REMOVED:
        tables.pop(first, None)
        return
    # A missing table is added with its content: tomlkit loses what is added to an empty one between other tables.
    for part in reversed(rest):
        if isinstance(tables, tomlkit.TOMLDocument | tomlkit.items.AbstractTable) and isinstance(value, Mapping):
            outer = tomlkit.table(is_super_table=True)
            outer.add(part, value)
            value = outer
        else:
            value = {part: value}
    tables[first] = value


class SettingsFile:
    """`linckia.toml` of a data directory, during one change that may have to be undone."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / NAME
        self._before = self.path.read_bytes() if self.path.exists() else None

    @property
    def text(self) -> str:
        """The content before the change."""
        return (self._before or b"").decode()

    def write(self, text: str) -> None:
        """Replace the file atomically. Raises OSError."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self.path, text.encode())

    def undo(self) -> None:
        """Restore the content before the change. Raises OSError."""
        if self._before is None:
            self.path.unlink(missing_ok=True)
        else:
            replace_file(self.path, self._before)
