"""What a get answers: the node's source, exactly."""

import pytest

from services.yaml.errors import Code, YamlError
from services.yaml.values import get_at, read_tree


@pytest.mark.parametrize(
    ("source", "path", "text"),
    [
        ("a: 'x' # c\n", "a", "'x'"),
        ("a: x  \n", "a", "x"),
        ("a:\n", "a", ""),
        ("a: # c\n", "a", ""),
        ("- \n", "[0]", ""),
        ("{a, b: 1}", "a", ""),
        ("{a: , b: 1}", "a", ""),
        ("s:\n  a: 1  # c\n  b: 2  # d\nn: 1\n", "s", "  a: 1  # c\n  b: 2"),
        ("s:\n- a\n- b\n\n# c\nn: 1\n", "s", "- a\n- b"),
        ("s: &x\n  a: 1\n", "s", "&x\n  a: 1"),
        ("s: !t &x 1 # c\n", "s", "!t &x 1"),
        ("- a: 1\n  b: 2\n", "[0]", "a: 1\n  b: 2"),
        ("a: {b: [1, 2], c: 3}\n", "a.b", "[1, 2]"),
        ("a: {b: [1, 2], c: 3}\n", "a", "{b: [1, 2], c: 3}"),
        ("t: |\n  a\n  b\nu: 1\n", "t", "|\n  a\n  b"),
        ("t: |\n  a\n\n\nu: 1\n", "t", "|\n  a"),
        ("t: |+\n  a\nu: 1\n", "t", "|+\n  a"),
        ("t: |+\n  a\n\nu: 1\n", "t", "|+\n  a\n\n"),
        ("t: |- # c\n  a\n", "t", "|- # c\n  a"),
        ("t: |\r\n  a\r\n\r\nu: 1\r\n", "t", "|\r\n  a"),
        ("t: >\n  a\n  \nu: 1\n", "t", ">\n  a"),
        ("t: >\n  a\n   \nu: 1\n", "t", ">\n  a\n   "),
        ("t: |\nu: 1\n", "t", "|"),
        ("a: &x 1\nb: *x\n", "b", "*x"),
        ("a: x\n  y # c\n", "a", "x\n  y"),
        ('"k": 1\n', "k", "1"),
        ("'a.b': 1\n", '["a.b"]', "1"),
        ("a.b: 1\n", "['a.b']", "1"),
        ("m:\n  a.b: 1\n", 'm."a.b"', "1"),
        ("1: x\n", "1", "x"),
        ("null: x\n", "null", "x"),
        ("k: 1\nk: 2\n", "k", "2"),
        ("? k\n: v\n", "k", "v"),
        ("a: 1\n---\na: 2\n", "a", "1"),
        ("a: [1,\n 2\n]\n", "a", "[1,\n 2\n]"),
        ("# c\na: 1\nb: 2\n# d\n", "", "a: 1\nb: 2"),
        ("x: {{ y }}\n", "x", "{{ y }}"),
        ("a: \u0085\u2028b # c\n", "a", "\u0085\u2028b"),
        ("a: 'x'", "a", "'x'"),
    ],
)
def test_a_get_answers_the_exact_source(source: str, path: str, text: str) -> None:
    assert get_at(read_tree(source), path) == text


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("a: 1\n", "b"),
        ("a: [1]\n", "a[1]"),
        ("a: [1]\n", "a[-1]"),
        ("a: 1\n", "a.b"),
        ("a: 1\n", "a[0]"),
        ("a: {}\n", "a[0]"),
        ("a: [1]\n", "a.b"),
        ("x: &x {k: 1}\ny:\n  <<: *x\n", "y.k"),
        ("x: &x {k: 1}\ny: *x\n", "y.k"),
        ("a: 1\n---\nb: 2\n", "b"),
        ("", "a"),
        ("# c\n", "a"),
        ("a: 1\n", "a..b"),
        ("a: 1\n", "a["),
        ("a: 1\n", "a[x]"),
        ("a: 1\n", ".a"),
    ],
)
def test_a_path_that_leads_nowhere_is_not_found(source: str, path: str) -> None:
    with pytest.raises(YamlError) as caught:
        get_at(read_tree(source), path)
    assert caught.value.code == Code.NOT_FOUND


@pytest.mark.parametrize(
    ("source", "line", "column"),
    [
        ("a: 1\nb: [1\n", 2, 4),
        ("a: 1\r\n b: 2\r\n", 2, 2),
        ("a: *x\n", 1, 4),
        ("a: 1\rb: }\r", 2, 4),
        ("a: \x07\n", 1, 4),
    ],
)
def test_a_file_that_is_not_yaml_is_refused_with_the_place_of_the_fault(source: str, line: int, column: int) -> None:
    with pytest.raises(YamlError, match=rf"line {line}, column {column}\b") as caught:
        read_tree(source)
    assert caught.value.code == Code.PARSE


def test_another_document_is_reached_by_its_index() -> None:
    tree = read_tree("a: 1\n---\na: 2\n...\n---\nb\n")
    assert [get_at(tree, "a", 0), get_at(tree, "a", 1), get_at(tree, "", 2)] == ["1", "2", "b"]
    with pytest.raises(YamlError, match="has 3"):
        get_at(tree, "a", 3)
