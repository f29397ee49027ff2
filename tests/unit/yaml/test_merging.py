"""Front matter that is written from data reads back as that data, by readers of YAML 1.1 and of 1.2."""

from __future__ import annotations

import io
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from linckia.services.knowledge.notes import frontmatter
from linckia.services.yaml.merging import merge

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
def test_what_reads_otherwise_to_some_is_written_anew_and_all_else_stays(before: str, value: Any, after: str) -> None:
    assert merge(before, {"a": value}) == after


def test_plain_words_need_no_quotes() -> None:
    data = {"title": "A plain (small) title - v2.1", "tags": ["one", "two words", "日本語", "été"]}
    assert merge("", data) == "title: A plain (small) title - v2.1\ntags: [one, two words, 日本語, été]\n"


def test_a_key_in_another_unicode_form_is_the_same_key() -> None:
    assert merge("cafe\u0301: a\nb: 1\n", {"caf\u00e9": "x"}) == "cafe\u0301: x\nb: 1\n"
    assert merge("", {"caf\u00e9": "x", "cafe\u0301": "y"}) == 'caf\u00e9: x\ncafe\u0301: "y"\n'
    assert merge("caf\u00e9: a\nb: 1\n", {"cafe\u0301": None}) == "b: 1\n"
