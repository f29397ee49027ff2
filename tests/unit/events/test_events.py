"""Events are stored once with their sources' positions, read by cursor, bounded, and shown to those they concern."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from proto import grants
from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.grants import Grant
from proto.ops.events import EventAdd, EventKind, EventPage, EventsRead, EventsResource
from services.events import event_database
from services.events.event_database import Bounds, NewEvent
from services.events.main import EventsSettings, open_service
from services.events.reading import newest, page
from services.runtime.roots import Roots
from services.shared.times import DAY_NS
from services.watch.main import open_service as open_watch
from tests.in_process import Bench, services_in_process

BOUNDS = Bounds(1_000, 7 * DAY_NS)


@contextlib.contextmanager
def database() -> Iterator[apsw.Connection]:
    with contextlib.closing(apsw.Connection(":memory:")) as db:
        db.execute(event_database.SCHEMA.tables).fetchall()
        yield db


def file_event(path: str, what: str = "modified", former: str | None = None) -> NewEvent:
    return NewEvent(time.time_ns(), EventKind.FILE, path, what, former=former)


def shown(found: EventPage) -> list[tuple[str, str, Any]]:
    return [(each.what, each.subject, each.details.get("former")) for each in found.events]


@contextlib.contextmanager
def limited_to(*roots: str) -> Iterator[None]:
    before = grants.current.set(Grant("ann", roots=roots))
    try:
        yield
    finally:
        grants.current.reset(before)


def test_the_oldest_are_deleted_and_numbers_are_never_used_again() -> None:
    with database() as db:
        for _ in range(30):
            event_database.add(db, [file_event("/r/a")] * 100, {}, BOUNDS)
        assert (event_database.oldest(db), event_database.latest(db)) == (2_001, 3_000)
        db.execute("UPDATE event SET stored_ns = 0")
        event_database.add(db, [], {}, BOUNDS)
        assert (event_database.oldest(db), event_database.latest(db)) == (0, 3_000)
        event_database.add(db, [file_event("/r/a")], {}, BOUNDS)
        assert event_database.oldest(db) == 3_001


def test_an_unknown_or_expired_cursor_says_which_event_is_the_oldest() -> None:
    with database() as db:
        event_database.add(db, [file_event("/r/a")] * 3_000, {}, BOUNDS)
        roots = Roots(["/r"])
        with pytest.raises(InvalidParams, match="the latest event is 3000, the oldest 2001") as unknown:
            page(db, roots, 3_001, 10)
        assert unknown.value.failure.field == "after"
        with pytest.raises(OperationError, match="the oldest event is 2001; read after 2000"):
            page(db, roots, 1_999, 10)
        assert page(db, roots, 2_000, 1).events[0].number == 2_001
        assert page(db, roots, 0, 1).events[0].number == 2_001
        assert page(db, roots, 3_000, 1) == EventPage(events=[], next=3_000, oldest=2_001, more=False)


def test_pages_follow_each_other_without_gaps_whatever_is_left_out() -> None:
    with database() as db:
        for number in range(200):
            kind = EventKind.FILE if number % 3 else EventKind.CHANGE
            event = NewEvent(1, kind, f"/r/{'in' if number % 2 else 'out'}/{number}", "modified")
            event_database.add(db, [event], {}, BOUNDS)
        found, after = [], 0
        while True:
            got = page(db, Roots(["/r"]), after, 7, kinds=[EventKind.FILE], below=["/r/in"])
            found += [each.number for each in got.events]
            after = got.next
            if not got.more:
                break
        assert found == [n + 1 for n in range(200) if n % 3 and n % 2]
        assert after == 200


def test_without_a_cursor_the_newest_events_are_returned_in_order() -> None:
    with database() as db:
        roots = Roots(["/r"])
        assert newest(db, roots, 5) == EventPage(events=[], next=0, oldest=0, more=False)
        for number in range(1, 24):
            kind = EventKind.FILE if number % 2 else EventKind.CHANGE
            event_database.add(db, [NewEvent(1, kind, f"/r/{number % 3}/{number}", "modified")], {}, BOUNDS)

        def numbers(limit: int, **chosen: Any) -> list[int]:
            found = newest(db, roots, limit, **chosen)
            assert (found.next, found.more) == (23, False)
            return [each.number for each in found.events]

        assert numbers(100) == list(range(1, 24))
        assert numbers(3) == [21, 22, 23]
        assert numbers(1) == [23]
        assert numbers(3, kinds=[EventKind.CHANGE]) == [18, 20, 22]
        assert numbers(2, below=["/r/0"]) == [15, 21]
        # The last files lie elsewhere, or are hidden.
        with limited_to("/r/1"):
            assert numbers(2) == [13, 19]
        hidden = Roots(["/r"], patterns=["23", "21"])
        assert [each.number for each in newest(db, hidden, 2, kinds=[EventKind.FILE]).events] == [17, 19]


def test_a_client_with_roots_sees_only_files_below_them_and_half_of_a_move_across() -> None:
    with database() as db:
        events = [
            file_event("/r/mine/a"),
            file_event("/r/mine2/a"),
            file_event("/r/mine/b", "renamed", "/r/theirs/b"),
            file_event("/r/theirs/c", "renamed", "/r/mine/c"),
            file_event("/r/mine/d", "renamed", "/r/mine/e"),
            NewEvent(1, EventKind.CHANGE, "path=/r/theirs/x", "files_write", who="bob"),
            NewEvent(1, EventKind.GAP, "/r", "missing"),
            NewEvent(1, EventKind.GAP, "changes", "missing"),
            NewEvent(1, EventKind.SERVICE, "echo", "died"),
        ]
        event_database.add(db, events, {}, BOUNDS)
        roots = Roots(["/r"])
        assert len(page(db, roots, 0, 100).events) == len(events)
        with limited_to("/r/mine"):
            assert shown(page(db, roots, 0, 100)) == [
                ("modified", "/r/mine/a", None),
                ("created", "/r/mine/b", None),
                ("deleted", "/r/mine/c", None),
                ("renamed", "/r/mine/d", "/r/mine/e"),
                ("missing", "/r/mine", None),
            ]
        # A root that is no longer one, and what the settings deny.
        assert len(page(db, Roots(["/r/mine2"]), 0, 100).events) == 4
        hidden = Roots(["/r"], patterns=["e"])
        assert ("created", "/r/mine/d", None) in shown(page(db, hidden, 0, 100))


def test_paths_are_matched_as_folders_and_not_as_beginnings_of_names() -> None:
    with database() as db:
        paths = ["/r/a", "/r/a/b", "/r/a.txt", "/r/a0", "/r/a%", "/r/A", "/r/ä/b"]
        event_database.add(db, [file_event(path) for path in paths], {}, BOUNDS)

        def below(path: str) -> list[str]:
            return [each.subject for each in page(db, Roots(["/"]), 0, 100, below=[path]).events]

        assert below("/r/a") == ["/r/a", "/r/a/b"]
        assert below("/r/a%") == ["/r/a%"]
        assert below("/r/ä") == ["/r/ä/b"]
        assert below("/") == paths


@contextlib.asynccontextmanager
async def following(folder: Path, root: Path, settings: dict[str, Any] | None = None) -> AsyncIterator[Bench]:
    root.mkdir(exist_ok=True)  # noqa: ASYNC240  # a test's own small folder
    services = {"watch": open_watch, "events": open_service}
    async with services_in_process(services, folder, roots=[root], settings={"events": settings or {}}) as bench:
        yield bench


async def read_files(bench: Bench, after: int, wanted: Sequence[str]) -> EventPage:
    """Read until these files have been reported."""
    found: list[Any] = []
    with trio.fail_after(30):
        while not {Path(each.subject).name for each in found} >= set(wanted):
            got = await bench.call(EventsRead(after=after, wait_s=10, kinds=[EventKind.FILE]))
            found += got.events
            after = got.next
    return EventPage(events=found, next=after, oldest=0, more=False)


async def is_followed(bench: Bench, root: Path) -> int:
    """Wait until changes are seen; return the cursor after them."""
    for number in range(1_000):
        (root / f"probe{number}").write_text("x")
        got = await bench.call(EventsRead(after=0, wait_s=1.0, kinds=[EventKind.FILE]))
        if got.events:
            return (await read_files(bench, got.next - 1, [f"probe{number}"])).next
    raise AssertionError


async def test_changed_files_are_events_once_through_deaths_of_the_service(tmp_path: Path) -> None:
    root = tmp_path / "root"
    async with following(tmp_path / "data", root) as bench:
        after = start = await is_followed(bench, root)
        for number in range(5):
            (root / f"{number}.txt").write_text("x")
            after = (await read_files(bench, after, [f"{number}.txt"])).next
            await bench.stop("events")
            (root / f"{number}.away").write_text("x")
            await bench.start("events")
            after = (await read_files(bench, after, [f"{number}.away"])).next
        found = (await bench.call(EventsRead(after=start, kinds=[EventKind.FILE, EventKind.GAP]))).events
        created = [Path(each.subject).name for each in found if each.what == "created"]
        assert created == [name for n in range(5) for name in (f"{n}.txt", f"{n}.away")]
        assert [each.number for each in found] == sorted({each.number for each in found})
        assert not [each for each in found if each.kind == EventKind.GAP]


async def test_a_watcher_that_lost_its_log_leaves_a_gap(tmp_path: Path) -> None:
    root = tmp_path / "root"
    async with following(tmp_path / "data", root) as bench:
        after = await is_followed(bench, root)
        await bench.stop("watch")
        for file in (tmp_path / "data" / "watch").glob("watch.db*"):
            file.unlink()
        await bench.start("watch")
        with trio.fail_after(30):
            got = await bench.call(EventsRead(after=after, kinds=[EventKind.GAP], wait_s=25))
        assert [(each.subject, each.what) for each in got.events] == [(str(root), "missing")]


async def test_events_of_other_services_are_added_once(tmp_path: Path) -> None:
    async with following(tmp_path / "data", tmp_path / "root", {"files": False}) as bench:
        task = EventAdd(id="1", kind=EventKind.TASK, subject="nightly", what="done", at=5, who="ann", details={"n": 1})
        first = await bench.call(task, caller="tasks")
        assert await bench.call(task, caller="tasks") == type(first)(number=first.number, repeated=True)
        other = await bench.call(task, caller="approvals")
        assert not other.repeated
        got = await bench.call(EventsRead(after=0, kinds=[EventKind.TASK]))
        assert [each.number for each in got.events] == [first.number, other.number]
        assert (got.events[0].at, got.events[0].who, got.events[0].details) == ("1970-01-01T00:00:05Z", "ann", {"n": 1})
        with pytest.raises(InvalidParams, match="details"):
            await bench.call(EventAdd(id="2", kind=EventKind.TASK, subject="", what="x", details={"a": "x" * 9000}))


async def test_a_reader_waits_for_the_first_event_that_concerns_it(tmp_path: Path) -> None:
    async with following(tmp_path / "data", tmp_path / "root", {"files": False}) as bench:
        async with trio.open_nursery() as nursery:
            got: list[EventPage] = []

            async def read() -> None:
                got.append(await bench.call(EventsRead(wait_s=30, kinds=[EventKind.TASK])))

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.05)
            for number, kind in enumerate((EventKind.APPROVAL, EventKind.TASK)):
                await bench.call(EventAdd(id=str(number), kind=kind, subject="a", what="done"))
        assert [each.kind for each in got[0].events] == ["task"]
        now = await bench.call(EventsRead())
        assert ([each.number for each in now.events], now.next) == ([1, 2], got[0].next)
        assert (await bench.call(EventsResource())).next == now.next


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"after": 0, "since": "1 hour ago"}, "since"),
        ({"since": "perhaps"}, "since"),
        ({"path": "relative"}, "path"),
        ({"path": "/etc"}, "path"),
    ],
)
async def test_wrong_parameters_are_named(tmp_path: Path, params: dict[str, Any], field: str) -> None:
    async with following(tmp_path / "data", tmp_path / "root", {"files": False}) as bench:
        with pytest.raises(LinckiaError) as wrong:
            await bench.call(EventsRead(**params))
        assert wrong.value.failure.field == field


def test_the_settings_have_sensible_defaults() -> None:
    assert EventsSettings() == EventsSettings(keep_days=7, max_events=200_000, files=True, ignore=[])
