"""Document rows: filter conditions, lookup by name or hash, and metadata updates.

The functions take a connection and run inside the caller's transaction.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import apsw

from proto.errors import InvalidParams, OperationError
from proto.ops.documents.reading import Document, Scalar
from proto.suggestions import did_you_mean
from services.documents.store import globs, objects, tables

MIN_HASH_DIGITS = 8
_HEX = re.compile(r"[0-9a-f]+")

_ROWS = (
    "SELECT document.id, lower(hex(object.hash)), document.name, document.path, object.size,"
    " coalesce(document.mime, object.mime), document.extension, object.is_text,"
    " (SELECT json_group_array(tag) FROM tag WHERE tag.document=document.id), document.metadata,"
    " (SELECT json_group_array(name) FROM (SELECT collection.name AS name FROM member JOIN collection"
    "   ON collection.id = member.collection WHERE member.document=document.id ORDER BY 1)),"
    " document.session, document.created_ns, document.modified_ns, document.indexed_ns"
    " FROM document JOIN object ON object.id = document.object"
)


@dataclass(slots=True)
class Conditions:
    """SQL conditions on `document` and `object`, with their values."""

    clauses: list[str] = field(default_factory=list)
    values: list[apsw.SQLiteValue] = field(default_factory=list)
    is_slow: bool = False
    """Whether every document's path has to be examined."""

    def add(self, clause: str, *values: apsw.SQLiteValue) -> None:
        self.clauses.append(clause)
        self.values += values

    def add_globs(self, patterns: Sequence[str], *, negated: bool = False) -> None:
        """Require that the path matches one of the globs, or none of them if `negated`."""
        self.is_slow = True
        self.add(f"{'NOT ' if negated else ''}path_matches(?, document.path)", globs.SEPARATOR.join(patterns))

    @property
    def where(self) -> str:
        return f" WHERE {' AND '.join(self.clauses)}" if self.clauses else ""


def conditions(
    *,
    tags: Sequence[str] = (),
    collection: str | None = None,
    session: str | None = None,
    extension: str | None = None,
    pattern: str | None = None,
    path: str | None = None,
    hash_: str | None = None,
    metadata: Mapping[str, Scalar] | None = None,
    mime_type: str | None = None,
    type_: str | None = None,
) -> Conditions:
    """Build conditions from a caller's filters.  Raises InvalidParams."""
    found = Conditions()
    for tag in tags:
        found.add("EXISTS(SELECT 1 FROM tag WHERE tag.document=document.id AND tag=?)", tag)
    if collection is not None:
        found.add(
            "document.id IN (SELECT document FROM member WHERE collection=(SELECT id FROM collection WHERE name=?))",
            collection,
        )
    if session is not None:
        query = "SELECT id FROM session WHERE id=? OR label=? ORDER BY number DESC LIMIT 1"
        found.add(f"document.session=({query})", session, session)
    if extension is not None:
        wanted = extensions(extension)
        found.add(f"document.extension IN ({', '.join('?' * len(wanted))})", *wanted)
    if pattern is not None:
        like(found, pattern)
    if path is not None:
        under(found, path)
    if hash_ is not None:
        low, high = hash_range(hash_)
        found.add("object.hash BETWEEN ? AND ?", low, high)
    for key, value in (metadata or {}).items():
        # A number in the metadata equals its text form, for callers who pass `key=value`.
        found.add(
            "EXISTS(SELECT 1 FROM json_each(document.metadata) AS pair WHERE pair.key=?"
            " AND CASE pair.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false'"
            " ELSE CAST(pair.value AS TEXT) END=?)",
            key,
            _as_text(value),
        )
    if mime_type is not None:
        found.add("coalesce(document.mime, object.mime) GLOB ?", mime_type)
    if type_ is not None:
        found.add("object.is_text=?", int(type_ == "text"))
    return found


def extensions(text: str) -> list[str]:
    """Parse comma-separated extensions, with or without dots."""
    return [f".{one.strip().lower().lstrip('.')}" for one in text.split(",") if one.strip(" .")]


def _as_text(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def like(found: Conditions, pattern: str) -> None:
    """Require a document that has this path or name, or, if there is none, one that matches it as a glob."""
    if not globs.is_glob(pattern):
        found.add_globs([pattern])
        return
    found.is_slow = True
    clause = "document.path=? OR document.name=?"
    found.add(
        f"({clause} OR (path_matches(?, document.path) AND NOT EXISTS (SELECT 1 FROM document WHERE {clause})))",
        *[pattern] * 5,
    )


def under(found: Conditions, path: str) -> None:
    """Require a document at or below a path, or, if there is none, one that matches it as a glob."""
    plain = path.removeprefix("./").rstrip("/") or "/"
    clause, values = _at_or_below(plain)
    if not globs.is_glob(path):
        if plain != "/":
            found.add(f"({clause})", *values)
        return
    # A name may look like a glob.
    found.is_slow = True
    found.add(
        f"({clause} OR (path_matches(?, document.path) AND NOT EXISTS (SELECT 1 FROM document WHERE {clause})))",
        *values, path, *values,
    )  # fmt: skip


def _at_or_below(plain: str) -> tuple[str, list[apsw.SQLiteValue]]:
    clause = "document.path=? OR (document.path>=? AND document.path<?)"
    values: list[apsw.SQLiteValue] = [plain, plain + "/", plain + "0"]
    if plain.startswith("/"):
        return clause, values
    return f"{clause} OR instr(document.path||'/', ?) > 0", [*values, f"/{plain}/"]


def hash_digits(text: str) -> str:
    """Return the hexadecimal digits of a hash or hash prefix.  Raises InvalidParams."""
    digits = text.strip().lower()
    for prefix in ("sha256:", "sha256-"):
        digits = digits.removeprefix(prefix)
    if not _HEX.fullmatch(digits) or len(digits) > 64:
        raise InvalidParams(
            f"parameter `hash`: {text[:80]!r} is not a hexadecimal SHA-256 hash or a prefix of one", field="hash"
        )
    if len(digits) < MIN_HASH_DIGITS:
        raise InvalidParams(
            f"parameter `hash`: {text!r} is too short; give {MIN_HASH_DIGITS} digits or more", field="hash"
        )
    return digits


def hash_range(text: str) -> tuple[bytes, bytes]:
    """Return the smallest and the largest hash with this prefix.  Raises InvalidParams."""
    digits = hash_digits(text)
    return bytes.fromhex(digits.ljust(64, "0")), bytes.fromhex(digits.ljust(64, "f"))


def documents(db: apsw.Connection, found: Conditions, order: str = "document.id", limit: int = -1,
              offset: int = 0) -> Iterator[Document]:  # fmt: skip
    query = f"{_ROWS}{found.where} ORDER BY {order} LIMIT ? OFFSET ?"
    return (_document(row) for row in db.execute(query, (*found.values, limit, offset)))


def total(db: apsw.Connection, found: Conditions) -> int:
    query = f"SELECT count(*) FROM document JOIN object ON object.id = document.object{found.where}"
    return int(db.execute(query, found.values).get)


def holding(db: apsw.Connection, object_: int, found: Conditions | None = None, limit: int = -1) -> list[Document]:
    """Return the documents that hold a content and meet the conditions."""
    here = Conditions() if found is None else Conditions([*found.clauses], [*found.values])
    here.add("document.object=?", object_)
    return list(documents(db, here, limit=limit))


def count_by_object(db: apsw.Connection, objects: Sequence[int], found: Conditions) -> dict[int, int]:
    """Count the matching documents of each content; contents without any are omitted."""
    query = (
        "SELECT document.object, count(*) FROM carray(?) AS one JOIN document ON document.object = one.value"
        f" JOIN object ON object.id = document.object{found.where} GROUP BY 1"
    )
    return dict(db.execute(query, (tables.ids(objects), *found.values)))


def _document(row: Sequence[Any]) -> Document:
    (id_, hash_, name, path, size, mime, extension, is_text, tags, metadata, collections, session, created, modified,
     indexed) = row  # fmt: skip
    return Document(
        id=id_, hash=hash_, name=name, path=path, size=size, mime_type=mime, extension=extension,
        type="text" if is_text else "binary", tags=json.loads(tags), metadata=json.loads(metadata),
        collections=json.loads(collections), session=session, created=instant(created), modified=instant(modified),
        indexed=instant(indexed),
    )  # fmt: skip


def instant(ns: int) -> str:
    """Format a time as RFC 3339 in UTC, with milliseconds."""
    seconds, rest = divmod(ns, 1_000_000_000)
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(microsecond=rest // 1000)
    except (OverflowError, ValueError, OSError):
        # A file can have any time.
        moment = datetime.datetime.fromtimestamp(0, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def named(db: apsw.Connection, name: str, *, ends: bool = True) -> list[Document]:
    """Return the documents with this path, else with this name, else (if `ends`) those whose path ends with it."""
    plain = name.removeprefix("./")
    tries: list[tuple[str, list[apsw.SQLiteValue]]] = [("document.path=?", [plain]), ("document.name=?", [plain])]
    if ends and "/" in plain.strip("/"):
        end = plain.lstrip("/")
        tries.append(("substr(document.path, -length(?)-1) = '/'||?", [end, end]))
    found = (list(documents(db, Conditions([clause], values))) for clause, values in tries)
    return next(filter(None, found), [])


def pick(
    db: apsw.Connection, *, hash_: str | None = None, name: str | None = None, path: str | None = None
) -> list[Document]:
    """Return the documents of the one content that `get` or `graph` asks for.

    Raises:
        InvalidParams: the hash is malformed.
        OperationError: there is no such document, or the name or hash is ambiguous.
    """
    if hash_ is not None:
        field_, said = "hash", f"hash {hash_digits(hash_)}"
        rows = list(documents(db, conditions(hash_=hash_)))
        several = sorted({row.hash[:16] for row in rows})
        why = f"{len({row.hash for row in rows})} hashes have this prefix", "give more digits"
    else:
        wanted = path if path is not None else name
        assert wanted is not None
        field_ = "path" if path is not None else "name"
        said = f"{field_} {wanted[:200]!r}"
        rows = named(db, wanted)
        several = [row.path for row in rows]
        why = f"{len(rows)} documents have it", "give the full path or the hash"
    if not rows:
        near = "" if hash_ is not None else nearest(db, str(path if path is not None else name))
        raise OperationError(f"Document not found: no document with {said}{near}", field=field_)
    if len({row.hash for row in rows}) > 1:
        listed = ", ".join(several[:5]) + ", …" * (len(several) > 5)
        raise OperationError(f"{said} is ambiguous: {why[0]} ({listed}); {why[1]}", field=field_)
    return rows


def content_hash(db: apsw.Connection, hash_: str) -> bytes:
    """Return the hash of the one content of a document or snapshot whose hash has this prefix.

    Raises:
        InvalidParams: the prefix is malformed.
        OperationError: there is no such content, or there are several.
    """
    query = f"SELECT hash FROM object WHERE hash BETWEEN ? AND ? AND {objects.HELD} LIMIT 2"
    found = [each for (each,) in db.execute(query, hash_range(hash_))]
    if not found:
        raise OperationError(f"no stored content has the hash {hash_digits(hash_)}", field="hash")
    if len(found) > 1:
        raise OperationError(f"several hashes begin with {hash_digits(hash_)}; give more digits", field="hash")
    return bytes(found[0])


def nearest(db: apsw.Connection, wanted: str) -> str:
    """Return a "did you mean" suffix for the message about an unknown path or name."""
    column = "path" if "/" in wanted else "name"
    query = f"SELECT DISTINCT {column} FROM document ORDER BY abs(length({column}) - ?), {column} LIMIT 5000"
    return did_you_mean(wanted, (found for (found,) in db.execute(query, (len(wanted),))))


@dataclass(frozen=True, slots=True)
class DocumentAttributes:
    """The attributes that an `add` gives its documents."""

    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    collection: str | None = None
    mime: str | None = None
    session: str | None = None


def merge(db: apsw.Connection, id_: int, values: Mapping[str, Scalar]) -> None:
    """Set values in a document's metadata; None removes a key."""
    if values:
        before = json.loads(db.execute("SELECT metadata FROM document WHERE id=?", (id_,)).get)
        after = {key: value for key, value in {**before, **values}.items() if value is not None}
        if after != before:
            db.execute("UPDATE document SET metadata=? WHERE id=?", (json.dumps(after, ensure_ascii=False), id_))


def join(db: apsw.Connection, collection: str, ids: apsw.CArrayBinding) -> None:
    """Add documents to a collection, creating it if necessary."""
    db.execute("INSERT OR IGNORE INTO collection(name) VALUES(?)", (collection,))
    db.execute(
        "INSERT OR IGNORE INTO member(document, collection)"
        " SELECT value, (SELECT id FROM collection WHERE name=?) FROM carray(?)",
        (collection, ids),
    )
