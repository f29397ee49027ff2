"""`linckia tools`: what can be called, read from the table of operations, with or without a running kernel."""

from __future__ import annotations

import argparse
import difflib
import json
import sys

from kernel.cli import table
from kernel.cli.main import Usage
from kernel.gateway.surfaces import SURFACES, Surface
from proto.operation import Access
from proto.ops import load

_STYLES = {Access.READ: "", Access.WRITE: "yellow", Access.DESTRUCTIVE: "red"}


def tools(arguments: argparse.Namespace) -> int:
    """Print the tools of one surface.  Raises Usage where there is none of that name."""
    if arguments.surface not in SURFACES:
        near = difflib.get_close_matches(arguments.surface, SURFACES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(SURFACES)}"
        raise Usage(f"there is no surface {arguments.surface!r}; {hint}")
    surface = Surface(arguments.surface, load())
    if arguments.json:
        print(json.dumps(surface.listed_tools, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))
        return 0
    table.show(
        ("TOOL", "SERVICE", "ACCESS", "WHAT IT DOES"),
        [
            (op.name, op.service, (op.access.value, _STYLES[op.access]), first_sentence(op.description))
            for op in sorted(surface.tools.values(), key=lambda op: (op.service, op.name))
        ],
    )
    return 0


def first_sentence(description: str) -> str:
    """Up to the first full stop or blank line, on one line."""
    paragraph = " ".join(description.split("\n\n", 1)[0].split())
    return paragraph.split(". ", 1)[0].rstrip(".")
