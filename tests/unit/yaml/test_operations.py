"""The operations as a service calls them: digests, dry runs, several edits at once, validation and the cache."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from services.runtime.roots import Roots
from services.yaml import values
from services.yaml import yaml_files as operations
from services.yaml.errors import Code, YamlError
from services.yaml.operations import AppendEdit, DeleteEdit, Edit, RenameEdit, SetEdit, YamlValue
from services.yaml.yaml_files import YamlFiles

SOURCE = "# top\nserver:\n  host: a.example  # public\n  port: 80\nitems: [1, 2]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f.yaml"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def yaml(tmp_path: Path) -> YamlFiles:
    return YamlFiles(Roots((tmp_path,)))


def test_a_set_answers_the_line_that_clients_know(file: Path, yaml: YamlFiles) -> None:
    answer = yaml.edit(str(file), SetEdit("server.port", "9090"))
    assert answer.text == f"set server.port = 9090 in {file} (lossless: comments and formatting preserved)"
    assert answer.digest == sha256(file.read_bytes()).hexdigest()
    assert answer.changed


def test_a_stale_if_match_is_refused_with_both_digests(file: Path, yaml: YamlFiles) -> None:
    stale = yaml.get("f.yaml", "server.port").digest
    yaml.edit("f.yaml", SetEdit("server.port", "81"), if_match=stale)
    with pytest.raises(YamlError) as caught:
        yaml.edit("f.yaml", SetEdit("server.port", "82"), if_match=stale)
    found = sha256(file.read_bytes()).hexdigest()
    assert caught.value.failure.data == {"expected": stale, "found": found}
    assert stale in caught.value.message
    assert found in caught.value.message
    assert yaml.get("f.yaml", "server.port").text == "81"


def test_a_dry_run_answers_the_diff_and_changes_nothing(file: Path, yaml: YamlFiles) -> None:
    answer = yaml.edit("f.yaml", SetEdit("server.port", "81"), dry_run=True)
    assert answer.diff == (
        "--- f.yaml\n+++ f.yaml\n@@ -1,5 +1,5 @@\n # top\n server:\n   host: a.example  # public\n"
        "-  port: 80\n+  port: 81\n items: [1, 2]\n"
    )
    assert not answer.changed
    assert file.read_text() == SOURCE


def test_the_diff_of_a_large_file_counts_its_lines_from_the_top(tmp_path: Path, yaml: YamlFiles) -> None:
    (tmp_path / "f.yaml").write_text("".join(f"k{n}: {n}\n" for n in range(1000)) + "z: 1")
    answer = yaml.edit("f.yaml", SetEdit("k500", "x"), dry_run=True)
    assert answer.diff is not None
    assert "@@ -498,7 +498,7 @@" in answer.diff
    answer = yaml.edit("f.yaml", SetEdit("z", "2"), dry_run=True)
    assert answer.diff is not None
    assert answer.diff.endswith("-z: 1\n\\ No newline at end of file\n+z: 2\n\\ No newline at end of file\n")


def test_several_edits_are_made_together_each_on_what_the_last_left(file: Path, yaml: YamlFiles) -> None:
    edits: list[Edit] = [
        SetEdit("tls.cert", "c.pem"),
        RenameEdit("tls.cert", "file"),
        AppendEdit("items", "3"),
        DeleteEdit("server.port"),
    ]
    yaml.edit("f.yaml", edits)
    assert file.read_text() == ("# top\nserver:\n  host: a.example  # public\nitems: [1, 2, 3]\ntls:\n  file: c.pem\n")


def test_edits_that_end_where_they_began_write_nothing(file: Path, yaml: YamlFiles) -> None:
    before = file.stat()
    answer = yaml.edit("f.yaml", [SetEdit("server.port", "81"), SetEdit("server.port", "80")])
    assert (answer.changed, answer.digest) == (False, sha256(SOURCE.encode()).hexdigest())
    assert file.stat().st_ino == before.st_ino


def test_if_one_of_several_edits_is_refused_none_is_made(file: Path, yaml: YamlFiles) -> None:
    with pytest.raises(YamlError, match=r"edits\[1\]") as caught:
        yaml.edit("f.yaml", [SetEdit("server.port", "81"), SetEdit("server.host.x", "1")])
    assert caught.value.code == Code.NOT_APPLICABLE
    assert file.read_text() == SOURCE


def test_a_refused_set_leaves_the_file_itself_untouched(file: Path, yaml: YamlFiles) -> None:
    before = file.stat()
    with pytest.raises(YamlError):
        yaml.edit("f.yaml", SetEdit("items[0]", "x, y"))
    after = file.stat()
    assert (after.st_ino, after.st_mtime_ns, file.read_text()) == (before.st_ino, before.st_mtime_ns, SOURCE)


def test_a_second_get_parses_nothing_and_a_changed_file_is_seen(
    file: Path, yaml: YamlFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    real = values.read_tree

    def counted(text: str) -> object:
        parsed.append(text)
        return real(text)

    monkeypatch.setattr(operations, "read_tree", counted)
    yaml.get("f.yaml", "server.port")
    yaml.get("f.yaml", "server.host")
    yaml.edit("f.yaml", SetEdit("server.port", "81"))
    assert yaml.get("f.yaml", "server.port").text == "81"
    assert len(parsed) == 1
    file.write_text("server: {port: 5}\n")
    assert yaml.get("f.yaml", "server.port").text == "5"
    assert len(parsed) == 2


def test_the_cache_keeps_within_its_bound(tmp_path: Path) -> None:
    yaml = YamlFiles(Roots((tmp_path,)), cache_max_bytes=100_000)
    for number in range(50):
        (tmp_path / f"{number}.yaml").write_text("".join(f"k{n}: {number}\n" for n in range(20)))
        yaml.get(f"{number}.yaml", "k1")
        assert yaml.cache.used_bytes <= 100_000
    assert yaml.get("0.yaml", "k1").text == "0"


def test_a_json_file_gets_quoted_keys_even_where_it_is_empty(tmp_path: Path, yaml: YamlFiles) -> None:
    (tmp_path / "f.json").write_text("{}\n")
    yaml.edit("f.json", SetEdit("a.b", "1"))
    assert json.loads((tmp_path / "f.json").read_text()) == {"a": {"b": 1}}


SCHEMA = {
    "type": "object",
    "properties": {
        "server": {
            "type": "object",
            "properties": {"port": {"type": "integer", "maximum": 65535}},
            "required": ["tls"],
        },
        "items": {"type": "array", "items": {"type": "string"}},
    },
}


def test_validation_tells_each_fault_with_its_place(file: Path, yaml: YamlFiles) -> None:
    file.write_text("server:\n  port: 70000\nitems:\n  - a\n  - 1\n")
    answer = yaml.validate("f.yaml", SCHEMA)
    assert not answer.valid
    assert [(fault.path, fault.line, fault.column) for fault in answer.faults] == [
        ("server", 1, 1),
        ("server.port", 2, 3),
        ("items[1]", 5, 5),
    ]


def test_a_valid_document_has_no_faults_and_merge_keys_count(file: Path, yaml: YamlFiles) -> None:
    file.write_text("base: &b {tls: true}\nserver:\n  <<: *b\n  port: 80\nitems: ['1', \"2\"]\n")
    assert yaml.validate("f.yaml", SCHEMA).valid


@pytest.mark.parametrize(
    "schema", [{"type": 5}, {"$ref": "http://example.invalid/x"}, {"$ref": "#/$defs/no"}, {"$ref": "#"}]
)
def test_a_schema_that_cannot_be_used_is_an_invalid_parameter(
    file: Path, yaml: YamlFiles, schema: dict[str, object]
) -> None:
    with pytest.raises(YamlError, match="schema") as caught:
        yaml.validate("f.yaml", schema)
    assert caught.value.code == Code.INVALID_PARAMS


@pytest.mark.parametrize(
    ("schema", "valid"),
    [
        ({"pattern": "^(a+)+$"}, False),
        ({"pattern": r"^a+b\u00e9\p{L}$"}, True),
        ({"uniqueItems": True, "type": "array"}, False),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "pattern": "^(a|a)*$"}, False),
    ],
)
def test_a_pattern_of_a_schema_is_matched_in_linear_time_as_ecmascript_has_it(
    file: Path, yaml: YamlFiles, schema: dict[str, object], valid: bool
) -> None:
    file.write_text("a" * 60 + "béé\n")
    assert yaml.validate("f.yaml", schema).valid == valid


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"items": {"pattern": "(?!a)b"}}}}, "$.properties.a.items.pattern: '(?!a)b' is no"),
        ({"allOf": [{"patternProperties": {r"(a)\1": {}}}]}, "$.allOf[0].patternProperties: "),
    ],
)
def test_a_pattern_beyond_linear_time_is_named_with_its_place(
    file: Path, yaml: YamlFiles, schema: dict[str, object], place: str
) -> None:
    file.write_text("a: [b]\n")
    with pytest.raises(YamlError, match="RE2") as caught:
        yaml.validate("f.yaml", schema)
    assert caught.value.code == Code.INVALID_PARAMS
    assert f"schema: {place}" in caught.value.message


@pytest.mark.parametrize(
    ("source", "equal"),
    [("[1, true, '1']", False), ("[1, 1.0]", True), ("[{a: [1]}, {a: [1.0]}]", True), ("[[1], {a: 1}, 1]", False)],
)
def test_items_are_compared_as_json_has_them(file: Path, yaml: YamlFiles, source: str, equal: bool) -> None:
    file.write_text(source + "\n")
    assert yaml.validate("f.yaml", {"uniqueItems": True}).valid != equal


@pytest.mark.parametrize(
    "source",
    [
        "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30))]),
        "a: &a [*a]\n",
        "a: " + "[" * 500 + "]" * 500,
    ],
)
def test_validation_refuses_what_would_not_end(file: Path, yaml: YamlFiles, source: str) -> None:
    file.write_text(source)
    with pytest.raises(YamlError) as caught:
        yaml.validate("f.yaml", {})
    assert caught.value.code == Code.PARSE


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (9090, "9090"), (-1.5, "-1.5"), (True, "true"), (None, "null"), ("0.0.2", "0.0.2"), ("", None),
        ("[1, a b]", "[1, a b]"), (10**20, "100000000000000000000"), ("'8080'", "'8080'"),
    ],
)  # fmt: skip
def test_a_value_is_yaml_text_or_any_json_value(tmp_path: Path, value: YamlValue, written: str | None) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("# top\nport: 80  # here\nitems:\n  - 1\n")
    yaml = YamlFiles(Roots([tmp_path]))
    if written is None:
        with pytest.raises(YamlError):
            yaml.edit(str(file), SetEdit("port", value))
        return
    yaml.edit(str(file), [SetEdit("port", value), AppendEdit("items", value)])
    assert file.read_text() == f"# top\nport: {written}  # here\nitems:\n  - 1\n  - {written}\n"
