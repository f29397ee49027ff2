"""Documents of a collection are deleted by exactly the ids and values that were given."""

from __future__ import annotations

from pathlib import Path

import pytest

from proto.errors import LinckiaError
from proto.ops.retrieve import Filter
from services.retrieve.operations import (
    CollectionCreate,
    CollectionDelete,
    CollectionDocuments,
    CollectionDrop,
    CollectionListParams,
    CollectionUpsert,
    Document,
)
from tests.in_process import Bench
from tests.unit.retrieve.test_client_collections import doc, retrieve, store

__all__ = ["store"]
VALUES = [
    "a*",
    "ab",
    "a%",
    "a_",
    "[a]",
    "a",
    "A",
    "%",
    "*",
    "-a",
    "~",
    "a\\",
    "'a'",
    '"a"',
    "e\u0301",
    "\u00e9",
    "{a,b}",
    " a",
]


async def left(bench: Bench, collection: str = "mine") -> set[str]:
    return {each.id for each in (await bench.call(CollectionDocuments(collection=collection))).documents}


@pytest.mark.parametrize("by", ["ids", "value", "prefix", "field"])
async def test_a_deletion_removes_only_the_named_ids(tmp_path: Path, by: str) -> None:
    async with retrieve(tmp_path, collection_documents=100, collection_bytes=100_000) as bench:
        await bench.call(CollectionCreate(collection="mine"))
        docs = [Document(id=each, text="text", payload={"of": each + "|", each: 1}) for each in VALUES]
        await bench.call(CollectionUpsert(collection="mine", documents=docs))
        there = set(VALUES)
        for each in VALUES:
            if by == "ids":
                gone = await bench.call(CollectionDelete(collection="mine", ids=[each]))
            elif by == "field":
                gone = await bench.call(CollectionDelete(collection="mine", filters=[Filter(field=each, any_of=[1])]))
            else:
                is_value = by == "value"
                wanted = Filter(
                    field="of", any_of=[f"{each}|"] if is_value else None, prefix=None if is_value else f"{each}|"
                )
                gone = await bench.call(CollectionDelete(collection="mine", filters=[wanted]))
            there -= {each}
            assert (gone.deleted, await left(bench)) == (1, there), each


async def test_a_drop_removes_only_the_named_collection(tmp_path: Path) -> None:
    async with retrieve(tmp_path) as bench:
        for name in ("a", "a-", "a_"):
            await bench.call(CollectionCreate(collection=name))
            await bench.call(CollectionUpsert(collection=name, documents=[doc("x", "text")]))
        await bench.call(CollectionDrop(collection="a_"))
        await bench.call(CollectionDrop(collection="a"))
        assert [each.collection for each in (await bench.call(CollectionListParams())).collections] == ["a-"]
        assert await left(bench, "a-") == {"x"}
        for wrong in ("a*", "a?", "[a]", "../a", "A", ""):
            with pytest.raises(LinckiaError):
                await bench.call(CollectionDrop(collection=wrong))
