"""Reference surfaces list every tool and parameter of their reference page, with the same required parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto import ops
from proto.operation import CLIENT, REFERENCES
from services.front.surfaces.surface import Surface

PAGES = Path(__file__).resolve().parents[5] / "shared" / "reference"
TABLE = ops.load()

Parameters = dict[str, bool]
"""Names, each with whether it is required."""


def page(name: str) -> str:
    path = PAGES / name
    if not path.is_file():
        pytest.skip(f"the reference pages are not here: {path}")
    return path.read_text("utf-8")


def of_files() -> Iterator[tuple[str, Parameters]]:
    for name, section in re.findall(
        r"^#### (\S+)\n(.*?)(?=^####? |^## |\Z)", page("space-browser-mcp.md"), re.M | re.S
    ):
        rows = re.findall(r"^\| (\w+) \| [^|]+ \| (Yes|No) \|", section, re.M)
        yield name, {parameter: required == "Yes" for parameter, required in rows}


def of_knowledge() -> Iterator[tuple[str, Parameters]]:
    signatures = re.findall(r"^```typescript\n(\w+)\(([^)]*)\): ", page("amalfa-mcp-tools.md"), re.M)
    for name, signature in signatures:
        names = re.findall(r"(\w+)(\??): ", signature)
        yield name, {parameter: not optional for parameter, optional in names}


def of_yaml() -> Iterator[tuple[str, Parameters]]:
    text = page("noyalib-mcp-tools.md")
    for name, schema in re.findall(r"^### `(\w+)`\n.*?\*\*Input schema:\*\*\n```json\n(.*?)```", text, re.M | re.S):
        read: dict[str, Any] = json.loads(schema)
        yield name, {parameter: parameter in read["required"] for parameter in read["properties"]}


def of_transcripts() -> Iterator[tuple[str, Parameters]]:
    found = re.search(r"^search\n.*?^Input Parameters\n(.*?)^Output Format", page("tapes-mcp-api.txt"), re.M | re.S)
    assert found is not None
    rows = re.findall(r"^(\w+) .*\((required|optional)", found[1], re.M)
    yield "search", {parameter: required == "required" for parameter, required in rows}


def of_documents() -> Iterator[tuple[str, Parameters]]:
    """The composite tools; their steps are below."""
    text = page("yams-mcp-tools.txt")
    for section in re.finditer(r"^Tool \d: (\w+).*?^Input Schema:\n(?=\{)", text, re.M | re.S):
        name = section[1]
        read: dict[str, Any] = json.JSONDecoder().raw_decode(text, section.end())[0]
        yield name, {parameter: parameter in read["required"] for parameter in read["properties"]}


READERS = {
    "files": (of_files, 49),
    "knowledge": (of_knowledge, 8),
    "yaml": (of_yaml, 2),
    "transcripts": (of_transcripts, 1),
    "documents": (of_documents, 3),
}


def test_every_reference_has_its_reader() -> None:
    assert set(READERS) == set(REFERENCES)


@pytest.mark.parametrize("surface", REFERENCES)
def test_a_surface_lists_the_tools_and_parameters_of_its_reference(surface: str) -> None:
    reader, count = READERS[surface]
    expected = dict(reader())
    assert len(expected) == count
    listed = {tool["name"]: tool["inputSchema"] for tool in Surface(surface, TABLE).listed_tools}
    for name, parameters in expected.items():
        assert set(parameters) <= set(listed[name]["properties"]), name
        required = {parameter for parameter, is_required in parameters.items() if is_required}
        assert set(listed[name].get("required", ())) == required, name


def test_types_of_the_reference_are_accepted() -> None:
    # Only this page has a column of types.
    listed = {tool["name"]: tool["inputSchema"]["properties"] for tool in Surface("files", TABLE).listed_tools}
    text = page("space-browser-mcp.md")
    for name, section in re.findall(r"^#### (\S+)\n(.*?)(?=^####? |^## |\Z)", text, re.M | re.S):
        for parameter, kind in re.findall(r"^\| (\w+) \| ([^|]+) \| (?:Yes|No) \|", section, re.M):
            types = kinds(listed[name][parameter])
            if kind.endswith("[]"):
                assert types == {"array"}, (name, parameter)
                assert kinds(listed[name][parameter]["items"]) == {kind.removesuffix("[]")}, (name, parameter)
            else:
                assert kind in types or (kind == "number" and "integer" in types), (name, parameter, kind, types)


def kinds(schema: dict[str, Any]) -> set[str]:
    return {each["type"] for each in schema.get("anyOf", [schema])}


OTHERWISE = {("search", "query"): "hash", ("get", "hash"): "name", ("add", "path"): "content"}
"""Parameters that the reference's table says are required, and what its text takes instead of them."""


def test_the_steps_of_documents_have_the_parameters_of_the_reference() -> None:
    surface = Surface("documents", TABLE)
    text = page("yams-mcp-tools.txt")
    sections = re.findall(r"^(\w+)¶\n(?:(?!¶)[\s\S])*?^(?:Key )?Parameters:\n((?:(?!¶|Example)[\s\S])*)", text, re.M)
    seen = set()
    for name, section in sections:
        found = surface.steps.find(name)
        assert found is not None, name
        schema = found[1].input_schema
        for parameter, rest in re.findall(r"^(\w+) \|\n(?!Type)(.*)", section, re.M):
            seen.add((name, parameter))
            assert parameter in schema["properties"], (name, parameter)
            if "(required)" in rest:
                instead = OTHERWISE.get((name, parameter))
                assert instead in schema["properties"] if instead else parameter in schema["required"]
    assert {name for name, _ in seen} == {
        "search", "grep", "list", "get", "graph", "status", "add", "update", "delete", "restore"
    }  # fmt: skip
    assert len(seen) > 50


@pytest.mark.parametrize("surface", ["core", "all"])
def test_other_surfaces_have_one_name_for_one_thing(surface: str) -> None:
    made = Surface(surface, TABLE)
    for tool in made.listed_tools:
        names = set(tool["inputSchema"]["properties"])
        assert not names & set(made.tools[tool["name"]].params.common), tool["name"]


def _respelled() -> list[tuple[str, str, str]]:
    return [
        (op.name, declared, common)
        for op in TABLE.values()
        if op.admits(CLIENT)
        for declared, common in op.params.common.items()
    ]


@pytest.mark.parametrize(("name", "declared", "common"), _respelled())
def test_both_spellings_are_accepted_everywhere(name: str, declared: str, common: str) -> None:
    operation = TABLE[name]
    given = {"name": "a", "query": "q", "field": "mtime", "tags": ["a"]}
    base = {key: value for key, value in given.items() if key in operation.input_schema.get("required", ())}
    value = 5 if declared == "top_k" else "2026-01-01" if common in ("since", "until") else "/a"
    assert operation.parse({**base, declared: value}) == operation.parse({**base, common: value})


@pytest.mark.parametrize("surface", ["knowledge", "files", "all", "core"])
def test_resources_have_the_uri_of_their_reference_or_our_own_scheme(surface: str) -> None:
    made = Surface(surface, TABLE)
    uris = [each["uri"] for each in made.listed_resources] + [each["uriTemplate"] for each in made.listed_templates]
    assert uris
    contract = {"amalfa://stats/summary"}
    named = page("space-browser-mcp.md").replace("`synthesis://nodes/{path}", "`synthesis://nodes/{+path}")
    for uri in uris:
        assert uri.startswith("linckia://") or uri in contract or f"`{uri}`" in named, uri


@pytest.mark.parametrize(
    ("own", "former", "name"),
    [
        ("linckia://notes/a%20b", "amalfa://notes/a%20b", "knowledge_note"),
        ("linckia://jobs/cancelled", "synthesis://jobs/cancelled", "files_jobs_cancelled"),
        ("linckia://jobs/cancelled?limit=5", "synthesis://jobs/cancelled?limit=5", "files_jobs_cancelled"),
    ],
)
def test_a_resource_of_our_own_is_read_by_its_former_uri_as_well(own: str, former: str, name: str) -> None:
    surface = Surface("all", TABLE)
    found = surface.find_resource(own)
    assert found is not None
    assert found[0].name == name
    assert surface.find_resource(former) == found
    resource = found[0].resource
    assert resource is not None
    assert surface.find_template(resource.uri) is surface.find_template(resource.former[0]) is found[0]


def test_a_tool_is_answered_by_the_name_of_the_reference_that_clients_refuse_in_a_list() -> None:
    assert "`mcp.echo`" in page("yams-mcp-tools.txt").replace("Utility Tool: mcp.echo", "`mcp.echo`")
    for name in (*REFERENCES, "core", "all", "compact"):
        surface = Surface(name, TABLE)
        assert "mcp.echo" not in {tool["name"] for tool in surface.listed_tools}
        assert surface.called.get("mcp.echo") is surface.tools.get("mcp_echo")
    assert TABLE.find("mcp.echo") is TABLE["mcp_echo"]
    found = Surface("core", TABLE).steps.find("mcp.echo")
    assert found is not None
    assert found[1] is TABLE["mcp_echo"]
