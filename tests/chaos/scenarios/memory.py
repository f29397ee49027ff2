"""Scenarios of memory."""

from __future__ import annotations

from typing import Any

from tests.chaos.duplicates import Prepared, World, differs, scenario


@scenario("memory_add")
async def remember(w: World) -> Prepared:
    text = f"The lighthouse {w.name} has {w.number} lamps."
    former = (await w.ask("memory_add", text=f"The lighthouse {w.name} is dark."))["id"]

    async def check(answer: Any) -> str:
        found = (await w.ask("memory_list", limit=100))["memories"]
        mine = [each for each in found if each["text"] == text]
        said = [len(each.get("said", [1])) for each in mine]
        replaced = [each["id"] for each in found if each.get("superseded_by") == answer["id"]]
        return differs((len(mine), said, answer.get("merged_with"), replaced), (1, [1], None, [former]))

    return Prepared({"text": text, "supersedes": [former]}, check)


@scenario("memory_update")
async def update_memory(w: World) -> Prepared:
    made = await w.ask("memory_add", text=f"The harbour {w.name} is closed.")

    async def check(answer: Any) -> str:
        return differs(answer["id"], made["id"])

    return Prepared({"id": made["id"], "text": f"The harbour {w.name} is open."}, check)


@scenario("memory_forget")
async def forget(w: World) -> Prepared:
    made = await w.ask("memory_add", text=f"The ferry {w.name} sails at noon.")

    async def check(answer: Any) -> str:
        return differs(answer["forgotten"], 1)

    return Prepared({"id": made["id"]}, check)
