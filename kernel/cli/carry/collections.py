"""Collections of clients in an export: a file for each, `collections/NAME.jsonl`, which begins with its shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kernel.cli.carry.files import batched, lines, write
from kernel.cli.terminal import complain, patiently
from kernel.control.client import CallFailed, Client
from proto.json_types import JsonObject


def export(client: Client, folder: Path) -> str:
    """Write those that can be read; answers in words how much that is."""
    documents = 0
    collections = patiently(client, "collection_list", {})["collections"]
    for one in collections:
        if one.get("trouble"):
            complain(f"collection {one['collection']} is left out: {one['trouble']}")
            continue
        documents += write(folder / f"{one['collection']}.jsonl", _rows(client, one)) - 1
    return f"{documents} documents in {len(collections)} collections"


def _rows(client: Client, one: JsonObject) -> Iterator[JsonObject]:
    yield {"dimensions": one["dimensions"]}
    given, more = {"collection": one["collection"], "after": ""}, True
    while more:
        page = patiently(client, "collection_export", given)
        for document in page["documents"]:
            yield {key: value for key, value in document.items() if value not in (None, "", {})}
            given["after"] = document["id"]
        more = page["more"]


def take(client: Client, folder: Path) -> tuple[str, int]:
    """Put what is not there; answers that in words, and how many documents are left out."""
    made = left = 0
    for file in sorted(folder.glob("*.jsonl")):
        rows = lines(file)
        dimensions = next(rows, {"dimensions": None})["dimensions"]
        try:
            given = {"collection": file.stem, **({"dimensions": dimensions} if dimensions else {})}
            patiently(client, "collection_create", given)
            for some in batched(rows, length=lambda row: len(str(row))):
                made += _put(client, file.stem, some)
        except CallFailed as error:
            # Another shape, or the quota: what was there stays.
            complain(f"collection {file.stem} is not taken in whole: {error}")
            left += 1
    return f"{made} documents were put into collections", left


def _put(client: Client, name: str, rows: list[JsonObject]) -> int:
    asked = {"collection": name, "ids": [row["id"] for row in rows], "limit": len(rows)}
    there = {each["id"] for each in patiently(client, "collection_documents", asked)["documents"]}
    new = [row for row in rows if row["id"] not in there]
    if new:
        patiently(client, "collection_upsert", {"collection": name, "documents": new})
    return len(new)
