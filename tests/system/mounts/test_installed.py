"""`linckia mcp install` with a running kernel: servers of a registry and of bundles are served, and confined."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.runtime.sandbox import has_seccomp, landlock_version
from tests.system.cli.clients import LINCKIA, command, environment, linckia
from tests.system.cli.test_terminal import terminal
from tests.system.mounts.mounting import SERVER, call
from tests.system.running import REPOSITORY, RunningKernel, running, wait_until
from tests.unit.cli.servers.installing import registry_server

HTTP_SERVER = REPOSITORY / "tests" / "unit" / "mounts" / "http_server.py"

needs_walls = pytest.mark.skipif(
    not landlock_version() or not has_seccomp(), reason="the system has no landlock and seccomp to confine servers with"
)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    with running(tmp_path_factory.mktemp("data"), options=["--no-http"], services=["mounts"]) as kernel:
        yield kernel


@pytest.fixture
def there() -> Iterator[registry_server.Registry]:
    with registry_server.registry() as server:
        server.entries = [registry_server.entry(registry_server.PYPI)]
        yield server


def mcp(kernel: RunningKernel, *argv: str) -> subprocess.CompletedProcess[str]:
    return command(kernel.data_dir, "mcp", *argv)


@needs_walls
def test_a_bundle_is_served_confined_and_can_read_itself(kernel: RunningKernel, tmp_path: Path) -> None:
    start = {"command": "python3", "args": ["${__dirname}/server.py"]}
    manifest = {
        "manifest_version": "0.3",
        "name": "small",
        "version": "1.0.0",
        "description": "Small",
        "author": {"name": "Us"},
        "server": {"type": "python", "entry_point": "server.py", "mcp_config": start},
    }
    with zipfile.ZipFile(tmp_path / "small.mcpb", "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.write(SERVER, "server.py")
    done = mcp(kernel, "install", str(tmp_path / "small.mcpb"), "--yes")
    assert (done.returncode, "Its tools are served now." in done.stdout) == (0, True), done.stderr
    folder = next((kernel.data_dir / "mcp" / "bundles").glob("?" * 64))
    assert '"small"' in call(kernel, "small", "read", path=str(folder / "manifest.json"))
    # It may read itself, and neither change that nor read the rest of the data directory.
    for tool, arguments in (
        ("write", {"path": str(folder / "server.py"), "text": "x"}),
        ("read", {"path": str(kernel.data_dir / "linckia.toml")}),
    ):
        assert call(kernel, "small", tool, **arguments).startswith("[Errno ")
    assert (folder / "server.py").read_bytes() == Path(SERVER).read_bytes()
    assert mcp(kernel, "remove", "small").returncode == 0
    assert not folder.exists()


def _settings(kernel: RunningKernel) -> list[tuple[Path, bytes]]:
    paths = [*kernel.data_dir.glob("mcp/*"), *kernel.data_dir.glob("linckia.toml")]
    return [(path, path.read_bytes()) for path in sorted(paths) if path.is_file()]


def test_a_secret_is_asked_for_without_showing_it_and_a_no_changes_nothing(
    kernel: RunningKernel, there: registry_server.Registry
) -> None:
    if not shutil.which("npx"):
        pytest.skip("there is no npx, which the server would be started with")
    there.entries = [registry_server.entry(registry_server.NPM)]
    install = ("mcp", "install", "io.github.user/weather", "--registry", there.url)
    before = _settings(kernel)
    for answer in (b"n\r", b"\r", b"\x03"):
        with terminal(kernel, *install) as shown:
            shown.until("The server needs WEATHER_API_KEY")
            shown.press(b"hush-hush\r")
            shown.until("with secrets, in files that only you can read: WEATHER_API_KEY")
            shown.until(r"Add it, and start it now\? \[y/N\]")
            if answer == b"\x03":
                shown.process.send_signal(signal.SIGINT)
            else:
                shown.press(answer)
                shown.until("Nothing was changed")
            assert shown.process.wait(30) in (1, 130)
            assert b"hush-hush" not in shown.written
    assert _settings(kernel) == before


def test_an_install_that_is_killed_while_it_unpacks_leaves_nothing_behind(tmp_path: Path) -> None:
    data, bundles = tmp_path / "data", tmp_path / "data" / "mcp" / "bundles"
    start = {"command": "python3", "args": ["${__dirname}/server.py"], "env": {"API_KEY": "hush-hush"}}
    server = {"type": "python", "entry_point": "server.py", "mcp_config": start}
    manifest = {"manifest_version": "0.3", "name": "large", "version": "1.0.0", "server": server}
    with zipfile.ZipFile(tmp_path / "large.mcpb", "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.write(SERVER, "server.py")
        for number in range(5000):
            archive.writestr(f"more/{number}", "x")
    install = ("mcp", "install", str(tmp_path / "large.mcpb"), "--yes", "--no-test")
    killed = subprocess.Popen([*LINCKIA, *install], env=environment(data), cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    wait_until(lambda: [*bundles.glob("*.new/more/1*")])
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert not (data / "linckia.toml").exists()
    done = linckia(data, *install)
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = (path for path in bundles.iterdir() if path.is_dir())
    assert len([*folder.glob("more/*")]) == 5000
    assert (data / "mcp" / "large.env").read_text() == "API_KEY=hush-hush\n"


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def test_a_remote_that_wants_a_login_shows_where(kernel: RunningKernel, there: registry_server.Registry) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    remote = {"type": "streamable-http", "url": f"http://127.0.0.1:{port}/mcp"}
    about = {"name": "com.example/docs", "description": "Docs", "version": "1.0.0", "remotes": [remote]}
    there.entries = [registry_server.entry(about)]
    server = subprocess.Popen(
        [sys.executable, str(HTTP_SERVER), "legacy", str(port)], env={**os.environ, "OAUTH": "1"},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: _listens(port))
        with ThreadPoolExecutor() as threads:
            install = ("mcp", "install", "com.example/docs", "--registry", there.url, "--yes")
            done = threads.submit(linckia, kernel.data_dir, *install)

            def login() -> str:
                assert not done.done() or done.result().returncode == 0, done.result().stderr
                listed = json.loads(linckia(kernel.data_dir, "mcp", "list", "--json").stdout)
                return "".join(each["login"] for each in listed if each["name"] == "docs")

            urllib.request.urlopen(wait_until(login)).close()
            found = done.result()
        assert (found.returncode, "Its tools are served now." in found.stdout) == (0, True), found.stderr
        assert json.loads(call(kernel, "docs", "grants")) == ["authorization_code"]
    finally:
        server.kill()
        server.wait()


@needs_walls
@pytest.mark.parametrize("lock", [False, True])
def test_a_python_project_in_a_bundle_is_served_by_uv(kernel: RunningKernel, tmp_path: Path, lock: bool) -> None:
    if not (uv := shutil.which("uv")):
        pytest.skip("there is no uv to start a project with")
    server = {"type": "uv", "entry_point": "server.py"}
    manifest = {"manifest_version": "0.4", "name": "project", "version": "1.0.0", "server": server}
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "project"\nversion = "1.0.0"\nrequires-python = ">=3.11"\n'
        'dependencies = ["six>=1.16,<2", "idna"]\n'
    )
    if lock:
        subprocess.run([uv, "lock", "-q"], cwd=tmp_path, check=True, timeout=120)
    with zipfile.ZipFile(tmp_path / "project.mcpb", "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.write(SERVER, "server.py")
        for path in (*tmp_path.glob("pyproject.toml"), *tmp_path.glob("uv.lock")):
            archive.write(path, path.name)
    name = f"project-{lock}".lower()
    done = mcp(kernel, "install", str(tmp_path / "project.mcpb"), "--as", name, "--yes")
    assert (done.returncode, "Its tools are served now." in done.stdout) == (0, True), done.stderr
    assert call(kernel, name, "echo", text="x") == "x"


@needs_walls
@pytest.mark.parametrize("runner", ["uvx", "pipx"])
def test_a_package_of_the_python_index_is_served(
    kernel: RunningKernel, there: registry_server.Registry, runner: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not (found := shutil.which(runner)):
        pytest.skip(f"there is no {runner} to start a package with")
    package = ["-q", "-d", str(tmp_path), "mcp-server-time==2026.10.19"]
    index = [sys.executable, "-m", "pip", "download", "--no-deps", *package]
    if subprocess.run(index, capture_output=True, timeout=120, check=False).returncode:
        pytest.skip("the index of Python packages cannot be reached")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / runner).symlink_to(found)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    options = ["--registry", there.url, "--as", f"time-{runner}", "--yes"]
    done = mcp(kernel, "install", "io.github.user/time", *options)
    assert (done.returncode, "mcp-time" in done.stdout) == (0, True), done.stdout + done.stderr
    assert "UTC" in call(kernel, f"time-{runner}", "get_current_time", timezone="UTC")
