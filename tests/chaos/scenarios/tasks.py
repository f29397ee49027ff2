"""Scenarios of tasks and schedules."""

from __future__ import annotations

from typing import Any

from tests.chaos.duplicates import Prepared, World, differs, read_text, scenario


@scenario("tasks_start")
async def task_start(w: World) -> Prepared:
    file = w.file("a:\n  - x\n")

    async def check(answer: Any) -> str:
        ended = await w.ask("tasks_wait", id=answer["id"], timeout_s=60)
        return differs(ended["state"], "completed") or differs(read_text(file), "a:\n  - x\n  - y\n")

    return Prepared({"operation": "yaml_append", "arguments": {"file": file, "path": "a", "value": "y"}}, check)


@scenario("tasks_cancel")
async def task_cancel(w: World) -> Prepared:
    made = await w.ask("tasks_start", operation="mcp_echo", arguments={"message": w.name})

    async def check(answer: Any) -> str:
        return differs(answer["state"] in ("cancelled", "completed"), True)

    return Prepared({"id": made["id"]}, check)


async def _timers(w: World, id_: str) -> int:
    return sum(each["id"] == id_ for each in (await w.ask("timers_list"))["timers"])


def _timer(w: World) -> dict[str, Any]:
    return {"operation": "mcp_echo", "arguments": {"message": w.name}, "cron": "0 0 1 1 *"}


@scenario("timers_create")
async def schedule(w: World) -> Prepared:
    async def check(answer: Any) -> str:
        return differs(await _timers(w, answer["id"]), 1)

    return Prepared(_timer(w), check)


@scenario("timers_cancel")
async def schedule_cancel(w: World) -> Prepared:
    made = await w.ask("timers_create", **_timer(w))

    async def check(answer: Any) -> str:
        return differs((answer["id"], await _timers(w, made["id"])), (made["id"], 0))

    return Prepared({"id": made["id"]}, check)
