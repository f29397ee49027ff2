"""From a hit to a passage that names its lines, and from parameters to conditions."""

from __future__ import annotations

import msgspec
import pytest

from proto.errors import InvalidParams
from proto.ops.retrieve import Filter, Hit
from services.knowledge.ingest.index import group_of
from services.knowledge.notes.files import Place
from services.knowledge.notes.markdown import parse
from services.knowledge.operations.notes import SearchDocuments, SearchHit
from services.knowledge.search import passages
from services.shared.models.measure import ROUGH

FILLER = "Nothing of note is said in this sentence at all. "


def hits_of(text: str, query: str) -> list[tuple[str, str]]:
    """(context, snippet) for each section of a note, as a search that found that section would have it."""
    place = Place("/notes", "guide.md")
    made = group_of("guide", place, 0.0, parse(text, place, ROUGH))
    found = []
    for item in made.items:
        hit = Hit(
            group="guide", key=item.key, score=1.0, title=made.title, heading=item.heading, text=item.text,
            group_metadata=made.metadata, item_metadata=item.metadata,
        )  # fmt: skip
        answer = passages.hit(hit, query, "lexical")
        found.append((answer.context, answer.snippet))
    return found


def test_a_budget_keeps_the_best_that_fit_and_the_first_in_any_case() -> None:
    hits = [
        SearchHit(id=f"n{n}", score=1.0, preview="t", source="lexical", snippet="x" * 300, context="c")
        for n in range(9)
    ]
    each = len(msgspec.json.encode(hits[0])) / passages.CHARS_PER_TOKEN
    for tokens, kept in ((1, 1), (1.9 * each, 1), (3.1 * each, 3), (100 * each, 9)):
        assert [hit.id for hit in passages.within(hits, int(tokens))] == [f"n{n}" for n in range(kept)]


def test_passage_is_cut_around_the_words_of_the_query() -> None:
    text = FILLER * 20 + "The zebra crossing is striped. " + FILLER * 20
    passage = passages.best_passage(text, "where is the striped zebra?")
    assert "zebra crossing is striped" in passage.text
    assert len(passage.text) <= passages.SNIPPET_CHARS + 4
    assert passage.text.startswith("… ")
    assert passage.text.endswith(" …")


def test_passage_with_more_different_words_wins_over_one_word_repeated() -> None:
    text = "zebra zebra zebra zebra. " + FILLER * 10 + "A zebra met a giraffe. " + FILLER * 10
    assert "giraffe" in passages.best_passage(text, "zebra giraffe").text


def test_words_that_the_index_ignores_do_not_choose_the_passage() -> None:
    text = "After all, we should. " + FILLER * 10 + "A zebra. " + FILLER * 10
    assert "zebra" in passages.best_passage(text, "should we see a zebra after all?").text


@pytest.mark.parametrize("query", ["installing", "install", "installs", "installed"])
def test_passage_is_found_by_any_form_of_a_word(query: str) -> None:
    assert "Installation" in passages.best_passage(FILLER * 20 + "Installation needs a key. " + FILLER * 20, query).text


def test_passage_found_by_meaning_alone_is_the_sections_beginning() -> None:
    passage = passages.best_passage("First words. " + FILLER * 20, "quux")
    assert passage.text.startswith("First words.")
    assert not passage.matched


@pytest.mark.parametrize("query", ["", "the", "???", "x" * 8000, "a\0b"])
def test_any_query_gives_a_passage(query: str) -> None:
    assert passages.best_passage("", query).text == ""
    assert passages.best_passage(FILLER * 20, query).text


def test_context_names_heading_path_and_lines() -> None:
    text = f"# Guide\n\nIntro.\n\n## Install\n\n{FILLER * 12}\n\nSet the zebra flag.\n"
    assert hits_of(text, "zebra flag")[0][0] == "Guide > Install (lines 5-9)"


def test_context_of_merged_sections_names_the_one_that_matched() -> None:
    text = "# Guide\n\nIntro.\n\n## Install\n\nGet the zebra.\n\n## Use\n\nRide the giraffe.\n"
    assert [hits_of(text, query)[0][0] for query in ("zebra", "giraffe", "intro", "meaning")] == [
        "Guide > Install (lines 5-7)",
        "Guide > Use (lines 9-11)",
        "Guide (lines 1-3)",
        "Guide (lines 1-11)",
    ]


def test_context_without_headings_is_the_title() -> None:
    assert hits_of("One line of text.", "line") == [("guide (line 1)", "One line of text.")]


def test_filters_become_conditions() -> None:
    params = SearchDocuments(
        query="q", tags=["#One", "Two"], path="./guides/", since="2026-01-17", until="2026-01-17"
    )  # fmt: skip
    assert passages.filters(params) == [
        Filter(field="tags", any_of=["one"]),
        Filter(field="tags", any_of=["two"]),
        Filter(field="path", prefix="guides/"),
        Filter(field="date", at_least=1768608000.0),
        Filter(field="date", at_most=1768694399.999999),
    ]
    assert passages.filters(SearchDocuments(query="q", until=12)) == [Filter(field="date", at_most=12.0)]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SearchDocuments(query="q", since="someday"), "since"),
        (SearchDocuments(query="q", until="2026-02-30"), "until"),
        (SearchDocuments(query="q", tags=[" # "]), "tags"),
    ],
)
def test_filter_that_cannot_be_read_is_named(params: SearchDocuments, field: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        passages.filters(params)
    assert caught.value.failure.field == field
