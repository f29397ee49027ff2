"""A path to a key touches this key only, whatever the key looks like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml as pyyaml
from hypothesis import example, given
from hypothesis import strategies as st

from services.runtime.roots import Roots
from services.yaml.merging import merge
from services.yaml.operations import DeleteEdit, RenameEdit, SetEdit
from services.yaml.path import Key, show_path
from services.yaml.yaml_files import YamlFiles

KEYS = st.text("a1.[]{}*?!\\-~%#:&\"' e\u0301\u00e9A<", max_size=5)


def written(data: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(key)}: {json.dumps(value)}\n" for key, value in data.items())


@given(KEYS, KEYS)
@example("a.b", "a")
@example("a[0]", "a")
@example("*", "a")
@example("-1", "1")
@example("caf\u00e9", "cafe\u0301")
@example("a", "A")
@example("", " ")
@example('"', "[")
@example("'", "''")
def test_edits_touch_only_the_key_that_is_named(tmp_path_factory: pytest.TempPathFactory, key: str, twin: str) -> None:
    if key == twin:
        return
    folder = tmp_path_factory.mktemp("y")
    file = folder / "f.yaml"
    before: dict[str, Any] = {twin: {key: 1, "b": [1]}, key: {twin: 2, "b": [2]}}
    files = YamlFiles(Roots((folder,)))
    path = show_path([Key(key, quoted=True)])

    def after(edit: Any) -> Any:
        file.write_text(written(before))
        files.edit(str(file), edit)
        return pyyaml.safe_load(file.read_text())

    assert after(SetEdit(path, "new")) == {**before, key: "new"}
    assert after(DeleteEdit(path)) == {twin: before[twin]}
    assert after(SetEdit(show_path([Key(key, quoted=True), Key(twin, quoted=True)]), "3")) == {
        **before, key: {**before[key], twin: 3}
    }  # fmt: skip
    assert after(RenameEdit(path, "renamed")) == {twin: before[twin], "renamed": before[key]}
    assert pyyaml.safe_load(merge(written(before), {key: None})) == {twin: before[twin]}
    assert pyyaml.safe_load(merge(written(before), {key: "x"})) == {**before, key: "x"}


def test_files_of_twin_names_are_kept_apart(tmp_path: Path) -> None:
    files = YamlFiles(Roots((tmp_path,)))
    for name, twin in (
        ("a*.yaml", "ab.yaml"),
        ("[a].yaml", "a.yaml"),
        ("e\u0301.yaml", "\u00e9.yaml"),
        ("-a.yaml", "a.yml"),
    ):
        (tmp_path / name).write_text("k: 1\n")
        (tmp_path / twin).write_text("k: 1\n")
        files.edit(name, SetEdit("k", "2"))
        assert ((tmp_path / name).read_text(), (tmp_path / twin).read_text()) == ("k: 2\n", "k: 1\n")
