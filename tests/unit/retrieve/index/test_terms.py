"""Names in code are found whole and by part, any script is found, and any text is a query."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.retrieve.index.terms import MAX_QUERY_TERMS, MAX_TERM, indexed, query_terms, spellings, terms
from services.shared.text.stop_words import STOP_WORDS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("parseHttpRequest", "parsehttprequest parse http request"),
        ("HTTPServer", "httpserver http server"),
        ("snake_case", "snake_case snake case"),
        ("os.path.join(x)", "os_path_join os path join x"),
        ("std::vector", "std_vector std vector"),
        ("high-speed flow.", "high_speed high speed flow"),
        ("vCJD mRNAs IL-6", "vcjd cjd mrnas rnas il_6 il 6"),
        ("Title Case", "title case"),
        ("日本語 x", "日本 本語 日 本 語 x"),
        ("猫", "猫"),
        ("Weiß ÉTÉ Łódź ещё", "weiss ete lodz еще"),
        ("Müller Mueller Muller", "muller mueller muller muller"),
        ("हिन्दी की", "हिन्दी की"),
        ("กา", "กา ก า"),
        ("ship it 🚀", "ship it _1f680"),
        ("ﬁne", "fine"),
        ("C++ c# std/C++ g++.", "cpp c csharp c cpp std_c std c gpp g"),
        ("C+ a+b x#y é++", "c a b x y epp e"),
        ("Bahnhof\u00adstrasse Donau\u200bdampf \ufeffmark \u2066x\u2069y", "bahnhofstrasse donaudampf mark xy"),
        ("مي\u200cرود", "ميرود"),
        ("", ""),
        ('"(*) AND', "and"),
    ],
)
def test_terms_of_a_text(text: str, expected: str) -> None:
    assert indexed(text) == expected


@pytest.mark.parametrize("stored", ["Müller", "Mueller", "mueller", "MÜLLER", "Mu\u0308ller"])
@pytest.mark.parametrize("asked", ["Müller", "mueller", "Muller", "MUELLER"])
def test_a_name_is_found_in_each_spelling(stored: str, asked: str) -> None:
    held = indexed(stored).split()
    assert all({term, *spellings(term)} & {*held} for term in query_terms(asked))


def test_a_lone_character_of_a_longer_word_is_found_and_asked_for_as_pairs() -> None:
    assert query_terms("猫")[0] in indexed("黑猫警长").split()
    assert query_terms("黑猫警") == ["黑猫", "猫警"]


def test_stop_words_are_left_out_unless_there_are_no_other_words() -> None:
    assert query_terms("what is the boiling point of water") == ["boiling", "point", "water"]
    assert query_terms("to be or not to be") == ["to", "be", "or", "not"]
    assert "boiling" not in STOP_WORDS


def test_a_pasted_page_is_looked_up_by_its_most_frequent_terms() -> None:
    page = " ".join(f"word{n}" for n in range(500)) + " telling telling telling"
    found = query_terms(page)
    assert len(found) == MAX_QUERY_TERMS
    assert found[0] == "telling"


@given(st.text())
def test_terms_are_short_and_contain_no_query_syntax(text: str) -> None:
    for term in terms(text):
        assert 0 < len(term) <= MAX_TERM * 2
        assert not set(term) & set(" \"'*():-")
