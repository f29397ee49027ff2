"""Finding and summing up entries of resource sets: every criterion exactly, every entry once."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import trio

from proto.errors import InvalidParams
from proto.validation import validate
from services.files.index.tree import find
from services.files.operations.resources import (
    ExactField,
    ResourceChildren,
    ResourceFuzzyMatch,
    ResourceIs,
    ResourceMetricRange,
    ResourceParent,
    ResourceSearch,
    ResourceSum,
    ResourceTimeRange,
    TextField,
    TextMode,
    TimeField,
)
from services.files.operations.shared import EntryPage
from services.files.query import sets
from services.files.query.columns import Columns
from services.files.query.entries import Order, Select
from services.files.query.matching import COLUMNS, text_matches
from services.files.store.database import open_database
from services.files.store.sql import fetch_all
from tests.in_process import Bench
from tests.unit.files.rig import files_service, index, make_tree

AT = 1_718_447_400
"""2024-06-15T10:30:00Z"""

FILES = {
    "photos/beach.JPG": 100,
    "photos/100%_sure.jpg": 200,
    "photos/1000_sure.jpg": 300,
    "photos/a_b.png": 400,
    "photos/aXb.png": 500,
    "videos/übung.mp4": 600,
    "videos/archive.tar.gz": 700,
    ".hidden": 0,
}


def make(root: Path) -> None:
    for number, (name, size) in enumerate(FILES.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (AT + number * 3600, AT + number * 3600))


async def fill(data: Path, members: dict[str, list[str]], edges: list[tuple[str, str]]) -> None:
    """Sets with members by path, and edges between them."""

    def run() -> None:
        database = open_database(data / "files/files.db")
        with database.transaction() as db:
            for name, entries in members.items():
                id_ = sets.make(db, name)
                found = [find(db, path) for path in entries]
                sets.add(db, id_, [entry.id for entry in found if entry is not None])
            for parent, child in edges:
                db.execute("INSERT INTO edge VALUES(?,?)", (sets.make(db, parent), sets.make(db, child)))
        database.close()

    await trio.to_thread.run_sync(run)


def names(page: EntryPage) -> set[str]:
    assert page.total_count == page.returned_count == len(page.entries)
    return {entry.name for entry in page.entries}


async def one_set(data: Path, root: Path, bench: Bench) -> None:
    make(root)
    await index(bench, root)
    await fill(data, {"all": [f"{root}/{name}" for name in FILES]}, [])


async def test_text_is_matched_as_each_mode_says(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    async with files_service(data, root.parent) as bench:
        await one_set(data, root, bench)

        async def match(
            pattern: str, mode: TextMode, field: TextField = "name", case_sensitive: bool = False
        ) -> set[str]:
            return names(
                await bench.call(
                    ResourceFuzzyMatch(
                        name="all", field=field, pattern=pattern, mode=mode, case_sensitive=case_sensitive
                    )
                )
            )

        jpgs = {"beach.JPG", "100%_sure.jpg", "1000_sure.jpg"}
        assert await match("0%_s", "contains") == {"100%_sure.jpg"}
        assert await match("a_b", "prefix") == {"a_b.png"}
        assert await match(".jpg", "suffix") == jpgs
        assert await match(".jpg", "suffix", case_sensitive=True) == jpgs - {"beach.JPG"}
        assert await match("ÜBUNG", "prefix") == {"übung.mp4"}
        assert await match("ÜBUNG", "contains", case_sensitive=True) == set()
        assert await match(r"^\d{3}%", "regex") == {"100%_sure.jpg"}
        assert await match("SURE", "regex") == {"100%_sure.jpg", "1000_sure.jpg"}
        assert await match("SURE", "regex", case_sensitive=True) == set()
        assert await match("*.jpg", "glob") == jpgs
        assert await match("*.jpg", "glob", case_sensitive=True) == jpgs - {"beach.JPG"}
        assert await match("jpg", "glob") == set()
        assert await match("a[_X]b.png", "glob") == {"a_b.png", "aXb.png"}
        assert await match("a[!_]b.png", "glob") == {"aXb.png"}
        assert await match("*/videos/*", "glob", field="path") == {"übung.mp4", "archive.tar.gz"}
        assert await match("/VIDEOS/", "contains", field="path") == {"übung.mp4", "archive.tar.gz"}
        assert await match(str(root), "prefix", field="path") == {Path(name).name for name in FILES}
        assert await match("", "contains") == {Path(name).name for name in FILES}
        assert await match("(a+)+$", "regex") == set() | await match("a$", "regex")
        with pytest.raises(InvalidParams, match="not a valid RE2 regular expression"):
            await match("(", "regex")
        for wrong, there in (
            ({"mode": "like"}, "contains, glob, prefix, regex, suffix"),
            ({"field": "size"}, "extension, kind, name, parent, path"),
        ):
            with pytest.raises(InvalidParams, match=f"there are: {there}"):
                validate(ResourceFuzzyMatch, {"name": "all", "field": "name", "pattern": "x", **wrong})


async def test_ranges_take_in_both_ends(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    async with files_service(data, root.parent) as bench:
        await one_set(data, root, bench)

        async def sizes(least: int | None, most: int | None) -> set[int]:
            page = await bench.call(ResourceMetricRange(name="all", metric="size", min=least, max=most))
            return {entry.size for entry in page.entries}

        assert await sizes(200, 400) == {200, 300, 400}
        assert await sizes(None, 0) == {0}
        assert await sizes(700, None) == {700}
        assert await sizes(2**62, None) == set()

        async def within(least: str | int | None, most: str | int | None, field: TimeField = "mtime") -> int:
            return (await bench.call(ResourceTimeRange(name="all", field=field, min=least, max=most))).total_count

        assert await within("2024-06-15T10:30:00Z", "2024-06-15T11:30:00Z") == 2
        assert await within(AT, AT) == 1
        assert await within(str(AT), f"{AT + 3600}.0") == 2
        assert await within("2024-06-15", "2024-06-15") == 8
        assert await within("2024-06-15T12:30+02:00", "2024-06-15T10:30") == 1
        assert await within(None, "2024-06-14") == 0
        assert await within("2020-01-01", None, "added_at") == 8
        with pytest.raises(InvalidParams, match="`min`: 'soon' is not a time"):
            await within("soon", None)
        with pytest.raises(InvalidParams, match="there are: added_at, ctime, mtime"):
            validate(ResourceTimeRange, {"name": "all", "field": "atime"})
        with pytest.raises(InvalidParams, match="there are: depth, disk_size"):
            validate(ResourceMetricRange, {"name": "all", "metric": "weight"})


async def test_exact_values_are_matched(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    async with files_service(data, root.parent) as bench:
        await one_set(data, root, bench)

        async def equal(field: ExactField, value: str | int) -> set[str]:
            return names(await bench.call(ResourceIs(name="all", field=field, value=value)))

        assert len(await equal("kind", "file")) == 8
        assert await equal("kind", "directory") == set()
        assert await equal("path", f"{root}/photos/a_b.png") == {"a_b.png"}
        assert await equal("parent", f"{root}/videos") == {"übung.mp4", "archive.tar.gz"}
        assert await equal("extension", ".JPG") == {"beach.JPG", "100%_sure.jpg", "1000_sure.jpg"}
        assert await equal("extension", "tar.gz") == {"archive.tar.gz"}
        assert await equal("name", "beach.jpg") == set()
        assert await equal("size", 100) == await equal("size", "100") == {"beach.JPG"}
        assert await equal("mtime", AT) == {"beach.JPG"}
        with pytest.raises(InvalidParams, match="there are: ctime, disk_size"):
            validate(ResourceIs, {"name": "all", "field": "colour", "value": "red"})
        with pytest.raises(InvalidParams, match="there are: file, directory"):
            await equal("kind", "folder")


async def test_search_combines_all_criteria(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    async with files_service(data, root.parent) as bench:
        await one_set(data, root, bench)
        page = await bench.call(
            ResourceSearch(name="all", kind="file", extension=".jpg", min_size=150, path_contains="PHOTOS", limit=1)
        )
        assert [entry.name for entry in page.entries] == ["1000_sure.jpg"]
        assert (page.total_count, page.returned_count, page.has_more) == (2, 1, True)
        assert (page.resource_set, page.offset, page.limit) == ("all", 0, 1)
        page = await bench.call(
            ResourceSearch(name="all", name_contains="_", sort_by="name", sort_desc=False, offset=1)
        )
        assert [entry.name for entry in page.entries] == ["1000_sure.jpg", "a_b.png"]
        page = await bench.call(ResourceSearch(name="all", min_mtime=AT + 3600, max_mtime="2024-06-15T12:30:00Z"))
        assert {entry.size for entry in page.entries} == {200, 300}
        with pytest.raises(InvalidParams, match="there are: ctime, mtime, name, path, size"):
            validate(ResourceSearch, {"name": "all", "sort_by": "colour"})
        with pytest.raises(InvalidParams, match="unknown parameter `colour`"):
            validate(ResourceSearch, {"name": "all", "colour": "red"})
        with pytest.raises(InvalidParams, match="resource-set not found: 'nothing'; there are: all"):
            await bench.call(ResourceSearch(name="nothing"))


async def test_graph_is_walked_level_by_level_and_each_entry_counts_once(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    async with files_service(data, root.parent) as bench:
        make(root)
        await index(bench, root)
        path = {Path(name).name: f"{root}/{name}" for name in FILES}
        await fill(
            data,
            {
                "top": [path[".hidden"]],
                "left": [path["beach.JPG"], path["a_b.png"]],
                "right": [path["a_b.png"], path["aXb.png"]],
                "bottom": [path["beach.JPG"], path["übung.mp4"]],
            },
            [("top", "left"), ("top", "right"), ("left", "bottom"), ("right", "bottom")],
        )
        below = await bench.call(ResourceChildren(name="top"))
        assert [(node.name, node.entry_count, node.child_count) for node in below.children] == [
            ("left", 2, 1), ("right", 2, 1),
        ]  # fmt: skip
        whole = await bench.call(ResourceChildren(name="top", depth=None, include_entries=True))
        assert [(node.name, node.depth) for node in whole.children] == [("left", 1), ("right", 1), ("bottom", 2)]
        assert [entry.name for entry in whole.children[0].entries or []] == ["a_b.png", "beach.JPG"]
        assert (await bench.call(ResourceChildren(name="top", depth=0))).children == []
        above = await bench.call(ResourceParent(name="bottom"))
        assert [node.name for node in above.parents] == ["left", "right"]
        assert len((await bench.call(ResourceParent(name="bottom", depth=None))).parents) == 3

        async def total(name: str, metric: str, **options: object) -> tuple[int, list[tuple[str, int]]]:
            result = await bench.call(validate(ResourceSum, {"name": name, "metric": metric, **options}))
            assert result.value == sum(part.value for part in result.breakdown)
            return result.value, [(part.name, part.value) for part in result.breakdown]

        assert await total("top", "size") == (1600, [("top", 0), ("left", 1100), ("right", 500)])
        assert await total("top", "count") == (5, [("top", 1), ("left", 3), ("right", 1)])
        assert await total("top", "count", include_children=False) == (1, [("top", 1)])
        assert await total("top", "count", depth=1) == (4, [("top", 1), ("left", 2), ("right", 1)])
        assert await total("top", "files") == (5, [("top", 1), ("left", 3), ("right", 1)])
        assert (await total("top", "directories"))[0] == 0
        with pytest.raises(InvalidParams, match="there are: count, directories, files, size"):
            validate(ResourceSum, {"name": "top", "metric": "weight"})
        assert (await bench.call(ResourceSearch(name="top"))).total_count == 1
        assert (await bench.call(ResourceSearch(name="top", include_children=True))).total_count == 5
        assert (await bench.call(ResourceIs(name="top", field="kind", value="file"))).total_count == 5
        assert (
            await bench.call(ResourceIs(name="top", field="kind", value="file", include_children=False))
        ).total_count == 1


async def test_entries_inside_a_directory_of_the_set_count_once(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    async with files_service(data, root.parent) as bench:
        make(root)
        await index(bench, root)
        everything = [f"{root}/{name}" for name in FILES]
        await fill(
            data,
            {"tree": [str(root), f"{root}/photos", *everything], "photos": [f"{root}/photos"], "file": everything[:1]},
            [("photos", "file"), ("photos", "tree")],
        )
        whole = sum(FILES.values())
        assert (await bench.call(ResourceSum(name="tree", metric="size"))).value == whole
        assert (await bench.call(ResourceSum(name="tree", metric="directories"))).value == 2
        photos = await bench.call(ResourceSum(name="photos", metric="size"))
        assert photos.value == whole
        assert [(part.name, part.value) for part in photos.breakdown] == [("photos", 1500), ("file", 0), ("tree", 1300)]


async def test_more_entries_than_fit_into_an_answer_are_summed_up_and_paged(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    for number in range(3000):
        (root / f"{number:05d}-{'x' * 60}").write_bytes(b"12")
    async with files_service(data, root.parent) as bench:
        await index(bench, root)
        await fill(data, {"all": [str(path) for path in root.iterdir()]}, [])
        page = await bench.call(ResourceIs(name="all", field="kind", value="file"))
        assert page.total_count == 3000
        assert page.returned_count < 3000
        assert page.has_more
        assert page.summary is not None
        assert "3000 entries match, 6000 bytes" in page.summary
        rest = await bench.call(ResourceIs(name="all", field="kind", value="file", offset=page.returned_count))
        assert rest.entries[0].path > page.entries[-1].path


async def test_a_page_is_the_same_whether_few_or_many_match(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, random.Random(8), 120)
    async with files_service(data, root) as bench:
        await index(bench, root)
    database = open_database(data / "files/files.db")
    with database.transaction() as db:
        one, two = sets.make(db, "one"), sets.make(db, "two")
        ids = [id_ for (id_,) in fetch_all(db, "SELECT id FROM node")]
        sets.add(db, one, ids[::2])
        sets.add(db, two, ids[::3])
    columns = Columns(database)
    with database.reader() as db:
        for among in (None, [one], [one, two]):
            for conditions in ([], [text_matches("name", "a", "contains", case_sensitive=False)]):
                for field in ("path", "name", "size", "mtime", "depth", "added_at"):
                    for descending in (True, False):
                        select, order = Select(conditions, among), Order(field, descending)
                        few, many = (select.first(db, order, limit=20, offset=3, few=n) for n in (10_000, 0))
                        assert [*few[:2], *few[2]] == [*many[:2], *many[2]]
        for metric in ("size", "count", "files", "directories"):
            # The sums of a single set need no grouping.
            alone, first = (sets.sums_by_part(columns, db, [[one], other], metric) for other in ([], [two]))
            assert alone[0] == first[0]
    database.close()


async def test_a_pattern_matches_whatever_its_literal_parts_are(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    for name in (
        "LONG\N{LATIN SMALL LETTER LONG S}",
        "\N{KELVIN SIGN}elvin",
        "dir Stra\u00dfe.TXT",
        "inside.txt",
        "a.tar.gz",
        "0%",
    ):
        (root / name).write_text(name)
    async with files_service(data, root) as bench:
        await index(bench, root)
    database = open_database(data / "files/files.db")
    with database.reader() as db:
        for field in ("path", "name", "parent", "extension", "kind"):
            for pattern in (
                r"inside\.txt$",
                "(?i)K",
                "kelvin",
                "LONGS",
                r"dir .*\.tar",
                "\u00df.*T",
                "^/.*/root/",
                "0%",
            ):
                for case in (True, False):
                    found = text_matches(field, pattern, "regex", case_sensitive=case)
                    alone = pattern if case else f"(?i){pattern}"
                    ids = fetch_all(db, f"SELECT id FROM node n WHERE {found.sql}", found.bindings)
                    wanted = fetch_all(db, f"SELECT id FROM node n WHERE matches(?, {COLUMNS[field]})", (alone,))
                    assert ids == wanted, (field, pattern, case)
    database.close()
