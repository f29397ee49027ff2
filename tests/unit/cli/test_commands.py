"""Commands that need no kernel, and what the others show."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from kernel.cli import status
from kernel.cli.__main__ import describe, main
from kernel.cli.kernel_log import HumanLines, Rotating
from kernel.cli.logs import Followed
from proto.control.address import last_lines
from proto.control.client import CallFailed
from proto.host.log_lines import JsonLines
from proto.operation import Role
from proto.ops import load
from proto.ops.kernel import ServiceStatus
from proto.wire.frames import Backlog
from services.front.listing import markdown

SERVICE = ServiceStatus(
    name="embed", state="ready", generation=3, pid=42, mode="cpu", uptime_s=200.0, restarts=2, deaths={"signal": 2},
    last_death="killed by signal 9", rss_bytes=300 * 2**20, in_flight=1, queued=4, recovery_ms=12.4,
    info={"model": "all-MiniLM-L6-v2"},
)  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(argv)
    except SystemExit as exit:
        code = int(exit.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINCKIA_DATA", str(tmp_path / "data"))


def test_help_teaches_with_a_first_session(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for words in ("linckia serve", "linckia stdio", "linckia call", "linckia doctor"):
        assert words in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["sttus"], "did you mean status?"),
        ([], "COMMAND"),
        (["call"], "NAME"),
        (["call", "x", "{"], "not JSON"),
        (["call", "x", "[]"], "array"),
        (["call", "x", "3"], "number"),
        (["call", "x", "--timeout", "-1"], "invalid number of seconds value: '-1'"),
        (["call", "x", "--timeout", "soon"], "invalid number of seconds value: 'soon'"),
        (["tools", "--surface", "yml"], "did you mean yaml?"),
        (["stdio", "/nowhere"], "/nowhere"),
        (["stdio", __file__], "is a file"),
        (["serve", "/nowhere"], "/nowhere"),
        (["serve", "--http", "x:y"], "HOST:PORT"),
        (["serve", "--http", "0.0.0.0:3000"], "token"),
        (["logs", "-n", "-3"], "-3"),
        (["top", "--interval", "0"], "0.1"),
        (["completion", "pwsh"], "bash, zsh, fish"),
    ],
)
def test_wrong_usage_says_what_would_be_right_and_exits_with_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "argv", [["status"], ["call", "mcp.echo"], ["stop"], ["restart", "embed"], ["start", "embed"], ["stop", "embed"]]
)
def test_without_a_kernel_the_error_says_how_to_start_one(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, out) == (1, "")
    assert "linckia serve" in err


def test_tools_lists_the_table_without_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tools")
    assert code == 0
    assert any(line.split()[:3] == ["mcp_echo", "echo", "read"] for line in out.splitlines())
    listed = json.loads(run(capsys, "tools", "--json")[1])
    assert next(tool for tool in listed if tool["name"] == "mcp_echo")["inputSchema"]["type"] == "object"


@pytest.mark.parametrize("argv", [["stdio"], ["serve"], ["--data", "/d", "status"], ["call", "x"], ["help"], []])
def test_no_command_waits_for_what_another_one_needs(argv: list[str]) -> None:
    """To declare commands imports nothing but the standard library, and of services only if the kernel has none."""
    code = "import sys; from kernel.cli.parser import build_parser; build_parser(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    of_services = {each.split(".")[1] for each in loaded if re.fullmatch(r"services\.\w+\.commands", each)}
    every = {file.parent.name for file in Path().glob("services/*/commands.py")}
    assert of_services == (every if argv in (["help"], []) else set())
    assert not {"msgspec", "trio", "rich", "proto.operation"} & set(loaded)


def test_markdown_has_every_tool_and_route() -> None:
    lines = list(markdown(load()))
    assert "| echo | `mcp_echo` | tool | read |" in " ".join(lines)
    assert any("`GET /dag/stats`" in line for line in lines)
    assert any("`POST /v1/embeddings`" in line for line in lines)
    assert not [line for line in lines if "embed_texts" in line], "internal operations are not for clients"


def test_the_page_of_surfaces_lists_every_service_and_its_tools() -> None:
    """By service as the table of operations has it; `…` stands for those that `linckia tools` lists."""
    page = (Path(__file__).parents[3] / "docs" / "surfaces.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \|[^|]+\| ([^|]+) \|$", page, re.MULTILINE)
    listed = {service: cell for first, cell in rows for service in re.findall(r"`(\w+)`", first)}
    by_service: dict[str, set[str]] = {}
    for op in load().values():
        if op.admits("client") and op.role in (Role.TOOL, Role.STEP) and op.service != "kernel":
            by_service.setdefault(op.service, set()).update((op.name, op.step.removeprefix("session.")))
    assert by_service.keys() <= listed.keys()
    for service, names in by_service.items():
        tools = {op.name for op in load().of_service(service) if op.role is Role.TOOL and op.admits("client")}
        named = set(re.findall(r"`([\w.-]+)`", listed[service].partition("`linckia")[0]))
        assert named <= names | {"ops_query", "ops_execute", "documents_session"}, (
            f"{service}: the page names unknown tools"
        )
        assert "…" in listed[service] or tools <= named, f"{service}: the page lacks {tools - named}"


def test_an_unknown_log_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    logs = tmp_path / "data" / "logs"
    logs.mkdir(parents=True)
    (logs / "embed.log").write_text("one\ntwo\nthree\n")
    assert run(capsys, "logs", "embd")[::2] == (1, f"linckia logs: no log of 'embd' in {logs}; did you mean embed?\n")
    assert run(capsys, "logs", "embed", "-n", "2")[:2] == (0, "two\nthree\n")


def test_the_last_lines_of_a_long_log_are_found_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    log.write_text("".join(f"line {n} {'x' * 100}\n" for n in range(5000)))
    assert [line.split()[1] for line in last_lines(log, 3)] == ["4997", "4998", "4999"]
    assert len(last_lines(log, 10_000)) == 5000
    assert last_lines(log, 0) == []


def test_a_followed_log_misses_no_line_and_splits_none(tmp_path: Path) -> None:
    log = tmp_path / "echo.log"
    log.write_text("one\ntwo\nthree\nfo")
    with Followed(log) as followed:
        assert followed.last(2) == ["two", "three"]
        with log.open("a") as file:
            file.write("ur\nfive\n")
        new = followed.new()
        assert [next(new), next(new)] == ["four", "five"]
        with log.open("a") as file:
            file.write("six\n")
        log.rename(tmp_path / "echo.log.1")
        log.write_text("seven\n")
        assert [next(new), next(new)] == ["six", "seven"]


def test_a_followed_log_is_read_from_its_beginning_or_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_text("one\ntwo\n")
    with Followed(log) as followed:
        assert list(followed.written()) == ["one", "two"]
    with Followed(log) as followed:
        assert followed.last(0) == []
        assert list(followed.written()) == []


def test_a_row_shows_the_deaths_with_their_causes() -> None:
    row = [cell if isinstance(cell, str) else cell[0] for cell in status.row(SERVICE)]
    assert row[:9] == ["embed", "ready", "3", "42", "3 min", "2", "12 ms", "300 MiB", "1+4"]
    assert row[9] == "deaths: signal 2; last: killed by signal 9; cpu; model: all-MiniLM-L6-v2"


def test_a_row_shows_how_far_work_in_the_background_is() -> None:
    quick, begun = Backlog(done=5661, total=11037, per_s=57.2, left_s=94.0), Backlog(done=0, total=9)
    working = replace(SERVICE, backlogs={"vectors of notes": quick, "vectors of documents": begun})
    told = status.row(working)[9]
    assert str(told).endswith("; vectors of notes: 5,661 of 11,037, 57/s, 94 s left; vectors of documents: 0 of 9")


def test_a_failed_service_says_when_the_next_start_is_tried() -> None:
    failed = replace(SERVICE, state="failed", reason="5 deaths in 60 s", retry_in_s=30.0, pid=None)
    row = [cell if isinstance(cell, str) else cell[0] for cell in status.row(failed)]
    assert row[3] == "-"
    assert row[9].startswith("5 deaths in 60 s; next try in 30 s")


def test_a_failure_says_whether_the_work_may_have_been_done() -> None:
    text = describe(CallFailed({"message": "it died", "executed": "maybe", "retry_after_ms": 1500}))
    assert "may have been done" in text
    assert "1.5 s" in text


def test_the_log_keeps_fields_and_tracebacks_on_one_line() -> None:
    try:
        raise ValueError("torn")
    except ValueError:
        record = logging.getLogger("linckia.x").makeRecord(
            "linckia.x", logging.ERROR, __file__, 1, "died: %s", ("embed",), sys.exc_info(), extra={"pid": 7}
        )
    line = JsonLines().format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["message"], fields["level"], fields["pid"]) == ("died: embed", "error", 7)
    assert "ValueError: torn" in fields["error"]
    assert HumanLines(colour=False).format(record).splitlines()[0].endswith("x           died: embed")


def test_stderr_follows_the_log_through_its_rotation(tmp_path: Path) -> None:
    program = (
        "import logging, os, pathlib, sys\n"
        "import kernel.cli.kernel_log as log\n"
        "log.ROTATE_BYTES = 2000\n"
        "log.open_log(pathlib.Path(sys.argv[1]), 'info', watched=False)\n"
        "for n in range(60): logging.getLogger('linckia.x').info('line %d', n)\n"
        "os.write(2, b'last words\\n')\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=30)
    logs = tmp_path / "logs"
    assert sorted(path.name for path in logs.iterdir())[:2] == ["kernel.log", "kernel.log.1"]
    assert len(list(logs.iterdir())) <= 4
    assert (logs / "kernel.log").read_text().endswith("last words\n")


def test_the_log_continues_in_a_new_file_past_its_limit(tmp_path: Path) -> None:
    handler = Rotating(tmp_path / "kernel.log", with_stderr=False)
    handler.maxBytes = 100
    for n in range(3):
        handler.emit(logging.makeLogRecord({"msg": f"{n}" * 60}))
    handler.close()
    assert (tmp_path / "kernel.log").read_text() == "2" * 60 + "\n"
    assert (tmp_path / "kernel.log.2").read_text() == "0" * 60 + "\n"


def test_on_a_full_disk_the_log_says_once_that_lines_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kernel.log"
    path.symlink_to("/dev/full")
    handler = Rotating(path, with_stderr=False)
    log = logging.getLogger("linckia.kernel")
    log.addHandler(handler)
    try:
        for _ in range(3):
            handler.emit(logging.makeLogRecord({"msg": "lost"}))
        assert capsys.readouterr().err == f"linckia: {path} cannot be written: No space left on device\n"
        path.unlink()
        full, handler.stream = handler.stream, path.open("a")
        assert full is not None
        with contextlib.suppress(OSError):
            full.close()
        handler.emit(logging.makeLogRecord({"msg": "here"}))
    finally:
        log.removeHandler(handler)
        handler.close()
    assert path.read_text() == "here\n3 lines of this log may be missing: they could not be written\n"


COMPLETE_IN_BASH = """
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
f=$(complete -p linckia); f=${f##*-F }; ${f% *}
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete(shell: str, script: str, *words: str, cwd: Path | None = None) -> set[str]:
    """Return what a shell suggests for the last of the words."""
    if (interpreter := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    command = ["-c", script + COMPLETE_IN_BASH, "bash", *words]
    if shell == "fish":
        command = ["--no-config", "-c", f"{script}\ncomplete -C '{' '.join(words)}'"]
    done = subprocess.run([interpreter, *command], capture_output=True, text=True, check=True, timeout=30, cwd=cwd)
    return {line.split("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_commands_operations_services_surfaces_and_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shell: str
) -> None:
    _, script, _ = run(capsys, "completion", shell)
    (tmp_path / "notes").mkdir()
    (tmp_path / "settings.toml").touch()

    def suggested(*words: str) -> set[str]:
        return {word.rstrip("/") for word in complete(shell, script, "linckia", *words, cwd=tmp_path)}

    assert suggested("sta") == {"status", "start"}
    operations = {name for name, op in load().items() if op.admits("operator")}
    assert suggested("call", "") == operations
    services = {op.service for op in load().values()} - {"kernel"}
    for command in ("restart", "start", "stop", "logs"):
        assert suggested(command, "") == services
    assert suggested("restart", "--data", "notes", "ech") == {"echo"}
    for command in ("tools", "stdio", "token"):
        assert suggested(command, "--surface", "ya") == {"yaml"}
    assert suggested("serve", "--no-") == {"--no-http"}
    assert suggested("serve", "--log-level", "d") == {"debug"}
    assert suggested("token", "re") == {"revoke"}
    for before in (["serve"], ["serve", "notes"], ["ingest"], ["models", "use"], ["service", "install"]):
        assert suggested(*before, "no") == {"notes"}
    assert suggested("serve", "--config", "set") == {"settings.toml"}
    assert suggested("status", "--data", "no") == {"notes"}


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_a_script_names_every_operation_that_may_be_called(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    _, out, _ = run(capsys, "completion", shell)
    assert all(name in out for name, op in load().items() if op.admits("operator"))
    if (interpreter := shutil.which(shell)) is not None:
        assert subprocess.run([interpreter, "-n"], input=out, text=True, timeout=10, check=False).returncode == 0
