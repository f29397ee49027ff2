"""Untrusted text reaches a terminal as plain text: names, contents, logs and service messages never control it."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import pty
import subprocess
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from proto.control import terminal
from tests.system.cli.clients import command
from tests.system.running import REPOSITORY, RunningKernel, running

SERVICES = ("documents", "decode", "retrieve", "graph", "knowledge", "files", "compare", "watch")

CLI = REPOSITORY / "kernel" / "cli"

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\r\u202egnp.exe\u2066\u2028z"
"""Sets the title, clears the screen, and reverses the reading direction."""

FORGED = "\nlinckia: all is well"

ESCAPED = r"\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\r\u202egnp.exe\u2066\u2028z"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def is_harmless(text: str) -> bool:
    """Return True if no control characters except newlines and our own colours occur."""
    for colour in ("\x1b[32m", "\x1b[35m", "\x1b[0m"):
        text = text.replace(colour, "")
    return all(terminal.escaped(line) == line for line in text.split("\n"))


@pytest.mark.parametrize(
    "char",
    [*map(chr, (*range(0x20), *range(0x7F, 0xA0), 0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F))),
     *map(chr, (*range(0x2066, 0x206A), 0xD800, 0xDC80, 0xDFFF))],
    ids=lambda char: f"U+{ord(char):04X}",
)  # fmt: skip
def test_each_character_that_controls_a_terminal_is_escaped(char: str) -> None:
    assert terminal.escaped(f"a{char}b") == (
        f"a{char}b" if char == "\t" else f"a{char.encode('unicode_escape').decode()}b"
    )
    screen = Terminal()
    terminal.say(f"a{char}b", [("x", "green"), (char, "magenta")], to=screen)
    assert is_harmless(screen.getvalue())


@pytest.mark.parametrize("text", ["Grüße", "日本語", "👩\u200d💻", "a\tb", "a\u00a0b", "\\x1b"])
def test_harmless_text_is_not_escaped(text: str) -> None:
    assert terminal.escaped(text) == text


def test_json_stays_json_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {HOSTILE: [HOSTILE + FORGED, "\ud800", "é"]}
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        terminal.show_json(answer)
        assert json.loads(stream.getvalue()) == answer
        stream.getvalue().encode()
        assert is_harmless(stream.getvalue()) == stream.isatty()


def test_bytes_are_whole_for_a_pipe_and_text_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [b"\x1b[2J\xff", "é".encode()[:1], "é".encode()[1:], b"\r\na\n"]
    pipe = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", pipe)
    terminal.pour(pieces)
    assert pipe.buffer.getvalue() == b"".join(pieces)
    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    terminal.pour(pieces)
    assert screen.getvalue() == "\\x1b[2J\\xffé\na\n"


def _prints(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of code that print without `terminal`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        raw = called == "print" or called.endswith("Console") or called in ("os.write", "pprint.pprint")
        if raw or ((".stdout." in f".{called}" or ".stderr." in f".{called}") and "write" in called):
            yield node.lineno


@pytest.mark.parametrize("path", sorted(CLI.rglob("*.py")), ids=lambda path: str(path.relative_to(CLI)))
def test_commands_print_through_one_module(path: Path) -> None:
    found = list(_prints(ast.parse(path.read_text())))
    assert bool(found) == (path == CLI / "terminal.py"), found


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    root = tmp_path_factory.mktemp("root")
    (root / f"{HOSTILE}{FORGED}.txt").write_text(f"needle {HOSTILE}\n")
    (root / f"{HOSTILE}{FORGED}.md").write_text(f"# needle {HOSTILE}\n\nneedle {HOSTILE}\n")
    data = tmp_path_factory.mktemp("data")
    with running(data, [root], services=SERVICES) as started:
        added = command(data, "add", str(root))
        assert added.returncode == 0, added.stderr
        started.call("knowledge_ingest", {"vectors": False}, timeout_s=60)
        edited = {"path": str(root / f"{HOSTILE}{FORGED}.txt"), "edits": [{"old": "needle", "new": "a needle"}]}
        started.call("files_edit", edited)
        log = data / "logs" / "echo.log"
        log.write_text(
            f"a line {HOSTILE}\n"
            + json.dumps({"time": "t", "level": "info", "logger": "x", "message": HOSTILE + FORGED})
            + "\n"
        )
        yield started


def on_terminal(data: Path, *words: str) -> str:
    """Return what a command writes to a terminal, including stderr."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs, termios.TCSANOW)
    line = [sys.executable, "-m", "kernel.cli", *words, "--data", str(data)]
    environment = {**os.environ, "COLUMNS": "400", "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 65536):
                written += piece
        os.close(ours)
        process.wait(60)
    return written.decode()


@pytest.mark.parametrize(
    "words",
    [
        ["ls"], ["ls", "--paths"], ["grep", "needle"], ["grep", "--files-with-matches", "needle"], ["status"],
        ["logs", "echo"], ["logs", f"{HOSTILE}{FORGED}"], ["cat", "*"], ["du", "ROOT"],
        ["changes"], ["changes", "--show", "CHANGE"], ["undo", "--last", "--dry-run"],
        ["search", "needle"], ["search", "--json", "needle"], ["ls", "--json"],
        ["status", "--json"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_commands_leave_the_terminal_alone(kernel: RunningKernel, words: Sequence[str]) -> None:
    root = kernel.status()["roots"][0]
    name = next(Path(root).iterdir())
    change = kernel.call("changes_list", {})["changes"][0]["id"]
    meant = {"ROOT": root, "*": str(name), "CHANGE": change}
    shown = on_terminal(kernel.data_dir, *(meant.get(word, word) for word in words))
    # Bars and tables move the cursor and have colours; names do not.
    assert not any(each in shown for each in ("\x1b]0", "\x1b[2J", *"\x07\x9b\x7f\u202e\u2066\u2028")), repr(shown)
    assert not any(line.startswith("linckia: all is well") for line in shown.splitlines()), repr(shown)
    if words[0] in ("grep", "logs", "cat", "du", "changes", "undo") or words[:2] == ["ls", "--paths"]:
        assert ESCAPED in shown, repr(shown)
