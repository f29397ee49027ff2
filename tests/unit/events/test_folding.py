"""Events of the same kind in one folder become one line; others keep their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import apsw
import pytest

from proto import grants
from proto.grants import Grant
from proto.ops.events import Event, EventKind
from services.events import event_database
from services.events.event_database import Bounds, NewEvent
from services.events.folded import fold
from services.events.folding import NEAR_S, Folding
from services.events.operations import EventLines, EventsFolded
from services.runtime.roots import Roots
from services.shared.times import DAY_NS, NS


def event(number: int, subject: str, what: str = "created", kind: str = "file", **others: object) -> Event:
    return Event(number=number, at="2026-11-29T07:00:00Z", kind=kind, subject=subject, what=what, **others)  # type: ignore[arg-type]  # as keywords


def folded(events: Iterable[tuple[Event, float]]) -> list[tuple[int, int, str]]:
    folding: Folding[Event] = Folding()
    for each, at_s in events:
        folding.add(each, at_s, each.details)
    return [(line.first, line.last, line.in_words() if line.is_folded else "") for line in folding.lines]


def burst(count: int, folder: str = "/r/many", **others: object) -> list[tuple[Event, float]]:
    return [(event(number, f"{folder}/{number}", **others), number / 100) for number in range(1, count + 1)]  # type: ignore[arg-type]  # as above


def test_ten_thousand_files_of_one_folder_are_one_line_in_either_order() -> None:
    assert folded(burst(10_000)) == folded(burst(10_000)[::-1]) == [(1, 10_000, "10,000 files created")]


def test_a_few_events_keep_their_own_lines_and_repeated_ones_say_so() -> None:
    assert folded(burst(4)) == [(1, 4, "")]
    assert folded([(event(n, "/r/a", "modified"), 0.0) for n in range(1, 6)]) == [(1, 5, "1 file modified, 5 times")]
    assert folded(burst(5, details={"type": "directory"})) == [(1, 5, "5 folders created")]


def test_a_pause_begins_another_line() -> None:
    late = [(each, at_s + NEAR_S + 1) for each, at_s in burst(3)]
    assert len(folded([*burst(3), *late])) == 2


@pytest.mark.parametrize(
    ("other", "lines"),
    [
        (event(4, "/r/many/4", "deleted"), 2),
        (event(4, "/r/other/4"), 2),
        (event(4, "/r/many/4", "created", "gap"), 2),
        (event(4, "/r/many/4", who="ann"), 2),
        (event(4, "/r/many/4", details={"type": "directory"}), 2),
        (event(4, "/r/many/4", details={"outcome": "internal"}), 2),
        (event(4, "/r/many/4"), 1),
    ],
)
def test_what_differs_is_never_hidden(other: Event, lines: int) -> None:
    assert len(folded([*burst(3), (other, 0.05)])) == lines


@pytest.mark.parametrize("kind", [EventKind.TASK, EventKind.SERVICE, EventKind.APPROVAL, EventKind.GAP])
def test_deaths_tasks_and_gaps_are_never_folded(kind: EventKind) -> None:
    assert len(folded(burst(5, kind=kind))) == 5


def test_calls_about_files_of_one_folder_are_one_line_and_others_are_not() -> None:
    def calls(subject: str) -> list[tuple[Event, float]]:
        return [(event(n, subject.format(n), "files_edit", "change", who="ann"), 0.0) for n in range(1, 6)]

    assert folded(calls("path=/r/many/{}.txt")) == [(1, 5, "files_edit of 5 paths")]
    assert folded(calls("path=/r/many/1.txt")) == [(1, 5, "files_edit of 1 path, 5 times")]
    for other in ("id={}", "path=/r/many/{} to=/r/x", "{}", ""):
        assert len(folded(calls(other))) == 5


@contextlib.contextmanager
def stored(events: list[NewEvent]) -> Iterator[apsw.Connection]:
    with contextlib.closing(apsw.Connection(":memory:")) as db:
        db.execute(event_database.SCHEMA.tables).fetchall()
        event_database.add(db, events, {}, Bounds(100_000, 7 * DAY_NS))
        yield db


def created(path: str, at_s: int, **details: object) -> NewEvent:
    return NewEvent(at_s * NS, EventKind.FILE, path, "created", details={"size": 1, **details})


def lines(db: apsw.Connection, roots: Roots | None = None, **asked: int) -> EventLines:
    since_ns, until_ns = asked.pop("since", 0) * NS, asked.pop("until", 0) * NS
    found = Roots(["/r"]) if roots is None else roots
    return fold(db, found, EventsFolded(**asked), since_ns=since_ns, until_ns=until_ns, below=grants.roots())  # type: ignore[arg-type]  # as keywords


def said(found: EventLines) -> list[tuple[str, int]]:
    return [(each.text or each.subject, each.count) for each in found.lines]


def test_a_day_is_read_backwards_by_lines_and_goes_on_where_it_ended() -> None:
    events = [created(f"/r/many/{n}", 1_000) for n in range(9_000)]
    events += [NewEvent(2_000 * NS, EventKind.TASK, str(n), "failed") for n in range(4)]
    events += [created("/r/last", 9_000)]
    with stored(events) as db:
        assert said(lines(db, until=9_000, since=1)) == [(str(n), 1) for n in (3, 2, 1, 0)] + [
            ("9,000 files created", 9_000)
        ]
        assert said(lines(db, since=9_000)) == [("/r/last", 1)]
        first = lines(db, limit=5)
        assert said(first) == [("/r/last", 1), *[(str(n), 1) for n in (3, 2, 1, 0)]]
        assert first.before == 9_001
        assert said(lines(db, before=first.before)) == [("9,000 files created", 9_000)]


def test_a_burst_in_more_folders_than_lines_is_whole() -> None:
    with stored([created(f"/r/{n % 40}/{n}", 1_000) for n in range(4_000)]) as db:
        assert said(lines(db, limit=10)) == [("100 files created", 100)] * 40


def test_a_client_sees_only_lines_of_its_own_folders_and_none_of_hidden_files() -> None:
    with stored([created(f"/r/{'mine' if n % 2 else 'theirs'}/{n}", 1_000) for n in range(100)]) as db:
        before = grants.current.set(Grant("ann", roots=("/r/mine",)))
        try:
            assert said(lines(db)) == [("50 files created", 50)]
        finally:
            grants.current.reset(before)
        hidden = Roots(["/r"], patterns=["7"])
        assert [count for _, count in said(lines(db, hidden))] == [49, 50]
