"""What each file of a data directory is to a backup.

Declared here and not in the services, since a backup is made and restored without any of them.  A file that nothing
names is backed up, so that one that was forgotten here is not lost; a test names it.
"""

from __future__ import annotations

import enum
import fnmatch
import functools
import os
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Final, NamedTuple


class Keep(enum.Enum):
    """What a backup does with a file, or with a folder and all in it."""

    SOURCE = "source"
    """The only copy: backed up."""
    ITEMS = "items"
    """A folder of such; each of its entries comes and goes by one rename, and is not changed in between."""
    DERIVED = "derived"
    """Made again from the rest: left out, and rebuilt after a restore."""
    PASSING = "passing"
    """Of a process, or of a moment."""


STORES: Final = (
    ("token", Keep.SOURCE),
    ("tokens.json", Keep.SOURCE),
    ("session.key", Keep.SOURCE),
    ("linckia.toml", Keep.SOURCE),
    ("config.yaml", Keep.SOURCE),
    ("prompts", Keep.SOURCE),
    ("audit", Keep.SOURCE),
    # Turns that the recording proxy has not handed over yet.
    ("proxy/spool/*.json", Keep.SOURCE),
    ("proxy/spool/*.part", Keep.PASSING),
    ("format.json", Keep.SOURCE),
    ("format.new", Keep.PASSING),
    ("kernel.lock", Keep.PASSING),
    ("kernel.sock", Keep.PASSING),
    ("backup.json*", Keep.PASSING),
    ("trends.*", Keep.PASSING),
    ("backup.staging", Keep.PASSING),
    ("token*.new", Keep.PASSING),
    ("logs", Keep.PASSING),
    ("services/*/tmp", Keep.PASSING),
    # Put aside, to be examined; what could be read of it is in its successor.
    ("services/*.damaged-*", Keep.PASSING),
    ("services/*.before-v*", Keep.PASSING),
    ("services/transcripts/transcripts.db", Keep.SOURCE),
    ("services/memory/memory.db", Keep.SOURCE),
    ("services/documents/packs.db", Keep.SOURCE),
    ("services/documents/index.db", Keep.DERIVED),
    # With the tree, which follows from the disk, are sets, plans, queries and the list of the trash.
    ("services/files/files.db", Keep.SOURCE),
    ("services/files/files.db-begun", Keep.SOURCE),
    ("services/files/trash", Keep.ITEMS),
    # Derived but for the ids of notes of one name.
    ("services/knowledge/notes.db", Keep.SOURCE),
    # What clients put into collections of their own; all else follows from what other services feed.
    ("services/retrieve/own.*.db", Keep.SOURCE),
    ("services/retrieve/*", Keep.DERIVED),
    ("services/graph", Keep.DERIVED),
    ("services/media", Keep.DERIVED),
    ("services/watch", Keep.DERIVED),
    ("services/embed*", Keep.DERIVED),
    ("services/fetch", Keep.PASSING),
)
"""The first that fits; `*` stands for any characters."""

LOGS: Final = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, by the ends of their names."""

_MAGIC = b"SQLite format 3\0"
_IN_WAL_MODE = b"\x02\x02"


class Found(NamedTuple):
    """A file, link or folder, by its path in the data directory; `keep` is None where nothing names it."""

    path: str
    keep: Keep | None
    entry: os.DirEntry[str]


@functools.lru_cache(4096)
def keep_of(path: str) -> Keep | None:
    """What is declared of a path, or of a folder that it is in; None where nothing names it."""
    of = next((path[: -len(end)] for end in LOGS if path.endswith(f".db{end}")), path)
    above = [str(folder) for folder in reversed(PurePath(of).parents)]
    matches = (keep for each in (*above, of) for pattern, keep in STORES if fnmatch.fnmatchcase(each, pattern))
    return next(matches, None)


def walk(data_dir: Path, below: str = "") -> Iterator[Found]:
    """All there is, but not what is in folders of which all is the same to a backup, except those of SOURCE."""
    try:
        entries = sorted(os.scandir(data_dir / below), key=lambda entry: entry.name)
    except FileNotFoundError:
        # It has gone in this moment.
        return
    for entry in entries:
        path = os.path.join(below, entry.name)
        keep = keep_of(path)
        yield Found(path, keep, entry)
        if keep in (None, Keep.SOURCE) and entry.is_dir(follow_symlinks=False):
            yield from walk(data_dir, path)


def is_database(file: Path) -> bool:
    """Whether it is one in WAL mode, as all services' are, with a readable head.  Raises OSError."""
    with file.open("rb") as stream:
        head = stream.read(20)
    return head[:16] == _MAGIC and head[18:20] == _IN_WAL_MODE
