"""`linckia tools`: the operations that can be called, from their table, with or without a running kernel."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import msgspec

from proto.control.commands import Failed, Usage
from proto.control.terminal import Cell, say, show_answer, show_json, show_table
from proto.errors import UnknownOperation
from proto.json_types import JsonObject
from proto.operation import CLIENT, OPERATOR, SURFACES, Access, Operation, Role
from proto.ops import Table, load
from proto.suggestions import nearest
from services.front.surfaces.surface import Surface

_STYLES = {Access.READ: "", Access.WRITE: "yellow", Access.DESTRUCTIVE: "red"}


def tools(arguments: argparse.Namespace) -> int:
    """Print the tools of one surface. Raises Usage if it does not exist."""
    if arguments.surface not in SURFACES:
        raise Usage(f"there is no surface {arguments.surface!r}{nearest(arguments.surface, SURFACES)}")
    table = load()
    if arguments.name:
        try:
            operation = table.find(arguments.name)
        except UnknownOperation as error:
            raise Failed(str(error)) from None
        return _explain(operation, as_json=arguments.json)
    if arguments.markdown:
        say(*markdown(table))
        return 0
    if arguments.callers:
        found = callers(table)
        by_service = [(op.service, op.name, ", ".join(found[op.name])) for op in table.values()]
        show_answer(arguments.json, found, ("SERVICE", "OPERATION", "CALLERS"), sorted(by_service))
        return 0
    surface = Surface(arguments.surface, table)
    rows = [
        (op.name, op.service, (op.access.value, _STYLES[op.access]), first_sentence(op.description))
        for op in sorted(surface.listed, key=lambda op: (op.service, op.name))
    ]
    show_answer(arguments.json, surface.listed_tools, ("TOOL", "SERVICE", "ACCESS", "WHAT IT DOES"), rows)
    return 0


def _explain(op: Operation[Any], *, as_json: bool) -> int:
    """Print what one operation does, its parameters, and how to call it."""
    if as_json:
        show_json({"name": op.name, "description": op.description, "inputSchema": op.input_schema})
        return 0
    repeatable = "safe to repeat" if op.idempotent else "not safe to repeat"
    say((op.name, "bold"), op.description, "", f"service {op.service}, {op.access.value}, {repeatable}", "")
    definitions, required = op.input_schema.get("$defs", {}), op.input_schema.get("required", [])
    properties: JsonObject = op.input_schema.get("properties", {})
    rows: list[list[Cell]] = [
        [name, _type(schema, definitions), "required" if name in required else _default(schema), _about(schema)]
        for name, schema in properties.items()
    ]
    if rows:
        show_table(("PARAMETER", "TYPE", "DEFAULT", "MEANING"), rows)
    else:
        say("It has no parameters.")
    example = {name: _example(properties[name], definitions) for name in required}
    call = f"linckia call {op.name}" + (f" '{msgspec.json.encode(example).decode()}'" if example else "")
    if op.admits(CLIENT) or op.admits(OPERATOR):
        say("", "example:", f"  {call}")
    return 0


def _resolved(schema: JsonObject, definitions: JsonObject) -> JsonObject:
    """Return the schema behind a reference, and of "or null" the other choice."""
    if "$ref" in schema:
        return _resolved(definitions.get(schema["$ref"].rpartition("/")[2], {}), definitions)
    choices = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return _resolved(choices[0], definitions) if len(choices) == 1 else schema


def _type(schema: JsonObject, definitions: JsonObject) -> str:
    found = _resolved(schema, definitions)
    if "enum" in found:
        return "|".join(map(str, found["enum"]))
    if found.get("type") == "array" and "items" in found:
        return f"list of {_type(found['items'], definitions)}"
    return str(found.get("type", "any"))


def _default(schema: JsonObject) -> str:
    default = schema.get("default")
    return "-" if default is None else msgspec.json.encode(default).decode()


def _about(schema: JsonObject) -> str:
    choices = [each.get("description", "") for each in schema.get("anyOf", ())]
    return str(schema.get("description") or next(filter(None, choices), ""))


def _example(schema: JsonObject, definitions: JsonObject) -> object:
    found = _resolved(schema, definitions)
    if "enum" in found:
        return found["enum"][0]
    examples: JsonObject = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    return examples.get(str(found.get("type")), "…")


def markdown(table: Table) -> Iterator[str]:
    """Yield a table of everything that clients may call, by service: tools, steps, and HTTP routes."""
    yield "| service | operation | as | access | what it does |"
    yield "|---|---|---|---|---|"
    for op in sorted(table.values(), key=lambda op: (op.service, op.name)):
        forms = {Role.TOOL: "tool", Role.STEP: f"step `{op.step}`"}
        ways = [forms[op.role]] if op.role in forms else []
        ways += [f"`{op.http.method} {op.http.path}`"] if op.http is not None else []
        if ways and op.admits(CLIENT):
            yield _row(op.service, f"`{op.name}`", ", ".join(ways), op.access.value, first_sentence(op.description))
    for endpoint in table.endpoints:
        way = f"`{endpoint.route.method} {endpoint.route.path}`"
        yield _row(endpoint.service, "", way, "", first_sentence(endpoint.__doc__ or ""))


def callers(table: Table) -> dict[str, list[str]]:
    """Return who may call each operation: clients, the operator, services by name."""
    known = {CLIENT, OPERATOR}.union(*(op.callers for op in table.values()))
    return {name: sorted(filter(op.admits, known)) for name, op in table.items()}


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def first_sentence(description: str) -> str:
    """Return the text up to the first full stop or blank line, on one line."""
    paragraph = " ".join(description.split("\n\n", 1)[0].split())
    return paragraph.split(". ", 1)[0].rstrip(".")
