"""Where the space goes: maps, the largest, duplicates, growth between scans, age and type, free space."""

from __future__ import annotations

import io
import os
import random
import time
import xml.etree.ElementTree
from pathlib import Path

import pytest
from PIL import Image as Picture

from proto.errors import InvalidParams
from proto.mcp import Image
from services.files.browse import treemap
from services.files.operations.changes import DeleteFiles
from services.files.operations.space import (
    CompareScans,
    DiskFree,
    DiskMap,
    DiskTreemap,
    FindDuplicates,
    SpaceSummaryOf,
    TopDirectories,
    TopFiles,
)
from tests.unit.files.rig import OnDisk, files_service, index, make_tree


def test_a_treemap_fills_its_area_exactly() -> None:
    chance = random.Random(3)
    for count in (1, 2, 7, 300):
        sizes = sorted((chance.randrange(1, 10_000) for _ in range(count)), reverse=True)
        boxes = treemap.squarified(sizes, 10, 20, 640, 480)
        assert len(boxes) == count
        for (x, y, width, height), size in zip(boxes, sizes, strict=True):
            assert width * height == pytest.approx(640 * 480 * size / sum(sizes))
            assert x >= 10 - 1e-6
            assert y >= 20 - 1e-6
            assert x + width <= 650 + 1e-6
            assert y + height <= 500 + 1e-6
    assert treemap.squarified([0], 0, 0, 5, 5) == []


async def test_a_map_is_drawn_with_names_that_no_markup_can_break(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    (root / '<b>&"x').write_bytes(b"x" * 9000)
    (root / "line\nbreak").write_bytes(b"x" * 500)
    (root / "folder").mkdir()
    (root / "folder/inside.txt").write_bytes(b"x" * 4000)
    (root / "empty").write_bytes(b"")
    async with files_service(data, root) as bench:
        await index(bench, root)
        for request, mime_type in (
            (DiskTreemap(path=str(root), format="svg", width=300, height=200), "image/svg+xml"),
            (DiskTreemap(path=str(root), format="png", width=300, height=200), "image/png"),
        ):
            drawn = await bench.call(request)
            picture, words = drawn.content
            assert isinstance(picture, Image)
            assert picture.mime_type == mime_type
            assert "8.8 KiB" in words.text  # type: ignore[union-attr]  # a text by its place
            if request.format == "svg":
                svg = xml.etree.ElementTree.fromstring(picture.data)
                titles = [node.text for node in svg.iter("{http://www.w3.org/2000/svg}title")]
                assert any('<b>&"x' in (title or "") for title in titles)
                assert any("inside.txt" in (title or "") for title in titles)
            else:
                assert Picture.open(io.BytesIO(picture.data)).size == (300, 200)


async def test_the_largest_files_and_directories_are_those_on_the_disk(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, random.Random(1), 300)
    (root / "larger").write_bytes(b"x" * 50_000)
    async with files_service(data, root) as bench:
        await index(bench, root)
        files = await bench.call(TopFiles(path=str(root), limit=5))
        assert files.entries[0].path == str(root / "larger")
        assert [entry.size for entry in files.entries] == sorted((entry.size for entry in files.entries), reverse=True)
        disk = OnDisk(root)
        folders = await bench.call(TopDirectories(path=str(root), limit=1000))
        expected = sorted((disk.sums(path)[0] for path in disk.folders()[1:]), reverse=True)
        assert [entry.size for entry in folders.entries] == expected
        assert (folders.total, folders.has_more) == (len(expected), False)
        direct = await bench.call(TopDirectories(path=str(root), limit=1000, depth=1))
        assert {entry.path for entry in direct.entries} == {
            p for p in disk.folders() if os.path.dirname(p) == str(root)
        }
        with pytest.raises(InvalidParams, match="is not a directory"):
            await bench.call(TopFiles(path=str(root / "larger")))


async def test_duplicates_are_equal_files_of_different_inodes(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "sub").mkdir(parents=True)
    long = bytes(100_000)
    for name, content in (
        ("a", long), ("sub/b", long), ("middle", long[:50_000] + b"!" + long[50_001:]), ("end", long[:-1] + b"!"),
        ("small 1", b"same"), ("sub/small 2", b"same"), ("small 3", b"other"), ("empty", b""), ("empty too", b""),
    ):  # fmt: skip
        (root / name).write_bytes(content)
    os.link(root / "a", root / "z link of a")
    async with files_service(data, root) as bench:
        await index(bench, root)
        (root / "changed").write_bytes(b"")
        found = await bench.call(FindDuplicates(path=str(root)))
        assert [(group.size, group.paths, group.wasted) for group in found.groups] == [
            (100_000, [str(root / "a"), str(root / "sub/b")], 100_000),
            (4, [str(root / "small 1"), str(root / "sub/small 2")], 4),
        ]
        assert (found.total, found.wasted, found.unreadable) == (2, 100_004, 0)
        (root / "small 1").write_bytes(b"changed since")
        again = await bench.call(FindDuplicates(path=str(root), min_size=0))
        assert [group.size for group in again.groups] == [100_000, 0]
        assert again.unreadable == 1


async def test_scans_are_compared_directory_by_directory(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    for name in ("grows", "shrinks", "goes", "stays"):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_bytes(b"x" * 1000)
    async with files_service(data, root) as bench:
        with pytest.raises(InvalidParams, match="is not indexed"):
            await bench.call(CompareScans(path=str(root)))
        await index(bench, root)
        between = time.time()
        await bench.call(DeleteFiles(paths=[str(root / "goes")], force=True))
        (root / "grows/more").write_bytes(b"x" * 5000)
        (root / "shrinks/file").write_bytes(b"")
        (root / "new").mkdir()
        (root / "new/file").write_bytes(b"x" * 70)
        await index(bench, root)
        await index(bench, root)
        compared = await bench.call(CompareScans(path=str(root), since=between))
        assert [(growth.path, growth.change) for growth in compared.directories] == [
            (str(root / "grows"), 5000), (str(root), 3070), (str(root / "goes"), -1000),
            (str(root / "shrinks"), -1000), (str(root / "new"), 70),
        ]  # fmt: skip
        assert (compared.before, compared.after, compared.change) == (4000, 7070, 3070)
        assert (compared.files_before, compared.files_after) == (4, 5)
        assert len(compared.scans) == 3
        # Since the one before nothing has changed.
        assert (await bench.call(CompareScans(path=str(root)))).total == 0
        sub = await bench.call(CompareScans(path=str(root / "grows"), since=between))
        assert (sub.before, sub.after, sub.total) == (1000, 6000, 1)


async def test_files_are_summed_up_by_age_and_type(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    now = time.time()
    for name, size, days in (
        ("a.JPG", 10, 0), ("b.jpg", 20, 3), ("c.pdf", 40, 400), ("d", 80, 4000), ("e.mp4", 160, 20)
    ):  # fmt: skip
        (root / name).write_bytes(b"x" * size)
        os.utime(root / name, (now - days * 86400 - 60,) * 2)
    async with files_service(data, root) as bench:
        await index(bench, root)
        summary = await bench.call(SpaceSummaryOf(path=str(root), extensions=3))
        assert (summary.size, summary.files) == (310, 5)
        assert [(share.name, share.count, share.size) for share in summary.by_type] == [
            ("video", 1, 160), ("other", 1, 80), ("document", 1, 40), ("image", 2, 30),
        ]  # fmt: skip
        assert [(share.name, share.size) for share in summary.by_age] == [
            ("last day", 10), ("last week", 20), ("last 30 days", 160), ("last 2 years", 40), ("older", 80),
        ]  # fmt: skip
        assert [share.name for share in summary.by_extension] == ["mp4", "", "pdf"]
        assert summary.more_extensions == 1


async def test_the_file_system_of_each_root_says_how_much_room_it_has(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    async with files_service(data, root) as bench:
        (mine,) = [each for each in (await bench.call(DiskFree())).file_systems if each.roots]
        assert mine.roots == [str(root)]
        status = os.statvfs(root)
        assert mine.size == status.f_blocks * status.f_frsize
        assert 0 < mine.free <= mine.size


async def test_a_map_for_programs_has_both_sizes_of_everything_below_and_every_entry_on_some_page(
    tmp_path: Path,
) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "deep/down").mkdir(parents=True)
    (root / "deep/down/large.bin").write_bytes(b"x" * 50_000)
    for number in range(7):
        (root / f"small {number}").write_bytes(b"x" * number)
    # It takes little space on the disk, however long it is.
    with (root / "sparse").open("wb") as file:
        file.truncate(10_000_000)
    async with files_service(data, root) as bench:
        await index(bench, root)
        found = await bench.call(DiskMap(path=str(root), limit=3, inside=1))
        assert found.size == 50_000 + sum(range(7)) + 10_000_000
        assert (found.files, found.directories, found.total) == (9, 2, 9)
        assert found.disk_size < found.size
        assert [each.name for each in found.entries] == ["sparse", "deep", "small 6"]
        deep = found.entries[1]
        assert (deep.size, deep.files, [each.name for each in deep.inside]) == (50_000, 1, ["down"])
        by_disk = await bench.call(DiskMap(path=str(root), measure="disk", limit=3))
        assert by_disk.entries[0].name == "deep"
        names: list[str] = []
        offset: int | None = 0
        while offset is not None:
            page = await bench.call(DiskMap(path=str(root), sort="name", desc=False, limit=4, offset=offset))
            names += [each.name for each in page.entries]
            offset = page.next_offset
        assert names == ["deep", *(f"small {number}" for number in range(7)), "sparse"]
        with pytest.raises(InvalidParams, match="is not a directory"):
            await bench.call(DiskMap(path=str(root / "sparse")))
