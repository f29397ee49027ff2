"""Scenarios of notes."""

from __future__ import annotations

from typing import Any

from tests.chaos.duplicates import Prepared, World, differs, has_text, read_text, scenario


@scenario("notes_write")
async def write_note(w: World) -> Prepared:
    path = w.file("old\n", "md")
    return Prepared({"path": path, "content": "new\n", "overwrite": True}, has_text(path, "new\n"))


@scenario("notes_edit")
async def edit_note(w: World) -> Prepared:
    path = w.file("# Title\n", "md")
    return Prepared({"path": path, "append": "one more line"}, has_text(path, "# Title\none more line\n"))


@scenario("notes_tag")
async def inject_tags(w: World) -> Prepared:
    path = w.file("# Title\n", "md")

    async def check(answer: Any) -> str:
        return differs((read_text(path).count("<!-- tags: sea -->"), answer["changed"]), (1, True))

    return Prepared({"file_path": path, "tags": ["sea"]}, check)


@scenario("notes_rename")
async def rename_note(w: World) -> Prepared:
    path = w.file("# Title\n", "md")
    new = path.replace(".md", "-new.md")
    await w.ask("notes_edit", path=path, append="text")

    async def check(answer: Any) -> str:
        return differs((read_text(path), bool(read_text(new)), answer["path"]), ("", True, new))

    return Prepared({"path": path, "to": new}, check)
