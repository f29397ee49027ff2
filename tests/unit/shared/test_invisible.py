"""Invisible characters hide no word."""

from __future__ import annotations

import pytest

from services.memory.comparison import Relation, matched_by, relation
from services.shared.text.html import plain
from services.shared.text.invisible import visible, without_breaks


@pytest.mark.parametrize("mark", ["\u00ad", "\u200b", "\u200d", "\u2060", "\ufeff", "\u200e", "\u2068"])
def test_invisible_marks_inside_a_word_do_not_change_it(mark: str) -> None:
    word = f"Bahnhof{mark}strasse"
    assert visible(word) == "Bahnhofstrasse"
    assert matched_by("Bahnhofstrasse", f"The {word} is one-way")
    assert matched_by(word, "The Bahnhofstrasse is one-way")
    assert relation(f"The {word} is one-way", "The Bahnhofstrasse is one-way") is Relation.SIMILAR


def test_an_extracted_text_keeps_what_separates_words_and_joins_letters() -> None:
    assert plain("<p>Donau&shy;dampf&#8203;schiff</p>") == "Donaudampfschiff"
    assert without_breaks("\ufeffa\u00adb\u200bc\u2060d") == "abcd"
    for kept in ("مي\u200cرود", "👩\u200d🔬", "ភាសា\u200bខ្មែរ", "\u200f123"):
        assert without_breaks(kept) == kept
