"""`scripts/chaos --duplicates` covers every operation that changes something."""

from __future__ import annotations

from tests.chaos import scenarios
from tests.chaos.duplicates import LEFT_OUT, SCENARIOS, changing


def test_every_operation_with_which_a_client_changes_something_has_a_scenario() -> None:
    assert scenarios.__name__
    assert set(changing()) - SCENARIOS.keys() - LEFT_OUT.keys() == set()
    assert not LEFT_OUT.keys() & SCENARIOS.keys()
