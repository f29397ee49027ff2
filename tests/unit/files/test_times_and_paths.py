"""Times and paths: read in every form, written in one, nothing lost."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.errors import InvalidParams
from services.files import paths
from services.files.query.matching import glob_to_regex
from services.shared import times

NOON = 1_718_452_800 * times.NS
"""2024-06-15T12:00:00Z"""


@pytest.mark.parametrize(
    "text",
    [
        "2024-06-15T12:00:00Z", "2024-06-15T14:00:00+02:00", "2024-06-15T12:00", "2024-06-15T12:00:00",
        "2024-06-15 12:00:00Z", "2024-06-15T12:00:00.000Z", "2024-06-15t06:30:00-0530", "1718452800", "1718452800.0",
        "1.7184528e9", 1718452800, 1718452800.0,
    ],
)  # fmt: skip
def test_every_form_of_a_time_is_parsed(text: str | float) -> None:
    assert times.parse(text) == NOON
    assert times.parse(text, end=True) == NOON


def test_date_is_its_first_instant_or_its_last() -> None:
    assert times.parse("2024-06-15") == NOON - 12 * 3600 * times.NS
    assert times.parse("2024-06-15", end=True) == NOON + 12 * 3600 * times.NS - 1
    assert times.parse("1969-12-31") == -86_400 * times.NS


@pytest.mark.parametrize(
    "text",
    ["", "someday", "last", "2024-13-01", "2024-02-30", "2024-06-15T25:00", "2024-06", "1e", "nan", "12:00", "--1"],
)
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a time|not a day|no time|no day"):
        times.parse(text)


@given(st.integers(-(2**62), 2**62))
def test_time_that_was_written_is_read_back_to_the_nanosecond(ns: int) -> None:
    assert times.parse(times.rfc3339(ns)) == ns


@given(st.binary(max_size=40).filter(lambda name: b"\0" not in name))
def test_every_name_has_one_text_that_leads_back_to_it(name: bytes) -> None:
    text = paths.to_text(os.fsdecode(name))
    assert text.encode().decode() == text
    assert os.fsencode(paths.to_os(text)) == name
    assert paths.to_text(paths.to_os(text)) == text


@given(st.text(max_size=40).filter(lambda text: "\0" not in text))
def test_every_text_leads_to_a_name(text: str) -> None:
    assert os.fsencode(paths.to_os(text)) is not None


@pytest.mark.parametrize(
    ("given_path", "clean"),
    [("/", "/"), ("//", "/"), ("/a/", "/a"), ("/a//b/./c/..", "/a/b"), ("/..", "/"), ("/a b", "/a b")],
)
def test_paths_are_normalized(given_path: str, clean: str) -> None:
    assert paths.clean(given_path, "path") == clean


@pytest.mark.parametrize("wrong", ["a", "./a", "~/a", "/a\0b", "/" + "x" * 40_000])
def test_relative_paths_are_refused(wrong: str) -> None:
    with pytest.raises(InvalidParams):
        paths.clean(wrong, "path")


@pytest.mark.parametrize(
    ("name", "extension"),
    [("a.TXT", "txt"), ("a.tar.gz", "gz"), (".bashrc", ""), ("..x", ""), ("a.", ""), ("a", ""), (".a.b", "b")],
)
def test_the_extension_of_a_name(name: str, extension: str) -> None:
    assert paths.extension(name) == extension


@pytest.mark.parametrize(
    ("pattern", "regex"),
    [
        ("*.jpg", r".*\.jpg"),
        ("a?[b-d]", "a.[b-d]"),
        ("[!x]", "[^x]"),
        ("[", r"\["),
        ("[]a]", r"[\]a]"),
        ("[^]", r"\[\^\]"),
    ],
)
def test_globs_become_regular_expressions(pattern: str, regex: str) -> None:
    assert glob_to_regex(pattern) == regex
