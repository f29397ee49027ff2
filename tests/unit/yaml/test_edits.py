"""The table of exact edits: each source, path and value gives exactly these bytes, or exactly this refusal."""

import json
from pathlib import Path
from typing import TypedDict

import pytest

from services.yaml.errors import YamlError
from services.yaml.values import read_tree, set_at


class Case(TypedDict, total=False):
    source: str
    path: str
    value: str
    result: str
    error: int


CASES: list[Case] = json.loads((Path(__file__).parent / "edits.json").read_text("utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['path']}={case['value']}"[:40])
def test_a_set_gives_exactly_these_bytes_or_this_refusal(case: Case) -> None:
    expected: tuple[str | None, int | None] = (case.get("result"), case.get("error"))
    try:
        found: tuple[str | None, int | None] = (
            set_at(read_tree(case["source"]), case["path"], case["value"]).text,
            None,
        )
    except YamlError as fault:
        found = (None, int(fault.code))
    assert found == expected
