"""`linckia tools`: the operations that can be called."""

from __future__ import annotations

import argparse

from proto.control.commands import AddCommand, Group

GROUP = Group.USE


def add(command: AddCommand) -> None:
    """Declare `tools`."""
    tools = command("tools", run_tools, "list the operations that can be called; needs no running kernel")
    tools.add_argument("name", metavar="NAME", nargs="?", help="explain this operation: its parameters, and an example")
    tools.add_argument("--surface", metavar="NAME", default="all", help="only this tool surface (default: all)")
    tools.add_argument("--callers", action="store_true", help="every operation and who may call it, including services")
    form = tools.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="with descriptions and JSON Schemas")
    form.add_argument("--markdown", action="store_true", help="a table of services and their operations, as Markdown")


def run_tools(arguments: argparse.Namespace) -> int:
    """Print the tools of one surface. Raises Usage if it does not exist."""
    from services.front.listing import tools  # imports every operation

    return tools(arguments)
