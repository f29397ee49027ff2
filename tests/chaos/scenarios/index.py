"""Scenarios of the index of files: its queries, plans, sources, sets and jobs."""

from __future__ import annotations

from typing import Any

from tests.chaos.duplicates import Prepared, World, differs, scenario


@scenario("files_index")
async def index(w: World) -> Prepared:
    folder = w.folder("a", "b")

    async def check(answer: Any) -> str:
        return differs(answer["files"], 2)

    return Prepared({"root": str(folder), "async": False}, check)


async def _names(w: World, tool: str, field: str) -> list[str]:
    return [each["name"] for each in (await w.ask(tool))[field]]


async def _once(w: World, tool: str, field: str, expected: int = 1) -> str:
    return differs((await _names(w, tool, field)).count(w.name), expected)


@scenario("queries_create")
async def query_create(w: World) -> Prepared:
    return Prepared({"name": w.name, "ops_query": {}}, lambda _: _once(w, "queries_list", "queries"))


@scenario("queries_update")
async def query_update(w: World) -> Prepared:
    await w.ask("queries_create", name=w.name, query={})
    return Prepared({"name": w.name, "description": "new"}, lambda _: _once(w, "queries_list", "queries"))


@scenario("queries_delete")
async def query_delete(w: World) -> Prepared:
    await w.ask("queries_create", name=w.name, query={})
    return Prepared({"name": w.name}, lambda _: _once(w, "queries_list", "queries", 0))


def _plan(w: World) -> dict[str, Any]:
    source = {"type": "filesystem.index", "config": {"path": str(w.root)}}
    return {"name": w.name, "sources": [source], "outcomes": []}


@scenario("plans_create")
async def plan_create(w: World) -> Prepared:
    return Prepared(_plan(w), lambda _: _once(w, "plans_list", "plans"))


@scenario("plans_update")
async def plan_update(w: World) -> Prepared:
    await w.ask("plans_create", **_plan(w))
    return Prepared({"name": w.name, "description": "new"}, lambda _: _once(w, "plans_list", "plans"))


@scenario("plans_execute")
async def plan_execute(w: World) -> Prepared:
    await w.ask("plans_create", **_plan(w))

    async def check(answer: Any) -> str:
        found = await w.ask("plans_get", name=w.name, includeExecutions=True, executionLimit=100)
        ids = [str(each["execution_id"]) for each in found["executions"]]
        return differs(ids, [str(answer["execution_id"])])

    return Prepared({"name": w.name}, check)


@scenario("plans_delete")
async def plan_delete(w: World) -> Prepared:
    await w.ask("plans_create", **_plan(w))
    return Prepared({"name": w.name}, lambda _: _once(w, "plans_list", "plans", 0))


def _source(w: World) -> dict[str, Any]:
    return {"name": w.name, "type": "manual", "path": str(w.root)}


@scenario("sources_create")
async def source_create(w: World) -> Prepared:
    return Prepared(_source(w), lambda _: _once(w, "sources_list", "sources"))


@scenario("sources_start")
async def source_start(w: World) -> Prepared:
    await w.ask("sources_create", **_source(w))
    return Prepared({"name": w.name}, lambda _: _once(w, "sources_list", "sources"))


@scenario("sources_stop")
async def source_stop(w: World) -> Prepared:
    await w.ask("sources_create", **_source(w))
    return Prepared({"name": w.name}, lambda _: _once(w, "sources_list", "sources"))


@scenario("sources_delete")
async def source_delete(w: World) -> Prepared:
    await w.ask("sources_create", **_source(w))
    return Prepared({"name": w.name}, lambda _: _once(w, "sources_list", "sources", 0))


async def _set(w: World, name: str = "") -> dict[str, Any]:
    made: dict[str, Any] = await w.ask("sets_create", name=name or w.name)
    return made


@scenario("sets_create")
async def resource_set_create(w: World) -> Prepared:
    return Prepared({"name": w.name}, lambda _: _once(w, "sets_list", "resource_sets"))


@scenario("sets_modify")
async def resource_set_modify(w: World) -> Prepared:
    await _set(w)
    folder = w.folder("a")
    await w.ask("files_index", root=str(folder), **{"async": False})
    arguments = {"name": w.name, "operation": "add", "paths": [str(folder / "a")]}
    return Prepared(arguments, lambda _: _once(w, "sets_list", "resource_sets"))


@scenario("sets_add_child")
async def resource_set_add_child(w: World) -> Prepared:
    await _set(w)
    await _set(w, f"{w.name}-child")
    arguments = {"parent": w.name, "child": f"{w.name}-child"}
    return Prepared(arguments, lambda _: _once(w, "sets_list", "resource_sets"))


@scenario("sets_remove_child")
async def resource_set_remove_child(w: World) -> Prepared:
    await _set(w)
    await _set(w, f"{w.name}-child")
    arguments = {"parent": w.name, "child": f"{w.name}-child"}
    await w.ask("sets_add_child", **arguments)
    return Prepared(arguments, lambda _: _once(w, "sets_list", "resource_sets"))


@scenario("sets_delete")
async def resource_set_delete(w: World) -> Prepared:
    await _set(w)
    return Prepared({"name": w.name}, lambda _: _once(w, "sets_list", "resource_sets", 0))


@scenario("preferences_set")
async def session_set_preferences(w: World) -> Prepared:
    async def check(answer: Any) -> str:
        return differs(answer["preferences"].get(w.name), w.number)

    return Prepared({"preferences": {w.name: w.number}}, check)


@scenario("classifier_run")
async def rerun_classifier(w: World) -> Prepared:
    folder = w.folder("a.txt")
    await w.ask("files_index", root=str(folder), **{"async": False})
    path = str(folder / "a.txt")

    async def check(answer: Any) -> str:
        found = (await w.ask("classifier_jobs", limit=500))["jobs"]
        mine = [str(each["id"]) for each in found if each["source_path"] == path]
        return differs(mine, [str(answer["jobId"])])

    return Prepared({"sourcePath": path}, check)


@scenario("jobs_cancel")
async def cancel_job(w: World) -> Prepared:
    folder = w.folder("a")
    for n in range(150):
        below = folder / f"s{n}"
        below.mkdir()
        for name in range(80):
            (below / str(name)).touch()
    job = await w.ask("files_index", root=str(folder))

    async def check(answer: Any) -> str:
        return differs(answer["status"], "cancelled")

    # It may have been quicker.
    return Prepared({"jobId": str(job["jobId"])}, check, may_be_refused=True)
