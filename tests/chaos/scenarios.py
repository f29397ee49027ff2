"""The scenarios of `duplicates`: for each changing operation, a call and what exactly one call does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.chaos.duplicates import Prepared, World, differs, scenario
from tests.system.support.workloads import turn


def _read(path: str) -> str:
    """Return the text of a file; "" if it does not exist."""
    return Path(path).read_text() if Path(path).exists() else ""


def _text(path: str, expected: str) -> Any:
    async def check(_: Any) -> str:
        return differs(_read(path), expected)

    return check


# YAML


@scenario("noyalib_set")
async def noyalib_set(w: World) -> Prepared:
    file = w.file("a: 1 # kept\n")
    return Prepared({"file": file, "path": "a", "value": "2"}, _text(file, "a: 2 # kept\n"))


@scenario("yaml_append")
async def yaml_append(w: World) -> Prepared:
    file = w.file("a:\n  - x\n")
    return Prepared({"file": file, "path": "a", "value": "y"}, _text(file, "a:\n  - x\n  - y\n"))


@scenario("yaml_delete")
async def yaml_delete(w: World) -> Prepared:
    file = w.file("a:\n  - x\n  - y\n  - z\n")
    return Prepared({"file": file, "path": "a[0]"}, _text(file, "a:\n  - y\n  - z\n"))


@scenario("yaml_edit")
async def yaml_edit(w: World) -> Prepared:
    file = w.file("a:\n  - x\nb: 1\n")
    edits = [{"op": "append", "path": "a", "value": "y"}, {"op": "set", "path": "b", "value": "2"}]
    return Prepared({"file": file, "edits": edits}, _text(file, "a:\n  - x\n  - y\nb: 2\n"))


@scenario("yaml_rename")
async def yaml_rename(w: World) -> Prepared:
    file = w.file("a: 1\n")
    return Prepared({"file": file, "path": "a", "key": "b"}, _text(file, "b: 1\n"))


@scenario("yaml_set_comments")
async def yaml_set_comments(w: World) -> Prepared:
    file = w.file("a: 1\n")
    return Prepared({"file": file, "path": "a", "beside": "new"}, _text(file, "a: 1  # new\n"))


# Files


@scenario("edit-file")
async def edit_file(w: World) -> Prepared:
    file = w.file("a\n", "txt")
    return Prepared({"path": file, "edits": [{"old": "a", "new": "aa"}]}, _text(file, "aa\n"))


async def _in_trash(w: World, path: str) -> int:
    items = (await w.ask("list-trash", limit=500))["items"]
    return sum(each["path"] == path for each in items)


@scenario("write-file")
async def write_file(w: World) -> Prepared:
    file = w.file("old\n", "txt")

    async def check(answer: Any) -> str:
        kept = await _in_trash(w, file)
        return await _text(file, "new\n")(answer) or differs((kept, answer.get("changed", True)), (1, True))

    return Prepared({"path": file, "content": "new\n", "overwrite": True}, check)


def _folder(w: World, *names: str) -> Path:
    folder = w.root / f"f{w.number}"
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"{w.number} {name}\n")
    return folder


@scenario("move-files")
async def move_files(w: World) -> Prepared:
    folder = _folder(w, "a", "b", "c")
    moves = [{"from": str(folder / name), "to": str(folder / f"moved-{name}")} for name in "abc"]

    async def check(answer: Any) -> str:
        names = sorted(each.name for each in folder.iterdir())
        return differs((names, answer["succeeded"]), (["moved-a", "moved-b", "moved-c"], 3))

    return Prepared({"moves": moves}, check)


@scenario("rename-files")
async def rename_files(w: World) -> Prepared:
    folder = _folder(w, "a", "b")
    renames = [{"from": str(folder / name), "to": str(folder / f"new-{name}")} for name in "ab"]

    async def check(answer: Any) -> str:
        names = sorted(each.name for each in folder.iterdir())
        return differs((names, answer["succeeded"]), (["new-a", "new-b"], 2))

    return Prepared({"renames": renames}, check)


@scenario("delete-files")
async def delete_files(w: World) -> Prepared:
    folder = _folder(w, "a", "b")
    paths = [str(folder / name) for name in "ab"]

    async def check(answer: Any) -> str:
        kept = [await _in_trash(w, path) for path in paths]
        return differs((kept, list(folder.iterdir()), answer["succeeded"]), ([1, 1], [], 2))

    return Prepared({"paths": paths}, check)


@scenario("restore-files")
async def restore_files(w: World) -> Prepared:
    folder = _folder(w, "a", "b")
    paths = [str(folder / name) for name in "ab"]
    await w.ask("delete-files", paths=paths)

    async def check(answer: Any) -> str:
        names = sorted(each.name for each in folder.iterdir())
        return differs((names, answer["succeeded"]), (["a", "b"], 2))

    return Prepared({"paths": paths}, check)


@scenario("empty-trash")
async def empty_trash(w: World) -> Prepared:
    folder = _folder(w, "a", "b")
    gone = await w.ask("delete-files", paths=[str(folder / name) for name in "ab"])
    ids = [each["trashId"] for each in gone["results"]]

    async def check(answer: Any) -> str:
        kept = [await _in_trash(w, str(folder / name)) for name in "ab"]
        return differs((kept, answer["deleted"]), ([0, 0], 2))

    return Prepared({"trashIds": ids}, check)


@scenario("index")
async def index(w: World) -> Prepared:
    folder = _folder(w, "a", "b")

    async def check(answer: Any) -> str:
        return differs(answer["files"], 2)

    return Prepared({"root": str(folder), "async": False}, check)


async def _names(w: World, tool: str, field: str) -> list[str]:
    return [each["name"] for each in (await w.ask(tool))[field]]


async def _once(w: World, tool: str, field: str, expected: int = 1) -> str:
    return differs((await _names(w, tool, field)).count(w.name), expected)


@scenario("query-create")
async def query_create(w: World) -> Prepared:
    return Prepared({"name": w.name, "query": {}}, lambda _: _once(w, "query-list", "queries"))


@scenario("query-update")
async def query_update(w: World) -> Prepared:
    await w.ask("query-create", name=w.name, query={})
    return Prepared({"name": w.name, "description": "new"}, lambda _: _once(w, "query-list", "queries"))


@scenario("query-delete")
async def query_delete(w: World) -> Prepared:
    await w.ask("query-create", name=w.name, query={})
    return Prepared({"name": w.name}, lambda _: _once(w, "query-list", "queries", 0))


def _plan(w: World) -> dict[str, Any]:
    source = {"type": "filesystem.index", "config": {"path": str(w.root)}}
    return {"name": w.name, "sources": [source], "outcomes": []}


@scenario("plan-create")
async def plan_create(w: World) -> Prepared:
    return Prepared(_plan(w), lambda _: _once(w, "plan-list", "plans"))


@scenario("plan-update")
async def plan_update(w: World) -> Prepared:
    await w.ask("plan-create", **_plan(w))
    return Prepared({"name": w.name, "description": "new"}, lambda _: _once(w, "plan-list", "plans"))


@scenario("plan-execute")
async def plan_execute(w: World) -> Prepared:
    await w.ask("plan-create", **_plan(w))

    async def check(answer: Any) -> str:
        found = await w.ask("plan-get", name=w.name, includeExecutions=True, executionLimit=100)
        ids = [str(each["execution_id"]) for each in found["executions"]]
        return differs(ids, [str(answer["execution_id"])])

    return Prepared({"name": w.name}, check)


@scenario("plan-delete")
async def plan_delete(w: World) -> Prepared:
    await w.ask("plan-create", **_plan(w))
    return Prepared({"name": w.name}, lambda _: _once(w, "plan-list", "plans", 0))


def _source(w: World) -> dict[str, Any]:
    return {"name": w.name, "type": "manual", "path": str(w.root)}


@scenario("source-create")
async def source_create(w: World) -> Prepared:
    return Prepared(_source(w), lambda _: _once(w, "source-list", "sources"))


@scenario("source-start")
async def source_start(w: World) -> Prepared:
    await w.ask("source-create", **_source(w))
    return Prepared({"name": w.name}, lambda _: _once(w, "source-list", "sources"))


@scenario("source-stop")
async def source_stop(w: World) -> Prepared:
    await w.ask("source-create", **_source(w))
    return Prepared({"name": w.name}, lambda _: _once(w, "source-list", "sources"))


@scenario("source-delete")
async def source_delete(w: World) -> Prepared:
    await w.ask("source-create", **_source(w))
    return Prepared({"name": w.name}, lambda _: _once(w, "source-list", "sources", 0))


async def _set(w: World, name: str = "") -> dict[str, Any]:
    made: dict[str, Any] = await w.ask("resource-set-create", name=name or w.name)
    return made


@scenario("resource-set-create")
async def resource_set_create(w: World) -> Prepared:
    return Prepared({"name": w.name}, lambda _: _once(w, "resource-set-list", "resource_sets"))


@scenario("resource-set-modify")
async def resource_set_modify(w: World) -> Prepared:
    await _set(w)
    folder = _folder(w, "a")
    await w.ask("index", root=str(folder), **{"async": False})
    arguments = {"name": w.name, "operation": "add", "paths": [str(folder / "a")]}
    return Prepared(arguments, lambda _: _once(w, "resource-set-list", "resource_sets"))


@scenario("resource-set-add-child")
async def resource_set_add_child(w: World) -> Prepared:
    await _set(w)
    await _set(w, f"{w.name}-child")
    arguments = {"parent": w.name, "child": f"{w.name}-child"}
    return Prepared(arguments, lambda _: _once(w, "resource-set-list", "resource_sets"))


@scenario("resource-set-remove-child")
async def resource_set_remove_child(w: World) -> Prepared:
    await _set(w)
    await _set(w, f"{w.name}-child")
    arguments = {"parent": w.name, "child": f"{w.name}-child"}
    await w.ask("resource-set-add-child", **arguments)
    return Prepared(arguments, lambda _: _once(w, "resource-set-list", "resource_sets"))


@scenario("resource-set-delete")
async def resource_set_delete(w: World) -> Prepared:
    await _set(w)
    return Prepared({"name": w.name}, lambda _: _once(w, "resource-set-list", "resource_sets", 0))


@scenario("session-set-preferences")
async def session_set_preferences(w: World) -> Prepared:
    async def check(answer: Any) -> str:
        return differs(answer["preferences"].get(w.name), w.number)

    return Prepared({"preferences": {w.name: w.number}}, check)


@scenario("rerun-classifier")
async def rerun_classifier(w: World) -> Prepared:
    folder = _folder(w, "a.txt")
    await w.ask("index", root=str(folder), **{"async": False})
    path = str(folder / "a.txt")

    async def check(answer: Any) -> str:
        found = (await w.ask("list-classifier-jobs", limit=500))["jobs"]
        mine = [str(each["id"]) for each in found if each["source_path"] == path]
        return differs(mine, [str(answer["jobId"])])

    return Prepared({"sourcePath": path}, check)


@scenario("cancel-job")
async def cancel_job(w: World) -> Prepared:
    folder = _folder(w, "a")
    for n in range(150):
        below = folder / f"s{n}"
        below.mkdir()
        for name in range(80):
            (below / str(name)).touch()
    job = await w.ask("index", root=str(folder))

    async def check(answer: Any) -> str:
        return differs(answer["status"], "cancelled")

    # It may have been quicker.
    return Prepared({"jobId": str(job["jobId"])}, check, may_be_refused=True)


# Documents


@scenario("documents_add")
async def documents_add(w: World) -> Prepared:
    async def check(answer: Any) -> str:
        del answer
        found = await w.step("documents_list", name=w.name)
        return differs(len(found["documents"]), 1)

    return Prepared({"name": w.name, "content": f"starfish {w.number}"}, check, "execute")


@scenario("documents_update")
async def documents_update(w: World) -> Prepared:
    await w.step("documents_add", name=w.name, content=f"starfish {w.number}")

    async def check(answer: Any) -> str:
        return differs(answer["results"][0]["updated"], 1)

    return Prepared({"name": w.name, "tags": ["x"]}, check, "execute")


@scenario("documents_delete")
async def documents_delete(w: World) -> Prepared:
    await w.step("documents_add", name=w.name, content=f"starfish {w.number}")

    async def check(answer: Any) -> str:
        return differs(answer["results"][0]["success"], True)

    return Prepared({"name": w.name}, check, "execute")


@scenario("documents_session_start")
async def session_start(w: World) -> Prepared:
    async def check(answer: Any) -> str:
        return differs(answer["label"], w.name)

    return Prepared({"label": w.name}, check, "session")


async def _session(w: World) -> str:
    started = await w.ask("session", action="start", params={"label": w.name})
    return str(started["session_id"])


@scenario("documents_session_stop")
async def session_stop(w: World) -> Prepared:
    id_ = await _session(w)

    async def check(answer: Any) -> str:
        return differs(answer["session_id"], id_)

    return Prepared({"session_id": id_}, check, "session")


@scenario("documents_session_watch")
async def session_watch(w: World) -> Prepared:
    id_ = await _session(w)

    async def check(answer: Any) -> str:
        return differs(len(answer["roots"]), 1)

    return Prepared({"session_id": id_, "root": str(_folder(w, "a"))}, check, "session")


async def _document(w: World) -> Prepared:
    await w.step("documents_add", name=w.name, content=f"starfish {w.number}")

    async def check(answer: Any) -> str:
        return differs(answer["updated"], 1)

    return Prepared({"name": w.name}, check, "session")


scenario("documents_session_pin")(_document)
scenario("documents_session_unpin")(_document)


# Notes


@scenario("write_note")
async def write_note(w: World) -> Prepared:
    path = w.file("old\n", "md")
    return Prepared({"path": path, "content": "new\n", "overwrite": True}, _text(path, "new\n"))


@scenario("edit_note")
async def edit_note(w: World) -> Prepared:
    path = w.file("# Title\n", "md")
    return Prepared({"path": path, "append": "one more line"}, _text(path, "# Title\none more line\n"))


@scenario("inject_tags")
async def inject_tags(w: World) -> Prepared:
    path = w.file("# Title\n", "md")

    async def check(answer: Any) -> str:
        return differs((_read(path).count("<!-- tags: sea -->"), answer["changed"]), (1, True))

    return Prepared({"file_path": path, "tags": ["sea"]}, check)


@scenario("rename_note")
async def rename_note(w: World) -> Prepared:
    path = w.file("# Title\n", "md")
    new = path.replace(".md", "-new.md")
    await w.ask("edit_note", path=path, append="text")

    async def check(answer: Any) -> str:
        return differs((_read(path), bool(_read(new)), answer["path"]), ("", True, new))

    return Prepared({"path": path, "to": new}, check)


# Memory


@scenario("remember")
async def remember(w: World) -> Prepared:
    text = f"The lighthouse {w.name} has {w.number} lamps."

    async def check(answer: Any) -> str:
        found = (await w.ask("list_memories", limit=100))["memories"]
        mine = [each for each in found if each["text"] == text]
        said = [len(each.get("said", [1])) for each in mine]
        return differs((len(mine), said, answer.get("merged_with")), (1, [1], None))

    return Prepared({"text": text}, check)


@scenario("update_memory")
async def update_memory(w: World) -> Prepared:
    made = await w.ask("remember", text=f"The harbour {w.name} is closed.")

    async def check(answer: Any) -> str:
        return differs(answer["id"], made["id"])

    return Prepared({"id": made["id"], "text": f"The harbour {w.name} is open."}, check)


@scenario("forget")
async def forget(w: World) -> Prepared:
    made = await w.ask("remember", text=f"The ferry {w.name} sails at noon.")

    async def check(answer: Any) -> str:
        return differs(answer["forgotten"], 1)

    return Prepared({"id": made["id"]}, check)


# Collections


async def _collection(w: World) -> None:
    await w.ask("collection_create", collection=w.name, dimensions=2)


async def _drop(w: World) -> None:
    await w.ask("collection_drop", collection=w.name)


@scenario("collection_create")
async def collection_create(w: World) -> Prepared:
    async def check(answer: Any) -> str:
        await _drop(w)
        return differs(answer["collection"], w.name)

    return Prepared({"collection": w.name, "dimensions": 2}, check)


@scenario("collection_upsert")
async def collection_upsert(w: World) -> Prepared:
    await _collection(w)

    async def check(answer: Any) -> str:
        count = (await w.ask("collection_count", collection=w.name))["documents"]
        await _drop(w)
        return differs((count, answer["upserted"]), (1, 1))

    return Prepared({"collection": w.name, "documents": [{"id": "a", "text": "x", "vector": [1, 0]}]}, check)


@scenario("collection_delete")
async def collection_delete(w: World) -> Prepared:
    await _collection(w)
    await w.ask("collection_upsert", collection=w.name, documents=[{"id": "a", "text": "x", "vector": [1, 0]}])

    async def check(answer: Any) -> str:
        await _drop(w)
        return differs(answer["deleted"], 1)

    return Prepared({"collection": w.name, "ids": ["a"]}, check)


@scenario("collection_drop")
async def collection_drop(w: World) -> Prepared:
    await _collection(w)

    async def check(answer: Any) -> str:
        del answer
        names = [each["collection"] for each in (await w.ask("collection_list"))["collections"]]
        return differs(w.name in names, False)

    return Prepared({"collection": w.name}, check)


# Conversations


def _turn(w: World) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(turn([{"role": "user", "content": f"question {w.name}"}], f"answer {w.name}"))
    return made


async def _talks(w: World) -> list[dict[str, Any]]:
    """Return the conversations of this scenario."""
    found: list[dict[str, Any]] = (await w.ask("transcript_list", limit=100))["conversations"]
    return [each for each in found if f"question {w.name}" in json.dumps(each).split('"')]


@scenario("transcript_ingest")
async def transcript_ingest(w: World) -> Prepared:
    async def check(answer: Any) -> str:
        return differs((answer["status"], len(await _talks(w))), ("accepted", 1))

    return Prepared(_turn(w), check, "/v1/ingest")


@scenario("transcript_delete")
async def transcript_delete(w: World) -> Prepared:
    said = await w.client.post("/v1/ingest", json.dumps(_turn(w)).encode(), f"made-{w.name}")
    assert said.ok, said
    (talk,) = await _talks(w)

    async def check(answer: Any) -> str:
        return differs((answer["deleted"] > 0, await _talks(w)), (True, []))

    return Prepared({"conversation": talk["id"]}, check)


# A mounted server


@scenario("small_append")
async def small_append(w: World) -> Prepared:
    path = str(w.root / f"lines-{w.number}")

    async def check(answer: Any) -> str:
        del answer
        return differs(_read(path), "line\n")

    return Prepared({"path": path, "text": "line"}, check)


# Tasks


@scenario("task_start")
async def task_start(w: World) -> Prepared:
    file = w.file("a:\n  - x\n")

    async def check(answer: Any) -> str:
        ended = await w.ask("task_wait", id=answer["id"], timeout_s=60)
        return differs(ended["state"], "completed") or differs(_read(file), "a:\n  - x\n  - y\n")

    return Prepared({"operation": "yaml_append", "arguments": {"file": file, "path": "a", "value": "y"}}, check)


@scenario("task_cancel")
async def task_cancel(w: World) -> Prepared:
    made = await w.ask("task_start", operation="mcp_echo", arguments={"message": w.name})

    async def check(answer: Any) -> str:
        return differs(answer["state"] in ("cancelled", "completed"), True)

    return Prepared({"id": made["id"]}, check)


async def _timers(w: World, id_: str) -> int:
    return sum(each["id"] == id_ for each in (await w.ask("schedule_list"))["timers"])


def _timer(w: World) -> dict[str, Any]:
    return {"operation": "mcp_echo", "arguments": {"message": w.name}, "cron": "0 0 1 1 *"}


@scenario("schedule")
async def schedule(w: World) -> Prepared:
    async def check(answer: Any) -> str:
        return differs(await _timers(w, answer["id"]), 1)

    return Prepared(_timer(w), check)


@scenario("schedule_cancel")
async def schedule_cancel(w: World) -> Prepared:
    made = await w.ask("schedule", **_timer(w))

    async def check(answer: Any) -> str:
        return differs((answer["id"], await _timers(w, made["id"])), (made["id"], 0))

    return Prepared({"id": made["id"]}, check)
