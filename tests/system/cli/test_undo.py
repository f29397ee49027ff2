"""`linckia changes` and `linckia undo` over a real kernel: edits and moves are listed, shown and taken back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.cli.clients import command
from tests.system.running import RunningKernel, running


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    services = ("files", "compare", "yaml", "knowledge")
    with running(tmp_path_factory.mktemp("data"), [tmp_path_factory.mktemp("root")], services=services) as started:
        yield started


@pytest.fixture
def folder(kernel: RunningKernel, request: pytest.FixtureRequest) -> Path:
    folder: Path = Path(kernel.status()["roots"][0]) / request.node.name
    folder.mkdir()
    return folder


def edit(kernel: RunningKernel, file: Path, old: str, new: str) -> str:
    """Edit a file, and return the id of the change."""
    answer = kernel.call("files_edit", {"path": str(file), "edits": [{"old": old, "new": new}]})
    return str(answer["change"])


def test_the_last_changes_are_undone_one_by_one(kernel: RunningKernel, folder: Path) -> None:
    (file := folder / "a.txt").write_text("one\ntwo\n")
    (values := folder / "b.yaml").write_text("a: 1\n")
    first = edit(kernel, file, "two", "2")
    second = kernel.call("yaml_set", {"file": str(values), "path": "a", "value": 2})["change"]

    listed = command(kernel.data_dir, "changes", "--path", str(folder)).stdout.splitlines()
    assert [line.split()[0] for line in listed[1:]] == [second, first]
    shown = command(kernel.data_dir, "changes", "--show", first).stdout.splitlines()
    assert shown[-3:] == [" one", "-two", "+2"]

    done = command(kernel.data_dir, "undo", "--last", str(folder), "--dry-run")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 would be undone")
    assert values.read_text() == "a: 2\n"
    assert command(kernel.data_dir, "undo", "--last", str(folder)).returncode == 0
    assert values.read_text() == "a: 1\n"
    # The last change is now the edit, and not the undo.
    assert command(kernel.data_dir, "undo", "--last", str(folder)).returncode == 0
    assert file.read_text() == "one\ntwo\n"
    done = command(kernel.data_dir, "undo", "--last", str(folder))
    assert (done.returncode, "no change to undo" in done.stderr) == (1, True)


def test_an_undo_is_undone_by_its_id(kernel: RunningKernel, folder: Path) -> None:
    (file := folder / "a.txt").write_text("one\n")
    change = edit(kernel, file, "one", "1")
    undone = json.loads(command(kernel.data_dir, "undo", "--id", change, "--json").stdout)
    assert file.read_text() == "one\n"
    assert command(kernel.data_dir, "undo", "--id", undone["change"]).returncode == 0
    assert file.read_text() == "1\n"


def test_what_was_changed_again_is_skipped_with_status_1_or_merged(kernel: RunningKernel, folder: Path) -> None:
    (file := folder / "a.txt").write_text("one\ntwo\nthree\nfour\nfive\n")
    change = edit(kernel, file, "one", "1")
    edit(kernel, file, "five", "5")
    done = command(kernel.data_dir, "undo", "--id", change)
    assert done.returncode == 1
    assert str(file) in done.stderr
    assert file.read_text() == "1\ntwo\nthree\nfour\n5\n"
    assert command(kernel.data_dir, "undo", "--id", change, "--merge").returncode == 0
    assert file.read_text() == "one\ntwo\nthree\nfour\n5\n"
