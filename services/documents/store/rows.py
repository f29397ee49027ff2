"""Documents as rows: what admits one to an answer, how one is named, and how one is written.

Functions on a connection, inside the caller's transaction.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import apsw

from proto.errors import InvalidParams, OperationError
from proto.ops.documents.reading import Document, Scalar
from services.documents.store import globs

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
    """What a document must fulfil; SQL on `document` and `object`, and the values in it."""

    clauses: list[str] = field(default_factory=list)
    values: list[apsw.SQLiteValue] = field(default_factory=list)
    is_slow: bool = False
    """Whether each document's path has to be looked at."""

    def add(self, clause: str, *values: apsw.SQLiteValue) -> None:
        self.clauses.append(clause)
        self.values += values

    def add_globs(self, patterns: Sequence[str], *, negated: bool = False) -> None:
        """The path matches one of these (or none)."""
        self.is_slow = True
        self.add(f"{'NOT ' if negated else ''}path_matches(?, document.path)", globs.SEPARATOR.join(patterns))

    @property
    def where(self) -> str:
        """As SQL has it; the values follow."""
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
    """The conditions that callers may give.  Raises InvalidParams."""
    found = Conditions()
    for tag in tags:
        found.add("EXISTS(SELECT 1 FROM tag WHERE tag.document=document.id AND tag=?)", tag)
    if collection is not None:
        found.add(
            "document.id IN (SELECT document FROM member WHERE collection=(SELECT id FROM collection WHERE name=?))",
            collection,
        )
    if session is not None:
        found.add(
            "document.session=(SELECT id FROM session WHERE id=? OR label=? ORDER BY number DESC LIMIT 1)",
            session,
            session,
        )
    if extension is not None:
        wanted = [f".{one.strip().lower().lstrip('.')}" for one in extension.split(",") if one.strip(" .")]
        found.add(f"document.extension IN ({', '.join('?' * len(wanted))})", *wanted)
    if pattern is not None:
        found.add_globs([pattern])
    if path is not None:
        under(found, path)
    if hash_ is not None:
        low, high = hash_range(hash_)
        found.add("object.hash BETWEEN ? AND ?", low, high)
    for key, value in (metadata or {}).items():
        # A number in the metadata is equal to the text that writes it, for callers who give `key=value`.
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


def _as_text(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def under(found: Conditions, path: str) -> None:
    """At or below a path, or matching a glob."""
    if globs.is_glob(path):
        found.add_globs([path])
        return
    plain = path.removeprefix("./").rstrip("/") or "/"
    if plain.startswith("/"):
        if plain != "/":
            found.add("(document.path=? OR (document.path>=? AND document.path<?))", plain, plain + "/", plain + "0")
    else:
        found.add(
            "(document.path=? OR (document.path>=? AND document.path<?) OR instr(document.path||'/', ?) > 0)",
            plain,
            plain + "/",
            plain + "0",
            f"/{plain}/",
        )


def hash_digits(text: str) -> str:
    """The hexadecimal digits of a hash or of its beginning.  Raises InvalidParams."""
    digits = text.strip().lower()
    for prefix in ("sha256:", "sha256-"):
        digits = digits.removeprefix(prefix)
    if not _HEX.fullmatch(digits) or len(digits) > 64:
        raise InvalidParams(
            f"parameter `hash`: {text[:80]!r} is no SHA-256 in hexadecimal, nor the beginning of one", field="hash"
        )
    if len(digits) < MIN_HASH_DIGITS:
        raise InvalidParams(
            f"parameter `hash`: {text!r} is too short; give {MIN_HASH_DIGITS} digits or more", field="hash"
        )
    return digits


def hash_range(text: str) -> tuple[bytes, bytes]:
    """The least and the greatest hash that begins so.  Raises InvalidParams."""
    digits = hash_digits(text)
    return bytes.fromhex(digits.ljust(64, "0")), bytes.fromhex(digits.ljust(64, "f"))


def documents(db: apsw.Connection, found: Conditions, order: str = "document.id", limit: int = -1,
              offset: int = 0) -> Iterator[Document]:  # fmt: skip
    """The documents that fulfil the conditions."""
    where = found.where
    for row in db.execute(f"{_ROWS}{where} ORDER BY {order} LIMIT ? OFFSET ?", (*found.values, limit, offset)):
        yield _document(row)


def total(db: apsw.Connection, found: Conditions) -> int:
    """How many documents fulfil the conditions."""
    where = found.where
    row = db.execute(
        f"SELECT count(*) FROM document JOIN object ON object.id = document.object{where}", found.values
    ).fetchall()[0]
    assert isinstance(row[0], int)
    return row[0]


def by_object(
    db: apsw.Connection, objects: Iterable[int], found: Conditions | None = None
) -> dict[int, list[Document]]:
    """Documents (of those that fulfil the conditions) by the content that they hold."""
    here = found or Conditions()
    where = here.where
    joined = f"{where} AND" if where else " WHERE"
    answer: dict[int, list[Document]] = {}
    for object_ in objects:
        rows = db.execute(f"{_ROWS}{joined} document.object=? ORDER BY document.id", (*here.values, object_))
        answer[object_] = [_document(row) for row in rows]
    return answer


def _document(row: Sequence[object]) -> Document:
    (id_, hash_, name, path, size, mime, extension, is_text, tags, metadata, collections, session, created, modified,
     indexed) = row  # fmt: skip
    assert isinstance(id_, int)
    assert isinstance(size, int)
    return Document(
        id=id_,
        hash=str(hash_),
        name=str(name),
        path=str(path),
        size=size,
        mime_type=str(mime),
        extension=str(extension),
        type="text" if is_text else "binary",
        tags=json.loads(str(tags)),
        metadata=json.loads(str(metadata)),
        collections=json.loads(str(collections)),
        session=None if session is None else str(session),
        created=instant(created),
        modified=instant(modified),
        indexed=instant(indexed),
    )


def instant(ns: object) -> str:
    """RFC 3339, in UTC, to the millisecond."""
    assert isinstance(ns, int)
    seconds, rest = divmod(ns, 1_000_000_000)
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(microsecond=rest // 1000)
    except (OverflowError, ValueError, OSError):
        # A file may claim any time at all.
        moment = datetime.datetime.fromtimestamp(0, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def named(db: apsw.Connection, name: str, *, ends: bool = True) -> list[Document]:
    """The documents of a path or else of a name, or else (with `ends`) those whose path ends so."""
    plain = name.removeprefix("./")
    clauses = ["document.path=?", "document.name=?"]
    if ends and "/" in plain.strip("/"):
        clauses.append("substr(document.path, -length(?1)-1) = '/'||?1".replace("?1", "?"))
    for clause in clauses:
        found = Conditions()
        found.add(clause, *([plain.lstrip("/") if "substr" in clause else plain] * clause.count("?")))
        rows = list(documents(db, found))
        if rows:
            return rows
    return []


def pick(db: apsw.Connection, *, hash_: str | None, name: str | None, path: str | None) -> list[Document]:
    """The documents of one content, as `get` and `graph` name it.

    Raises:
        InvalidParams: the hash cannot be one.
        OperationError: there is no such document, or several contents are meant.
    """
    if hash_ is not None:
        rows = list(documents(db, conditions(hash_=hash_)))
        said = f"hash {hash_digits(hash_)}"
        others = sorted({row.hash for row in rows})
        if len(others) > 1:
            raise OperationError(
                f"{said} is ambiguous: {len(others)} hashes begin so ({', '.join(h[:16] for h in others[:5])}"
                f"{', …' if len(others) > 5 else ''}); give more digits",
                field="hash",
            )
        field_ = "hash"
    else:
        wanted = path if path is not None else name
        assert wanted is not None
        field_ = "path" if path is not None else "name"
        rows = named(db, wanted)
        said = f"{field_} {wanted[:200]!r}"
        others = sorted({row.hash for row in rows})
        if len(others) > 1:
            raise OperationError(
                f"{said} is ambiguous: {len(rows)} documents have it ({', '.join(row.path for row in rows[:5])}"
                f"{', …' if len(rows) > 5 else ''}); give the whole path, or the hash",
                field=field_,
            )
    if not rows:
        raise OperationError(f"Document not found: no document with {said}", field=field_)
    return rows


@dataclass(frozen=True, slots=True)
class Given:
    """What an `add` says of its documents."""

    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    collection: str | None = None
    mime: str | None = None
    session: str | None = None


ADDED, UPDATED, UNCHANGED = "added", "updated", "unchanged"


def merge(db: apsw.Connection, id_: int, held: str, values: Mapping[str, Scalar]) -> bool:
    """Set values of the metadata; null takes one away.  Answers whether that changed anything."""
    before = json.loads(held)
    after = {key: value for key, value in {**before, **values}.items() if value is not None}
    if after == before:
        return False
    db.execute("UPDATE document SET metadata=? WHERE id=?", (json.dumps(after, ensure_ascii=False), id_))
    return True
