"""`yaml_merge`: a mapping is merged into another one as a person would do it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proto.errors import InvalidParams
from services.runtime.roots import Roots
from services.yaml import merge_edits
from services.yaml.errors import Code, YamlError
from services.yaml.merge_edits import Merge
from services.yaml.operations import YamlMerge
from services.yaml.schema import data_of
from services.yaml.values import read_tree
from services.yaml.yaml_files import YamlFiles

SOURCE = """\
# top
server:
  host: a.example  # public
  port: 80
flow: [1, 2]
block:
  - x  # first
  - y
none:
name: 'quoted'
"""


@pytest.fixture
def yaml(tmp_path: Path) -> YamlFiles:
    return YamlFiles(Roots((tmp_path.resolve(),)))


def merged(
    yaml: YamlFiles, source: str, values: dict[str, Any], path: str = "", *, append: bool = False,
    remove_nulls: bool = False, name: str = "a.yaml",
) -> str:  # fmt: skip
    """The text of a file with this source after the merge."""
    file = Path(yaml.roots[0], name)
    file.write_text(source)
    yaml.merge(name, Merge(values, path, append, remove_nulls))
    return file.read_text()


def data(text: str) -> Any:
    tree = read_tree(text)
    return data_of(tree, tree.stream.documents[0].event + 1)


def test_values_are_merged_key_by_key_and_comments_and_styles_stay(yaml: YamlFiles) -> None:
    values: dict[str, Any] = {
        "server": {"port": 81, "tls": {"cert": "c", "names": ["a", "b"]}}, "flow": [3], "name": "other",
        "new": {"80": "x", "yes": [{"c": 1, "d": []}]},
    }  # fmt: skip
    after = merged(yaml, SOURCE, values)
    assert (
        after
        == """\
# top
server:
  host: a.example  # public
  port: 81
  tls:
    cert: c
    names:
      - a
      - b
flow: [3]
block:
  - x  # first
  - y
none:
name: 'other'
new:
  "80": x
  "yes":
    - c: 1
      d: []
"""
    )
    assert data(after) == data(SOURCE) | values | {"server": {"host": "a.example", **values["server"]}}


def test_what_already_reads_so_is_left_as_it_is(yaml: YamlFiles) -> None:
    file = Path(yaml.roots[0], "a.yaml")
    file.write_text(SOURCE)
    values = {"server": {"port": 80}, "flow": [1, 2], "block": ["x", "y"], "name": "quoted", "none": None}
    answer = yaml.merge("a.yaml", Merge(values, "", False, False))
    assert (answer.changed, file.read_text()) == (False, SOURCE)


def test_lists_are_appended_if_asked(yaml: YamlFiles) -> None:
    after = merged(yaml, SOURCE, {"flow": [3, {"a": 1}], "block": ["z", {"k": [1]}]}, append=True)
    assert "flow: [1, 2, 3, {a: 1}]\n" in after
    assert "block:\n  - x  # first\n  - y\n  - z\n  - k:\n      - 1\n" in after


def test_nulls_remove_keys_only_if_asked(yaml: YamlFiles) -> None:
    values = {"server": {"port": None}, "none": None, "gone": None, "new": {"a": None, "b": 1}}
    after = merged(yaml, SOURCE, values, remove_nulls=True)
    assert data(after) == {
        "server": {"host": "a.example"}, "flow": [1, 2], "block": ["x", "y"], "name": "quoted", "new": {"b": 1}
    }  # fmt: skip
    kept = data(merged(yaml, SOURCE, values))
    assert (kept["server"]["port"], kept["gone"], kept["new"]) == (None, None, {"a": None, "b": 1})


@pytest.mark.parametrize(
    ("source", "path", "expected"),
    [
        ("a:\n  b: 1\n", "a", "a:\n  b: 1\n  x:\n    z: 1\n"),
        ("a:\n", "a", "a:\n  x:\n    z: 1\n"),
        ("a: 1\n", "b.c", "a: 1\nb:\n  c:\n    x:\n      z: 1\n"),
        ("", "", "x:\n  z: 1\n"),
        ("a: {b: 1}\n", "a", "a: {b: 1, x: {z: 1}}\n"),
        ("l:\n  - b: 1\n", "l[0]", "l:\n  - b: 1\n    x:\n      z: 1\n"),
    ],
)
def test_a_merge_at_a_path_has_the_style_of_its_place(yaml: YamlFiles, source: str, path: str, expected: str) -> None:
    assert merged(yaml, source, {"x": {"z": 1}}, path) == expected


def test_json_stays_json(yaml: YamlFiles) -> None:
    after = merged(yaml, '{"a": 1, "l": [1]}\n', {"a": {"b": "é"}, "l": [{"y": 2}], "n": [True]}, name="a.json")
    assert after == '{"a": {"b": "é"}, "l": [{"y": 2}], "n": [true]}\n'
    with pytest.raises(YamlError, match="JSON has no infinite numbers"):
        merged(yaml, "{}\n", {"a": float("inf")}, name="a.json")
    assert merged(yaml, "a: 1\n", {"a": float("-inf"), "b": float("nan")}) == "a: -.inf\nb: .nan\n"


ALIASES = "base: &b\n  x: {y: 1}\nc:\n  <<: *b\nd: *b\n"


@pytest.mark.parametrize(
    ("source", "values", "path", "reason"),
    [
        (ALIASES, {"d": {"x": 1}}, "", "d is an alias"),
        (ALIASES, {"x": 1}, "d", "d is an alias"),
        (ALIASES, {"c": {"x": {"z": 1}}}, "", "c.x is only merged in by <<"),
        (SOURCE, {"x": 1}, "server.port", "server.port is not a mapping"),
        (SOURCE, {"x": 1}, "block[7]", "cannot merge into"),
        (SOURCE, {"x": 1}, "a..b", "malformed"),
        ("- a\n", {"x": 1}, "", "the document is not a mapping"),
        ("a: 1\n", {"b": 2, "a": {"\ud800": 1}}, "", "nothing was merged|not valid"),
    ],
)
def test_a_merge_that_is_refused_changes_nothing(
    yaml: YamlFiles, source: str, values: dict[str, Any], path: str, reason: str
) -> None:
    with pytest.raises(YamlError, match=reason) as refused:
        merged(yaml, source, values, path)
    assert refused.value.code == Code.NOT_APPLICABLE
    assert Path(yaml.roots[0], "a.yaml").read_text() == source


def test_deep_and_long_values_are_refused(yaml: YamlFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    with pytest.raises(YamlError, match="nested more than 200 levels"):
        merged(yaml, "a: 1\n", deep)
    monkeypatch.setattr(merge_edits, "MAX_EDITS", 2)
    with pytest.raises(YamlError, match="3 edits, more than 2"):
        merged(yaml, "a: 1\n", {"x": 1, "y": 2, "z": 3})


def test_a_file_is_merged_into_another_one(yaml: YamlFiles, tmp_path: Path) -> None:
    Path(tmp_path, "base.yaml").write_text("x: &x {y: 0x10, s: '1'}\nz: *x\n")
    assert yaml.mapping("base.yaml") == {"x": {"y": 16, "s": "1"}, "z": {"y": 16, "s": "1"}}
    for text in ("- a\n", "", "a: [\n"):
        Path(tmp_path, "base.yaml").write_text(text)
        with pytest.raises(YamlError):
            yaml.mapping("base.yaml")
    with pytest.raises(YamlError, match="outside the roots"):
        yaml.mapping("/etc/passwd")


def test_a_dry_run_returns_the_diff_and_a_stale_if_match_is_refused(yaml: YamlFiles) -> None:
    file = Path(yaml.roots[0], "a.yaml")
    file.write_text("a: 1\nb: 2\n")
    merge = Merge({"a": 2, "c": 3}, "", False, False)
    dry = yaml.merge("a.yaml", merge, dry_run=True)
    assert (dry.diff or "").splitlines()[3:] == ["-a: 1", "+a: 2", " b: 2", "+c: 3"]
    with pytest.raises(YamlError, match="the file has changed"):
        yaml.merge("a.yaml", merge, if_match="0" * 64)
    assert file.read_text() == "a: 1\nb: 2\n"
    assert "by 2 edits" in yaml.merge("a.yaml", merge).text


def test_values_or_a_source_are_given() -> None:
    for given in ({}, {"values": {}, "source": "b.yaml"}):
        with pytest.raises(InvalidParams, match="give `values` or `source`, one of them"):
            YamlMerge(file="a.yaml", **given).check()  # type: ignore[arg-type]  # of both kinds


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("v: !secret abc\n", "has the tag !secret"),
        ("m: !foo {a: 1}\n", "has the tag !foo"),
        ("1: a\n", "has the key 1, which is no text"),
        ("? [a, b]\n: c\n", "which is no text"),
        ("z: 1\n---\nz: 2\n", "has 2 documents"),
    ],
)
def test_a_source_that_is_more_than_data_is_refused(yaml: YamlFiles, source: str, said: str) -> None:
    Path(yaml.roots[0], "source.yaml").write_text(source)
    with pytest.raises(YamlError, match=said) as refused:
        yaml.mapping("source.yaml")
    assert refused.value.code == Code.NOT_APPLICABLE


def test_a_source_of_plain_data_is_read_with_its_merges(yaml: YamlFiles) -> None:
    Path(yaml.roots[0], "source.yaml").write_text("base: &b {x: 1}\nuse: {<<: *b, y: !!str 2}\n")
    assert yaml.mapping("source.yaml") == {"base": {"x": 1}, "use": {"x": 1, "y": "2"}}


def test_a_collection_that_aliases_stand_for_keeps_its_kind(yaml: YamlFiles) -> None:
    text = "base: &b {x: 1}\nuse: *b\nm:\n  <<: *b\n"
    with pytest.raises(YamlError, match="anchor &b"):
        merged(yaml, text, {"base": 5})
    assert merged(yaml, text, {"base": {"x": 2}}) == text.replace("x: 1", "x: 2")
