"""The YAML test suite and the samples of exact edits, if they lie beside the repository."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from services.yaml.errors import SyntaxFault, YamlError
from services.yaml.syntax.events import Stream
from services.yaml.syntax.parser import parse
from services.yaml.values import get_at, read_tree, set_at

_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\0": "\\0"})


def suite_lines(stream: Stream) -> Iterator[str]:
    """The stream in the event notation of the YAML test suite, one line per event."""
    yield "+STR"
    for kind, style, value, anchor, tag in stream.events:
        properties = (f" &{anchor}" if anchor is not None else "") + (f" <{tag}>" if tag is not None else "")
        match kind:
            case 0:
                yield "+DOC" + (" ---" if style else "")
            case 1:
                yield "-DOC" + (" ..." if style else "")
            case 2:
                yield "+SEQ" + (" []" if style else "") + properties
            case 4:
                yield "+MAP" + (" {}" if style else "") + properties
            case 3:
                yield "-SEQ"
            case 5:
                yield "-MAP"
            case 6:
                yield f"=VAL{properties} {style}{value.translate(_ESCAPES)}"
            case _:
                yield f"=ALI *{value}"
    yield "-STR"


CASES = Path(__file__).resolve().parents[4] / "shared" / "cases"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the folder of cases does not lie beside this repository")


def load(name: str) -> list[dict[str, Any]]:
    path = CASES / name
    return json.loads(path.read_text("utf-8")) if path.is_file() else []


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("case", load("yaml-test-suite.json"), ids=lambda case: case["id"])
def test_the_parser_agrees_with_the_yaml_test_suite(case: dict[str, Any], lenient: bool) -> None:
    if case["invalid"]:
        with pytest.raises(SyntaxFault):
            parse(case["yaml"], lenient_closers=lenient)
    else:
        stream = parse(case["yaml"], lenient_closers=lenient)
        assert "\n".join(suite_lines(stream)) + "\n" == case["events"]


@pytest.mark.parametrize("case", load("yaml.json"), ids=lambda case: case["name"])
def test_a_sample_gives_its_first_answer(case: dict[str, Any]) -> None:
    expect = case["expect"]
    key = "text" if case["op"] == "get" else "result_source"
    wanted = (None, expect["error_code"]) if "error_code" in expect else (expect[key], None)
    found: tuple[str | None, int | None]
    try:
        tree = read_tree(case["source"])
        text = get_at(tree, case["path"]) if case["op"] == "get" else set_at(tree, case["path"], case["value"]).text
        found = (text, None)
    except YamlError as fault:
        found = (None, int(fault.code))
    assert found == wanted
