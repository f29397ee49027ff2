"""The pages for those who come from other programs name commands, options, tools and parameters that are there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import msgspec
import pytest

from kernel.cli.parser import build_parser
from proto import ops
from services.front.surfaces.steps import Steps

REPOSITORY = Path(__file__).resolve().parents[3]
PAGES = sorted((REPOSITORY / "docs" / "coming-from").glob("*.md"))
MAX_LINES = 120

TABLE = ops.load()
_NAME = re.compile(r"`([a-z]+(?:[-_][a-z]+)+|mcp\.[a-z]+|query|execute|session)`")
_COMMAND = re.compile(r"(?:^ {4,}|^|`)(linckia [^`\n]*)", re.MULTILINE)
_THEIRS = re.compile(r"`[^`\n]*\b(?:yams|amalfa|noyalib-mcp|tapes|mcp-space-browser)\b[^`\n]*`")


def _known() -> set[str]:
    """Names of tools, steps, services' parameters and results."""
    operations = [op for op in TABLE.values() if op.admits("client")]
    names = {name for op in operations for name in (op.name, op.step, *op.former) if name}
    for op in operations:
        names |= {field.name for field in msgspec.structs.fields(op.params)} | set(op.params.taken)
        schema = json.dumps(op.output_schema)
        names |= set(re.findall(r'"([a-z]\w+)": \{', schema))
    return names


def test_there_is_a_page_for_each_and_the_readme_links_it() -> None:
    assert {page.stem for page in PAGES} == {"amalfa", "noyalib", "space-browser", "tapes", "yams"}
    readme = (REPOSITORY / "README.md").read_text()
    assert [page.name for page in PAGES if f"(docs/coming-from/{page.name})" not in readme] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_paths_and_operations_named_in_a_page_exist(page: Path) -> None:
    text = page.read_text()
    assert text.count("\n") <= MAX_LINES
    known = _known()
    assert [name for name in _NAME.findall(_THEIRS.sub("", text)) if name not in known] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_are_commands(page: Path) -> None:
    parser = build_parser()
    found = _COMMAND.findall(page.read_text())
    assert found
    for command in found:
        words = shlex.split(re.split(r" {3,}|instead of:| < /dev/null", command)[0].replace("…", ""), comments=True)
        given = parser.parse_args(words[1:])
        if words[1] == "call" and not words[-1].startswith("$"):
            parameters = json.loads(words[3]) if len(words) > 3 else {}
            TABLE.find(words[2]).parse(parameters)
        assert given.command == words[1]


def test_the_steps_named_for_yams_exist() -> None:
    text = (REPOSITORY / "docs" / "coming-from" / "yams.md").read_text()
    first = text[text.index("The steps of `query`") : text.index("The actions")]
    steps = set(re.findall(r"`([a-z_]+)`", first)) - {"query", "execute"}
    ours = Steps("documents", TABLE)
    assert steps == {"describe", *ours.query, *ours.execute}
