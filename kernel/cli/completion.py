"""`linckia completion`: a script for bash, zsh or fish, derived from the parser and the table of operations.

The words are in the script itself, so that completing starts no process; make it anew after an upgrade.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from kernel.cli.parser import build_parser
from kernel.gateway.surfaces import SURFACES
from proto.operation import OPERATOR
from proto.ops import load


@dataclass(frozen=True)
class Option:
    """`values` are the words it may be given; None where it takes a file, a folder or a free word."""

    flags: tuple[str, ...]
    takes_value: bool
    values: tuple[str, ...] | None
    help: str


@dataclass(frozen=True)
class CommandWords:
    """One command; `argument` holds the words of its first argument, None where it takes paths or nothing."""

    name: str
    help: str
    options: tuple[Option, ...]
    argument: tuple[str, ...] | None


def completion(arguments: argparse.Namespace) -> int:
    """Print the script."""
    writers = {"bash": bash, "zsh": zsh, "fish": fish}
    print(writers[arguments.shell](list(commands())))
    return 0


def commands() -> Iterator[CommandWords]:
    """Every command with its words, as parser and table have them."""
    table = load()
    words = {
        "NAME": tuple(sorted(name for name, op in table.items() if op.admits(OPERATOR))),
        "SERVICE": tuple(sorted({op.service for op in table.values()} - {"kernel"})),
    }
    subparsers = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    helps = {choice.dest: choice.help or "" for choice in subparsers._choices_actions}
    for name, parser in subparsers.choices.items():
        options: list[Option] = []
        argument: tuple[str, ...] | None = None
        for action in parser._actions:
            choices = tuple(map(str, action.choices)) if action.choices else None
            if action.help == argparse.SUPPRESS:
                continue
            if action.option_strings:
                values = SURFACES if "--surface" in action.option_strings else choices
                options.append(Option(tuple(action.option_strings), action.nargs != 0, values, action.help or ""))
            elif argument is None:
                argument = choices or words.get(str(action.metavar))
        yield CommandWords(name, helps[name], tuple(options), argument)


def bash(all_commands: list[CommandWords]) -> str:
    """For bash-completion's folder, or `source`."""
    cases, values = [], []
    for command in all_commands:
        flags = " ".join(flag for option in command.options for flag in option.flags)
        argument = " ".join(command.argument or ())
        cases.append(f'        {command.name}) flags="{flags}"; words="{argument}" ;;')
        for option in command.options:
            if option.values:
                pattern = "|".join(f"{command.name}:{flag}" for flag in option.flags)
                values.append(
                    f'        {pattern}) COMPREPLY=($(compgen -W "{" ".join(option.values)}" -- "$cur")); return ;;'
                )
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
    """For a folder of `fpath`, as `_linckia`."""
    described = " ".join(_quoted(f"{c.name}:{c.help}") for c in all_commands)
    cases = []
    for command in all_commands:
        specs = []
        for option in command.options:
            for flag in option.flags:
                value = f":value:{_zsh_values(option.values)}" if option.takes_value else ""
                specs.append(_quoted(f"{flag}[{_zsh_text(option.help)}]{value}"))
        if command.argument:
            specs.append(_quoted(f"1:argument:({' '.join(command.argument)})"))
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
    """For `~/.config/fish/completions`."""
    lines = ["# fish completion for linckia"]
    for command in all_commands:
        lines.append(f"complete -c linckia -n __fish_use_subcommand -f -a {command.name} -d {_quoted(command.help)}")
        here = f"-n '__fish_seen_subcommand_from {command.name}'"
        if command.argument:
            lines.append(f"complete -c linckia {here} -f -a {_quoted(' '.join(command.argument))}")
        for option in command.options:
            flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
            value = (
                f" -x -a {_quoted(' '.join(option.values))}" if option.values else " -r" if option.takes_value else ""
            )
            lines.append(f"complete -c linckia {here} {flags}{value} -d {_quoted(option.help)}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _zsh_text(text: str) -> str:
    return text.replace("[", "(").replace("]", ")").replace(":", "\\:")


def _zsh_values(values: tuple[str, ...] | None) -> str:
    return f"({' '.join(values)})" if values else "_files"
