"""What says the same is told from what says otherwise, and both from other facts about the same subject."""

from __future__ import annotations

import pytest

from services.memory.comparing import Relation, fold, relation

SAME, CONFLICT, OTHER = Relation.SAME, Relation.CONFLICT, Relation.OTHER


@pytest.mark.parametrize(
    ("one", "another", "cosine", "expected"),
    [
        ("User prefers dark mode", "The user prefers  DARK mode.", None, SAME),
        ("The API keys are in Vault", "API key is in the Vault", None, SAME),
        ("Ben is allergic to peanuts", "Ben has a peanut allergy", 0.93, SAME),
        ("The user prefers dark mode", "The user prefers light mode", 0.85, CONFLICT),
        ("The user prefers dark mode", "The user prefers light mode", None, CONFLICT),
        ("Ben is allergic to peanuts", "Ben isn't allergic to peanuts", 0.97, CONFLICT),
        ("The rate limit is 100 requests a minute", "The rate limit is 250 requests a minute", 0.95, CONFLICT),
        ("Erik works at Siemens", "Erik works at Bosch", 0.95, CONFLICT),
        ("The nightly backup runs on server alpha", "The nightly backup runs on server beta", 0.96, CONFLICT),
        ("Erik works at Siemens", "Fiona works at Siemens", 0.9, OTHER),
        ("User lives in Berlin", "User speaks German", 0.57, OTHER),
        ("User lives in Berlin", "User lives in Berlin with two cats", 0.88, OTHER),
        ("User lives in Berlin", "The user's home is in Berlin", 0.87, OTHER),
        ("Die API hat ein Limit von 100", "Die API hat kein Limit von 100", None, CONFLICT),
        ("The user prefers tabs over spaces", "The user prefers spaces over tabs", 0.98, CONFLICT),
        ("Deploy from staging to production", "Deploy from production to staging", None, CONFLICT),
        ("The user likes tea and coffee", "The user likes coffee and tea", None, SAME),
        ("会议在周二", "会议在周二。", None, SAME),
    ],
)
def test_statements_are_the_same_in_conflict_or_neither(
    one: str, another: str, cosine: float | None, expected: Relation
) -> None:
    assert relation(one, another, cosine) is expected
    assert relation(another, one, cosine) is expected


def test_folding_keeps_words_and_numbers_and_nothing_else() -> None:
    assert fold("  It’s 3.5 GB —  not 4! ") == "it’s 3.5 gb not 4"  # noqa: RUF001
