"""Only equal statements are the same; contradictions are stated if a rule is certain, and similar statements are
linked.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.memory.comparison import Relation, fold, matched_by, relation

SAME, CONFLICT, SIMILAR, OTHER = Relation.SAME, Relation.CONFLICT, Relation.SIMILAR, Relation.OTHER

CASES = Path(__file__).parents[4] / "shared/cases/reports/memory.json"


@pytest.mark.parametrize(
    ("one", "another", "expected"),
    [
        ("User prefers dark mode", "user  PREFERS dark mode.", SAME),
        ("会议在周二", "会议在周二。", SAME),
        ("Ｓｔａｎｄｕｐ at 9", "standup at 9!", SAME),  # noqa: RUF001
        ("Das Café ist offen", "Das Cafe\u0301 ist offen", SAME),
        # Close, but nothing shows that one means the other.
        ("The API keys are in Vault", "API key is in the Vault", SIMILAR),
        ("The user likes tea and coffee", "The user likes coffee and tea", SIMILAR),
        ("User lives in Berlin", "User lives in Berlin with two cats", SIMILAR),
        ("The build is green", "Is the build green?", SIMILAR),
        ("The nightly backup runs on server alpha", "The nightly backup runs on server beta", SIMILAR),
        ("Erik works at Siemens", "Fiona works at Siemens", SIMILAR),
        ("Wein nur in maßen", "Wein nur in massen", SIMILAR),
        ("The plot has 10² cells", "The plot has 102 cells", SIMILAR),
        ("コーヒーが好きです", "コーヒーが好きではありません", SIMILAR),
        ("나는 고기를 먹는다", "나는 고기를 먹지 않는다", SIMILAR),
        ("ฉันชอบกาแฟ", "ฉันไม่ชอบกาแฟ", SIMILAR),
        # Antonyms and negations.
        ("The user prefers dark mode", "The user prefers light mode", CONFLICT),
        ("Feature X is on", "Feature X is off", CONFLICT),
        ("Tests pass", "Tests fail", CONFLICT),
        ("Tür offen", "Tür geschlossen", CONFLICT),
        ("Puerta abierta", "Puerta cerrada", CONFLICT),
        ("Tests pass", "Builds fail", OTHER),
        ("Tests pass", "Tests run", OTHER),
        ("Ben is allergic to peanuts", "Ben isn't allergic to peanuts", CONFLICT),
        ("Anna likes tea", "Anna doesn't like tea", CONFLICT),
        ("Anna loves tea", "Anna does not love tea", CONFLICT),
        ("Anna likes tea", "Anna doesn't like coffee", OTHER),
        ("Die API hat ein Limit von 100", "Die API hat kein Limit von 100", CONFLICT),
        ("Die Tür ist offen", "Die Tür ist geschlossen", CONFLICT),
        ("El servidor está activo", "El servidor está inactivo", CONFLICT),
        ("Marco mangia carne", "Marco non mangia carne", CONFLICT),
        ("나는 고기를 먹는다", "나는 고기를 안 먹는다", CONFLICT),
        ("Сервер включен", "Сервер выключен", CONFLICT),
        ("أنا أحب القهوة", "أنا لا أحب القهوة", CONFLICT),
        # Numbers, units, signs and symbols.
        ("The rate limit is 100 requests a minute", "The rate limit is 250 requests a minute", CONFLICT),
        ("Retry three times", "Retry four times", CONFLICT),
        ("Timeout is 30 seconds", "Timeout is 30 minutes", CONFLICT),
        ("Timeout is 30s", "Timeout is 30ms", CONFLICT),
        ("The gap is 5 cm", "The gap is 5 mm", CONFLICT),
        ("Alarm if x >= 5", "Alarm if x <= 5", CONFLICT),
        ("The budget is 5 €", "The budget is 5 $", CONFLICT),
        ("The review got 👍", "The review got 👎", CONFLICT),
        ("The parser is written in C#", "The parser is written in C++", CONFLICT),
        # Names and directions.
        ("Erik works at Siemens", "Erik works at Bosch", CONFLICT),
        ("The user prefers tabs over spaces", "The user prefers spaces over tabs", CONFLICT),
        ("Deploy from staging to production", "Deploy from production to staging", CONFLICT),
        ("User lives in Berlin", "User speaks German", OTHER),
        ("subject1x1 lives at place4a9", "subject7x2 lives at place5c3", SIMILAR),
        # Somebody went elsewhere.
        ("User lives in Berlin", "User moved to Hamburg", SIMILAR),
        ("The office is in Berlin", "The office has moved to Hamburg", SIMILAR),
        ("Anna wohnt in Köln", "Anna ist nach Bonn gezogen", SIMILAR),
        ("Anna wohnt in Köln", "Anna zog nach Bonn", SIMILAR),
        ("The office is in Berlin", "The warehouse has moved to Hamburg", OTHER),
        # Statements about different things do not contradict each other.
        ("The keeper of tower 3 is called K3", "The keeper of tower 4 is called K4", SIMILAR),
        ("The keeper of tower 3 is called Ann", "The keeper of tower 4 is called Ann", SIMILAR),
        ("Host h1 is owned by O1", "Host h2 is owned by O2", SIMILAR),
        ("Printer on floor 3 has address 10.0.0.3", "Printer on floor 4 has address 10.0.0.4", SIMILAR),
        ("Version 3.1 was released on 2026-01-05", "Version 3.2 was released on 2026-02-05", SIMILAR),
        ("On May 3 the meeting starts at 9", "On May 4 the meeting starts at 10", SIMILAR),
        ("The port of service s1 is 1000", "The port of service s2 is 2000", SIMILAR),
        ("Room 12 is booked by Ann", "Room 13 is booked by Ben", SIMILAR),
        ("The team in Oslo is led by Ann", "The team in Bergen is led by Ben", SIMILAR),
        ("Server 3 crashed with code 5", "Server 4 crashed with code 6", SIMILAR),
        ("Der Drucker in Raum 3 hat die Adresse 10.0.0.3", "Der Drucker in Raum 4 hat die Adresse 10.0.0.4", SIMILAR),
        ("The port is 8080", "The port is 9090", CONFLICT),
        ("The port of staging is 8080", "The port of staging is 9090", CONFLICT),
        ("Timeout 30 s after login", "Timeout 60 s after login", CONFLICT),
        ("The keeper of tower 3 is called Ann", "The keeper of tower 3 is called Ben", CONFLICT),
        ("The printer is on floor 3", "The printer is on floor 4", CONFLICT),
        ("Der Port ist 8080", "Der Port ist 9090", CONFLICT),
        ("The timeout is 30 seconds", "The timeout is 5 minutes", CONFLICT),
    ],
)
def test_statements_are_equal_contradictory_similar_or_unrelated(one: str, another: str, expected: Relation) -> None:
    assert relation(one, another) is expected
    assert relation(another, one) is expected


def test_a_cosine_links_and_never_merges() -> None:
    one, other = "Ben is allergic to peanuts", "Peanut butter makes him sick"
    assert relation(one, other) is OTHER
    assert relation(one, other, 0.999) is SIMILAR


def test_folding_keeps_signs_and_drops_case_spaces_and_final_punctuation() -> None:
    assert fold("  It’s -3.5 GB —  not C++! ") == "it’s -3.5 gb — not c++"  # noqa: RUF001
    assert fold("Is it 5?") == "is it 5?"


@pytest.mark.parametrize(
    ("query", "text", "expected"),
    [
        ("disabled", "Deployment is disabled", True),
        ("able", "Deployment is disabled", False),
        ("C++", "The parser is written in C++", True),
        ("C", "The parser is written in C++", False),
        ("-18", "The freezer is at -18 C", True),
        ("-18", "The freezer is at 18 C", False),
        ("не", "Анна не ест мясо", True),
        ("МЯСО", "Анна не ест мясо", True),
        ("不喜欢", "我不喜欢喝咖啡", True),
        ("不喜欢", "我喜欢喝咖啡", False),
        ("고기", "나는 고기를 먹는다", True),
        ("<", "Retry when latency < 200 ms", True),
        ("cafe\u0301", "Das Café ist offen", True),
        ("", "anything", True),
    ],
)
def test_a_query_finds_statements_with_all_its_words_in_any_script(query: str, text: str, expected: bool) -> None:
    assert matched_by(query, text) is expected


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")
def test_the_reported_pairs() -> None:
    cases = json.loads(CASES.read_text())
    for one, other in cases["never_merged"]:
        assert relation(one, other) in {CONFLICT, SIMILAR}, (one, other)
    for one, other in cases["may_be_merged"]:
        assert relation(one, other) is SAME, (one, other)
