"""`linckia mcp` with a kernel, and `linckia wrap` as an MCP client meets it, with real servers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from services.runtime.sandbox import has_seccomp, landlock_version
from tests.system.cli.clients import (
    LINCKIA,
    TIMEOUT_S,
    StdioClient,
    command,
    data_directory,
    environment,
    kernel_pid,
    linckia,
    wait_until_ended,
)
from tests.system.mounts.mounting import SERVER, call
from tests.system.running import REPOSITORY, RunningKernel, running, wait_until

SMALL = ("--", sys.executable, str(SERVER))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    data = tmp_path_factory.mktemp("data")
    listed = data / "client.json"
    server = {"command": sys.executable, "args": [str(SERVER)]}
    listed.write_text(json.dumps({"mcpServers": {"Listed": server, "listed too": server}}))
    with running(data, options=["--no-http", "--mcp", str(listed)], services=["mounts"]) as kernel:
        yield kernel


def mcp(kernel: RunningKernel, *argv: str) -> subprocess.CompletedProcess[str]:
    return command(kernel.data_dir, "mcp", *argv)


def states(kernel: RunningKernel) -> dict[str, tuple[str, int | None]]:
    listed = json.loads(mcp(kernel, "list", "--json").stdout)
    return {each["name"]: (each["state"], each["tools"]) for each in listed}


def test_a_server_without_signs_of_life_is_shown_as_silent_until_it_resumes(
    kernel: RunningKernel, tmp_path: Path
) -> None:
    assert mcp(kernel, "add", "stuck", *SMALL).returncode == 0
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(call, kernel, "stuck", "read", path=str(fifo))
        try:
            wait_until(lambda: "stuck is silent for " in mcp(kernel, "list").stdout)
            assert " s, 1 call in flight" in command(kernel.data_dir, "status").stdout
            assert kernel.service("mcp_stuck")["info"]["activity"].startswith("silent for ")
        finally:
            fifo.write_text("words")
        assert reading.result() == "words"
    wait_until(lambda: "activity" not in kernel.service("mcp_stuck")["info"])
    assert kernel.service("mcp_stuck")["deaths"] == {}
    assert mcp(kernel, "remove", "stuck").returncode == 0


def test_a_server_is_served_as_soon_as_it_is_added_until_it_is_removed(kernel: RunningKernel) -> None:
    added = mcp(kernel, "add", "own-one", *SMALL)
    assert (added.returncode, added.stderr) == (0, "")
    assert "own-one: small 1: 7 tools, 0 prompts, 0 resources" in added.stdout
    assert "served now" in added.stdout
    assert states(kernel)["own-one"] == ("ready", 7)
    # No client has come, for whom the front would have learned what servers offer.
    assert "hello" in command(kernel.data_dir, "call", "own-one_echo", '{"text": "hello"}').stdout
    assert "The definitions of own-one have not changed" in mcp(kernel, "diff", "own-one").stdout
    assert mcp(kernel, "approve", "own-one").returncode == 0
    generation = kernel.service("mcp_own_one")["generation"]
    assert mcp(kernel, "restart", "own-one").returncode == 0
    assert kernel.service("mcp_own_one")["generation"] == generation + 1
    assert mcp(kernel, "disable", "own-one").returncode == 0
    assert states(kernel)["own-one"][0] == "disabled"
    # Its process ends in order, which nobody waits for.
    wait_until(lambda: "mcp_own_one" not in kernel.services())
    assert mcp(kernel, "enable", "own-one").returncode == 0
    # It is remembered, although the server has not started again.
    assert states(kernel)["own-one"][1] == 7
    assert mcp(kernel, "remove", "own-one").returncode == 0
    assert "own-one" not in states(kernel)
    wait_until(lambda: "mcp_own_one" not in kernel.services())


def test_a_server_that_cannot_start_shows_its_last_words_and_keeps_its_settings(kernel: RunningKernel) -> None:
    added = mcp(kernel, "add", "broken", *SMALL, "--crash")
    assert added.returncode == 1
    assert "broken does not work" in added.stderr
    assert "this server cannot start" in added.stderr
    assert "Traceback" not in added.stderr
    assert "linckia mcp test broken" in added.stderr
    assert "broken" in states(kernel)
    assert "linckia." not in added.stderr.replace("linckia.toml", "")
    assert "broken has not started: exit code 1: the server ended with exit code 1" in mcp(kernel, "list").stdout
    assert "this server cannot start" in mcp(kernel, "logs", "broken", "-n", "200").stdout
    assert mcp(kernel, "test", "broken").returncode == 1
    assert mcp(kernel, "remove", "broken").returncode == 0


def test_a_server_with_the_name_of_a_removed_one_has_a_clean_record(kernel: RunningKernel) -> None:
    def ending(words: str) -> tuple[str, ...]:
        return "--", sys.executable, "-c", f"import sys; sys.exit({words!r})"

    assert mcp(kernel, "add", "again", *ending("old words")).returncode == 1
    assert "old words" in mcp(kernel, "list").stdout
    assert mcp(kernel, "remove", "again").returncode == 0
    assert mcp(kernel, "add", "again", "--no-test", *SMALL).returncode == 0
    assert "old words" not in mcp(kernel, "list").stdout
    assert "old words" not in command(kernel.data_dir, "status").stdout
    assert "old words" not in mcp(kernel, "logs", "again").stdout
    assert (kernel.service("mcp_again")["deaths"], kernel.service("mcp_again")["last_death"]) == ({}, "")
    assert mcp(kernel, "test", "again").returncode == 0
    # This one runs when it is removed.
    assert mcp(kernel, "remove", "again").returncode == 0
    added = mcp(kernel, "add", "again", *ending("new words"))
    assert ("new words" in added.stderr, "old words" in added.stderr) == (True, False)
    listed = mcp(kernel, "list").stdout
    assert ("new words" in listed, "old words" in listed) == (True, False)
    said = mcp(kernel, "logs", "again", "-n", "500").stdout
    assert ("new words" in said, "old words" in said) == (True, False)
    assert mcp(kernel, "remove", "again").returncode == 0


def test_settings_that_the_kernel_refuses_stay_as_they_were(kernel: RunningKernel) -> None:
    path = kernel.data_dir / "linckia.toml"
    before = path.read_bytes() if path.exists() else None
    refused = mcp(kernel, "add", "listed", "--no-test", "--url", "http://127.0.0.1:9/mcp")
    assert refused.returncode == 1
    assert "nothing was changed" in refused.stderr
    assert (path.read_bytes() if path.exists() else None) == before


def test_servers_in_a_clients_file_are_served(kernel: RunningKernel) -> None:
    assert "listed" in states(kernel)
    assert mcp(kernel, "restart", "listed").returncode == 0
    assert kernel.service("mcp_listed")["state"] == "ready"
    assert "listed: small 1: 7 tools" in mcp(kernel, "test", "listed").stdout
    assert mcp(kernel, "diff", "listed").returncode == 0
    assert "the server is mounted as 'listed'" in kernel.log("kernel")
    assert "listed-too: small 1: 7 tools" in mcp(kernel, "test", "listed-too").stdout
    assert states(kernel)["listed-too"] == ("ready", 7)


def test_a_restart_reads_the_settings_again(kernel: RunningKernel) -> None:
    assert mcp(kernel, "add", "edited", "--no-test", *SMALL).returncode == 0
    path = kernel.data_dir / "linckia.toml"
    path.write_text(path.read_text() + 'env = {WORD = "new"}\n')
    assert mcp(kernel, "restart", "edited").returncode == 0
    assert json.loads(call(kernel, "edited", "environment", "change"))["WORD"] == "new"
    path.write_text(path.read_text().replace('"new"', '"newer"'))
    assert mcp(kernel, "test", "edited").returncode == 0
    assert json.loads(call(kernel, "edited", "environment", "change"))["WORD"] == "newer"
    correct = path.read_text()
    path.write_text(correct + 'memory_limit = "lots"\n')
    refused = mcp(kernel, "restart", "edited")
    assert refused.returncode == 1
    assert "memory_limit" in refused.stderr
    path.write_text(correct)
    assert mcp(kernel, "remove", "edited").returncode == 0


def test_a_server_that_hangs_at_its_start_is_reported_as_hanging(kernel: RunningKernel) -> None:
    assert mcp(kernel, "add", "hanging", "--no-test", "--", "sleep", "1000").returncode == 0
    path = kernel.data_dir / "linckia.toml"
    path.write_text(path.read_text() + "start_timeout = 0.5\n")
    failed = mcp(kernel, "test", "hanging")
    assert failed.returncode == 1
    assert "did not answer `initialize` within 0.5 s" in failed.stderr
    assert mcp(kernel, "remove", "hanging").returncode == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--url", "example.org/mcp"], "url: expected an address that starts with http:// or https://"),
        (["--url", "http://127.0.0.1:9/", "--env", "A=b"], "--env is for a server with a command"),
        (["--header", "A=b", *SMALL], "--header is for a server with --url"),
        (["--header-env", "A=B", *SMALL], "--header-env is for a server with --url"),
    ],
)
def test_options_that_cannot_work_are_refused(kernel: RunningKernel, options: list[str], said: str) -> None:
    refused = mcp(kernel, "add", "wrong", "--no-test", *options)
    assert refused.returncode != 0
    assert said in refused.stderr
    assert "wrong" not in states(kernel)


def test_without_a_kernel_a_server_is_tested_in_one_of_its_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    added = linckia(data, "mcp", "add", "own", *SMALL)
    assert (added.returncode, added.stderr) == (0, "")
    assert "own: small 1: 7 tools" in added.stdout
    assert "from the next start of Linckia" in added.stdout
    assert [path.name for path in data.iterdir()] == ["linckia.toml"]


LEARNS = pytest.mark.skipif(not (has_seccomp() and landlock_version()), reason="this system has no walls")


def settings_of(data: Path, name: str) -> Any:
    return tomllib.loads((data / "linckia.toml").read_text())["mcp"][name]


def learn(data: Path, *argv: str, **arguments: object) -> subprocess.CompletedProcess[str]:
    """Learn what a call of the tool `write` needs."""
    return linckia(data, "mcp", "test", "--learn", *argv, "--call", "write", "--arguments", json.dumps(arguments))


@LEARNS
def test_the_needs_of_a_confined_server_are_learned_and_saved_if_the_user_agrees(tmp_path: Path) -> None:
    data, folder = tmp_path / "data", tmp_path / "folder"
    folder.mkdir()
    assert linckia(data, "mcp", "add", "own", "--no-test", *SMALL).returncode == 0
    before = (data / "linckia.toml").read_bytes()
    asked = learn(data, "own", path=str(folder / "file"))
    assert f'roots = ["{folder}"]' in asked.stdout
    assert "add --yes" in asked.stdout
    assert "Nothing was changed" in asked.stdout
    assert (data / "linckia.toml").read_bytes() == before
    assert list(folder.iterdir()) == []
    done = learn(data, "own", "--yes", path=str(folder / "file"))
    assert (done.returncode, done.stderr) == (0, "")
    # The server was started again with the access it had needed, and then needed less.
    assert (folder / "file").read_text() == "written"
    assert settings_of(data, "own") == {
        "command": sys.executable,
        "args": [str(SERVER)],
        "confine": True,
        "roots": [str(folder)],
        "network": False,
    }
    again = learn(data, "own", "--yes", path=str(folder / "other"))
    assert "own needs nothing that its settings do not give it" in again.stdout
    assert [path.name for path in data.iterdir()] == ["linckia.toml"]


@LEARNS
def test_a_server_without_a_call_keeps_its_network_and_is_confined(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert linckia(data, "mcp", "add", "old", "--no-test", "--no-confine", *SMALL).returncode == 0
    learned = linckia(data, "mcp", "test", "--learn", "old", "--yes")
    assert "old: small 1: 7 tools" in learned.stdout
    assert "If its tools need none" in learned.stdout
    assert settings_of(data, "old") == {"command": sys.executable, "args": [str(SERVER)], "confine": True}


@LEARNS
def test_keys_and_the_data_directory_are_never_proposed(tmp_path: Path) -> None:
    data, home = tmp_path / "data", tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "authorized_keys").write_text("mine")
    assert linckia(data, "mcp", "add", "own", "--no-test", *SMALL).returncode == 0
    before = (data / "linckia.toml").read_bytes()
    for path, why in (
        (home / ".ssh" / "authorized_keys", "keys, passwords"),
        (home / "file", "other things"),
        (data / "own.token", "Linckia's own files"),
    ):
        variables = {**environment(data), "HOME": str(home)}
        call = ["--call", "write", "--arguments", json.dumps({"path": str(path)})]
        refused = subprocess.run(
            [*LINCKIA, "mcp", "test", "--learn", "own", "--yes", *call, "--data", str(data)],
            env=variables, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert refused.returncode == 1
        assert "which only you can allow" in refused.stdout
        assert why in refused.stdout
        assert (data / "linckia.toml").read_bytes() == before
    read = ["--call", "read", "--arguments", json.dumps({"path": str(data / "linckia.toml")})]
    assert "Permission denied" in linckia(data, "mcp", "test", "--learn", "own", *read).stdout
    assert (home / ".ssh" / "authorized_keys").read_text() == "mine"
    assert not (data / "own.token").exists()


@LEARNS
def test_a_new_folder_is_made_if_the_user_agrees(tmp_path: Path) -> None:
    data, home = tmp_path / "data", tmp_path / "home"
    home.mkdir()
    code = "import os, runpy, sys; os.makedirs(os.path.expanduser('~/.tool/db'), exist_ok=True);" + (
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    server = ("--", sys.executable, "-c", code, str(SERVER))
    variables = {**environment(data), "HOME": str(home)}

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LINCKIA, "mcp", *argv], env=variables, cwd=REPOSITORY, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    assert run("add", "own", "--no-test", "--data", str(data), *server).returncode == 0
    failed = run("test", "own", "--data", str(data))
    assert "linckia mcp test --learn own" in failed.stderr
    done = run("test", "--learn", "own", "--yes", "--data", str(data))
    assert (done.returncode, done.stderr) == (0, "")
    assert "While it was observed, it failed" in done.stdout
    assert settings_of(data, "own")["roots"] == [str(home / ".tool")]
    assert (home / ".tool" / "db").is_dir()


def test_a_server_that_nobody_has_added_is_not_started(tmp_path: Path) -> None:
    data, project = tmp_path / "data", tmp_path / "project"
    project.mkdir()
    server = {"command": "touch", "args": [str(tmp_path / "started")]}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"theirs": server}}))
    refused = subprocess.run(
        [*LINCKIA, "mcp", "test", "--learn", "theirs", "--yes", "--data", str(data)], env=environment(data),
        cwd=project, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (refused.returncode, "there is no server 'theirs'" in refused.stderr) == (2, True)
    assert not (tmp_path / "started").exists()


def test_a_server_of_a_clients_file_is_served_but_not_observed(kernel: RunningKernel) -> None:
    refused = mcp(kernel, "test", "--learn", "listed", "--yes")
    assert (refused.returncode, "listed is not in the settings" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--yes"], "are for --learn"),
        (["--call", "write"], "are for --learn"),
        (["--learn", "--arguments", "{}"], "--arguments is for --call"),
        (["--learn", "--call", "write", "--arguments", "{"], "--arguments is not valid JSON"),
        (["--learn", "--call", "write", "--arguments", "[]"], "--arguments: expected a JSON object"),
        (["--learn", "--call", "wirte"], "own has no tool 'wirte'; did you mean write?"),
    ],
)
def test_options_of_learning_that_cannot_work_are_refused(tmp_path: Path, options: list[str], said: str) -> None:
    data = tmp_path / "data"
    assert linckia(data, "mcp", "add", "own", "--no-test", *SMALL).returncode == 0
    before = (data / "linckia.toml").read_bytes()
    refused = linckia(data, "mcp", "test", "own", *options)
    assert (refused.returncode, said in refused.stderr) == (2, True)
    assert (data / "linckia.toml").read_bytes() == before


class Wrapped(StdioClient):
    """An MCP client that starts `linckia wrap`."""

    def __init__(self, data_dir: Path, *server: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [*LINCKIA, "wrap", "--data", str(data_dir), *(server or SMALL)], cwd=REPOSITORY,
            env=environment(data_dir, **variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        self._received = set()

    def text(self, number: int, name: str, **arguments: object) -> str:
        text: str = self.call(number, name, **arguments)["content"][0]["text"]
        return text


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    with data_directory(tmp_path / "wrap") as path:
        yield path


@pytest.fixture
def clients(data: Path) -> Iterator[list[Wrapped]]:
    """Those that are added here are ended, before their kernel is."""
    opened: list[Wrapped] = []
    yield opened
    for client in opened:
        client.process.kill()
        client.process.wait(TIMEOUT_S)
        for stream in (client.process.stdin, client.process.stdout, client.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def test_a_wrapped_server_looks_like_itself_and_is_shared(data: Path, clients: list[Wrapped]) -> None:
    clients += [Wrapped(data, OWN_TOKEN="hidden", TERM="dumb"), Wrapped(data, OWN_TOKEN="hidden", TERM="xterm")]
    for client in clients:
        assert client.initialize()["serverInfo"]["name"] == "small"
    tools = clients[0].request(1, "tools/list")["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["echo", "pid", "environment", "read", "write", "append", "die"]
    pids = {client.text(2, "pid") for client in clients}
    assert len(pids) == 1
    variables = json.loads(clients[0].text(3, "environment"))
    assert variables["OWN_TOKEN"] == "hidden"
    assert Path(f"/proc/{pids.pop()}/cwd").readlink() == REPOSITORY
    # Another environment is another server.
    clients.append(Wrapped(data, OWN_TOKEN="other"))
    clients[-1].initialize()
    assert json.loads(clients[-1].text(2, "environment"))["OWN_TOKEN"] == "other"
    assert json.loads(clients[0].text(4, "environment"))["OWN_TOKEN"] == "hidden"
    kernel = kernel_pid(data)
    for client in clients:
        assert client.leave() == 0
    wait_until_ended(data, kernel)


def test_the_session_of_a_wrapped_server_survives_deaths(data: Path, clients: list[Wrapped]) -> None:
    client = Wrapped(data)
    clients.append(client)
    client.initialize()
    before = client.text(1, "pid")
    os.kill(int(before), signal.SIGKILL)
    # It is read-only, so that it is sent again.
    after = wait_until(lambda: client.text(2, "pid"))
    assert after != before
    os.kill(kernel_pid(data), signal.SIGKILL)
    assert client.text(3, "pid") != after
