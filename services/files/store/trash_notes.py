"""What lies in the trash describes itself: beside the item `7` lies `7.json`, written before the item is moved there.

The table `trash` answers clients; these notes are what it is made from again when the database is lost.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import apsw
import msgspec

from services.files.store.sql import fetch_all
from services.runtime.database import sync_folder


class Note(msgspec.Struct, frozen=True):
    """Of one item; as the columns of `trash`."""

    path: str
    kind: int
    size: int
    deleted: int


def write(trash: Path, id_: int, note: Note) -> None:
    """Write a note; its name is durable once the folder of the trash is synced. Raises OSError."""
    temporary = trash / f"{id_}.json.new"
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(note))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(trash / f"{id_}.json")


def remove(trash: Path, id_: int) -> None:
    """The item is not in the trash any more. A note without its item says nothing, so a failure does not matter."""
    with contextlib.suppress(OSError):
        (trash / f"{id_}.json").unlink()


def fill(db: apsw.Connection, trash: Path) -> None:
    """Put every item that lies in the trash with its note into the table."""
    for path in trash.glob("*.json"):
        if path.stem.isdecimal() and os.path.lexists(trash / path.stem):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                note = msgspec.json.decode(path.read_bytes(), type=Note)
                db.execute(
                    "INSERT OR REPLACE INTO trash(id, path, kind, size, deleted) VALUES(?,?,?,?,?)",
                    (int(path.stem), note.path, note.kind, note.size, note.deleted),
                )


def write_all(db: apsw.Connection, trash: Path) -> None:
    """Write the notes of all items in the table. Raises OSError."""
    rows = fetch_all(db, "SELECT id, path, kind, size, deleted FROM trash")
    for id_, path, kind, size, deleted in rows:
        if os.path.lexists(trash / str(id_)):
            write(trash, id_, Note(path, kind, size, deleted))
    if rows:
        sync_folder(trash)
