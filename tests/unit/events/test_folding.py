"""Events of the same kind in one folder become one line; others keep their own."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from proto.ops.events import Event, EventKind
from services.events.folding import NEAR_S, Folding


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


def test_two_events_keep_their_own_lines_and_repeated_ones_say_so() -> None:
    assert folded(burst(2)) == [(1, 2, "")]
    assert folded([(event(n, "/r/a", "modified"), 0.0) for n in range(1, 4)]) == [(1, 3, "1 file modified, 3 times")]
    assert folded(burst(3, details={"type": "directory"})) == [(1, 3, "3 folders created")]


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
        return [(event(n, subject.format(n), "files_edit", "change", who="ann"), 0.0) for n in range(1, 5)]

    assert folded(calls("path=/r/many/{}.txt")) == [(1, 4, "files_edit of 4 paths")]
    assert folded(calls("path=/r/many/1.txt")) == [(1, 4, "files_edit of 1 path, 4 times")]
    for other in ("id={}", "path=/r/many/{} to=/r/x", "{}", ""):
        assert len(folded(calls(other))) == 4
