"""The commands and their options; completion scripts are generated from this parser too.

If a command calls one operation, its options (`dest`) are named like the operation's parameters, for `params_of`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from kernel import VERSION
from kernel.cli import EXIT_USAGE, later
from kernel.cli.commands import FAMILIES
from proto.control.address import default_data_dir
from proto.control.commands import TAKES_SERVER, AddCommand, Group, Run
from proto.names import module
from proto.suggestions import did_you_mean, nearest

EPILOG = """\
a first session:
  linckia serve ~/notes &                          start, with ~/notes as the only folder that clients can access
  linckia status                                   the services, and how often each has died
  linckia search what to look for                  find notes about it
  linckia tools                                    list the operations that can be called
  linckia call mcp_echo '{"message": "hello"}'     call one: JSON in, JSON out

for an MCP client's configuration (joins the running kernel, or starts one):
  linckia stdio ~/notes

for the MCP servers that you have already:
  linckia mcp import                               supervise the servers of Claude Code, Cursor, VS Code, …

`linckia help COMMAND` explains a command; `linckia doctor` checks what this machine lacks.
"""


class _Parser(argparse.ArgumentParser):
    _is_mixing = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups: dict[Group, list[argparse.Action]] = {}
        """The commands, for the help of the whole program."""

    def format_help(self) -> str:
        """Return the help; the commands of the whole program are listed in groups."""
        if not self.groups:
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        formatter.start_section("options")
        formatter.add_arguments(action for action in self._optionals._group_actions)
        formatter.end_section()
        for group in Group:
            formatter.start_section(group)
            formatter.add_arguments(self.groups.get(group, ()))
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def parse_known_args(  # type: ignore[override]  # argparse declares overloads for other namespaces
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; a command that takes a server's command (`TAKES_SERVER`) gets what follows `--` as `server`."""
        if not self.get_default(TAKES_SERVER):
            parsed, unknown = self._mixed(args, namespace)
            strange = [text for text in unknown if text.startswith("-") and text not in ("-", "--")]
            if strange and self.get_default("run"):
                # Only a command knows its options, so it reports this before the whole parser does.
                given = strange[0].partition("=")[0]
                options = [name for action in self._actions for name in action.option_strings]
                near = did_you_mean(given, options) or f"; its options: {', '.join(filter(_is_long, options))}"
                self.error(f"there is no option {given}{near}")
            if unknown and self.get_default("run") and not self._is_mixing:
                self.error(f"one argument too many: {unknown[0]}")
            return parsed, unknown
        argv = list(args or ())
        end = argv.index("--") if "--" in argv else len(argv)
        found, unknown = super().parse_known_args(argv[:end], namespace)
        if unknown and end == len(argv) and not unknown[0].startswith("-"):
            self.error(f"the server's command goes after `--`: {self.prog} … -- {' '.join(unknown)}")
        found.server = argv[end + 1 :]
        return found, unknown

    def _mixed(
        self, args: Sequence[str] | None, namespace: argparse.Namespace | None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; arguments of a command may stand before, between and after its options."""
        if self._is_mixing or not self.get_default("run") or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._is_mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\nTry: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        # argparse's own message would list every choice, in its own notation.
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(None, f"there is no {action.dest} {value!r}{nearest(str(value), choices)}")


def _is_long(option: str) -> bool:
    return option.startswith("--")


GLOBAL = {"--data": True, "--json": False, "--verbose": False, "-v": False}
"""Options that may also precede the command, and whether they take a value."""


def commands_of(parser: argparse.ArgumentParser) -> Collection[str]:
    """Return the names of the commands."""
    return next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def reordered(argv: Sequence[str], commands: Collection[str]) -> list[str]:
    """Return the command line with global options after the command; `help [COMMAND]` becomes `[COMMAND] --help`."""
    before, given = _apart(argv)
    if given and given[0] == "help" and "help" not in commands:
        return [*given[1:2], "--help"]
    if given and given[0] in commands:
        return [given[0], *before, *given[1:]]
    return before + given


def _apart(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the global options before the command, and the rest."""
    given = list(argv)
    before: list[str] = []
    while given and given[0].partition("=")[0] in GLOBAL:
        takes_value = GLOBAL[given[0].partition("=")[0]] and "=" not in given[0]
        before += [given.pop(0)] + ([given.pop(0)] if takes_value and given else [])
    return before, given


def build_parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return a parser for all commands and their options, or for some that include the one that `argv` names."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="linckia",
        description="A fault-tolerant back end for AI agents: an MCP server whose services survive their own crashes.",
        epilog=EPILOG,
        formatter_class=formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"linckia {VERSION}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    data = _Parser(add_help=False)
    data_help = f"data directory; each has its own kernel (default: $LINCKIA_DATA, else {default_data_dir()})"
    data.add_argument("--data", metavar="DIR", help=data_help.replace("%", "%%"))

    def command(name: str, run: Run | str, help: str, epilog: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=help, description=help, epilog=epilog, parents=[data], formatter_class=formatter,
            allow_abbrev=False,
        )  # fmt: skip
        sub.set_defaults(run=later(run) if isinstance(run, str) else run)
        return sub

    _, given = _apart(argv)
    for group, family in chain(FAMILIES, _of_services()):
        family(command)
        of_group = parser.groups.setdefault(group, [])
        of_group += commands._choices_actions[sum(map(len, parser.groups.values())) :]
        if given and given[0] in commands.choices:
            break
    return parser


def _of_services() -> Iterator[tuple[Group, Callable[[AddCommand], None]]]:
    """Yield what declares the commands of each service; found by their files, since the kernel names no service."""
    services = module("services")
    for place in import_module(services).__path__:
        for found in sorted(Path(place).glob("*/commands.py")):
            declared = import_module(f"{services}.{found.parent.name}.commands")
            yield declared.GROUP, declared.add
