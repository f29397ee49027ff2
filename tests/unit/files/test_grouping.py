"""Resource sets: a graph without cycles, whose entries stay in step with the index and survive the service."""

from __future__ import annotations

from pathlib import Path

import pytest

from proto.errors import InvalidParams, OperationError
from proto.validation import validate
from services.files.operations.reading import Navigate
from services.files.operations.resources import ResourceChildren, ResourceSum
from services.files.operations.sets import (
    ResourceSetAddChild,
    ResourceSetCreate,
    ResourceSetDelete,
    ResourceSetGet,
    ResourceSetList,
    ResourceSetModify,
    ResourceSetRemoveChild,
)
from tests.in_process import Bench
from tests.unit.files.rig import files_service, index


async def make_sets(bench: Bench, *names: str) -> None:
    for name in names:
        await bench.call(ResourceSetCreate(name=name))


async def test_members_are_added_and_removed_each_once_and_survive_a_restart(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name in "abc":
        (root / name).write_bytes(b"x" * 10)
    async with files_service(tmp_path / "data", root) as bench:
        await index(bench, root)
        made = await bench.call(ResourceSetCreate(name="s", description="some"))
        assert (made.entry_count, made.child_count, made.description) == (0, 0, "some")
        paths = [f"{root}/a", f"{root}/b", f"{root}/b/"]
        added = await bench.call(ResourceSetModify(name="s", operation="add", paths=paths))
        assert (added.changed, added.unchanged, added.entry_count) == (2, 0, 2)
        again = await bench.call(ResourceSetModify(name="s", operation="add", paths=paths))
        assert (again.changed, again.unchanged) == (0, 2)
        await bench.stop("files")
        await bench.start("files")
        found = await bench.call(ResourceSetGet(name="s", include_entries=True, limit=1))
        assert found.entries is not None
        assert ([entry.name for entry in found.entries], found.has_more) == (["a"], True)
        assert (found.entry_count, found.total_size, found.children, found.parents) == (2, 20, [], [])
        assert found.entries[0].added_at is not None
        assert (await bench.call(ResourceSetGet(name="s"))).entries is None
        gone = f"{root}/never"
        removed = await bench.call(ResourceSetModify(name="s", operation="remove", paths=[f"{root}/a", gone]))
        assert (removed.changed, removed.entry_count, removed.not_indexed) == (1, 1, [gone])
        (root / "b").unlink()
        await index(bench, root)
        assert (await bench.call(ResourceSetGet(name="s"))).entry_count == 0


async def test_a_path_that_is_not_indexed_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").touch()
    async with files_service(tmp_path / "data", root) as bench:
        await index(bench, root)
        await make_sets(bench, "s")
        with pytest.raises(InvalidParams, match="is not indexed") as refused:
            await bench.call(ResourceSetModify(name="s", operation="add", paths=[f"{root}/a", f"{root}/b"]))
        assert refused.value.failure.field == "paths[1]"
        with pytest.raises(InvalidParams, match="there are: add, remove"):
            validate(ResourceSetModify, {"name": "s", "operation": "toggle", "paths": [f"{root}/a"]})
        with pytest.raises(InvalidParams, match="there are: s"):
            await bench.call(ResourceSetModify(name="t", operation="add", paths=[f"{root}/a"]))
        assert (await bench.call(ResourceSetGet(name="s"))).entry_count == 0


async def test_no_edge_closes_a_cycle(tmp_path: Path) -> None:
    async with files_service(tmp_path / "data", tmp_path) as bench:
        await make_sets(bench, "a", "b", "c")
        for parent, child in (("a", "b"), ("b", "c"), ("a", "c")):
            assert (await bench.call(ResourceSetAddChild(parent=parent, child=child))).changed
        assert not (await bench.call(ResourceSetAddChild(parent="a", child="b"))).changed
        for parent, child in (("c", "a"), ("b", "a"), ("a", "a")):
            with pytest.raises(InvalidParams) as refused:
                await bench.call(ResourceSetAddChild(parent=parent, child=child))
            assert refused.value.failure.field == "child"
        for parent, child, field in (("a", "x", "child"), ("x", "a", "parent")):
            with pytest.raises(InvalidParams, match="there are: a, b, c") as refused:
                await bench.call(ResourceSetAddChild(parent=parent, child=child))
            assert refused.value.failure.field == field
        await bench.call(ResourceSetRemoveChild(parent="a", child="c"))
        with pytest.raises(OperationError, match="its children: b"):
            await bench.call(ResourceSetRemoveChild(parent="a", child="c"))
        # Once the other edges are gone, this one no longer closes a cycle.
        await bench.call(ResourceSetRemoveChild(parent="a", child="b"))
        assert (await bench.call(ResourceSetAddChild(parent="c", child="a"))).changed


async def test_deleting_a_set_takes_its_edges_and_leaves_entries_and_other_sets(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_bytes(b"xyz")
    async with files_service(tmp_path / "data", root) as bench:
        await index(bench, root)
        await make_sets(bench, "top", "middle", "low")
        await bench.call(ResourceSetAddChild(parent="top", child="middle"))
        await bench.call(ResourceSetAddChild(parent="middle", child="low"))
        await bench.call(ResourceSetModify(name="middle", operation="add", paths=[f"{root}/a"]))
        assert (await bench.call(ResourceSum(name="top", metric="size"))).value == 3
        assert (await bench.call(ResourceSetDelete(name="middle"))).deleted
        assert (await bench.call(ResourceSum(name="top", metric="size"))).value == 0
        assert (await bench.call(ResourceChildren(name="top", depth=None))).children == []
        assert (await bench.call(Navigate(path=str(root)))).total == 1
        listing = await bench.call(ResourceSetList())
        assert [(each.name, each.child_count) for each in listing.resource_sets] == [("low", 0), ("top", 0)]
        with pytest.raises(InvalidParams, match="resource-set not found"):
            await bench.call(ResourceSetDelete(name="middle"))
        # A new set of that name has nothing of the old one.
        await make_sets(bench, "middle")
        assert (await bench.call(ResourceSetGet(name="middle"))).entry_count == 0
        with pytest.raises(InvalidParams, match="already"):
            await make_sets(bench, "middle")
