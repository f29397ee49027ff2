"""The log of changes: records survive a kill at any byte, until `files` has stored them."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from pathlib import Path

import msgspec
import pytest

from proto.errors import Executed
from proto.grants import Grant
from proto.operation import CLIENT
from proto.ops.changes import ChangeRecord
from proto.origin import Mandated, Origin
from services.runtime import change_log
from services.runtime.change_log import EXCLUDED, Change, ChangeLog, Resumed, Serving, as_text, named
from services.runtime.storage import DiskFull

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def record(path: str, kind: str = "write", lost: str = "") -> ChangeRecord:
    return ChangeRecord(0, "abc", "files_write", "client", "session", "", kind, path, lost=lost)


@pytest.fixture
def log(tmp_path: Path) -> ChangeLog:
    return ChangeLog(tmp_path)


@pytest.fixture(autouse=True)
def no_call() -> None:
    change_log.current.set(None)


def serve(log: ChangeLog, origin: Origin | None = None) -> Serving:
    serving = Serving(log, "files_write", origin or Origin(CLIENT, "session"))
    change_log.current.set(serving)
    return serving


def added(log: ChangeLog, *paths: str, is_done: bool | None = True) -> list[int]:
    numbers = log.begin([record(path) for path in paths], [(f"content of {path}".encode(), None) for path in paths])
    if is_done is not None:
        log.end(numbers, is_done=is_done)
    return numbers


def paths_of(records: list[ChangeRecord]) -> list[str]:
    return [each.path for each in records]


def test_a_record_has_the_former_content_until_it_is_stored(log: ChangeLog) -> None:
    numbers = added(log, "/a", "/b")
    taken = log.take([])
    assert [each.number for each in taken] == numbers
    assert numbers == sorted(numbers)
    assert [zstd.decompress(each.content) for each in taken] == [b"content of /a", b"content of /b"]
    assert [each.is_done for each in taken] == [True, True]
    assert log.take([]) == taken, "they were not stored"
    assert paths_of(log.take(numbers[:1])) == ["/b"]
    assert log.take(numbers[1:]) == []
    assert log.waiting_bytes == 0


def test_a_service_that_changes_nothing_has_no_log(tmp_path: Path, log: ChangeLog) -> None:
    assert log.take([]) == []
    assert list(tmp_path.iterdir()) == []


def test_a_change_that_is_being_made_is_not_taken_and_not_forgotten(tmp_path: Path, log: ChangeLog) -> None:
    (open_,) = added(log, "/open", is_done=None)
    done = added(log, "/done")
    assert paths_of(log.take([])) == ["/done"]
    assert log.take(done) == []
    log.end([open_], is_done=True)
    assert paths_of(log.take([])) == ["/open"]
    assert paths_of(ChangeLog(tmp_path).take(done)) == ["/open"]


@pytest.mark.parametrize("is_done", [True, False, None])
def test_the_next_process_knows_which_changes_were_made(tmp_path: Path, log: ChangeLog, is_done: bool | None) -> None:
    added(log, "/a", is_done=is_done)
    log.close()
    (taken,) = ChangeLog(tmp_path).take([])
    assert (taken.path, taken.is_done) == ("/a", is_done is True), "an unknown end is judged by the file"


@pytest.mark.parametrize("kind", ["move", "create"])
@pytest.mark.parametrize("was_made", [True, False])
def test_what_a_dead_process_had_made_stays_known_after_later_changes_and_deaths(
    tmp_path: Path, log: ChangeLog, kind: str, *, was_made: bool
) -> None:
    path, target = tmp_path / "from", tmp_path / "to"
    content = hashlib.sha256(b"x").digest()
    made = ChangeRecord(0, "abc", "files_move", CLIENT, "", "", kind, str(path), str(target), after=content)
    log.begin([made], [(None, None)])
    log.close()
    place = target if kind == "move" and was_made else path
    if was_made or kind == "move":
        place.write_bytes(b"x")
    second = ChangeLog(tmp_path)
    second.settle()
    second.close()
    # Another call moves it on.
    place.rename(tmp_path / "elsewhere") if place.exists() else path.write_bytes(b"x")
    (taken,) = ChangeLog(tmp_path).take([])
    assert taken.is_done is was_made


def test_some_changes_of_a_call_may_be_made_and_others_not(log: ChangeLog) -> None:
    serve(log)
    begun = change_log.begin([Change("move", f"/{n}", f"/to/{n}") for n in range(4)])
    begun.end(is_done=True, only=[0, 2])
    begun.end(is_done=False, only=[1, 3])
    assert [each.is_done for each in log.take([])] == [True, False, True, False]


def test_a_log_cut_at_any_byte_keeps_what_was_complete_and_takes_new_records(tmp_path: Path, log: ChangeLog) -> None:
    ends = []
    for number in range(3):
        (begun,) = added(log, f"/{number}", is_done=None)
        ends.append((log.waiting_bytes, number, False))
        log.end([begun], is_done=True)
        ends.append((log.waiting_bytes, number, True))
    log.close()
    whole = (tmp_path / "changes.log").read_bytes()
    assert len(whole) == ends[-1][0]
    for size in range(len(whole) + 1):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "changes.log").write_bytes(whole[:size])
        cut = ChangeLog(folder)
        expected = {f"/{number}": is_done is True for end, number, is_done in ends if end <= size}
        assert {each.path: each.is_done for each in cut.take([])} == expected, size
        added(cut, "/new")
        cut.close()
        again = {each.path: each.is_done for each in ChangeLog(folder).take([])}
        assert again == {**expected, "/new": True}, size


@pytest.mark.parametrize(
    "tail",
    [b"\0", b"\0" * 8, b"\0" * 4096, b"\xff" * 4096, bytes(range(3, 67))],
    ids=["a zero", "a head of zeros", "a page of zeros", "a page of ones", "bytes"],
)
def test_garbage_after_the_last_record_is_removed(tmp_path: Path, log: ChangeLog, tail: bytes) -> None:
    """After a loss of power, a file may have a tail of zeros."""
    added(log, "/a")
    log.close()
    with (tmp_path / "changes.log").open("ab") as file:
        file.write(tail)
    after = ChangeLog(tmp_path)
    assert paths_of(after.take([])) == ["/a"]
    added(after, "/b")
    after.close()
    assert paths_of(ChangeLog(tmp_path).take([])) == ["/a", "/b"]


def test_a_flipped_bit_never_yields_a_wrong_record(tmp_path: Path, log: ChangeLog) -> None:
    for path in ("/a", "/b"):
        added(log, path)
    right = {each.number: each for each in log.take([])}
    log.close()
    whole = (tmp_path / "changes.log").read_bytes()
    for at in range(len(whole)):
        (tmp_path / "changes.log").write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        damaged = ChangeLog(tmp_path)
        for each in damaged.take([]):
            expected = right[each.number]
            assert each.content == expected.content
            assert each.path == expected.path
            assert each.is_done in (True, False)
        damaged.close()


def test_the_file_is_emptied_once_all_is_stored_and_numbers_still_increase(tmp_path: Path, log: ChangeLog) -> None:
    first = added(log, "/a", "/b")
    log.take([])
    log.take(first)
    assert (tmp_path / "changes.log").stat().st_size == 0
    second = added(log, "/c")
    assert second > first
    log.close()
    after = ChangeLog(tmp_path)
    assert paths_of(after.take([])) == ["/c"]
    assert added(after, "/d") > second


def test_records_stored_before_a_death_are_given_again_until_they_are_forgotten(tmp_path: Path, log: ChangeLog) -> None:
    numbers = added(log, "/a", "/b")
    log.take([])
    log.close()
    after = ChangeLog(tmp_path)
    assert after.take(numbers) == []
    after.close()
    assert ChangeLog(tmp_path).take([]) == []


def test_answers_are_bounded_but_have_at_least_one_record(log: ChangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "MAX_TAKEN_BYTES", 10_000)
    sizes = [30_000, 4_000, 4_000, 4_000]
    for number, size in enumerate(sizes):
        log.end(log.begin([record(f"/{number}")], [(os.urandom(size), None)]), is_done=True)
    seen: list[list[str]] = []
    stored: list[int] = []
    while taken := log.take(stored):
        seen.append(paths_of(taken))
        stored = [each.number for each in taken]
    assert seen == [["/0"], ["/1", "/2"], ["/3"]]


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        (".env", False),
        (".env.local", False),
        ("server.pem", False),
        ("id_rsa.pub", False),
        ("env", True),
        ("a.pe", True),
    ],
)  # fmt: skip
def test_the_content_of_files_that_usually_have_secrets_is_not_kept(tmp_path: Path, name: str, is_kept: bool) -> None:
    log = ChangeLog(tmp_path)
    serving = serve(log)
    path = f"/some/folder/{name}"
    with change_log.recorded([Change("write", path, before=b"SECRET=hunter2", after=b"new", mode=0o600)]):
        pass
    (taken,) = log.take([])
    assert (taken.content != b"") is is_kept
    assert (taken.lost == "") is is_kept
    assert (serving.lost == []) is is_kept
    assert taken.before == hashlib.sha256(b"SECRET=hunter2").digest()
    if not is_kept:
        assert b"hunter2" not in (tmp_path / "changes.log").read_bytes()


def test_which_names_are_excluded_can_be_chosen(tmp_path: Path) -> None:
    log = ChangeLog(tmp_path, ["*.secret", "/private/*"])
    assert log.lost("/a/b.secret")
    assert log.lost("/private/a/b")
    assert not log.lost("/a/.env")
    assert not ChangeLog(tmp_path, []).lost("/a/.env")
    assert all(ChangeLog(tmp_path).lost(f"/a/{name.replace('*', 'x')}") for name in EXCLUDED)


@pytest.mark.parametrize("written", [0, 1, 7, 30])
def test_on_a_full_disk_nothing_is_recorded_and_the_log_stays_whole(
    tmp_path: Path, log: ChangeLog, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """`written`: the bytes of the record for which there is still room."""
    added(log, "/a")
    real = os.pwrite
    room = written

    def pwrite(file: int, data: bytes, at: int) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(file, bytes(data)[:room], at)
        room -= count
        return count

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(DiskFull) as caught:
        added(log, "/b")
    assert caught.value.failure.executed is Executed.NO
    monkeypatch.undo()
    assert paths_of(log.take([])) == ["/a"]
    added(log, "/c")
    log.close()
    assert paths_of(ChangeLog(tmp_path).take([])) == ["/a", "/c"]


def test_a_change_whose_record_cannot_be_synced_is_not_made(log: ChangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    serve(log)
    monkeypatch.setattr(os, "fdatasync", fails)
    made = []
    with pytest.raises(DiskFull), change_log.recorded([Change("create", "/a", after=b"x")]):
        made.append("/a")
    monkeypatch.undo()
    assert made == []
    assert [each.is_done for each in log.take([])] == [False]


def test_a_change_that_fails_is_recorded_as_not_made(log: ChangeLog) -> None:
    serve(log)
    with pytest.raises(ZeroDivisionError), change_log.recorded([Change("create", "/a", after=b"x")]):
        raise ZeroDivisionError
    assert [each.is_done for each in log.take([])] == [False]


# Calls


class Answer(msgspec.Struct, frozen=True):
    """An answer with a place for the id."""

    change: str = ""
    not_kept: str = ""


def test_all_changes_of_a_call_share_an_id_and_its_answer_has_it(log: ChangeLog) -> None:
    serve(log)
    assert named(Answer()) == Answer(), "it has changed nothing"
    for path in ("/a", "/.env"):
        with change_log.recorded([Change("write", path, before=b"x", after=b"y")]):
            pass
    first = named(Answer())
    assert {each.change for each in log.take([])} == {first.change}
    assert "secrets" in first.not_kept
    assert named({"plain": 1}) == {"plain": 1}
    serve(log)
    with change_log.recorded([Change("create", "/c")]):
        pass
    assert named(Answer()).change not in ("", first.change)


def test_a_repeated_call_continues_the_change_of_the_first_attempt(log: ChangeLog) -> None:
    ids = set()
    for key in ("one", "one", "two"):
        serving = serve(log, Origin(CLIENT, key=key))
        with change_log.recorded([Change("create", "/a")]):
            pass
        ids.add(serving.change)
    assert len(ids) == 2


def test_background_work_is_not_recorded(tmp_path: Path) -> None:
    with change_log.recorded([Change("create", "/a")]):
        assert named(Answer()) == Answer()
    assert list(tmp_path.iterdir()) == []


def test_records_say_who_called(log: ChangeLog) -> None:
    origins = [
        Origin(CLIENT, "s1"),
        Origin(CLIENT, "s2", grant=Grant(name="ci")),
        Origin("tasks", mandate=Mandated("plan tidy", "ci")),
    ]
    for origin in origins:
        serve(log, origin)
        with change_log.recorded([Change("create", "/a")]):
            pass
    assert [(each.client, each.session, each.task) for each in log.take([])] == [
        (CLIENT, "s1", ""), ("ci", "s2", ""), ("ci", "", "plan tidy")
    ]  # fmt: skip


def test_another_process_completes_a_call_s_changes_under_the_same_id(log: ChangeLog) -> None:
    serving = serve(log, Origin(CLIENT, "s1"))
    who = serving.who()
    change_log.current.set(Resumed(log, who))
    with change_log.recorded([Change("move", "/a", "/b")]):
        pass
    (taken,) = log.take([])
    assert (taken.change, taken.operation, taken.client, taken.session) == (serving.change, "files_write", CLIENT, "s1")


def test_names_that_are_not_utf8_are_recorded_as_files_shows_them(log: ChangeLog) -> None:
    serve(log)
    path = os.fsdecode(b"/caf\xe9/\xff.txt")
    with change_log.recorded([Change("move", path, f"{path}2")]):
        pass
    (taken,) = log.take([])
    assert taken.path == as_text(path) == "/caf\U0010fee9/\U0010feff.txt"
    taken.path.encode()


@pytest.mark.parametrize(("content", "is_made"), [("new", True), ("old", False), (None, False)])
def test_after_a_death_the_file_says_whether_it_was_written(
    tmp_path: Path, log: ChangeLog, content: str | None, is_made: bool
) -> None:
    serve(log)
    file = tmp_path / "file"
    change_log.begin([Change("write", str(file), before=b"old", after=b"new")])
    log.close()
    if content is not None:
        file.write_text(content)
    assert [each.is_done for each in ChangeLog(tmp_path).take([])] == [is_made]


def test_after_a_death_the_names_say_whether_something_was_moved(tmp_path: Path, log: ChangeLog) -> None:
    serve(log)
    (tmp_path / "moved").mkdir()
    (tmp_path / "still").mkdir()
    (tmp_path / "trash").mkdir()
    (tmp_path / "trash/3").touch()
    made = [Change("move", str(tmp_path / "was"), str(tmp_path / "moved")), Change("folder", str(tmp_path / "still"))]
    made += [Change("trash", str(tmp_path / "x"), trash_id=3), Change("rmdir", str(tmp_path / "y"))]
    not_made = [Change("move", str(tmp_path / "still"), str(tmp_path / "there"))]
    not_made += [Change("trash", str(tmp_path / "still"), trash_id=4), Change("rmdir", str(tmp_path / "still"))]
    not_made += [Change("restore", str(tmp_path / "still"), str(tmp_path / "still"), trash_id=3)]
    change_log.begin([*made, *not_made])
    log.close()
    assert [each.is_done for each in ChangeLog(tmp_path).take([])] == [True] * len(made) + [False] * len(not_made)
