"""`linckia top` and `status` on a real terminal of 80 by 24 characters, over a real kernel; and the command line's
manners."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest

from tests.system.cli.clients import linckia
from tests.system.running import RunningKernel, running
from tests.unit.documents.pdfs import pdf_of

SIZE = (24, 80)


class Terminal:
    """A terminal in which a command runs; `screen` is its current content."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self.process = process
        self.written = b""
        self._screen = pyte.Screen(SIZE[1], SIZE[0])
        self._stream = pyte.ByteStream(self._screen)

    @property
    def screen(self) -> list[str]:
        """The lines, without trailing spaces."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                # The command has ended.
                break
            self.written += data
            self._stream.feed(data)
        return [line.rstrip() for line in self._screen.display]

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def until(self, expression: str) -> list[str]:
        """Wait until a line matches."""
        give_up = time.monotonic() + 20
        while True:
            lines = self.screen
            if any(re.search(expression, line) for line in lines):
                return lines
            assert time.monotonic() < give_up, "\n".join([f"never on the screen: {expression}", *lines])
            time.sleep(0.05)


@contextlib.contextmanager
def terminal(kernel: RunningKernel, *command: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "LINCKIA_DATA": str(kernel.data_dir)}
    environment.pop("COLUMNS", None)
    program = [sys.executable, "-m", "kernel.cli", *command]
    process = subprocess.Popen(
        program, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "root").mkdir()
    (folder / "root" / "note.md").write_text("# Stars\n\nSea stars regrow their arms.\n")
    with running(folder / "data", [folder / "root"]) as kernel:
        yield kernel


FIGURE = re.compile(r"\d(?:[\d.,]*\d)?(?: (?:ms|s|min|h|d|B|KiB|MiB|GiB|%)(?!\w))?|(?<= )-(?= |$)")


def normal(line: str) -> str:
    """Replace figures by `#`, since they change, and spaces by one."""
    return " ".join(FIGURE.sub("#", line).split())


TOP = """\
Linckia #, up #: # of # services well, #, CPU #, # calls/s
sorted by name"""


def test_top_is_readable_sorts_scrolls_and_quits(kernel: RunningKernel) -> None:
    names = sorted(kernel.services())
    assert len(names) >= 18
    with terminal(kernel, "top", "--interval", "0.3") as shown:
        shown.until("q quit")
        shown.press(b"n")
        shown.until("sorted by name$")
        shown.press(b"k" * len(names) + b"j")
        lines = shown.until("^> decode")
        assert len(lines) == SIZE[0]
        title, order, head, first, second, *_ = map(normal, lines)
        golden = TOP.splitlines()
        assert (title, order) == (golden[0], golden[1])
        assert head.startswith("SERVICE STATE CPU MEMORY CALLS/S")
        assert (first.split()[0], second.split()[:2]) == ("compare", [">", "decode"])
        # One line for each service, and every name is whole.
        shown_names = [line.lstrip("> ").split()[0] for line in lines[3:-2]]
        assert shown_names == names[: len(shown_names)]
        assert normal(lines[-1]).startswith("sort: n name m memory")
        assert lines[-2].startswith(f"1-{len(shown_names)} of {len(names)}") or len(shown_names) == len(names)
        shown.press(b"k" + b"j" * len(names))
        shown.until(f"^> {names[-1]}")

        kernel.kill("echo")
        shown.press(b"d")
        shown.until("sorted by deaths")
        shown.press(b"k" * len(names))
        shown.until(r"^. echo +ready.* 1(?: |$)")
        shown.press(b"k" * len(names))
        shown.until("last death: killed by SIGKILL")
        shown.press(b"q")
        assert shown.process.wait(10) == 0


def test_top_gives_the_terminal_back_on_ctrl_c(kernel: RunningKernel) -> None:
    with terminal(kernel, "top") as shown:
        shown.until("q quit")
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(10) == 0
        # The terminal's own screen is back (rmcup), with the cursor.
        assert shown.screen
        assert b"\x1b[?1049l" in shown.written
        assert b"\x1b[?25h" in shown.written or b"\x1b[34h" in shown.written


def test_top_reports_the_end_of_the_kernel_and_keeps_trying(tmp_path: Path) -> None:
    with running(tmp_path / "data", services=["echo"], all_ready=False) as kernel:
        kernel.wait_ready("echo")
        with terminal(kernel, "top", "--interval", "0.2") as shown:
            shown.until("q quit")
            kernel.call("kernel_shutdown")
            shown.until("kernel")
            kernel.process.wait(20)
            shown.until("no kernel is running|connection")
            shown.press(b"q")
            assert shown.process.wait(10) == 0


def test_status_fits_one_screen_and_verbose_says_more(kernel: RunningKernel) -> None:
    with terminal(kernel, "status") as shown:
        assert shown.process.wait(20) == 0
        lines = [line for line in shown.screen if line]
        assert normal(lines[0]).startswith("Linckia #, up #, #: # of # services well")
        assert len(lines) <= SIZE[0] - 1
        names = [line.split()[0] for line in lines if " ready " in line or " resting " in line]
        others = [name for line in lines if line.startswith("also well: ") for name in line[11:].split(", ")]
        assert sorted([*names, *others]) == sorted(kernel.services())
        assert names == [name for name in kernel.services() if name in names]
    with terminal(kernel, "status", "--verbose") as shown:
        assert shown.process.wait(20) == 0
        text = "\n".join(shown.screen)
        assert "fetch: allow: public Internet only" in text


def test_tables_keep_names_whole_on_a_narrow_terminal(kernel: RunningKernel) -> None:
    for command, expected in (
        (["models"], ["NAME", "FOR", "WEIGHTS"]),
        (["token", "list"], ["NAME", "SURFACES", "ROOTS"]),
        (["tools", "--surface", "core"], ["TOOL", "SERVICE", "ACCESS"]),
    ):
        with terminal(kernel, *command) as shown:
            assert shown.process.wait(20) == 0
            lines = [line for line in shown.screen if line]
            assert max(map(len, lines)) <= SIZE[1]
            if command[0] != "tools":
                assert lines[0].split()[: len(expected)] == expected


def test_global_options_may_precede_the_command(kernel: RunningKernel) -> None:
    done = linckia(kernel.data_dir, "status", "--json")
    command = [sys.executable, "-m", "kernel.cli", "--json", "--data", str(kernel.data_dir), "status"]
    before = subprocess.run(command, capture_output=True, text=True, check=True)
    assert before.stdout.startswith('{"version"')
    assert done.stdout.startswith('{"version"')
    for words in (["help"], ["help", "status"]):
        helped = linckia(kernel.data_dir, *words)
        assert (helped.returncode, helped.stdout.startswith("usage: linckia")) == (0, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["status", "--jsn"], 2, "linckia status: there is no option --jsn; did you mean --json?"),
        (["statsu"], 2, "did you mean status?"),
        (["ls", "nope"], 1, "linckia ls: no document is stored at or below nope"),
        (["cat", "nope"], 1, "linckia cat: Document not found"),
        (["tools", "noyalib_gt"], 1, "did you mean yaml_get"),
        (["logs", "ech"], 1, "linckia logs: no log of 'ech'"),
        (["import-chats", "/nowhere", "/nothing"], 1, "linckia import-chats: /nothing does not exist"),
    ],
)
def test_errors_name_the_command_and_suggest_the_intended_option(
    kernel: RunningKernel, words: list[str], code: int, said: str
) -> None:
    done = linckia(kernel.data_dir, *words)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_an_import_skips_a_missing_path(kernel: RunningKernel, tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text(
        '[{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]'
    )
    done = linckia(kernel.data_dir, "import-chats", str(tmp_path / "gone"), str(tmp_path / "talk.json"))
    assert done.returncode == 1
    assert "gone does not exist" in done.stderr
    assert done.stdout.startswith("2 messages in 1 file, 2 new")


@pytest.mark.parametrize(
    "words",
    [
        ["status"], ["ingest"], ["index", "{root}"], ["import-chats", "{root}"], ["restart", "echo"], ["ls"],
        ["search", "arms"], ["tools"], ["tools", "mcp_echo"], ["token", "list"], ["models"], ["snapshots"],
        ["du", "{root}"],
        ["add", "{root}"], ["grep", "stars"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_json_is_one_value(kernel: RunningKernel, words: list[str]) -> None:
    root = kernel.status()["roots"][0]
    done = linckia(kernel.data_dir, *(word.format(root=root) for word in words), "--json")
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict | list)


def test_cat_writes_the_bytes_of_documents_whose_text_is_extracted(kernel: RunningKernel) -> None:
    folder = Path(kernel.status()["roots"][0]) / "documents"
    folder.mkdir()
    files = {
        "page.html": "<!doctype html><p class=x>größe</p>\n".encode(),
        "old.txt": "größe\n".encode("latin-1"),
        "form.pdf": pdf_of(["some text"]),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    assert linckia(kernel.data_dir, "add", str(folder)).returncode == 0
    program = [sys.executable, "-m", "kernel.cli", "--data", str(kernel.data_dir), "cat"]
    for name, data in files.items():
        assert subprocess.run([*program, name], capture_output=True, check=True).stdout == data


def test_logs_as_json_have_a_message_on_each_line(kernel: RunningKernel) -> None:
    for service in ("kernel", "echo"):
        done = linckia(kernel.data_dir, "logs", service, "--json")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines
        assert all("message" in line for line in lines)
        assert any(line.get("level") == "info" for line in lines)


def test_one_operation_is_explained_with_an_example(kernel: RunningKernel) -> None:
    told = linckia(kernel.data_dir, "tools", "yaml_get").stdout
    assert "file       string   required" in told
    assert """linckia call yaml_get '{"file":""" in told
