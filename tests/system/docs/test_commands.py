"""Every command of Linckia that the documentation shows is one that Linckia has, and those that can are run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kernel.cli.parser import build_parser, reordered
from tests.system.docs.pages import PAGES, commands, words
from tests.system.running import REPOSITORY, RunningKernel, running

NOT_RUN = {
    "serve": "does not end",
    "stdio": "does not end; the tutorial connects through it",
    "top": "does not end",
    "proxy": "does not end",
    "wrap": "does not end",
    "torture": "takes a minute; the system test of it storms small servers",
    "stop": "ends the kernel of the others; the tutorial does",
    "service": "needs systemd",
    "mcp": "its servers are on the Internet; the tutorial mounts one",
    "models": "downloads",
    "install-client": "asks; unit tests run it for every client",
    "restore": "needs the backup of the page; the tutorial does",
    "import": "needs an export; the system tests of it have one",
    "import-chats": "needs conversations; the system tests of it have some",
    "resume": "needs conversations; the system tests of it have some",
    "export-chat": "needs conversations; the system tests of it have some",
    "reembed": "needs a cluster; the system test of it starts one",
    "migrate": "needs a PostgreSQL server; tests of stores start one",
}
"""Commands that are parsed only."""

PLACEHOLDER = re.compile(r"^(…|\.\.\.)$|…|^\[?[A-Z][A-Z_]+…?\]?$|^\[|[|$]")
"""A word that stands for something of the reader's."""

EXAMPLES = {
    "NAME": "echo", "SERVICE": "echo", "SHELL": "bash", "DIR": "out", "PATH…": "notes", "[PATH…]": "notes",
    "PATH": "notes", "WORDS…": "limb", "TARGET": "out",
}  # fmt: skip


def documented() -> list[tuple[str, str]]:
    found = dict.fromkeys((page.relative_to(REPOSITORY).as_posix(), one) for page in PAGES for one in commands(page))
    return list(found)


def arguments(command: str) -> list[str]:
    """The words of a command as somebody might type them."""
    command = re.split(r" \| (?=[a-z])", command.split("  ", maxsplit=1)[0])[0]
    return [re.sub(r"^~(?=/|$)", ".", EXAMPLES.get(word, word)) for word in words(command)]


@pytest.mark.parametrize(("page", "command"), documented())
def test_documented_commands_exist(page: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = arguments(command)
    if any(PLACEHOLDER.search(word) for word in given) or given[0].endswith(","):
        # A form, not a command: its name and options must exist.
        given = [given[0], "--help"] if given[0] in names() else given
    try:
        build_parser().parse_args(reordered(given, names()))
        code: object = 0
    except SystemExit as end:
        code = end.code
    assert code == 0, f"{page}: {command}: {capsys.readouterr().err}"


def names() -> set[str]:
    (found,) = (action.choices for action in build_parser()._actions if isinstance(action.choices, dict))
    return set(found)


def test_commands_excluded_from_the_run_exist() -> None:
    assert NOT_RUN.keys() <= names()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("commands")
    (folder / "notes").mkdir()
    (folder / "notes" / "deploy.md").write_text("# Deploy\n\n## Backups\n\n### Daily\n\nAt three.\n")
    with running(folder / "data", [folder / "notes"]) as found:
        yield found


def runnable() -> list[tuple[str, str]]:
    """Return commands that can be run, and a page of each; what several pages show is run once."""
    once = {tuple(arguments(command)): (page, command) for page, command in reversed(documented())}
    return [
        (page, command)
        for page, command in reversed(once.values())
        if arguments(command)[0] in names() - NOT_RUN.keys()
        and not any(PLACEHOLDER.search(word) for word in arguments(command))
        and not {"-f", "--follow"} & set(arguments(command))
    ]


@pytest.mark.slow
def test_documented_commands_run(kernel: RunningKernel) -> None:
    """One after the other: a wrong use ends with 2, which none of them may; failing for want of data is no defect."""
    folder = kernel.data_dir.parent
    shown = runnable()
    assert len(shown) > 40
    done = subprocess.run(
        [sys.executable, "-m", "tests.system.docs.run_commands", str(folder)],
        input=json.dumps([arguments(command) for _, command in shown]),
        cwd=REPOSITORY,
        env={**os.environ, "LINCKIA_DATA": str(kernel.data_dir), "HOME": str(folder)},
        stdout=subprocess.PIPE, text=True, timeout=240, check=True,
    )  # fmt: skip
    outcomes = json.loads(done.stdout)
    wrong = [
        f"{page}: {command}\n{stderr}"
        for (page, command), (code, stderr) in zip(shown, outcomes, strict=True)
        if code == 2 or "Traceback" in stderr
    ]
    assert wrong == []
