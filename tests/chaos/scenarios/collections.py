"""Scenarios of collections."""

from __future__ import annotations

from typing import Any

from tests.chaos.duplicates import Prepared, World, differs, scenario


async def _collection(w: World) -> None:
    await w.ask("collections_create", collection=w.name, dimensions=2)


async def _drop(w: World) -> None:
    await w.ask("collections_drop", collection=w.name)


@scenario("collections_create")
async def collection_create(w: World) -> Prepared:
    async def check(answer: Any) -> str:
        await _drop(w)
        return differs(answer["collection"], w.name)

    return Prepared({"collection": w.name, "dimensions": 2}, check)


@scenario("collections_upsert")
async def collection_upsert(w: World) -> Prepared:
    await _collection(w)

    async def check(answer: Any) -> str:
        count = (await w.ask("collections_count", collection=w.name))["documents"]
        await _drop(w)
        return differs((count, answer["upserted"]), (1, 1))

    return Prepared({"collection": w.name, "documents": [{"id": "a", "text": "x", "vector": [1, 0]}]}, check)


@scenario("collections_delete")
async def collection_delete(w: World) -> Prepared:
    await _collection(w)
    await w.ask("collections_upsert", collection=w.name, documents=[{"id": "a", "text": "x", "vector": [1, 0]}])

    async def check(answer: Any) -> str:
        await _drop(w)
        return differs(answer["deleted"], 1)

    return Prepared({"collection": w.name, "ids": ["a"]}, check)


@scenario("collections_drop")
async def collection_drop(w: World) -> Prepared:
    await _collection(w)

    async def check(answer: Any) -> str:
        del answer
        names = [each["collection"] for each in (await w.ask("collections_list"))["collections"]]
        return differs(w.name in names, False)

    return Prepared({"collection": w.name}, check)
