"""Scenarios of conversations."""

from __future__ import annotations

import json
from typing import Any

from tests.chaos.duplicates import Prepared, World, differs, scenario
from tests.system.support.workloads import turn


def _turn(w: World) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(turn([{"role": "user", "content": f"question {w.name}"}], f"answer {w.name}"))
    return made


async def _talks(w: World) -> list[dict[str, Any]]:
    """Return the conversations of this scenario."""
    found: list[dict[str, Any]] = (await w.ask("chats_list", limit=100))["conversations"]
    return [each for each in found if f"question {w.name}" in json.dumps(each).split('"')]


@scenario("transcript_ingest")
async def transcript_ingest(w: World) -> Prepared:
    async def check(answer: Any) -> str:
        return differs((answer["status"], len(await _talks(w))), ("accepted", 1))

    return Prepared(_turn(w), check, "/v1/ingest")


@scenario("chats_delete")
async def transcript_delete(w: World) -> Prepared:
    said = await w.client.post("/v1/ingest", json.dumps(_turn(w)).encode(), f"made-{w.name}")
    assert said.ok, said
    (talk,) = await _talks(w)

    async def check(answer: Any) -> str:
        return differs((answer["deleted"] > 0, await _talks(w)), (True, []))

    return Prepared({"conversation": talk["id"]}, check)
