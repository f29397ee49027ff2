"""`linckia completion`: a script for bash, zsh or fish, generated from the parser and the table of operations.

The script contains all words, so completion starts no process. Generate it again after an upgrade.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from linckia.kernel.cli.parser import build_parser
from linckia.kernel.cli.terminal import say
from linckia.proto.operation import OPERATOR, SURFACES
from linckia.proto.ops import load


class CommandWords(NamedTuple):
    """One command. `argument` has the words for its first argument; empty if it takes paths or nothing."""

    name: str
    help: str
    options: list[argparse.Action]
    argument: str


def completion(arguments: argparse.Namespace) -> int:
    """Print the script."""
    writers = {"bash": bash, "zsh": zsh, "fish": fish}
    say(*writers[arguments.shell](list(commands())).split("\n"))
    return 0


def commands() -> Iterator[CommandWords]:
    """Yield every command with its words, from the parser and the table."""
    table = load()
    words = {
        "NAME": " ".join(sorted(name for name, op in table.items() if op.admits(OPERATOR))),
        "SERVICE": " ".join(sorted({op.service for op in table.values()} - {"kernel"})),
    }
    subparsers = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    helps = {choice.dest: choice.help or "" for choice in subparsers._choices_actions}
    for name, parser in subparsers.choices.items():
        shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        options = [action for action in shown if action.option_strings]
        positional = next((action for action in shown if not action.option_strings), None)
        argument = "" if positional is None else words_of(positional) or words.get(str(positional.metavar), "")
        yield CommandWords(name, helps[name], options, argument)


def words_of(action: argparse.Action) -> str:
    """Return the words that an option accepts; empty if it takes a file, a folder or free text."""
    return " ".join(SURFACES if "--surface" in action.option_strings else map(str, action.choices or ()))


def bash(all_commands: list[CommandWords]) -> str:
    """Return the script for bash-completion's folder, or for `source`."""
    cases, values = [], []
    for command in all_commands:
        flags = " ".join(flag for option in command.options for flag in option.option_strings)
        cases.append(f'        {command.name}) flags="{flags}"; words="{command.argument}" ;;')
        for option in filter(words_of, command.options):
            pattern = "|".join(f"{command.name}:{flag}" for flag in option.option_strings)
            values.append(f'        {pattern}) COMPREPLY=($(compgen -W "{words_of(option)}" -- "$cur")); return ;;')
    names = " ".join(command.name for command in all_commands)
    lines = (
        "# bash completion for linckia",
        "_linckia() {",
        '    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} flags="" words=""',
        "    if ((COMP_CWORD == 1)); then",
        f'        COMPREPLY=($(compgen -W "{names} --help --version" -- "$cur")); return',
        "    fi",
        '    case "${COMP_WORDS[1]}:$prev" in',
        *values,
        "    esac",
        '    case "${COMP_WORDS[1]}" in',
        *cases,
        "    esac",
        "    if [[ $cur == -* ]]; then",
        '        COMPREPLY=($(compgen -W "$flags" -- "$cur"))',
        "    elif [[ -n $words && $COMP_CWORD -eq 2 ]]; then",
        '        COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "    else",
        '        COMPREPLY=($(compgen -f -- "$cur"))',
        "    fi",
        "}",
        "complete -o filenames -F _linckia linckia",
    )
    return "\n".join(lines)


def zsh(all_commands: list[CommandWords]) -> str:
    """Return the script for a folder in `fpath`, as `_linckia`."""
    described = " ".join(_quoted(f"{c.name}:{c.help}") for c in all_commands)
    cases = []
    for command in all_commands:
        specs = []
        for option in command.options:
            for flag in option.option_strings:
                words = f"({words_of(option)})" if words_of(option) else "_files"
                value = f":value:{words}" if option.nargs != 0 else ""
                text = (option.help or "").replace("[", "(").replace("]", ")").replace(":", "\\:")
                specs.append(_quoted(f"{flag}[{text}]{value}"))
        if command.argument:
            specs.append(_quoted(f"1:argument:({command.argument})"))
        specs.append(_quoted("*:file:_files"))
        cases.append(f"        {command.name}) _arguments {' '.join(specs)} ;;")
    lines = (
        "#compdef linckia",
        "_linckia() {",
        "    if ((CURRENT == 2)); then",
        f"        local -a names=({described})",
        "        _describe command names",
        "        return",
        "    fi",
        "    local name=$words[2]",
        "    shift words; ((CURRENT--))",
        "    case $name in",
        *cases,
        "    esac",
        "}",
        '_linckia "$@"',
    )
    return "\n".join(lines)


def fish(all_commands: list[CommandWords]) -> str:
    """Return the script for `~/.config/fish/completions`."""
    lines = ["# fish completion for linckia"]
    for command in all_commands:
        lines.append(f"complete -c linckia -n __fish_use_subcommand -f -a {command.name} -d {_quoted(command.help)}")
        here = f"-n '__fish_seen_subcommand_from {command.name}'"
        if command.argument:
            lines.append(f"complete -c linckia {here} -f -a {_quoted(command.argument)}")
        for option in command.options:
            named = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.option_strings]
            words = words_of(option)
            value = f" -x -a {_quoted(words)}" if words else " -r" if option.nargs != 0 else ""
            lines.append(f"complete -c linckia {here} {' '.join(named)}{value} -d {_quoted(option.help or '')}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
