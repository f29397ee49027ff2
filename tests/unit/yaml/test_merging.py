"""Front matter that is written from data reads back as that data, by readers of YAML 1.1 and of 1.2."""

from __future__ import annotations

import io
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from services.knowledge.notes import frontmatter
from services.yaml.merging import merge
from services.yaml.schema import data_of
from services.yaml.values import read_tree

MEANS_MORE = [
    "urgent:", "12:30", "1:2:3", "1_000", "0x1F", "0b11", "0o17", "007", "1e3", "1e+3", "12e03", ".5", "1.", "+1", "-1",
    "685.230_15e+03", "yes", "No", "ON", "off", "true", "False", "null", "NULL", "~", ".inf", ".nan", "=", "<<",
    "2026-01-01", "2026-01-01T10:00:00Z", "", " ", " lead", "trail ", "a # b", "#tag", "C#", "tab\there", "\t", "a\nb",
    "a\n", "\r\n", "a\u2028b", "a\u2029b", "a\x85b", "\x7f", "\x00", "\x1b", "\ufeffx", "\ufffe", "\u00a0x", "x\u3000",
    "😀", "😀 party", "👩\u200d💻", "é", "e\u0301", "日本語", "a: b", "a:b", "key:", "A?", "-", "- a", "?",
    "[x]", "{x}", "x, y", "*a", "&a", "!t", "|", ">", "%x", "@x", "`x", "'q'", '"q"', "\\", "a\\b", "x" * 2000,
    "http://a.b/c?d#e", "[[Acme: Ltd]]", "1.2.3", "1,000", "null ", "_1", "? a", "---", "...", "y", "n",
]  # fmt: skip


def read(text: str) -> list[Any]:
    return [yaml.safe_load(text), YAML(typ="safe", pure=True).load(io.StringIO(text))]


def check(data: dict[str, Any]) -> None:
    text = merge("", data)
    assert read(text) == [data, data]
    assert merge(text, data) == text


@pytest.mark.parametrize("value", MEANS_MORE, ids=ascii)
def test_text_stays_text(value: str) -> None:
    check({"k": value, "list": [value, "z"], "map": {"k": value, "in": [[value]]}})
    if len(value) < 1000:
        check({value: "x"})
        check({"map": {value: "x"}})
    text = f"---\n{merge('', {'k': value})}---\nbody"
    front, body = frontmatter.split(text)
    assert (front.problem, body) == (None, "body")
    assert front.values["k"] == ([value] if value.strip() else [])


@pytest.mark.parametrize("value", [0, -5, 10**20, 1.5, 100.0, 1e22, -2e-7, True, False], ids=repr)
def test_numbers_stay_numbers(value: float) -> None:
    check({"k": value, "list": [value]})


@given(
    st.dictionaries(
        st.text(max_size=20), st.text(max_size=40) | st.lists(st.text(max_size=10), max_size=3), min_size=1, max_size=4
    )
)
def test_any_text_reads_back(data: dict[str, Any]) -> None:
    check(data)


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("a: 12:30\n", "12:30", 'a: "12:30"\n'),
        ("a: [x, yes]\n", ["x", "yes"], 'a: [x, "yes"]\n'),
        ("a: 1e3\n", 1000.0, "a: 1000.0\n"),
        ("a: 1.2.3  # kept\n", "1.2.3", "a: 1.2.3  # kept\n"),
        ("a: '12:30'\n", "12:30", "a: '12:30'\n"),
        ("a:\n  - x\n  - plain text\n", ["x", "plain text"], "a:\n  - x\n  - plain text\n"),
    ],
)
def test_text_that_some_parsers_read_differently_is_rewritten_and_all_else_stays(
    before: str, value: Any, after: str
) -> None:
    assert merge(before, {"a": value}) == after


def test_plain_words_need_no_quotes() -> None:
    data = {"title": "A plain (small) title - v2.1", "tags": ["one", "two words", "日本語", "été"]}
    assert merge("", data) == "title: A plain (small) title - v2.1\ntags: [one, two words, 日本語, été]\n"


def test_a_key_in_another_unicode_form_is_the_same_key() -> None:
    assert merge("cafe\u0301: a\nb: 1\n", {"caf\u00e9": "x"}) == "cafe\u0301: x\nb: 1\n"
    assert merge("", {"caf\u00e9": "x", "cafe\u0301": "y"}) == 'caf\u00e9: x\ncafe\u0301: "y"\n'
    assert merge("caf\u00e9: a\nb: 1\n", {"cafe\u0301": None}) == "b: 1\n"


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("a: 'x'  # why\nb: 1\n", "it's", "a: 'it''s'  # why\nb: 1\n"),
        ('a: "x"  # why\n', "y", 'a: "y"  # why\n'),
        ("a: x # why\n", "m", "a: m # why\n"),
        ("a: 'x'\n", "one\x07", 'a: "one\\u0007"\n'),
        ("a: 2026-01-01  # due\n", "2026-02-03", "a: 2026-02-03  # due\n"),
        ("a: 2026-01-01T10:00:00\n", "2026-02-03 11:00", "a: 2026-02-03 11:00\n"),
        ("a: 2026-01-01\n", "2026-01-01", "a: 2026-01-01\n"),
        ('a: "2026-01-01"\n', "2026-02-03", 'a: "2026-02-03"\n'),
        ("a: 2026-01-01\n", "12:30", 'a: "12:30"\n'),
        ("a: plain\n", "2026-02-03", 'a: "2026-02-03"\n'),
        ("a: |\n  one\n  two\nb: 1\n", "three\n\n  four\n", "a: |\n  three\n\n    four\nb: 1\n"),
        ("a: |-\n  one\n", "x", "a: |-\n  x\n"),
        ("a: >-\n  one\n  two\n", "three\nfour", "a: >-\n  three\n\n  four\n"),
        ("a: >\n  one\n", "  odd\n", 'a: "  odd\\n"\n'),
        ("a: 'x'\n", 3, "a: 3\n"),
        ("a:\n  - x # first\n  - 'y'\n  # last\n", ["x", "z"], "a:\n  - x # first\n  - 'z'\n  # last\n"),
        ("a:\n- x # first\n- y\nb: 1\n", ["x", "y", "new: one"], 'a:\n- x # first\n- y\n- "new: one"\nb: 1\n'),
        ("a:\n  # of x\n  - x\n  # of y\n  - y\n", ["y"], "a:\n  # of y\n  - y\n"),
        ("a:\n  - x\n  - z\n", ["x", "m", "z"], "a:\n  - x\n  - m\n  - z\n"),
        ("a: [x, 'y']  # two\n", ["x", "z", "w"], "a: [x, 'z', w]  # two\n"),
        ("a: [x]\n", [], "a: []\n"),
        (
            "a:\n  b: 'x' # of b\n  c: 1\n  d: y\n",
            {"b": "z", "d": "y", "e": 2},
            "a:\n  b: 'z' # of b\n  d: y\n  e: 2\n",
        ),
        ("a: {b: 1, c: 'x'} # in one line\n", {"b": 1, "c": "y"}, "a: {b: 1, c: 'y'} # in one line\n"),
        ("a: &x one\nb: *x\n", "two", "a: &x two\nb: *x\n"),
    ],
)
def test_a_changed_value_keeps_its_style_and_comments(before: str, value: Any, after: str) -> None:
    assert merge(before, {"a": value}) == after
    assert merge(after, {"a": value}) == after


STYLES = """# top
a:
  - x # x
  - {b: 'c', d: [1, "2"]}
  - |
    block
  - 2026-01-01
b: &x
  c: 'd' # d
  e: 3
c: 'q'
"""
ANYTHING = st.recursive(
    st.text(max_size=9) | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(ANYTHING, st.sampled_from("abc"))
def test_any_value_set_over_another_reads_back(value: Any, key: str) -> None:
    text = merge(STYLES, {key: value})
    found = data_of(read_tree(text), 1)
    others = data_of(read_tree(STYLES), 1)
    assert isinstance(found, dict)
    assert isinstance(others, dict)
    assert found == {**others, key: value}
    assert merge(text, {key: value}) == text
    assert text.startswith("# top\n")
