"""The documents that hold what a search has found, all in one question to the database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import apsw

from services.documents.store import rows, statements


@dataclass(frozen=True, slots=True)
class Holder:
    """What an answer about a content says of a document that holds it."""

    id: int
    hash: str
    name: str
    path: str
    size: int
    mime_type: str
    tags: list[str]


def holders(db: apsw.Connection, objects: Sequence[int], found: rows.Conditions, limit: int) -> dict[int, list[Holder]]:
    """The first documents (of those that fulfil the conditions) in the order of the contents that they hold."""
    held = db.execute(
        "SELECT document.object, document.id, object.hash, document.name, document.path, object.size,"
        " coalesce(document.mime, object.mime),"
        " (SELECT json_group_array(tag) FROM tag WHERE tag.document=document.id)"
        " FROM carray(?) AS one CROSS JOIN document ON document.object = one.value"
        f" CROSS JOIN object ON object.id = document.object{found.where} ORDER BY one.rowid, document.id LIMIT ?",
        (statements.ids(objects), *found.values, limit),
    )
    answer: dict[int, list[Holder]] = {}
    for object_, id_, hash_, name, path, size, mime, tags in held:
        assert isinstance(object_, int)
        assert isinstance(id_, int)
        assert isinstance(hash_, bytes)
        assert isinstance(size, int)
        # Most documents have none.
        said = [] if tags == "[]" else json.loads(str(tags))
        one = Holder(id_, hash_.hex(), str(name), str(path), size, str(mime), said)
        answer.setdefault(object_, []).append(one)
    return answer


def count_by_object(db: apsw.Connection, objects: Sequence[int], found: rows.Conditions) -> dict[int, int]:
    """How many documents (of those that fulfil the conditions) hold each content; none where there are none."""
    where = found.where
    held = db.execute(
        "SELECT document.object, count(*) FROM carray(?) AS one JOIN document ON document.object = one.value"
        f" JOIN object ON object.id = document.object{where} GROUP BY 1",
        (statements.ids(objects), *found.values),
    )
    return {int(str(object_)): int(str(count)) for object_, count in held}
