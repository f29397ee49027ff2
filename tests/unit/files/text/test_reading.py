"""Looking at the index: directories page by page, entries one by one, and the database itself."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import apsw
import msgspec
import pytest

from proto.errors import InvalidParams
from proto.validation import validate
from services.files.operations.reading import DbDiagnose, Inspect, Navigate, SessionInfo, SessionSetPreferences
from services.files.store.database import open_database
from services.shared.creation_time import created_ns
from services.shared.times import rfc3339
from tests.unit.files.rig import files_service, index

AT = 1_718_447_400
"""2024-06-15T10:30:00Z"""


def tree(root: Path) -> None:
    for number, name in enumerate(["b.txt", "A.txt", "c.txt", "Ä.txt", "a.txt", "ä.txt"]):
        path = root / name
        root.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * (10 * number))
        os.utime(path, (AT + number, AT + number))
    (root / "folder").mkdir()
    (root / "folder/large").write_bytes(b"x" * 1000)
    (root / "link").symlink_to("folder")
    os.utime(root / "folder", (AT, AT))


async def test_directory_is_listed_in_pages_that_follow_on(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    tree(root)
    async with files_service(data, root) as bench:
        await index(bench, root)
        whole = await bench.call(Navigate(path=f"{root}/"))
        assert [entry.name for entry in whole.entries] == [
            "A.txt", "a.txt", "b.txt", "c.txt", "folder", "link", "Ä.txt", "ä.txt",
        ]  # fmt: skip
        assert (whole.path, whole.total, whole.has_more) == (str(root), 8, False)
        pages = []
        for offset in range(0, 10, 3):
            page = await bench.call(Navigate(path=str(root), limit=3, offset=offset))
            assert (page.total, page.has_more) == (8, offset < 5)
            pages += page.entries
        assert pages == whole.entries
        past = await bench.call(Navigate(path=str(root), offset=100))
        assert (past.entries, past.total, past.has_more) == ([], 8, False)
        by_size = await bench.call(Navigate(path=str(root), sort="size", desc=True, limit=2))
        assert [(entry.name, entry.size) for entry in by_size.entries] == [("folder", 1000), ("ä.txt", 50)]
        by_time = await bench.call(Navigate(path=str(root), sort="mtime", limit=2))
        assert [(entry.name, entry.mtime) for entry in by_time.entries] == [
            ("b.txt", "2024-06-15T10:30:00Z"), ("folder", "2024-06-15T10:30:00Z"),
        ]  # fmt: skip
        kinds = {entry.name: entry.kind for entry in whole.entries}
        assert (kinds["folder"], kinds["link"], kinds["b.txt"]) == ("directory", "symlink", "file")
        # A link that leads to an indexed directory.
        assert [entry.name for entry in (await bench.call(Navigate(path=f"{root}/link/"))).entries] == ["large"]


async def test_unlistable_paths_are_refused_with_the_reason(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    tree(root)
    async with files_service(data, root) as bench:
        for path, why in (
            (f"{root}/b.txt", "is a file, not a directory"),
            (f"{root}/nothing", "is not indexed"),
            (str(root), "is outside the roots"),
            ("b.txt", "is a file, not a directory"),
            ("../x", "is outside the roots"),
        ):
            if path != str(root):
                await index(bench, root)
            asked = str(tmp_path) if path == str(root) else path
            with pytest.raises(InvalidParams, match=why) as caught:
                await bench.call(Navigate(path=asked))
            assert caught.value.failure.field == "path"
        with pytest.raises(InvalidParams, match="there are: mtime, name, size"):
            validate(Navigate, {"path": str(root), "sort": "age"})


async def test_inspect_returns_everything_known_about_an_entry(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    tree(root)
    async with files_service(data, root) as bench:
        await index(bench, root)
        file = await bench.call(Inspect(path=f"{root}/c.txt"))
        status = (root / "c.txt").lstat()
        assert (file.kind, file.size, file.modified_at) == ("file", 20, "2024-06-15T10:30:02Z")
        assert (file.inode, file.links, file.extension, file.mime_type) == (status.st_ino, 1, "txt", "text/plain")
        born = created_ns(f"{root}/c.txt") or None
        assert file.created_at == rfc3339(status.st_ctime_ns if born is None else born)
        assert file.resource_uri == f"synthesis://nodes{root}/c.txt"
        assert file.metadata_uri == f"synthesis://nodes{root}/c.txt/metadata"
        assert (file.metadata_count, file.metadata) == (0, [])
        folder = await bench.call(Inspect(path=f"{root}/"))
        assert (folder.kind, folder.size, folder.files, folder.directories) == ("directory", 1156, 7, 1)
        link = await bench.call(Inspect(path=f"{root}/link"))
        assert (link.kind, link.target) == ("symlink", "folder")
        with pytest.raises(InvalidParams, match="is not indexed"):
            await bench.call(Inspect(path=f"{root}/nothing"))


async def test_long_directory_answers_how_to_page(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    for number in range(5000):
        (root / f"{number:05d}-{'x' * 60}").touch()
    async with files_service(data, root) as bench:
        await index(bench, root)
        found = []
        offset = 0
        while True:
            page = await bench.call(Navigate(path=str(root), limit=10_000, offset=offset))
            assert len(msgspec.json.encode(page)) <= 512_000
            found += [entry.name for entry in page.entries]
            offset += len(page.entries)
            if not page.has_more:
                break
            assert page.summary is not None
            assert f"offset={offset}" in page.summary
        assert found == sorted(os.listdir(root))


async def test_database_is_diagnosed_and_preferences_are_kept(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    tree(root)
    async with files_service(data, root) as bench:
        await index(bench, root)
        found = await bench.call(DbDiagnose())
        assert found.database_path == str(data / "files/files.db")
        assert found.database_size > 0
        assert (found.integrity_check, found.entry_count, found.resource_set_count) == ("ok", 10, 0)
        assert (found.orphaned_entries, found.stale_entries, found.wrong_sums, found.rebuilt) == (0, 0, 0, False)
        await bench.call(
            SessionSetPreferences(preferences={"default_sort": "size", "show_hidden": False, "x": {"y": 1}})
        )
        await bench.call(SessionSetPreferences(preferences={"x": None, "thumbnail_size": "medium"}))
    async with files_service(data, root) as bench:
        session = await bench.call(SessionInfo())
        assert session.preferences == {"default_sort": "size", "show_hidden": False, "thumbnail_size": "medium"}
        assert (session.entry_count, session.resource_set_count, session.source_count, session.plan_count) == (
            10,
            0,
            0,
            0,
        )
        assert session.roots == [str(root)]


async def test_a_damaged_database_is_set_aside_and_recreated(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    tree(root)
    (data / "files").mkdir(parents=True)
    (data / "files/files.db").write_bytes(b"no database at all" * 1000)
    async with files_service(data, root) as bench:
        await index(bench, root)
        assert (await bench.call(DbDiagnose())).rebuilt
        assert len(list((data / "files").glob("files.db.damaged-*"))) == 1


def test_an_intact_database_is_opened_without_a_write(tmp_path: Path) -> None:
    path = tmp_path / "files.db"
    open_database(path).close()
    with contextlib.closing(apsw.Connection(str(path))) as other:
        (before,) = other.execute("PRAGMA data_version").fetchall()
        database = open_database(path)
        assert other.execute("PRAGMA data_version").fetchall() == [before]
        with database.reader() as db:
            assert db.execute("SELECT path FROM folder ORDER BY id").fetchall() == [("",), ("/",)]
        database.close()
