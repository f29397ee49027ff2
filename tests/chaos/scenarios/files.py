"""Scenarios of files and the trash."""

from __future__ import annotations

from typing import Any

from tests.chaos.duplicates import Prepared, World, differs, has_text, scenario


@scenario("files_edit")
async def edit_file(w: World) -> Prepared:
    file = w.file("a\n", "txt")
    return Prepared({"path": file, "edits": [{"old": "a", "new": "aa"}]}, has_text(file, "aa\n"))


async def _in_trash(w: World, path: str) -> int:
    items = (await w.ask("trash_list", limit=500))["items"]
    return sum(each["path"] == path for each in items)


@scenario("files_write")
async def write_file(w: World) -> Prepared:
    file = w.file("old\n", "txt")

    async def check(answer: Any) -> str:
        kept = await _in_trash(w, file)
        return await has_text(file, "new\n")(answer) or differs((kept, answer.get("changed", True)), (1, True))

    return Prepared({"path": file, "content": "new\n", "overwrite": True}, check)


@scenario("files_move")
async def move_files(w: World) -> Prepared:
    folder = w.folder("a", "b", "c")
    moves = [{"from": str(folder / name), "to": str(folder / f"moved-{name}")} for name in "abc"]

    async def check(answer: Any) -> str:
        names = sorted(each.name for each in folder.iterdir())
        return differs((names, answer["succeeded"]), (["moved-a", "moved-b", "moved-c"], 3))

    return Prepared({"moves": moves}, check)


@scenario("files_rename")
async def rename_files(w: World) -> Prepared:
    folder = w.folder("a", "b")
    renames = [{"from": str(folder / name), "to": str(folder / f"new-{name}")} for name in "ab"]

    async def check(answer: Any) -> str:
        names = sorted(each.name for each in folder.iterdir())
        return differs((names, answer["succeeded"]), (["new-a", "new-b"], 2))

    return Prepared({"renames": renames}, check)


@scenario("files_delete")
async def delete_files(w: World) -> Prepared:
    folder = w.folder("a", "b")
    paths = [str(folder / name) for name in "ab"]

    async def check(answer: Any) -> str:
        kept = [await _in_trash(w, path) for path in paths]
        return differs((kept, list(folder.iterdir()), answer["succeeded"]), ([1, 1], [], 2))

    return Prepared({"paths": paths}, check)


@scenario("trash_restore")
async def restore_files(w: World) -> Prepared:
    folder = w.folder("a", "b")
    paths = [str(folder / name) for name in "ab"]
    await w.ask("files_delete", paths=paths)

    async def check(answer: Any) -> str:
        names = sorted(each.name for each in folder.iterdir())
        return differs((names, answer["succeeded"]), (["a", "b"], 2))

    return Prepared({"paths": paths}, check)


@scenario("trash_empty")
async def empty_trash(w: World) -> Prepared:
    folder = w.folder("a", "b")
    gone = await w.ask("files_delete", paths=[str(folder / name) for name in "ab"])
    ids = [each["trashId"] for each in gone["results"]]

    async def check(answer: Any) -> str:
        kept = [await _in_trash(w, str(folder / name)) for name in "ab"]
        return differs((kept, answer["deleted"]), ([0, 0], 2))

    return Prepared({"trashIds": ids}, check)


@scenario("files_copy")
async def copy_files(w: World) -> Prepared:
    folder = w.folder("a", "b")
    given = [{"from": str(folder / name), "to": str(folder / f"copy-{name}")} for name in "ab"]

    async def check(answer: Any) -> str:
        names = sorted(each.name for each in folder.iterdir())
        (done,) = answer["results"]
        return differs((names, done["succeeded"]), (["a", "b", "copy-a", "copy-b"], 2))

    return Prepared({"copies": given}, check, tool="execute")


@scenario("folders_create")
async def create_folders(w: World) -> Prepared:
    folder = w.folder()
    made = [str(folder / name) for name in ("a/b", "c")]

    async def check(answer: Any) -> str:
        names = sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))
        (done,) = answer["results"]
        existed = [each.get("existed", False) for each in done["results"]]
        return differs((names, done["succeeded"], existed), (["a", "a/b", "c"], 2, [False, False]))

    return Prepared({"paths": made}, check, tool="execute")


@scenario("changes_undo")
async def undo_changes(w: World) -> Prepared:
    file = w.file("old\n", "txt")
    edited = await w.ask("files_edit", path=file, edits=[{"old": "old", "new": "new"}])

    async def check(answer: Any) -> str:
        (done,) = answer["results"]
        return await has_text(file, "old\n")(answer) or differs((done["undone"], done["skipped"]), (1, 0))

    return Prepared({"id": edited["change"]}, check, tool="execute")
