"""The command line's own rules: arguments may stand between options, and errors name the command."""

from __future__ import annotations

from typing import Any

import pytest

from kernel.cli.parser import build_parser, commands_of, reordered
from proto.control.commands import Group


def parsed(line: str) -> dict[str, Any]:
    argv = line.split()
    parser = build_parser(argv)
    return vars(parser.parse_args(reordered(argv, commands_of(parser))))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("install-client vscode --project ~/notes", {"client": "vscode", "paths": ["~/notes"], "project": True}),
        ("serve /a --read-only /b", {"paths": ["/a", "/b"], "read_only": True}),
        ("token create --read-only ci", {"action": "create", "name": "ci", "read_only": True}),
        ("mcp add x -- command --flag", {"name": "x", "server": ["command", "--flag"]}),
    ],
)
def test_arguments_may_stand_before_between_and_after_options(line: str, expected: dict[str, Any]) -> None:
    found = parsed(line)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("status extra", "linckia status: one argument too many: extra"),
        ("stop yaml extra", "linckia stop: one argument too many: extra"),
        ("status --wathc", "linckia status: there is no option --wathc"),
        ("token", "linckia token: the following arguments are required"),
    ],
)
def test_an_error_names_the_command(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(line)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(said)


def test_each_command_is_listed_in_one_group() -> None:
    parser = build_parser()
    lines = parser.format_help().split("\n")
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line[2] not in " -"]
    of_examples = [name for name in listed if name == "linckia"]
    assert sorted(listed[: len(listed) - len(of_examples)]) == sorted(commands_of(parser))
    assert all(f"{group}:" in lines for group in Group)
