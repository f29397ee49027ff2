"""Where agents store conversations other than as records in a file: databases, folders of small files, Markdown.

Each session in them is presented as a file of records (JSON Lines), which is imported like any other, by its position.
Its name is the path of the database or file, with the session's id after `#` if there may be several. Each line ends
with a digest of all lines before it, so that the digest of the last bytes, by which an import recognises what it has
read, shows a change anywhere: a session that only grew is continued, and one that was rewritten is read again.

Nothing is ever written to the agents' files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import BinaryIO, NamedTuple

from services.transcripts.lenient import Json
from services.transcripts.records import SUFFIXES

Opener = Callable[[str], BinaryIO]
"""Opens a file for reading, if it may be read. Raises OSError."""

AIDER = ".aider.chat.history.md"
DATABASES = ("*.vscdb", "*.db")
PATTERNS = (*(f"*{suffix}" for suffix in SUFFIXES), AIDER, *DATABASES, *(f"{each}-wal" for each in DATABASES))
"""Names of files whose changes are followed."""

_KEYS = frozenset({"auth.json", "mcp-auth.json", "credentials.json", "oauth_creds.json", "secrets.json", "hosts.json"})
"""Files with keys of accounts, which some agents keep beside their sessions; they are not opened."""
_APART = frozenset({"chatEditingSessions", "GitHub.copilot-chat", "node_modules"})
"""Folders with copies of what is read elsewhere."""
_NAMES = frozenset({AIDER, "state.vscdb", "sessions.db", "threads.db"})


MAX_BYTES = 128 * 1024 * 1024
"""Limit of a document, which is read as a whole: decoded, it takes several times as much memory."""


class Unfinished(ValueError):
    """The file is still being written, and is read after its next change."""


class Session(NamedTuple):
    """A session in a database or folder; `stamp` changes whenever its records may have changed."""

    name: str
    stamp: str
    agent: str
    records: Callable[[], Iterable[Json]]


class Source(NamedTuple):
    """A file of records, or a session that is presented as one."""

    name: str
    stamp: str
    open: Callable[[], BinaryIO]


def is_source(path: str) -> bool:
    """Return True if a file found in a folder may contain conversations, by its path."""
    pure = PurePath(path)
    name = pure.name
    if name in _KEYS or not _APART.isdisjoint(pure.parts):
        return False
    return name in _NAMES or pure.suffix in SUFFIXES or (name.startswith("opencode") and pure.suffix == ".db")


def opened(path: str) -> BinaryIO:
    """Open a file of the user's."""
    return open(path, "rb")  # the caller closes it


def whole(path: str, open_: Opener) -> bytes:
    """Return the content of a document. Raises OSError, also if it is too long."""
    with open_(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(f"has more than {MAX_BYTES} bytes, and is not read")
    return data
