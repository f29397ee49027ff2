"""Scenarios of YAML files."""

from __future__ import annotations

from tests.chaos.duplicates import Prepared, World, has_text, scenario


@scenario("yaml_set")
async def noyalib_set(w: World) -> Prepared:
    file = w.file("a: 1 # kept\n")
    return Prepared({"file": file, "path": "a", "value": "2"}, has_text(file, "a: 2 # kept\n"))


@scenario("yaml_append")
async def yaml_append(w: World) -> Prepared:
    file = w.file("a:\n  - x\n")
    return Prepared({"file": file, "path": "a", "value": "y"}, has_text(file, "a:\n  - x\n  - y\n"))


@scenario("yaml_delete")
async def yaml_delete(w: World) -> Prepared:
    file = w.file("a:\n  - x\n  - y\n  - z\n")
    return Prepared({"file": file, "path": "a[0]"}, has_text(file, "a:\n  - y\n  - z\n"))


@scenario("yaml_edit")
async def yaml_edit(w: World) -> Prepared:
    file = w.file("a:\n  - x\nb: 1\n")
    edits = [{"op": "append", "path": "a", "value": "y"}, {"op": "set", "path": "b", "value": "2"}]
    return Prepared({"file": file, "edits": edits}, has_text(file, "a:\n  - x\n  - y\nb: 2\n"))


@scenario("yaml_rename")
async def yaml_rename(w: World) -> Prepared:
    file = w.file("a: 1\n")
    return Prepared({"file": file, "path": "a", "key": "b"}, has_text(file, "b: 1\n"))


@scenario("yaml_set_comments")
async def yaml_set_comments(w: World) -> Prepared:
    file = w.file("a: 1\n")
    return Prepared({"file": file, "path": "a", "beside": "new"}, has_text(file, "a: 1  # new\n"))


@scenario("yaml_merge")
async def yaml_merge(w: World) -> Prepared:
    file = w.file("a:\n  - x\nb:\n  c: 1 # kept\n")
    given = {"file": file, "values": {"a": ["z"], "b": {"d": 2}}, "lists": "append"}
    return Prepared(given, has_text(file, "a:\n  - x\n  - z\nb:\n  c: 1 # kept\n  d: 2\n"), tool="execute")
