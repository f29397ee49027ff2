"""Operations are found by examples of requests; each operation has some, and what was learned from them is current."""

from __future__ import annotations

from collections import Counter

from proto import ops
from proto.operation import CLIENT, Role
from services.front.surfaces import examples
from services.front.surfaces.steps import EXECUTE, QUERY, Steps
from tests.bench.tool_search.__main__ import FIRST, SETS, requests

TABLE = ops.load()
STEPS = Steps("all", TABLE)


def test_every_operation_has_examples_and_every_example_an_operation() -> None:
    named = {op.name for op in TABLE.values() if op.admits(CLIENT) and op.role in (Role.TOOL, Role.STEP)}
    found = examples.examples()
    assert named - {QUERY, EXECUTE} == set(found)
    assert min(map(len, found.values())) >= 10
    said = Counter(each.lower() for requests_ in found.values() for each in requests_)
    assert [each for each, times in said.items() if times > 2] == []


def test_what_was_learned_is_from_these_examples() -> None:
    """After a change of `examples.txt`, run `scripts/bench tool_search --train`."""
    learned, rows = examples._learned()
    assert learned.examples == examples.digest()
    assert learned.names == list(examples.examples())
    assert len(rows) == len(learned.scales) == len(learned.names)


def test_an_operation_is_scored_by_a_vector_of_the_model_with_which_it_was_learned() -> None:
    learned, rows = examples._learned()
    size = len(rows[0])
    scores = examples.fits([1.0] + [0.0] * (size - 1), learned.fingerprint)
    assert scores is not None
    assert scores.keys() == set(learned.names)
    assert scores[learned.names[0]] == learned.scales[0] * rows[0][0]
    assert examples.fits([1.0] * size, "another model") is None


def test_requests_are_found_by_words_alone() -> None:
    """With vectors more are found: `scripts/bench tool_search`."""
    for name, least in (("tuning", 0.8), ("developers", 0.7), ("everybody", 0.7)):
        asked = [each for each in requests(name) if "any" in each]
        right = [set(each["any"]) & set(STEPS.index.ranked(each["words"])[:FIRST]) for each in asked]
        assert sum(map(bool, right)) >= least * len(asked), name
    assert set(SETS) == {"tuning", "developers", "everybody"}
