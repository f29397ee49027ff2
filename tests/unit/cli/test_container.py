"""The container file says what this checkout is: no container is built here, so its lines are read one by one."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.cli.parser import build_parser

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module", params=["Containerfile", "Containerfile.cuda"])
def lines(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """Each instruction with its words, in order."""
    text = (REPOSITORY / request.param).read_text()
    kept = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in kept)]


def only(lines: list[tuple[str, str]], instruction: str) -> str:
    (found,) = (rest for word, rest in lines if word == instruction)
    return found


def test_its_python_is_one_that_is_supported(lines: list[tuple[str, str]]) -> None:
    found = re.search(r"python:(\d+)\.(\d+)-", only(lines, "ARG"))
    assert found is not None
    wanted = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["requires-python"]
    assert (int(found[1]), int(found[2])) >= tuple(map(int, wanted.removeprefix(">=").split(".")))
    # The set-up tries this one too.
    assert f"python{found[1]}.{found[2]}" in (REPOSITORY / "scripts" / "environment.sh").read_text()


def test_all_required_files_are_copied_before_the_set_up(lines: list[tuple[str, str]]) -> None:
    setup = next(at for at, (word, rest) in enumerate(lines) if word == "RUN" and "scripts/linckia" in rest)
    copied = {name for word, rest in lines[:setup] if word == "COPY" for name in rest.split()[:-1]}
    ignored = (REPOSITORY / ".containerignore").read_text().split()
    assert copied.isdisjoint(ignored)
    assert all((REPOSITORY / name).exists() for name in copied)
    packages = {path.parent.name for path in REPOSITORY.glob("*/__init__.py")} - {"tests"}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert {*packages, "services", "scripts", "pyproject.toml", "README.md", *project["license-files"]} <= copied


def test_it_does_not_run_as_root_and_keeps_its_data(lines: list[tuple[str, str]]) -> None:
    # A number, so that an orchestrator can see that it is not root.
    user = only(lines, "USER")
    assert any(word == "RUN" and "useradd" in rest and f"--uid {user}" in rest for word, rest in lines)
    assert [word for word, _ in lines].index("USER") > max(at for at, (word, _) in enumerate(lines) if word == "RUN")
    assert only(lines, "ENV").endswith(f"LINCKIA_DATA={only(lines, 'VOLUME')}")


def test_it_runs_a_linckia_command_on_the_port_of_the_health_check(lines: list[tuple[str, str]]) -> None:
    assert json.loads(only(lines, "ENTRYPOINT")) == ["scripts/linckia"]
    arguments = build_parser().parse_args(json.loads(only(lines, "CMD")))
    assert (arguments.command, arguments.http) == ("serve", f"0.0.0.0:{only(lines, 'EXPOSE')}")
    assert f"127.0.0.1:{only(lines, 'EXPOSE')}/readyz" in only(lines, "HEALTHCHECK")


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_its_health_check_detects_readiness(lines: list[tuple[str, str]], status: int, code: int) -> None:
    command = json.loads(only(lines, "HEALTHCHECK").partition("CMD ")[2])
    with answering(status) as (port, asked):
        check = command[-1].replace(only(lines, "EXPOSE"), str(port))
        assert subprocess.run([sys.executable, "-c", check], capture_output=True, check=False).returncode == code
    assert asked == ["/readyz"]


@contextlib.contextmanager
def answering(status: int) -> Iterator[tuple[int, list[str]]]:
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, asked
        server.shutdown()
        thread.join()
