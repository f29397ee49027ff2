"""What an expression is said to require is in every text in which the libraries find a match."""

from __future__ import annotations

import random

import pytest
import re2  # type: ignore[import-untyped]  # ships no types
import regex

from services.documents.text.trigram_index import thinned
from services.shared.literals import ANYTHING, Query, parts_of, parts_of_glob, trigrams_of


def fulfils(query: Query, text: str) -> bool:
    if query.op == "any":
        return True
    tests = [trigram in text for trigram in query.trigrams] + [fulfils(p, text) for p in query.parts]
    return all(tests) if query.op == "and" else any(tests)


def rarity(trigram: str) -> tuple[float, float]:
    return random.Random(trigram).random(), 0


ATOMS = (
    "[ab]", "[^a]", ".", r"\w", "[a-c]", "$|a", "(?i:AbC)", "[[:lower:]]", "[[:^upper:]a]", r"\Qa.c\E", r"\x{61}",
    r"\x62", r"\142", r"\pL", r"\p{Lu}", r"\b", "(?P<n>ab)", "(?i)", "(?s-i)", "[]a]", "[^]a]", r"[\]a]", r"[a\-c]",
    "[a-]", r"\z|a", "[[a]", "[a&&b]", "[a--]", "[a||b]", "c{,2}", "a{,1}", "a{1", "(?=a)", "(?!b)", r"(a)\1",
    "(?<=a)", "a{2}+", "(?>ab|a)", r"\Qab", "a**", "b{2}*", r"\.", r"a\|b",
)  # fmt: skip


def pattern(chance: random.Random, depth: int) -> str:
    kind = chance.randrange(8) if depth else 0
    if kind < 3:
        return "".join(chance.choice("abc") for _ in range(chance.randrange(1, 4)))
    if kind == 3:
        return f"(?:{pattern(chance, depth - 1)}|{pattern(chance, depth - 1)})"
    if kind == 4:
        repeat = chance.choice(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "*?", "{2}+", "?+", "{2}{2}", "{3,}"])
        return f"(?:{pattern(chance, depth - 1)}){repeat}"
    if kind == 5:
        return chance.choice(ATOMS)
    return pattern(chance, depth - 1) + pattern(chance, depth - 1)


@pytest.mark.slow
def test_required_literals_never_exclude_a_matching_text() -> None:
    chance = random.Random(7)
    options = re2.Options()
    options.log_errors = False
    ignoring = re2.Options()
    ignoring.log_errors = False
    ignoring.case_sensitive = False
    understood = matched = 0
    for _ in range(4000):
        source = pattern(chance, 3)
        query, parts = trigrams_of(source), parts_of(source)
        understood += query != ANYTHING or bool(parts)
        in_any_case = None
        try:
            compiled = re2.compile(source, options)
            in_any_case = re2.compile(source, ignoring)
        except re2.error:
            try:
                compiled = regex.compile(source)
            except regex.error:
                continue
        for _ in range(12):
            text = "".join(chance.choice("abcabcABC.,{}12|[]&-+") for _ in range(chance.randrange(14)))
            if compiled.search(text):
                matched += 1
                assert fulfils(query, text), (source, text, query)
                assert fulfils(thinned(query, rarity), text), (source, text, query)
                assert all(part in text for part in parts), (source, text, parts)
            if in_any_case is not None and in_any_case.search(text):
                assert fulfils(trigrams_of(source, ignore_case=True), text), (source, text)
    assert understood > 1500
    assert matched > 7000


@pytest.mark.parametrize(
    "same",
    [
        "kK\u212a", "sS\u017f", "iIİ", "\u0131I", "éÉ", "µμΜ", "σςΣ", "ßẞ", "жЖ", "ǆǅǄ", "ꙋꙊᲈ", "\uff41\uff21", "𐐀𐐨",
        "日",
    ],
)  # fmt: skip
def test_letters_count_as_equal_if_either_library_folds_them(same: str) -> None:
    for one in same:
        for literal in (True, False):
            query = trigrams_of(f"x{one}yz", literal=literal, ignore_case=True)
            assert query == trigrams_of(f"(?i)X{one}YZ")
            for other in same:
                for text in (f"-x{other}yz-", f"-X{other}YZ-"):
                    assert fulfils(query, text), (one, other)
                    assert not fulfils(query, f"x{other}y z") or ord(one) > 0xFFFF


@pytest.mark.parametrize(
    ("pattern", "needed"),
    [
        ("b[ae]ta", "bet|bat eta|ata"),
        ("(al|be)(pha|ta)", "alpha|alta|bepha|beta"),
        ("foo.*bar", "foo bar"),
        (r"\Qa.b\E", "a.b"),
        (r"\x{61}bc", "abc"),
        ("[[:alpha:]]bcd", "bcd"),
        ("(?:abc|(?:def))gh", "abcgh|defgh"),
        (r"\p{Greek}abc", "abc"),
        ("a{3}", "aaa"),
        (r"(?P<x>one)\s+\1two", "one two"),
    ],
)
def test_a_text_without_a_required_literal_is_excluded(pattern: str, needed: str) -> None:
    query = trigrams_of(pattern)
    words = [one.split("|") for one in needed.split()]
    assert fulfils(query, " ".join(one[-1] for one in words))
    for left_out in range(len(words)):
        assert not fulfils(query, " ".join(one[0] for at, one in enumerate(words) if at != left_out))


def test_literal_parts_are_those_that_every_match_has() -> None:
    assert parts_of(r"7+-1\.txt$") == ["7-1.txt"]
    assert parts_of("abc?de{2}fg") == ["ab", "de", "efg"]
    assert parts_of("(ab|cd)ef[g\\]h]ij") == ["ef", "ij"]
    assert parts_of("(ab)(?:cd)+(?P<x>ef)") == ["abcd", "cdef"]
    assert parts_of("[[:alpha:]]bc") == ["bc"]
    assert parts_of("ab|cd") == parts_of("(?i)abc") == parts_of("(ab") == []
    assert parts_of_glob("*/some*77*.py") == [("/some", "contains"), ("77", "contains"), (".py", "suffix")]
    assert parts_of_glob("ab?cd[ef]gh") == [("ab", "prefix"), ("cd", "contains")]
    assert parts_of_glob("abc") == [("abc", "prefix"), ("abc", "suffix")]
    assert parts_of_glob("[ab]c") == []
