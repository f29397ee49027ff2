"""The files of a data directory: sources and derived data, for backups and repairs.

Manifests declare the files of services, the kernel its own.  A backup includes files that nothing names, so that a
forgotten one is not lost; a test names it.
"""

from __future__ import annotations

import fnmatch
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from linckia.proto.manifest import Keep

LOGS: Final = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, by the ends of their names."""


class Found(NamedTuple):
    """A file, link or folder, by its path in the data directory; `keep` is None where nothing names it."""

    path: str
    keep: Keep | None
    entry: os.DirEntry[str]


class Stores:
    """Declarations: patterns of paths in the data directory.  The first match counts."""

    def __init__(self, patterns: Sequence[tuple[str, Keep]]) -> None:
        self._patterns = tuple(patterns)
        self.keep_of = functools.lru_cache(4096)(self._keep_of)
        """The declaration of a path, or of a folder that contains it; None if nothing names it."""

    def _keep_of(self, path: str) -> Keep | None:
        of = next((path[: -len(end)] for end in LOGS if path.endswith(f".db{end}")), path)
        above = [str(folder) for folder in reversed(PurePath(of).parents)]
        matches = (
            keep for each in (*above, of) for pattern, keep in self._patterns if fnmatch.fnmatchcase(each, pattern)
        )
        return next(matches, None)

    def walk(self, data_dir: Path, below: str = "") -> Iterator[Found]:
        """Everything there is, except inside folders that are uniform to a backup and not SOURCE."""
        try:
            entries = sorted(os.scandir(data_dir / below), key=lambda entry: entry.name)
        except FileNotFoundError:
            # It has gone in this moment.
            return
        for entry in entries:
            path = os.path.join(below, entry.name)
            keep = self.keep_of(path)
            yield Found(path, keep, entry)
            if keep in (None, Keep.SOURCE) and entry.is_dir(follow_symlinks=False):
                yield from self.walk(data_dir, path)
