"""The table of exact deletions, appended items, renamed keys and written comments; and comments as they are read."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.runtime.roots import Roots
from services.yaml.errors import YamlError
from services.yaml.operations import Edit
from services.yaml.yaml_files import YamlFiles

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "restructurings.json").read_text("utf-8"))
REPORTS = Path(__file__).parents[4] / "shared/cases/reports/yaml"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['edit']['op']} {case['source']}"[:40])
def test_an_edit_gives_exactly_these_bytes_or_this_refusal(tmp_path: Path, case: dict[str, Any]) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(case["source"].encode())
    edit: Edit = msgspec.convert(case["edit"], Edit)
    error = None
    try:
        YamlFiles(Roots((tmp_path,))).edit("f.yaml", [edit])
    except YamlError as fault:
        error = int(fault.code)
    assert (path.read_bytes().decode(), error) == (case.get("result", case["source"]), case.get("error"))


@pytest.mark.skipif(not REPORTS.exists(), reason="the shared cases are not here")
@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("delete-with-comment", {"op": "delete", "path": "env.TOKEN"}),
        ("insert-after-continued-comment", {"op": "set", "path": "new", "value": "bar"}),
    ],
)
def test_the_reported_comments(tmp_path: Path, name: str, edit: dict[str, str]) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes((REPORTS / f"{name}.yaml").read_bytes())
    YamlFiles(Roots((tmp_path,))).edit("f.yaml", [msgspec.convert(edit, Edit)])
    assert path.read_bytes() == (REPORTS / f"{name}.expected.yaml").read_bytes()


@pytest.mark.parametrize(
    ("source", "path", "above", "beside"),
    [
        ("# a\n# b\nx: 1 # c\n", "x", "a\nb", "c"),
        ("# far\n\nx: 1\n", "x", None, None),
        ("m: # h\n  a: 1 # i\n", "m", None, "h"),
        ("m: # h\n  # j\n  a: 1 # i\n", "m.a", "j", "i"),
        ("t: | # h\n  x\n", "t", None, "h"),
        ("- 1 # i\n- 2\n", "[0]", None, "i"),
        ("a: [1, # one\n 2]\n", "a[0]", None, "one"),
        ("a: [1, 2, # two\n 3]\n", "a[0]", None, None),
        ("a: [1, 2, # two\n 3]\n", "a[1]", None, "two"),
        ("x: 0 # no\na: 1\n", "a", None, None),
        ("#\na: 1 #b\n", "a", "", "b"),
        ("# a\r\nx: 1 # c\r\n", "x", "a", "c"),
    ],
)
def test_comments_are_read_above_and_beside(
    tmp_path: Path, source: str, path: str, above: str | None, beside: str | None
) -> None:
    (tmp_path / "f.yaml").write_bytes(source.encode())
    found = YamlFiles(Roots((tmp_path,))).get_comments("f.yaml", path)
    assert (found.above, found.beside) == (above, beside)
