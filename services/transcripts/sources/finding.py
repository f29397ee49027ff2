"""Finds what is imported from a file: the file itself, or the sessions in it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import PurePath
from typing import BinaryIO

import msgspec

from services.transcripts.sources import AIDER, Opener, Session, Source, databases, folders, is_source, markdown, opened


def main_file(path: str, open_: Opener = opened) -> str | None:
    """Return the file with which a changed file is read: usually itself; None if it is not read at all."""
    path = path.removesuffix("-wal")
    return folders.main_file(path, open_) if is_source(path) else None


def sources(path: str, open_: Opener = opened) -> Iterator[Source]:
    """Yield what is imported from a file: itself, or the sessions in it.

    Raises OSError, ValueError if it cannot be read, and Unfinished if it is only half written.
    """
    if databases.is_database(path, open_):
        found: Iterator[Session] | None = databases.sessions(path, open_)
    elif PurePath(path).name.endswith(AIDER):
        found = markdown.sessions(path, open_)
    else:
        found = folders.sessions(path, open_)
    if found is None:
        yield Source(path, "", lambda: open_(path))
        return
    for session in found:
        yield Source(session.name, session.stamp, lambda session=session: _presented(session))  # type: ignore[misc]


def _presented(session: Session) -> BinaryIO:
    """Return a session as a file of records in memory."""
    file, digest = io.BytesIO(), hashlib.sha256()
    for record in session.records():
        line = msgspec.json.encode({"source": session.agent, **record, "before": digest.hexdigest()}) + b"\n"
        file.write(line)
        digest.update(line)
    file.seek(0)
    return file
