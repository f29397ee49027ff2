"""`linckia tools`: the operations that can be called, from their table, with or without a running kernel."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from linckia.kernel.cli import Usage
from linckia.kernel.cli.terminal import say, show_answer
from linckia.proto.operation import CLIENT, OPERATOR, SURFACES, Access, Role
from linckia.proto.ops import Table, load
from linckia.proto.suggestions import nearest
from linckia.proto.surfaces.surface import Surface

_STYLES = {Access.READ: "", Access.WRITE: "yellow", Access.DESTRUCTIVE: "red"}


def tools(arguments: argparse.Namespace) -> int:
    """Print the tools of one surface. Raises Usage if it does not exist."""
    if arguments.surface not in SURFACES:
        raise Usage(f"there is no surface {arguments.surface!r}{nearest(arguments.surface, SURFACES)}")
    table = load()
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
