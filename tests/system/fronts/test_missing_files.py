"""A file that does not exist comes with the nearest names in its folder, whichever service looks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.control.client import CallFailed
from tests.system.cli.clients import data_directory
from tests.system.running import RunningKernel, running

SERVICES = ("front", "files", "watch", "yaml", "knowledge", "documents", "retrieve", "graph")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningKernel, Path]]:
    root = tmp_path_factory.mktemp("root")
    (root / "settings.yaml").write_text("a: 1\n")
    (root / "settings.md").write_text("# Settings\n\nThe office closes at five.\n")
    with (
        data_directory(tmp_path_factory.mktemp("place") / "data") as data,
        running(data, [root], services=SERVICES, all_ready=False) as kernel,
    ):
        kernel.wait_ready("files", "yaml", "knowledge", "documents")
        yield kernel, root


@pytest.mark.parametrize(
    ("name", "field", "more"),
    [
        ("files_read", "path", {}),
        ("files_edit", "path", {"edits": [{"old": "a", "new": "b"}]}),
        ("files_grep", "path", {"pattern": "a"}),
        ("files_index", "path", {"async": False}),
        ("yaml_get", "file", {"path": "a"}),
        ("yaml_set", "file", {"path": "a", "value": "2"}),
        ("notes_edit", "path", {"replace": {"old": "a", "new": "b"}}),
        ("notes_tag", "path", {"tags": ["a"]}),
        ("documents_add", "path", {}),
    ],
)
def test_the_nearest_names_are_suggested(
    place: tuple[RunningKernel, Path], name: str, field: str, more: dict[str, Any]
) -> None:
    kernel, root = place
    ending = "md" if name.startswith("notes") else "yaml"
    with pytest.raises(CallFailed) as caught:
        kernel.call(name, {field: str(root / f"setings.{ending}"), **more})
    assert f"; did you mean {root}/settings.{ending}" in str(caught.value)


@pytest.mark.parametrize("name", ["files_rename", "files_move", "files_delete"])
def test_changes_of_files_suggest_them_too(place: tuple[RunningKernel, Path], name: str) -> None:
    kernel, root = place
    wrong = str(root / "setings.yaml")
    every: dict[str, dict[str, Any]] = {
        "files_rename": {"renames": [{"from": wrong, "to": str(root / "x")}]},
        "files_move": {"moves": [{"from": wrong, "to": str(root / "x")}]},
        "files_delete": {"paths": [wrong]},
    }
    said = str(kernel.call(name, {**every[name], "dryRun": True}))
    assert f"did you mean {root}/settings.yaml" in said


def test_text_that_is_not_found_comes_with_the_nearest_line(place: tuple[RunningKernel, Path]) -> None:
    kernel, root = place
    path = str(root / "settings.md")
    wanted = "The office closes at fife."
    for name, change in (
        ("files_edit", {"edits": [{"old": wanted, "new": "x"}]}),
        ("notes_edit", {"replace": {"old": wanted, "new": "x"}}),
    ):
        with pytest.raises(CallFailed) as caught:
            kernel.call(name, {"path": path, **change})
        assert "; line 3 is nearest: 'The office closes at five.'" in str(caught.value)
