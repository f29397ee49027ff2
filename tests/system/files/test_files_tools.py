"""Every tool of the surface `files` on a checkout of source code and a folder of photos and a film: answers match the
disk, and changes reach it.  All calls use HTTP; `test_ways` checks that stdio gives the same answers.
"""

from __future__ import annotations

import base64
import fnmatch
import io
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from mcp.client import Client
from PIL import Image

from proto.vocabulary import current_name
from tests.system.files.files_place import (
    DAY_S,
    PHOTOS,
    Place,
    exists,
    fetch,
    make_place,
    paths_of,
    picture,
    size_of,
    write,
)
from tests.system.files.test_files_surface import SERVICES, target_of
from tests.system.running import HTTP, RunningKernel, running

NAMES: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
    ("contains", "SCAN", lambda name: "scan" in name.lower()),
    ("contains", "übers", lambda name: "Übers" in name),
    ("prefix", "__in", lambda name: name.startswith("__in")),
    ("suffix", "main.py", lambda name: name.endswith("main.py")),
    ("regex", r"^[a-c].*\.py$", lambda name: re.search(r"^[a-c].*\.py$", name) is not None),
    ("glob", "*e[sd].py", lambda name: fnmatch.fnmatch(name, "*e[sd].py")),
)
"""Ways to match a name, each with the equivalent Python check."""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    root, data = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("data")
    (data / "linckia.toml").write_text("[services.files]\ntrash = true\n")
    make_place(root / "place")
    with running(data, [root], options=HTTP, services=SERVICES) as started:
        yield started


async def indexing(at: Place) -> None:
    size, _, files, directories = at.disk().sums(at.folder)
    done = await at("index", root=at.folder, **{"async": False, "force": True})
    assert (done["files"], done["directories"], done["totalSize"]) == (files, directories + 1, size)
    await at.in_step()
    assert "Use force=true" in (await at("index", root=at.checkout))["skipReason"]
    started = await at("index", root=at.checkout, force=True)

    async def ended() -> Any:
        job = await at("jobs_progress", jobId=str(started["jobId"]))
        return job if "finishedAt" in job else None

    job = await at.until(ended)
    assert (job["status"], job["progress"], job["files"]) == ("completed", 100, len(at.files(at.checkout)))
    assert started["jobId"] in {each["jobId"] for each in (await at("jobs_list", status="completed"))["jobs"]}
    assert "it is already completed" in await at.refused("jobs_cancel", jobId=started["jobId"])
    # One that may have ended by itself before it hears of it, and then is an error as well.
    another = (await at("index", root=at.folder, force=True))["jobId"]
    at.called.add("jobs_cancel")
    cancelled = await at._client.call_tool("jobs_cancel", {"jobId": another})
    status = (await at("jobs_progress", jobId=another))["status"]
    assert status == ("completed" if cancelled.is_error else "cancelled")
    assert "does not exist" in await at.refused("index", root=f"{at.folder}/nothing", **{"async": False})
    assert "outside the roots" in await at.refused("index", root="/etc", **{"async": False})


async def reading(at: Place) -> None:
    names = sorted(os.listdir(f"{at.checkout}/services/files"), key=str.lower)
    shown = await at("navigate", path=f"{at.checkout}/services/files/", limit=7, offset=3)
    assert [entry["name"] for entry in shown["entries"]] == names[3:10]
    assert (shown["total"], shown["hasMore"]) == (len(names), True)
    beyond = await at("navigate", path=at.photos, offset=1000)
    assert (beyond["entries"], beyond["total"]) == ([], len(os.listdir(at.photos)))
    await at.refused("navigate", path=f"{at.photos}/beach.jpg")
    await at.refused("navigate", path=at.photos, sort="colour")

    film = await at("inspect", path=f"{at.photos}/film.mp4")
    status = os.stat(film["path"])
    assert (film["kind"], film["size"], film["inode"]) == ("file", status.st_size, status.st_ino)
    assert film["resourceUri"] == f"synthesis://nodes{at.photos}/film.mp4"
    frames = [each for each in film["metadata"] if each["type"] == "video-timeline"]
    assert (len(frames), frames[0]["url"]) == (5, film["timelineUri"])
    # Red in the first half of it, blue in the second.
    assert [picture(each["url"]).getpixel((100, 50))[0] > 128 for each in frames][::4] == [True, False]
    for name, (width, height) in PHOTOS.items():
        photo = await at("inspect", path=f"{at.photos}/{name}")
        (said,) = [each["metadata"] for each in photo["metadata"] if each["type"] == "metadata"]
        assert (said["width"], said["height"]) == (width, height)
        assert max(picture(photo["thumbnailUri"]).size) == min(320, max(width, height))
    photos = {entry["name"]: entry for entry in (await at("navigate", path=at.photos))["entries"]}
    assert picture(photos["beach.jpg"]["thumbnailUrl"]).size == (320, 240)
    text = await at("inspect", path=f"{at.checkout}/100%_done/readme.TXT")
    served = next(each["url"] for each in text["metadata"] if each["type"] == "metadata")
    assert fetch(served) == b"x" * 1234
    link = await at("inspect", path=f"{at.checkout}/latest")
    assert (link["kind"], link["target"]) == ("symlink", "services")

    diagnosis = await at("files_diagnose")
    assert diagnosis["integrity_check"] == "ok"
    assert (diagnosis["orphaned_entries"], diagnosis["wrong_sums"]) == (0, 0)
    await at("preferences_set", preferences={"sort": "name"})
    session = await at("preferences_get")
    assert (session["preferences"]["sort"], session["entry_count"]) == ("name", diagnosis["entry_count"])


async def sets(at: Place) -> None:
    code, media, both = "code", "media", "both"
    for name in (code, media, both):
        assert (await at("sets_create", name=name, description="d"))["entry_count"] == 0
    sources = [path for path in at.files(at.checkout) if path.endswith(".py")]
    photos = list(at.files(at.photos))
    assert (await at("sets_modify", name=code, operation="add", paths=sources))["changed"] == len(sources)
    assert (await at("sets_modify", name=media, operation="add", paths=photos))["changed"] == len(photos)
    gone = await at("sets_modify", name=media, operation="remove", paths=[f"{at.photos}/linked.jpg"])
    assert (gone["changed"], gone["entry_count"]) == (1, len(photos) - 1)
    for child in (code, media):
        assert (await at("sets_add_child", parent=both, child=child))["changed"]
    assert "cycle" in (await at.refused("sets_add_child", parent=code, child=both)).lower()
    assert {each["name"] for each in (await at("sets_list"))["resource_sets"]} >= {code, media, both}
    details = await at("sets_get", name=code, include_entries=True, limit=10)
    assert (paths_of(details), details["parents"]) == (sorted(sources)[:10], [both])
    assert details["total_size"] == sum(size_of(path) for path in sources)
    below = await at("sets_children", name=both, include_entries=True)
    assert {each["name"]: each["entry_count"] for each in below["children"]} == {
        code: len(sources), media: len(photos) - 1,
    }  # fmt: skip
    assert [each["name"] for each in (await at("sets_parents", name=media))["parents"]] == [both]

    members = {path: os.lstat(path) for path in (*sources, *photos) if not path.endswith("linked.jpg")}
    total = await at("sets_sum", name=both, metric="size")
    assert total["value"] == sum(status.st_size for status in members.values())
    assert sum(part["value"] for part in total["breakdown"]) == total["value"]
    assert (await at("sets_sum", name=both, metric="files"))["value"] == len(members)

    async def found(tool: str, **arguments: Any) -> set[str]:
        answer = await at(tool, name=both, include_children=True, **arguments)
        assert answer["total_count"] == len(answer["entries"]) == answer["returned_count"]
        return set(paths_of(answer))

    def of(test: Callable[[str, os.stat_result], bool]) -> set[str]:
        return {path for path, status in members.items() if test(path, status)}

    year_ago = time.time() - 365 * DAY_S
    expected = of(lambda path, status: status.st_mtime <= year_ago)
    assert f"{at.checkout}/services/files/index/tree.py" in expected
    assert await found("sets_time_range", field="mtime", max=year_ago) == expected
    expected = of(lambda path, status: 1000 <= status.st_size <= 5000)
    assert await found("sets_metric_range", metric="size", min=1000, max=5000) == expected
    assert await found("sets_metric_range", metric="links", min=2) == of(lambda path, status: status.st_nlink > 1)
    assert await found("sets_match", field="extension", value=".JPG") == of(lambda path, _: path.endswith(".jpg"))
    for mode, pattern, matches in NAMES:
        expected = {path for path in members if matches(path.rpartition("/")[2])}
        assert expected, pattern
        assert await found("sets_fuzzy_match", field="name", pattern=pattern, mode=mode) == expected, pattern
    searched = await at("sets_search", name=both, extension="py", min_size=9000, include_children=True, limit=1000)
    sized = [entry["size"] for entry in searched["entries"]]
    assert sized == sorted(sized, reverse=True)
    assert set(paths_of(searched)) == of(lambda path, status: path.endswith(".py") and status.st_size >= 9000)

    assert (await at("sets_remove_child", parent=both, child=media))["changed"]
    await at.refused("sets_remove_child", parent=both, child=media)
    await at("sets_delete", name=media)
    assert code in await at.refused("sets_get", name=media)


async def queries(at: Place) -> None:
    name = "large"
    wanted = {"extension": "py", "path_contains": f"{at.checkout}/", "min_size": 12_000}
    await at("queries_create", name=name, query=wanted, description="what is large")
    await at.refused("queries_create", name=name, query=wanted)
    await at.refused("queries_create", name=f"{name} 2", query={"colour": "red"})

    def expected(least: int) -> set[str]:
        return {
            path for path, s in at.files(at.checkout).items() if path.endswith(".py") and s.st_size >= least
        }  # fmt: skip

    assert set(paths_of(await at("queries_execute", name=name, limit=1000))) == expected(12_000) != set()
    updated = await at("queries_update", name=name, query={**wanted, "min_size": 15_000})
    assert (updated["query"]["extension"], updated["description"]) == ("py", "what is large")
    assert set(paths_of(await at("queries_execute", name=name, limit=1000))) == expected(15_000)
    assert (await at("queries_get", name=name))["query"]["min_size"] == 15_000
    assert name in {each["name"] for each in (await at("queries_list"))["queries"]}
    await at("queries_delete", name=name)
    assert name not in {each["name"] for each in (await at("queries_list"))["queries"]}


async def sources_and_plans(at: Place) -> None:
    live, manual = "live", "manual"
    await at("sources_create", name=live, type="live", path=at.photos, debounce_ms=0)
    await at("sources_create", name=manual, type="manual", path=at.checkout, enabled=False)

    async def runs() -> bool:
        return bool((await at("sources_get", name=live))["status"] == "running")

    await at.until(runs)
    plan, chosen = "pick", "picked"
    await at(
        "plans_create", name=plan, description="p",
        sources=[{"type": "filesystem.index", "config": {"path": at.photos}}],
        conditions={"type": "all", "conditions": [
            {"type": "media_type", "mediaType": "image"}, {"type": "size", "minSize": 1},
            {"type": "none", "conditions": [{"type": "path", "pathContains": "copy"}]},
        ]},
        outcomes=[{"type": "selection_set", "selectionSetName": chosen}],
    )  # fmt: skip
    begun = await at("plans_execute", name=plan)

    async def executed() -> Any:
        (run,) = (await at("plans_get", name=plan))["executions"]
        return run if "completed_at" in run else None

    run = await at.until(executed)
    images = {path for path in at.files(at.photos) if not path.endswith(".mp4") and "copy" not in path}
    assert (run["execution_id"], run["status"], run["entries_matched"]) == (
        begun["execution_id"], "completed", len(images),
    )  # fmt: skip
    picked = await at("sets_get", name=chosen, include_entries=True)
    assert set(paths_of(picked)) == images
    assert plan in {each["name"] for each in (await at("plans_list"))["plans"]}
    changed = await at("plans_update", name=plan, status="paused")
    assert (changed["status"], changed["description"], len(changed["outcomes"])) == ("paused", "p", 1)
    await at("plans_delete", name=plan)
    await at.refused("plans_get", name=plan)

    write(f"{at.photos}/roll/1/new.txt", b"taken just now")

    async def seen() -> bool:
        listed = await at("navigate", path=at.folder)
        if {entry["name"]: entry["size"] for entry in listed["entries"]}["photos"] != at.disk().sums(at.photos)[0]:
            return False
        return "roll" in {entry["name"] for entry in (await at("navigate", path=at.photos))["entries"]}

    await at.until(seen)
    assert (await at("sources_stats", name=live))["changes"] > 0
    before = (await at("sources_stats", name=manual))["total_scans"]
    await at("sources_start", name=manual)

    async def scanned() -> bool:
        return bool((await at("sources_stats", name=manual))["total_scans"] == before + 1)

    await at.until(scanned)
    assert {live, manual} <= {each["name"] for each in (await at("sources_list"))["sources"]}
    assert (await at("sources_stop", name=live))["status"] == "stopped"
    for name in (live, manual):
        await at("sources_delete", name=name)
        await at.refused("sources_get", name=name)


async def classifying(at: Place) -> None:
    job = await at("classifier_run", sourcePath=f"{at.photos}/beach.jpg")

    async def ended() -> Any:
        found = await at("classifier_progress", jobId=job["jobId"])
        return found if "completed_at" in found else None

    found = await at.until(ended)
    assert (found["status"], found["source_path"]) == ("completed", f"{at.photos}/beach.jpg")
    assert job["jobId"] in {each["id"] for each in (await at("classifier_jobs"))["jobs"]}


async def space(at: Place) -> None:
    files = at.files(at.folder)
    largest = await at("disk_top_files", path=at.folder, limit=5)
    assert [entry["size"] for entry in largest["entries"]] == sorted((s.st_size for s in files.values()), reverse=True)[
        :5
    ]
    assert largest["total"] == len(files)
    disk = at.disk()
    sizes = sorted((disk.sums(path)[0] for path in disk.folders() if path != at.folder), reverse=True)
    folders = await at("disk_top_folders", path=at.folder, limit=6)
    assert ([entry["size"] for entry in folders["entries"]], folders["total"]) == (sizes[:6], len(sizes))
    twice = await at("files_duplicates", path=at.photos)
    (group,) = twice["groups"]
    # The hard link is the same file.
    assert f"{at.photos}/copy of beach.jpg" in group["paths"]
    assert (len(group["paths"]), group["wasted"]) == (2, size_of(f"{at.photos}/beach.jpg"))
    summary = await at("disk_summary", path=at.checkout, extensions=100)
    assert (summary["size"], summary["files"]) == disk.sums(at.checkout)[::2]
    shares = {each["name"]: (each["count"], each["size"]) for each in summary["byExtension"]}
    code = [status.st_size for path, status in at.files(at.checkout).items() if path.endswith(".py")]
    assert next(share for name, share in shares.items() if name.strip(".") == "py") == (len(code), sum(code))
    assert sum(each["count"] for each in summary["byAge"]) == summary["files"]
    (system, *_) = (await at("disk_free"))["fileSystems"]
    assert 0 < system["used"] + system["free"] <= system["size"]
    (image,) = [each for each in await at.content("disk_treemap", path=at.checkout, width=400, height=300)
                if each.type == "image"]  # fmt: skip
    assert Image.open(io.BytesIO(base64.b64decode(image.data))).size == (400, 300)
    drawn = "".join(
        base64.b64decode(each.data).decode() if each.type == "image" else each.text
        for each in await at.content("disk_treemap", path=at.checkout, format="svg")
    )
    assert "<svg" in drawn
    assert "vendor" in drawn
    await at("index", root=at.checkout, **{"async": False, "force": True})
    since = time.time()
    write(f"{at.checkout}/vendor/grown.bin", bytes(54_321))
    await at("index", root=at.checkout, **{"async": False, "force": True})
    growth = await at("disk_compare", path=at.checkout, since=since)
    assert (growth["change"], growth["filesAfter"] - growth["filesBefore"]) == (54_321, 1)
    assert {each["path"]: each["change"] for each in growth["directories"]}[f"{at.checkout}/vendor"] == 54_321


async def changing(at: Place) -> None:
    old, new = f"{at.photos}/tall.webp", f"{at.photos}/taller.webp"
    renames = [{"from": old, "to": new}, {"from": f"{old}x", "to": f"{new}x"}]
    for dry in (True, False):
        done = await at("files_rename", dryRun=dry, renames=renames)
        assert [each["status"] for each in done["results"]] == ["preview" if dry else "success", "error"]
        assert (exists(old), exists(new)) == (dry, not dry)
    kept = await at("files_rename", renames=[{"from": f"{at.photos}/film.mp4", "to": new}])
    assert (kept["results"][0]["status"], size_of(new) < 20_000) == ("error", True)
    # A whole directory goes elsewhere, and so does all below it.
    moved = await at("files_move", moves=[{"from": f"{at.checkout}/vendor", "to": f"{at.photos}/deep/vendor"}],
                     makeDirectories=True)  # fmt: skip
    assert (moved["succeeded"], exists(f"{at.photos}/deep/vendor/trio")) == (1, True)
    await at.in_step()
    outside = await at("files_move", moves=[{"from": new, "to": "/tmp/stolen.webp"}])
    assert (outside["failed"], exists(new)) == (1, True)

    doomed = [f"{at.photos}/deep", f"{at.photos}/film.mp4"]
    first = await at("files_delete", paths=doomed, dryRun=True)
    assert [each["status"] for each in first["results"]] == ["error", "preview"]
    deleted = await at("files_delete", paths=doomed, force=True)
    assert (deleted["succeeded"], [exists(path) for path in doomed]) == (2, [False, False])
    await at.in_step()
    trashed = {each["path"]: each for each in (await at("trash_list"))["items"]}
    assert trashed.keys() >= set(doomed)
    restored = await at("trash_restore", paths=[doomed[0]])
    assert (restored["succeeded"], exists(f"{doomed[0]}/vendor/trio/__init__.py")) == (1, True)

    async def back() -> bool:
        listed = await at("navigate", path=at.photos)
        sizes = {entry["path"]: entry["size"] for entry in listed["entries"]}
        return sizes.get(doomed[0]) == at.disk().sums(doomed[0])[0]

    await at.until(back)
    emptied = await at("trash_empty", trashIds=[trashed[doomed[1]]["trashId"]])
    assert emptied["deleted"] == 1
    assert doomed[1] not in {each["path"] for each in (await at("trash_list"))["items"]}
    await at.in_step()


async def texts(at: Place) -> None:
    path, found = f"{at.checkout}/notes/todo.txt", re.compile("^import (os|re)$", re.MULTILINE)
    made = await at("files_write", path=path, content="one\r\ntwo\r\n")
    assert made["created"]
    await at.refused("files_write", path=path, content="three")
    read = await at("files_read", path=path)
    assert (read["text"], read["line_ends"], read["hash"]) == ("one\ntwo\n", "crlf", made["hash"])
    edited = await at("files_edit", path=path, if_match=read["hash"], edits=[{"old": "two", "new": "2"}])
    assert "+2" in edited["diff"]
    assert content_of(path) == b"one\r\n2\r\n"
    await at.refused("files_edit", path=path, if_match=read["hash"], edits=[{"old": "2", "new": "two"}])
    over = await at("files_write", path=path, content="new", if_match=edited["hash"])
    back = f"{path}.back"
    await at("trash_restore", items=[{"trashId": over["trash_id"], "to": back}])
    assert (content_of(path), content_of(back)) == (b"new", b"one\r\n2\r\n")
    await at.in_step()
    lines = await at("files_grep", pattern=found.pattern, path=at.checkout, glob="*.py", limit=9_999)
    sources = [each for each in at.files(at.checkout) if each.endswith(".py") and "/." not in each[len(at.checkout) :]]
    counts = {each: len(found.findall(content_of(each).decode())) for each in sources}
    assert {each["path"]: len(each["matches"]) for each in lines["files"]} == {k: n for k, n in counts.items() if n}
    for tool, more in (("files_read", {}), ("files_write", {"content": ""}), ("files_grep", {"pattern": "x"})):
        assert "outside the roots" in await at.refused(tool, path="/etc/passwd", **more)


def content_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


FAMILIES = (indexing, reading, sets, queries, sources_and_plans, classifying, space, changing, texts)


def test_every_tool_agrees_with_the_disk(kernel: RunningKernel) -> None:
    async def main() -> None:
        with anyio.fail_after(120):
            async with Client(target_of(kernel, "http"), mode="legacy") as client:
                at = Place(client, f"{kernel.status()['roots'][0]}/place")
                for family in FAMILIES:
                    await family(at)
                listed = {current_name(tool.name) for tool in (await client.list_tools()).tools}
                assert listed - at.called == set()

    anyio.run(main)
