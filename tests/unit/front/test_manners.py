"""An agent finds the operation for a task by what the operations say of themselves (`scripts/bench manners`)."""

from __future__ import annotations

import pytest

from services.embed.weights import PACKAGED
from tests.bench import manners


def test_the_right_operation_is_among_the_first_by_words() -> None:
    every = manners.operations()
    assert {right for _, right in manners.TASKS} <= every.keys()
    assert len(manners.TASKS) >= 40
    assert manners.show("by words", manners.by_words(every), each=False) >= manners.WANTED


@pytest.mark.slow
def test_the_right_operation_is_among_the_first_by_meaning() -> None:
    pytest.importorskip(PACKAGED[0], reason="the package with the model's weights is not installed")
    assert manners.show("by meaning", manners.by_meaning(manners.operations()), each=False) >= manners.WANTED
