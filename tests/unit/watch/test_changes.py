"""Reports of single changes: each once, in order, and with the right kind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from proto.errors import InvalidParams, OperationError
from proto.ops.watch import ChangeKind, EntryKind, WatchChanges, WatchSubscribe, WatchUnsubscribe
from services.watch.main import open_service
from tests.in_process import services_in_process
from tests.unit.watch.rig import settled, watching


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "sub/deep").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (folder / "sub/b.txt").write_text("b")
    (folder / "sub/deep/c.txt").write_text("c")
    return folder


async def test_each_kind_of_change_is_reported_once(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (_, mirror):
        (root / "new.txt").write_text("new")
        await mirror.until_same(root)
        assert mirror.told() == [("created", "new.txt")]
        (root / "new.txt").write_text("longer")
        await mirror.until_same(root)
        assert mirror.told() == [("modified", "new.txt")]
        (root / "new.txt").rename(root / "sub/old.txt")
        await mirror.until_same(root)
        assert [(c.change, c.old_path) for c in mirror.applied] == [(ChangeKind.RENAMED, str(root / "new.txt"))]
        mirror.told()
        (root / "sub/old.txt").unlink()
        await mirror.until_same(root)
        assert mirror.told() == [("deleted", "old.txt")]


async def test_file_replaced_by_a_rename_is_modified(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (_, mirror):
        (root / "a.txt.new").write_text("another")
        (root / "a.txt.new").rename(root / "a.txt")
        await mirror.until_same(root)
        assert mirror.told() == [("modified", "a.txt")]


async def test_renamed_folder_is_one_change_with_all_below_it(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (_, mirror):
        (root / "sub").rename(root / "moved")
        await mirror.until_same(root)
        assert mirror.told() == [("renamed", "moved")]
        (root / "moved/deep/d.txt").write_text("d")
        await mirror.until_same(root)
        assert mirror.told() == [("created", "d.txt")]


async def test_file_made_in_a_folder_right_before_that_is_renamed_is_not_lost(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (_, mirror):
        (root / "sub/deep/early.txt").write_text("x")
        (root / "sub").rename(root / "moved")
        (root / "moved/deep/late.txt").write_text("x")
        await mirror.until_same(root)
        assert sorted(mirror.told()) == [("created", "early.txt"), ("created", "late.txt"), ("renamed", "moved")]


async def test_folders_that_swap_names_are_followed(tmp_path: Path, root: Path) -> None:
    (root / "other").mkdir()
    (root / "other/o.txt").write_text("o")
    async with watching(tmp_path / "data", root) as (_, mirror):
        (root / "sub").rename(root / "sub.old")
        (root / "other").rename(root / "sub")
        await mirror.until_same(root)
        assert mirror.told() == [("renamed", "sub.old"), ("renamed", "sub")]
        (root / "sub").rename(root / "x")
        (root / "sub.old").rename(root / "sub")
        (root / "x").rename(root / "sub.old")
        await mirror.until_same(root)
        (root / "sub/deep").rename(root / "deep")
        (root / "sub").rename(root / "deep/sub")
        await mirror.until_same(root)
        (root / "deep/sub/late.txt").write_text("x")
        (root / "sub.old/late.txt").write_text("x")
        await mirror.until_same(root)


@pytest.mark.slow
async def test_folder_replaced_by_another_of_its_name_is_another(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (_, mirror):
        for round_ in range(5):
            shutil.rmtree(root / "sub")
            (root / "sub/deep").mkdir(parents=True)
            (root / f"sub/deep/n{round_}.txt").write_text("n")
            await mirror.until_same(root)
            (root / f"sub/deep/m{round_}.txt").write_text("m")
            await mirror.until_same(root)


async def test_folder_moved_out_is_deleted_and_moved_in_is_created_with_all_in_it(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (_, mirror):
        (root / "sub").rename(tmp_path / "outside")
        await mirror.until_same(root)
        assert mirror.told() == [("deleted", "sub")]
        (tmp_path / "outside/unseen.txt").write_text("x")
        (tmp_path / "outside").rename(root / "back")
        await mirror.until_same(root)
        assert sorted(mirror.told()) == [
            ("created", "b.txt"), ("created", "back"), ("created", "c.txt"), ("created", "deep"),
            ("created", "unseen.txt"),
        ]  # fmt: skip
        (root / "back/deep/d.txt").write_text("x")
        await mirror.until_same(root)


async def test_tree_made_all_at_once_is_reported_whole(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (_, mirror):
        for branch in range(30):
            folder = root / f"t{branch}" / "/".join(f"d{n}" for n in range(10))
            folder.mkdir(parents=True)
            for above in [folder, *folder.parents][:11]:
                (above / "f.txt").write_text("f")
        await mirror.until_same(root)
        assert len(mirror.entries) == len(set(mirror.entries)) > 30 * 20


@pytest.mark.slow
async def test_watched_folder_may_go_and_come_back(tmp_path: Path, root: Path) -> None:
    watched = root / "sub"
    async with watching(tmp_path / "data", root) as (bench, mirror):
        await bench.call(WatchSubscribe(name=mirror.name, paths=[str(watched)]))
        await mirror.until_same(watched)
        assert mirror.resyncs == 2
        mirror.told()
        shutil.rmtree(watched)
        await mirror.until_same(watched)
        assert mirror.told()[-1] == ("deleted", "sub")
        assert (await settled(bench)).degraded == [f"missing: {watched}"]
        assert (await bench.call(WatchSubscribe(name=mirror.name, paths=[str(watched)]))).kept
        with pytest.raises(InvalidParams, match="no such file"):
            await bench.call(WatchSubscribe(name="another", paths=[str(watched)]))
        watched.mkdir()
        (watched / "again.txt").write_text("x")
        await mirror.until_same(watched)
        assert mirror.told() == [("created", "sub"), ("created", "again.txt")]
        (watched / "more.txt").write_text("x")
        await mirror.until_same(watched)
        assert mirror.told() == [("created", "more.txt")]


async def test_links_pipes_and_strange_names_are_reported_and_links_not_followed(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (bench, mirror):
        (root / "loop").symlink_to(root)
        os.mkfifo(root / "pipe")
        strange = os.fsdecode(b"bad\xff.txt")
        await mirror.until_same(root)
        assert {(c.kind, os.path.basename(c.path)) for c in mirror.applied} == {
            (EntryKind.LINK, "loop"),
            (EntryKind.OTHER, "pipe"),
        }
        (root / strange).write_text("x")
        await settled(bench)
        answer = await bench.call(WatchChanges(subscription=mirror.name, after=mirror.after, wait_s=5))
        (change,) = answer.changes
        assert change.raw_path == os.fsencode(root / strange)
        assert change.path == str(root / "bad\ufffd.txt")


async def test_chmod_touch_and_hard_links_are_reported(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (_, mirror):
        os.chmod(root / "a.txt", 0o600)
        await mirror.until_same(root)
        os.utime(root / "a.txt", ns=(1, 1))
        await mirror.until_same(root)
        os.link(root / "a.txt", root / "twin.txt")
        await mirror.until_same(root)
        told = mirror.told()
        assert ("created", "twin.txt") in told
        assert ("modified", "a.txt") in told


async def test_ignored_entries_are_not_reported(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (bench, _):
        await bench.call(
            WatchSubscribe(
                name="notes", paths=[str(root)], ignore=[".*", "node_modules/", "*.tmp", "/build/out/*.log"],
                include=["*.MD", "*.log", "*.tmp"],
            )
        )  # fmt: skip
        answer = await bench.call(WatchChanges(subscription="notes", wait_s=10))
        assert answer.resync
        for path in ("x.md", "Y.Md", "x.txt", ".hidden.md", ".git/x.md", "node_modules/x.md", "x.tmp",
                     "build/out/x.log", "build/out/in/x.log", "sub/z.md"):  # fmt: skip
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text("x")
        await settled(bench)
        changes = (await bench.call(WatchChanges(subscription="notes", after=answer.sequence))).changes
        files = sorted(c.path.removeprefix(f"{root}/") for c in changes if c.kind is EntryKind.FILE)
        assert files == ["Y.Md", "build/out/in/x.log", "sub/z.md", "x.md"]
        (root / "node_modules").rename(root / "modules")
        await settled(bench)
        changes = (await bench.call(WatchChanges(subscription="notes", after=changes[-1].sequence))).changes
        assert [c.path.removeprefix(f"{root}/") for c in changes] == ["modules", "modules/x.md"]


async def test_folder_that_is_not_followed_is_an_entry_only(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (bench, _):
        await bench.call(WatchSubscribe(name="flat", paths=[str(root)], recursive=False))
        answer = await bench.call(WatchChanges(subscription="flat", wait_s=10))
        (root / "sub/unseen.txt").write_text("x")
        (root / "seen.txt").write_text("x")
        (root / "sub").rename(root / "bus")
        await settled(bench)
        changes = (await bench.call(WatchChanges(subscription="flat", after=answer.sequence))).changes
        assert sorted((c.change.value, os.path.basename(c.path)) for c in changes) == [
            ("created", "seen.txt"),
            ("renamed", "bus"),
        ]


async def test_bad_subscriptions_are_refused_with_the_field(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (bench, _):
        for paths, field in (
            (["/"], "paths[0]"),
            ([str(root), str(root / "a.txt")], "paths[1]"),
            (
                [str(root / "none")],
                "paths[0]",
            ),
        ):
            with pytest.raises(InvalidParams) as caught:
                await bench.call(WatchSubscribe(name="bad", paths=paths))
            assert caught.value.failure.field == field
        with pytest.raises(OperationError, match="no subscription 'bad'"):
            await bench.call(WatchChanges(subscription="bad"))


async def test_subscription_ended_is_gone_and_others_stay(tmp_path: Path, root: Path) -> None:
    async with watching(tmp_path / "data", root) as (bench, mirror):
        await bench.call(WatchSubscribe(name="second", paths=[str(root)], ignore=["*.tmp"]))
        before = (await settled(bench)).watches
        assert (await bench.call(WatchUnsubscribe(name="second"))).removed
        assert not (await bench.call(WatchUnsubscribe(name="second"))).removed
        status = await settled(bench)
        assert [one.name for one in status.subscriptions] == [mirror.name]
        assert status.watches == before
        (root / "n.txt").write_text("n")
        await mirror.until_same(root)
        assert (await bench.call(WatchUnsubscribe(name=mirror.name))).removed
        assert (await settled(bench)).watches == 0


async def test_folders_removed_from_the_settings_are_forgotten_at_the_next_start(tmp_path: Path, root: Path) -> None:
    other, data = tmp_path / "other", tmp_path / "data"
    other.mkdir()
    async with watching(data, root, other) as (bench, _):
        await bench.call(WatchSubscribe(name="second", paths=[str(other)]))
        assert len((await settled(bench)).subscriptions) == 2
    async with services_in_process({"watch": open_service}, data, roots=[root], settings={"watch": {}}) as bench:
        status = await settled(bench)
        assert [one.paths for one in status.subscriptions] == [[str(other), str(root)]]
        with pytest.raises(OperationError, match="second"):
            await bench.call(WatchChanges(subscription="second", after=0))
