"""Listing documents, getting one, and the store in numbers."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import apsw

from proto.errors import InvalidParams, OperationError
from proto.ops.documents.reading import (
    CollectionCount,
    Document,
    DocumentsGet,
    DocumentsList,
    GetResult,
    ListResult,
    SortBy,
    SortOrder,
    TypeCount,
    pairs,
)
from services.documents.store import objects, rows
from services.documents.store.compress import Codec, DamagedContent
from services.documents.store.objects import Stored
from services.runtime.database import sync_folder

MAX_LISTED = 200_000
CONTENT_BYTES = 1024 * 1024

_ORDERS = {
    SortBy.NAME: "document.name COLLATE NOCASE {0}, document.name {0}, document.path {0}",
    SortBy.SIZE: "object.size {0}",
    SortBy.CREATED: "document.created_ns {0}",
    SortBy.MODIFIED: "document.modified_ns {0}",
    SortBy.INDEXED: "document.indexed_ns {0}",
}


def listed(db: apsw.Connection, params: DocumentsList) -> ListResult:
    """A page of the documents that `params` asks for."""
    found = rows.conditions(
        tags=params.tags, collection=params.collection, session=params.session, extension=params.extension,
        pattern=params.pattern, path=params.path, hash_=params.hash, metadata=pairs(params.metadata),
        mime_type=params.mime_type, type_=params.type,
    )  # fmt: skip
    if params.recent is not None:
        where = found.where
        latest = db.execute(
            f"SELECT document.id FROM document JOIN object ON object.id = document.object{where}"
            " ORDER BY document.indexed_ns DESC, document.id DESC LIMIT ?",
            (*found.values, params.recent),
        ).fetchall()
        found = rows.Conditions()
        found.add(f"document.id IN ({', '.join(str(id_) for (id_,) in latest)})")
    order = "document.id"
    if params.sort_by is not None or params.sort_order is not None or params.recent is not None:
        by = params.sort_by or SortBy.INDEXED
        downwards = params.sort_order is SortOrder.DESC if params.sort_order is not None else by is not SortBy.NAME
        direction = "DESC" if downwards else "ASC"
        order = f"{_ORDERS[by].format(direction)}, document.id {direction}"
    total = rows.total(db, found)
    page = list(rows.documents(db, found, order, min(params.limit or MAX_LISTED, MAX_LISTED), params.offset))
    ends = params.offset + len(page)
    return ListResult(
        total=total,
        documents=[] if params.paths_only else page,
        paths=[document.path for document in page] if params.paths_only else None,
        truncated=ends < total,
        next_offset=ends if ends < total and page else None,
    )


def picked(db: apsw.Connection, params: DocumentsGet) -> tuple[list[Document], Stored]:
    """The documents of the content that `params` names.  Raises InvalidParams, OperationError."""
    if params.hash is None and params.name is None and params.path is None:
        raise InvalidParams("missing parameter: give `hash`, `name` or `path`", field="hash")
    found = rows.pick(db, hash_=params.hash, name=params.name, path=params.path)
    stored = objects.by_hash(db, bytes.fromhex(found[0].hash))
    assert stored is not None
    return found, stored


def get(db: apsw.Connection, codec: Codec, params: DocumentsGet, target: Path | None) -> GetResult:
    """The content that `params` names, also written to `target`.  Raises InvalidParams, OperationError."""
    found, stored = picked(db, params)
    first = found[0]
    text = encoding = None
    length = 0
    if params.include_content:
        text, encoding, length = content(db, codec, stored, params.offset, params.length)
    written = None
    if target is not None:
        written = target / first.name if target.is_dir() else target
        copy_to(db, codec, stored, written)
    return GetResult(
        **{name: getattr(first, name) for name in first.__struct_fields__},
        paths=[document.path for document in found],
        content=text,
        content_encoding=encoding,
        content_offset=params.offset if params.include_content else None,
        content_length=length if params.include_content else None,
        content_truncated=params.include_content and params.offset + length < stored.size,
        output_path=None if written is None else str(written),
        graph_enabled=params.graph,
    )


def content(db: apsw.Connection, codec: Codec, stored: Stored, offset: int, length: int | None) -> tuple[str, str, int]:
    """Text or base64, which of the two it is, and how many bytes it stands for.

    Raises:
        InvalidParams: `offset` is past the end.
        OperationError: the content is damaged.
    """
    if offset > stored.size:
        raise InvalidParams(f"parameter `offset` is {offset}, and the content has {stored.size} bytes", field="offset")
    wanted = CONTENT_BYTES if length is None else length
    try:
        data = b"".join(objects.stream(db, codec, stored, offset, wanted))
    except DamagedContent as error:
        raise _told(db, error) from None
    if stored.is_text:
        whole = data
        if offset + len(data) < stored.size:
            whole = _to_character(data) or data
        with suppress(UnicodeDecodeError):
            return whole.decode("utf-8"), "utf-8", len(whole)
    return base64.b64encode(data).decode(), "base64", len(data)


def _to_character(data: bytes) -> bytes:
    """Without the beginning of a character at the end."""
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead < 0x80:
            return data
        if lead >= 0xC0:
            width = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return data if back >= width else data[:-back]
    return data


def copy_to(db: apsw.Connection, codec: Codec, stored: Stored, target: Path) -> None:
    """Write the content to a file, whole or not at all; once this returns it is on disk.

    Raises:
        OperationError: it cannot be written, or is damaged.
    """
    temporary = target.with_name(f".linckia-new-{secrets.token_hex(8)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in objects.stream(db, codec, stored):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(target.parent)
    except OSError as error:
        raise OperationError(f"{target} cannot be written: {error.strerror}", field="outputPath") from None
    except DamagedContent as error:
        raise _told(db, error) from None


def _told(db: apsw.Connection, error: DamagedContent) -> Exception:
    """What the caller of one content is told; of a page that cannot be read, the database tells."""
    if isinstance(error.__cause__, apsw.CorruptError):
        return error.__cause__
    return OperationError(
        f"the stored content is damaged: {error}. Put a copy of {db.db_filename('main')} back that was made before, or"
        " delete the document and add it again"
    )


def collections(db: apsw.Connection) -> list[CollectionCount]:
    """By name; those that hold nothing are none."""
    counted = db.execute(
        "SELECT collection.name, count(*), sum(object.size) FROM member"
        " JOIN collection ON collection.id = member.collection JOIN document ON document.id = member.document"
        " JOIN object ON object.id = document.object GROUP BY collection.id ORDER BY collection.name"
    )
    return [CollectionCount(name=str(name), documents=_int(count), bytes=_int(size)) for name, count, size in counted]


def _int(value: object) -> int:
    assert value is None or isinstance(value, int)
    return value or 0


def count(db: apsw.Connection, query: str, values: Sequence[apsw.SQLiteValue] = ()) -> int:
    """The number that a query answers."""
    return _int(db.execute(query, values).fetchall()[0][0])


def by_type(db: apsw.Connection, column: str) -> list[TypeCount]:
    """Documents by a column, the most first."""
    counted = db.execute(
        f"SELECT {column}, count(*) AS n, sum(object.size) FROM document"
        " JOIN object ON object.id = document.object GROUP BY 1 ORDER BY n DESC, 1"
    )
    return [TypeCount(type=str(kind) or "(none)", documents=_int(n), bytes=_int(size)) for kind, n, size in counted]
