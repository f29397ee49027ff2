"""Lines of `linckia du`: they fit the terminal, and no name can do anything to it; `linckia undo` and `changes`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

import pytest

from kernel.cli.__main__ import main
from proto.control.terminal import size
from proto.operation import Params
from services.files import commands
from services.files.commands import Line, absolute, drawn
from services.files.operations.undo import (
    ChangedPath,
    ChangeList,
    ListChanges,
    ListedChange,
    ShowChange,
    ShownChange,
    ShownPath,
    UndoChanges,
    Undone,
    UndoResult,
)


def text_of(line: Line, whole: int, width: int) -> str:
    return "".join(cell if isinstance(cell, str) else cell[0] for cell in drawn(line, whole, width))


def test_a_line_fits_the_terminal() -> None:
    line = Line("a very long name of a directory", 512, "├─ ", True)
    for width in (0, 20, 60, 200):
        assert len(text_of(line, 1024, width)) <= max(width, 41)
    assert text_of(line, 1024, 200) == f"    512 B    50%  {'█' * 10}{' ' * 10}  ├─ a very long name of a directory/"
    assert text_of(Line("empty", 0, "", False), 0, 80).startswith("      0 B     0%  ")


def test_sizes_are_in_the_unit_that_suits() -> None:
    assert [size(count) for count in (0, 1023, 1024, 1536 * 1024**2, 1024**6 * 5)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 GiB", "5120.0 PiB",
    ]  # fmt: skip


def test_names_with_control_characters_are_shown_and_not_obeyed() -> None:
    assert text_of(Line("a\x1b[2Jb\n", 1, "", False), 1, 200).endswith(r"  a\x1b[2Jb\n")


def test_names_that_are_not_utf_8_reach_the_service() -> None:
    assert absolute("/x/" + os.fsdecode(b"\xff")) == "/x/\U0010feff"


def changed(id: str, undone_by: str = "", undoes: list[str] | None = None) -> ListedChange:
    file = ChangedPath(kind="write", path="/r/a.txt", undone_by=undone_by)
    at = "2026-01-02T03:04:05Z"
    return ListedChange(id=id, at=at, operation="files_edit", client="agent", undoes=undoes or [], files=[file])


class Files:
    """Lists some changes, two a page, and undoes what it is asked to, except for what it has to skip."""

    def __init__(self, *changes: ListedChange, skips: bool = False) -> None:
        self._changes = changes
        self._skips = skips
        self.asked: list[Params[object]] = []

    def call(self, params: Params[object], **_: object) -> object:
        self.asked.append(params)
        match params:
            case ListChanges():
                page = list(self._changes[params.offset : params.offset + 2])
                return ChangeList(changes=page, has_more=params.offset + 2 < len(self._changes))
            case ShowChange():
                shown = ShownPath(
                    kind="write", path="/r/a.txt", diff="--- /r/a.txt\n+++ /r/a.txt\n@@ -1 +1 @@\n-old\n+new\n"
                )
                return ShownChange(id=params.id, at="now", operation="files_edit", client="agent", files=[shown])
            case UndoChanges():
                if not params.id:
                    return UndoResult(results=[], undone=0, skipped=0)
                reason = "it was changed since" if self._skips else ""
                undone = Undone(
                    change=params.id,
                    kind="write",
                    path="/r/a.txt",
                    status="skipped" if reason else "undone",
                    reason=reason,
                )
                skipped = int(self._skips)
                return UndoResult(results=[undone], undone=1 - skipped, skipped=skipped, change="newone")
        raise AssertionError(params)


def serving(monkeypatch: pytest.MonkeyPatch, files: Files) -> Files:
    @contextlib.contextmanager
    def connect(_: object) -> Iterator[Files]:
        yield files

    monkeypatch.setattr(commands, "connect", connect)
    return files


def test_undo_last_takes_the_latest_change_in_force_that_is_no_undo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = (changed("d", undoes=["c"]), changed("c", undone_by="d"), changed("b"), changed("a"))
    files = serving(monkeypatch, Files(*changes))
    assert main(["undo", "--last", "/r", "--merge"]) == 0
    assert files.asked[-1] == UndoChanges(id="b", path="/r", merge=True)
    assert all(each.path == "/r" for each in files.asked if isinstance(each, ListChanges))
    out = capsys.readouterr().out.splitlines()
    assert out[1].split() == ["b", "write", "undone", "/r/a.txt"]
    assert out[2] == "1 undone; `linckia undo --id newone` takes this back"


def test_undo_last_says_if_no_change_is_in_force(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serving(monkeypatch, Files(changed("d", undoes=["c"]), changed("c", undone_by="d")))
    assert main(["undo", "--last"]) == 1
    assert "there is no change to undo" in capsys.readouterr().err


def test_undo_ends_with_status_1_and_the_reason_if_something_was_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serving(monkeypatch, Files(skips=True))
    assert main(["undo", "--id", "b"]) == 1
    shown = capsys.readouterr()
    assert shown.err == "linckia undo: /r/a.txt: it was changed since\n"
    assert "0 undone, 1 skipped" in shown.out
    assert main(["undo", "--id", "b", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["results"][0]["status"] == "skipped"


def test_undo_passes_what_to_undo_and_ends_with_status_1_if_nothing_matches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = serving(monkeypatch, Files())
    assert main(["undo", "--session", "s", "--task", "t", "--since", "1 hour ago", "/r", "--dry-run"]) == 1
    assert files.asked == [UndoChanges(session="s", task="t", since="1 hour ago", path="/r", dry_run=True)]
    assert capsys.readouterr().out == "nothing to undo: no change matches\n"


@pytest.mark.parametrize("argv", [["undo"], ["undo", "--merge"], ["changes", "--limit", "0"]])
def test_undo_and_changes_refuse_what_cannot_be_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    files = serving(monkeypatch, Files())
    assert main(argv) == 2
    assert files.asked == []
    assert "--" in capsys.readouterr().err


def test_changes_lists_each_path_with_its_state_and_shows_diffs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = serving(monkeypatch, Files(changed("d"), changed("c", undone_by="e")))
    assert main(["changes", "--since", "today", "--limit", "2"]) == 0
    assert files.asked == [ListChanges(since="today", limit=2)]
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] == "d"
    assert first.endswith("/r/a.txt")
    assert "undone by e" not in first
    assert "undone by e" in second
    assert main(["changes", "--show", "d"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["write /r/a.txt", "@@ -1 +1 @@", "-old", "+new"]
