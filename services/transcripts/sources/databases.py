"""Sessions in the SQLite databases of Cursor, Goose, OpenCode and Zed.

A database is opened read-only, while its agent may be writing to it. One in WAL mode whose log exists is read with the
agent's index of the log, which is not written either; one without a log is closed, and is read as it is.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urlparse

import apsw

from services.shared import zstd
from services.transcripts.lenient import Json, Unreadable, child, count, decode, items, records, text, usage
from services.transcripts.sources import Opener, Session

_MAGIC = b"SQLite format 3\0"
_WAL_VERSION = 2
_BUSY_MS = 2000
MAX_THREAD_BYTES = 1 << 30
"""Limit of a decompressed thread."""

Row = Mapping[str, Any]


def is_database(path: str, open_: Opener) -> bool:
    """Return True for a SQLite database with the suffix of one."""
    if not path.endswith((".db", ".vscdb", ".sqlite", ".sqlite3")):
        return False
    with open_(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def sessions(path: str, open_: Opener) -> Iterator[Session]:
    """Yield the sessions in a database. Raises OSError, ValueError if it is of no known agent."""
    with connected(path, open_) as db:
        tables = {row["name"] for row in _rows(db, "SELECT name FROM sqlite_master WHERE type='table'")}
        listed = next((listing for needed, listing in _STORES if needed <= tables), None)
        if listed is None:
            raise ValueError("is a SQLite database of no known agent")
        # Read as a whole: no transaction of ours may last while an agent writes.
        found = list(listed(db, tables))
    for agent, id_, stamp, read in found:
        yield Session(f"{path}#{id_}", stamp, agent, partial(_read, path, open_, read))


class _ReadOnly(apsw.VFS):
    """Opens files for reading only, also the log, for which SQLite itself would need the right to write."""

    def __init__(self) -> None:
        self.name = "linckia-read-only"
        super().__init__(self.name, "unix")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        changing = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        flags[0] = flags[0] & ~changing | apsw.SQLITE_OPEN_READONLY
        return super().xOpen(name, flags)


@functools.cache
def _read_only() -> _ReadOnly:
    return _ReadOnly()


@contextlib.contextmanager
def connected(path: str, open_: Opener) -> Iterator[apsw.Connection]:
    """Open a database for reading. Raises OSError."""
    with contextlib.ExitStack() as stack:
        with open_(path) as file:
            # Closed before SQLite takes its locks, which would end with it.
            is_wal = file.read(20)[18:19] == bytes([_WAL_VERSION])
        log = f"{path}-wal"
        is_closed = is_wal and not os.path.exists(log)
        before = _state(path)
        if is_wal and not is_closed and not os.path.exists(f"{path}-shm"):
            # The log of a copied database: SQLite has to build an index of it, beside a copy of ours.
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            for name in (path, log):
                with open_(name) as file, open(os.path.join(folder, os.path.basename(name)), "wb") as copy:
                    shutil.copyfileobj(file, copy)
            address, vfs = f"file:{quote(os.path.join(folder, os.path.basename(path)))}", None
        else:
            how = "immutable=1" if is_closed else "mode=ro&readonly_shm=1"
            address, vfs = f"file:{quote(os.path.abspath(path))}?{how}", _read_only().name
        flags = apsw.SQLITE_OPEN_URI | (apsw.SQLITE_OPEN_READONLY if vfs else apsw.SQLITE_OPEN_READWRITE)
        try:
            db = apsw.Connection(address, flags=flags, vfs=vfs)
            stack.callback(db.close)
            db.set_busy_timeout(_BUSY_MS)
            # Nothing in a schema, such as a generated column, may call more than plain functions.
            db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
            yield db
        except apsw.Error as error:
            raise OSError(f"the database cannot be read: {error}") from None
        if is_closed and (_state(path) != before or os.path.exists(log)):
            raise OSError("the database was opened by its agent while it was read; read it again")


def _state(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _rows(db: apsw.Connection, query: str, *bindings: apsw.SQLiteValue) -> list[Row]:
    cursor = db.execute(query, bindings)
    # Without rows, there is no description either.
    rows = [tuple(row) if names else () for row in cursor if (names := [each[0] for each in cursor.description])]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _read(path: str, open_: Opener, read: Callable[[apsw.Connection], list[Json]]) -> list[Json]:
    with connected(path, open_) as db:
        # One transaction, so that all records are of the same time.
        db.execute("BEGIN")
        return read(db)


def _object(value: object) -> Json | None:
    """Return the JSON object in a column; None if it is not one."""
    if isinstance(value, str | bytes):
        with contextlib.suppress(Unreadable, UnicodeDecodeError, RecursionError):
            found = decode(value)
            # Cursor has encoded some values twice.
            found = decode(found) if isinstance(found, str) else found
            return found if isinstance(found, dict) else None
    return None


def _message(value: object, **more: object) -> Json:
    given = _object(value)
    return {"damaged": True} if given is None else {"message": {**given, **more}}


Listed = tuple[str, str, str, Callable[[apsw.Connection], list[Json]]]
"""Agent, id, stamp, and a function that reads the session's records."""


# Cursor


def _cursor(db: apsw.Connection, tables: set[str]) -> Iterator[Listed]:
    heads = _rows(db, "SELECT composerId AS id, value FROM composerHeaders") if "composerHeaders" in tables else []
    described = {str(row["id"]): _object(row["value"]) or {} for row in heads}
    rows = _rows(db, "SELECT key, value FROM cursorDiskKV WHERE key>='composerData:' AND key<'composerData;'")
    for row in rows:
        id_ = str(row["key"]).partition(":")[2]
        data = _object(row["value"])
        if data is None or not (items(data, "fullConversationHeadersOnly") or items(data, "conversation")):
            continue
        (held,) = _rows(
            db, "SELECT count(*) AS n, total(octet_length(value)) AS size FROM cursorDiskKV WHERE key>=? AND key<?",
            f"bubbleId:{id_}:", f"bubbleId:{id_};",
        )  # fmt: skip
        stamp = f"{_digest(row['value'])}/{held['n']}/{held['size']}"
        yield "cursor", id_, stamp, partial(_cursor_chat, id_, described.get(id_, {}))


def _cursor_chat(id_: str, head: Json, db: apsw.Connection) -> list[Json]:
    (row,) = _rows(db, "SELECT value FROM cursorDiskKV WHERE key=?", f"composerData:{id_}") or [{"value": None}]
    data = _object(row["value"]) or {}
    place = child(head, "workspaceIdentifier") or child(data, "workspaceIdentifier")
    session = {
        "id": id_,
        "title": text(head, "name") or text(data, "name"),
        "project": text(child(place, "uri"), "fsPath", "path"),
        "model": text(child(data, "modelConfig"), "modelName"),
        "created": data.get("createdAt"),
        "side": bool(child(head, "subagentInfo")),
    }
    found: list[Json] = [{"session": session}]
    # Old chats have their messages inside.
    found += ({"message": each} for each in records(data, "conversation"))
    if len(found) > 1:
        return found
    bubbles = {
        str(row["key"]).rpartition(":")[2]: row["value"]
        for row in _rows(
            db, "SELECT key, value FROM cursorDiskKV WHERE key>=? AND key<?", f"bubbleId:{id_}:", f"bubbleId:{id_};"
        )
    }
    names = [text(each, "bubbleId") for each in records(data, "fullConversationHeadersOnly")]
    return [*found, *(_message(bubbles[name], bubbleId=name) for name in names if name in bubbles)]


# Goose


def _goose(db: apsw.Connection, tables: set[str]) -> Iterator[Listed]:
    for row in _rows(db, "SELECT * FROM sessions"):
        (held,) = _rows(
            db, "SELECT count(*) AS n, max(id) AS last FROM messages WHERE session_id=?", row["id"]
        )  # fmt: skip
        if held["n"]:
            stamp = f"{held['n']}/{held['last']}/{_digest(repr(sorted(row.items())))}"
            yield "goose", str(row["id"]), stamp, partial(_goose_session, row)


def _goose_session(row: Row, db: apsw.Connection) -> list[Json]:
    model = text(_object(row.get("model_config_json")) or {}, "model_name")
    title = row.get("name") or row.get("description") or ""
    figures = dict(row)
    sent, answered = (count(figures, f"accumulated_{of}_tokens", f"{of}_tokens") for of in ("input", "output"))
    session = {
        "id": row["id"], "title": title, "project": row.get("working_dir") or "", "model": model,
        "counted": bool(sent or answered),
    }  # fmt: skip
    messages = _rows(db, "SELECT * FROM messages WHERE session_id=? ORDER BY id", row["id"])
    found: list[Json] = [{"session": session}]
    for each in messages:
        content = _list(each["content_json"])
        id_ = str(each.get("message_id") or each["id"])
        said = {"id": id_, "role": each["role"], "created": each["created_timestamp"], "content": content}
        found.append({"damaged": True} if content is None else {"message": said})
    if sent or answered:
        found.append({"usage": usage(sent, answered), "model": model})
    return found


def _list(value: object) -> list[Any] | None:
    with contextlib.suppress(Unreadable, UnicodeDecodeError, RecursionError):
        if isinstance(value, str | bytes) and isinstance(found := decode(value), list):
            return found
    return None


# OpenCode


def _opencode(db: apsw.Connection, tables: set[str]) -> Iterator[Listed]:
    for row in _rows(db, "SELECT * FROM session"):
        (held,) = _rows(
            db, "SELECT (SELECT count(*) FROM message WHERE session_id=?1) AS messages, count(*) AS parts,"
            " total(octet_length(data)) AS size, max(time_updated) AS last FROM part WHERE session_id=?1", row["id"],
        )  # fmt: skip
        if held["messages"]:
            stamp = "/".join(map(str, (*held.values(), row["title"])))
            yield "opencode", str(row["id"]), stamp, partial(_opencode_session, row)


def _opencode_session(row: Row, db: apsw.Connection) -> list[Json]:
    session = {
        "id": row["id"], "title": row["title"], "project": row["directory"], "created": row.get("time_created"),
        "side": bool(row.get("parent_id")),
    }  # fmt: skip
    parts: dict[str, list[Json]] = {}
    for part in _rows(db, "SELECT id, message_id, data FROM part WHERE session_id=? ORDER BY id", row["id"]):
        parts.setdefault(part["message_id"], []).append({**(_object(part["data"]) or {}), "id": part["id"]})
    messages = _rows(db, "SELECT id, data FROM message WHERE session_id=? ORDER BY time_created, id", row["id"])
    said = ({**_message(each["data"], id=each["id"]), "parts": parts.get(each["id"], [])} for each in messages)
    return [{"session": session}, *said]


# Zed


def _zed(db: apsw.Connection, tables: set[str]) -> Iterator[Listed]:
    for row in _rows(db, "SELECT id, updated_at, octet_length(data) AS size FROM threads"):
        yield "zed", str(row["id"]), f"{row['updated_at']}/{row['size']}", partial(_zed_thread, row["id"])


def _zed_thread(id_: str, db: apsw.Connection) -> list[Json]:
    rows = _rows(db, "SELECT * FROM threads WHERE id=?", id_)
    if not rows:
        return []
    row = rows[0]
    data = row["data"]
    if row["data_type"] == "zstd" and isinstance(data, bytes):
        with contextlib.suppress(zstd.ZstdError):
            data = zstd.decompress(data, MAX_THREAD_BYTES)
    thread = _object(data)
    if thread is None:
        return [{"damaged": True}]
    snapshots = records(child(thread, "initial_project_snapshot"), "worktree_snapshots")
    folders = [text(each, "worktree_path") for each in snapshots]
    session = {
        "id": id_,
        "title": text(thread, "title", "summary") or row["summary"],
        "project": str(row.get("folder_paths") or "").partition("\n")[0] or next(iter(folders), ""),
        "model": text(child(thread, "model"), "model"),
        "created": row.get("created_at") or row["updated_at"],
        "side": bool(row.get("parent_id")),
    }
    tokens = child(thread, "request_token_usage")
    found: list[Json] = [{"session": session}]
    for each in items(thread, "messages"):
        if isinstance(each, dict):
            found.append({"message": each, "tokens": child(tokens, text(child(each, "User"), "id"))})
        else:
            # The mark of a resumed prompt is a plain string.
            found += [] if each == "Resume" else [{"damaged": True}]
    return found


_STORES: tuple[tuple[set[str], Callable[[apsw.Connection, set[str]], Iterator[Listed]]], ...] = (
    ({"cursorDiskKV"}, _cursor),
    ({"session", "message", "part"}, _opencode),
    ({"sessions", "messages"}, _goose),
    ({"threads"}, _zed),
)
"""The tables by which a database is recognised, and what lists its sessions."""


def _digest(value: object) -> str:
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def folder_of(uri: str) -> str:
    """Return the path of a `file:` address, or the address itself."""
    return unquote(urlparse(uri).path) if uri.startswith("file:") else uri
