"""`linckia mcp search` and `linckia mcp install` with a registry, without a running kernel."""

from __future__ import annotations

import contextlib
import io
import shutil
import socket
import stat
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from kernel.cli.__main__ import main
from kernel.cli.servers.installing import command, download
from tests.unit.cli.servers.installing import registry_server as shapes
from tests.unit.cli.servers.installing.registry_server import Change, Registry, changed, entry

RUNNERS = ("npx", "uvx", "pipx", "docker", "podman", "dnx")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory; every runner is there, and would write a file if somebody started it."""
    monkeypatch.setenv("LINCKIA_DATA", str(tmp_path / "data"))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in RUNNERS:
        (programs / name).write_text(f"#!/bin/sh\necho $0 >> {tmp_path}/started\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with shapes.registry() as server:
        server.entries = [entry(each) for each in (shapes.NPM, shapes.PYPI, shapes.OCI, shapes.REMOTE)]
        monkeypatch.setenv("LINCKIA_MCP_REGISTRY", server.url)
        yield server


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(["mcp", *argv])
    except SystemExit as exit:
        code = int(exit.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def install(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    return run(capsys, "install", "--yes", "--no-test", *argv)


def tables(data: Path) -> Any:
    return tomllib.loads((data / "linckia.toml").read_text()).get("mcp", {})


def nothing_changed(data: Path) -> bool:
    return not list(data.rglob("*")) and not (data.parent / "started").exists()


def _named(name: str) -> Change:
    return lambda server: server.update(name=name)


def test_a_search_shows_the_latest_versions_with_all_words(there: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    for name, status in (("old", "deprecated"), ("gone", "deleted"), ("\x1b[2Jnew", "active")):
        there.entries.append(entry(changed(shapes.NPM, _named(f"io.github.user/weather-{name}")), status=status))
    code, out, err = run(capsys, "search", "weather", "user")
    assert code == 0
    assert "io.github.user/weather " in out
    assert "[deprecated] Weather data" in out
    assert "weather-gone" not in out
    assert "\x1b" not in out + err
    assert "servers[3] is left out" in err
    assert "version=latest" in there.asked[0]
    assert run(capsys, "search", "weather", "sharks")[1].startswith(f"{there.url} has no server with")


def test_a_search_reads_page_after_page_up_to_a_limit(there: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    there.entries = [entry(changed(shapes.PYPI, _named(f"a.b/time-{n}"))) for n in range(20)]
    there.page = 2
    assert len(run(capsys, "search", "time")[1].splitlines()) == 12
    assert len(there.asked) == 5
    assert "There are more than 3" in run(capsys, "search", "time", "--limit", "3")[1]


def test_an_npm_package_is_pinned_and_its_secrets_are_in_a_file(
    there: Registry, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--set", "WEATHER_API_KEY=hush-hush", "--set", "place=Rome", "--set", "place=Oslo")
    code, out, err = install(capsys, "io.github.user/weather", *given)
    assert (code, err) == (0, "")
    assert "hush-hush" not in out
    assert tables(data) == {
        "weather": {
            "command": shutil.which("npx"),
            "args": ["-y", "@user/weather-mcp@1.2.3", "serve", "--units", "metric", "Rome", "Oslo"],
            "env": {"WEATHER_LEVEL": "info"},
            "env_from": ["mcp/weather.env"],
            "confine": True,
        }
    }
    kept = data / "mcp" / "weather.env"
    assert (kept.read_text(), stat.S_IMODE(kept.stat().st_mode)) == ("WEATHER_API_KEY=hush-hush\n", 0o600)
    assert not (data.parent / "started").exists()
    assert install(capsys, "io.github.user/weather", *given)[0] == 2
    assert run(capsys, "remove", "weather")[0] == 0
    assert not kept.exists()


@pytest.mark.parametrize(("runner", "args"), [
    ("uvx", ["mcp-server-time@2026.10.19"]),
    ("pipx", ["run", "--spec", "mcp-server-time==2026.10.19", "mcp-server-time"]),
])  # fmt: skip
def test_a_pypi_package_is_started_by_the_runner_that_is_there(
    there: Registry, data: Path, capsys: pytest.CaptureFixture[str], runner: str, args: list[str]
) -> None:
    (data.parent / "bin" / ("pipx" if runner == "uvx" else "uvx")).unlink()
    assert install(capsys, "io.github.user/time", "--as", "clock", "--root", str(data.parent))[0] == 0
    made = tables(data)["clock"]
    assert made["command"] == shutil.which(runner)
    assert made["args"] == [*args, "--local-timezone", "UTC"]
    assert (made["confine"], made["roots"]) == (True, [str(data.parent)])


def test_a_container_gets_its_variables_by_name(
    there: Registry, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--set", f"source={data.parent}", "--set", "TOKEN=hush-hush")
    code, out, _ = install(capsys, "io.github.user/contained", *given)
    assert (code, "not confined by Linckia" in out) == (0, True)
    mount = f"type=bind,src={data.parent},dst=/data"
    assert tables(data)["contained"] == {
        "command": shutil.which("docker"),
        "args": ["run", "-i", "--rm", "-e", "TOKEN", "--mount", mount, "docker.io/user/contained:2.0.0"],
        "env_from": ["mcp/contained.env"],
    }


def test_a_remote_gets_its_address_and_headers(
    there: Registry, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "hush-hush")
    given = ("--set", "tenant=eu", "--set-env", "api_key=KEY", "--set", "X-Region=eu")
    code, out, _ = install(capsys, "com.example/analytics", *given)
    assert (code, "hush-hush" in out) == (0, False)
    assert tables(data)["analytics"] == {
        "url": "https://eu.example.com/mcp",
        "transport": "http",
        "headers": {"X-Region": "eu"},
        "headers_from": {"Authorization": "mcp/analytics.Authorization.header"},
    }
    assert (data / "mcp" / "analytics.Authorization.header").read_text() == "Bearer hush-hush"


def test_a_remote_without_a_key_may_ask_for_a_login(
    there: Registry, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there.entries = [entry(changed(shapes.REMOTE, lambda server: server.update(remotes=server["remotes"][1:])))]
    code, out, _ = install(capsys, "com.example/analytics")
    assert (code, "if it asks for a login" in out) == (0, True)
    assert tables(data)["analytics"] == {"url": "https://us.example.com/sse", "transport": "sse", "oauth": {}}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["io.github.user/nothing"], "has no server io.github.user/nothing; try"),
        (["io.github.user/weather", "--version", "9"], 'in version "9"'),
        (["weather"], "their names look like io.github.user/weather"),
        (["io.github.user/../../etc"], "their names look like"),
        (["io.github.user/a\x1b[2J"], "their names look like"),
        (["io.github.user/weather"], "needs WEATHER_API_KEY (The key): --set NAME=VALUE"),
        (["io.github.user/weather", "--set", "WEATHER_API_KEY"], "write it as NAME=VALUE"),
        (["io.github.user/weather", "--set-env", "WEATHER_API_KEY=NO_SUCH"], "has no variable NO_SUCH"),
        (["io.github.user/weather", "--set", "WEATHER_API_KEI=x"], "did you mean WEATHER_API_KEY"),
        (["io.github.user/weather", "--set", "WEATHER_API_KEY=a\x1bb"], "control characters are not allowed"),
        (["io.github.user/weather", "--set", "WEATHER_API_KEY=k", "--set", "units=odd"], "one of metric, imperial"),
        (["io.github.user/weather", "--use", "oci"], "no package of the kind oci: it has npm"),
        (["com.example/analytics", "--set", "api_key=k", "--root", "/tmp"], "--root is for a confined server"),
        (["io.github.user/weather", "--as", "Weather!"], "--as: names of servers are lower case"),
        (["io.github.user/weather", "--registry", "ftp://x"], "--registry: expected an address"),
        (["io.github.user/weather", "--registry", "http://registry.example.org"], "write https://"),
        (["io.github.user/weather", "--registry", "https://registry.example.org/?x=1"], "no user, ? or #"),
    ],
)  # fmt: skip
def test_what_cannot_be_installed_is_said_in_a_line(
    there: Registry, data: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    code, out, err = install(capsys, *argv)
    assert (code in (1, 2), said in err, out) == (True, True, ""), err
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert nothing_changed(data)


def _package(**members: object) -> Change:
    return lambda server: server["packages"][0].update(members)


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        (_package(identifier="--from=https://evil.example"), {}, "`identifier` '--from"),
        (_package(identifier="../here"), {}, "`identifier`"),
        (_package(version="latest"), {}, "`version` 'latest' of the package is not one version"),
        (_package(version="^1.0.0"), {}, "`version`"),
        (_package(version=""), {}, "`version`"),
        (_package(identifier="a\u200bb"), {}, "`packages[0].identifier` of the server has control characters"),
        (_package(packageArguments=[{"type": "positional", "value": "a\nb"}]), {}, "packageArguments[0].value"),
        (_package(packageArguments=[{"type": "odd"}]), {}, "packages[0].packageArguments[0].type"),
        (_package(packageArguments=[{"type": "named"}]), {}, "packageArguments[0].name` is missing"),
        (_package(environmentVariables=[{"name": "A=B"}]), {}, "environmentVariables[0].name"),
        (_package(transport={"type": "streamable-http", "url": "http://localhost:1"}), {}, "a port of its own"),
        (_package(registryType="cargo"), {}, "cargo: packages of this kind are unknown"),
        (_package(registryType="cargo\x1b[2J"), {}, "control characters"),
        (_package(registryBaseUrl="file:///etc"), {}, "`registryBaseUrl`"),
        (lambda server: server.update(packages="all"), {}, "packages"),
        (lambda server: server.pop("packages"), {}, "it has none at all"),
        (lambda server: server.pop("version"), {}, "version"),
        (lambda server: None, {"status": "deleted", "statusMessage": "malware"}, "was deleted from the registry"),
    ],
)  # fmt: skip
def test_a_server_that_is_described_wrongly_is_refused(
    there: Registry, data: Path, capsys: pytest.CaptureFixture[str], change: Change, status: dict[str, str], said: str
) -> None:
    there.entries = [entry(changed(shapes.NPM, change), **status)]
    there.answer = lambda handler: handler.reply(200, there.entries[0])  # type: ignore[attr-defined]
    code, out, err = install(capsys, "io.github.user/weather", "--set", "WEATHER_API_KEY=k")
    assert (code in (1, 2), said in err, out) == (True, True, ""), err
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert nothing_changed(data)


def _sends(content: bytes, *, length: int | None = None, status: int = 200) -> Any:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content) if length is None else length))
        if status == 302:
            handler.send_header("Location", "ftp://127.0.0.1/x")
        handler.end_headers()
        with contextlib.suppress(OSError):
            handler.wfile.write(content)

    return answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (_sends(b"<html>"), "did not answer with a JSON object"),
        (_sends(b"[]"), "did not answer with a JSON object"),
        (_sends(b'"\xff"'), "did not answer with a JSON object"),
        (_sends(b"[" * 100_000), "did not answer with a JSON object"),
        (_sends(b"{}"), "missing"),
        (_sends(b'{"server": 1, "servers": 1}'), "missing"),
        (_sends(b"{", length=100), "only a part"),
        (_sends(b" " * (9 * 1024 * 1024)), "more than 8.0 MiB"),
        (_sends(b"", status=500), "HTTP status 500; try again later"),
        (_sends(b"", status=401), "it wants a login"),
        (_sends(b"", status=302), "redirects to ftp://"),
        (lambda handler: handler.connection.shutdown(socket.SHUT_RDWR), "cannot be reached"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("argv", [("search", "x"), ("install", "--yes", "io.github.user/x")])
def test_bad_answers_end_in_a_line(
    there: Registry, data: Path, capsys: pytest.CaptureFixture[str], answer: Any, said: str, argv: tuple[str, ...]
) -> None:
    there.answer = answer
    code, out, err = run(capsys, *argv)
    assert (code, out, said in err, err.count("\n")) == (1, "", True, 1), err
    assert nothing_changed(data)


def test_a_registry_that_sends_a_byte_now_and_then_is_given_up(
    there: Registry, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):
            while not there.released.wait(0.02):
                handler.wfile.write(b" ")

    there.answer = drip
    monkeypatch.setattr(download, "ANSWER_S", 0.3)
    begun = time.monotonic()
    code, _, err = run(capsys, "search", "x")
    assert (code, "did not answer completely within 0.3 s" in err) == (1, True)
    assert time.monotonic() - begun < 5
    assert nothing_changed(data)


def test_what_comes_from_https_cannot_be_redirected_to_http() -> None:
    follow = download._Redirects().redirect_request
    request = urllib.request.Request("https://registry.example.org/x")
    assert follow(request, io.BytesIO(), 302, "", HTTPMessage(), "https://other.example.org/x") is not None
    with pytest.raises(urllib.error.URLError, match="it redirects to http://"):
        follow(request, io.BytesIO(), 302, "", HTTPMessage(), "http://registry.example.org/x")


def test_without_a_registry_it_says_so_at_once(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        code, _, err = run(capsys, "search", "x", "--registry", url)
    assert (code, "cannot be reached: Connection refused" in err) == (1, True)
    assert nothing_changed(data)


def test_a_runner_that_is_missing_is_named(there: Registry, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data.parent / "bin" / "npx").unlink()
    code, _, err = install(capsys, "io.github.user/weather", "--set", "WEATHER_API_KEY=k")
    assert (code, "it needs npx, which comes with Node.js" in err) == (1, True)
    assert nothing_changed(data)


def test_nothing_is_asked_of_a_pipe_and_nothing_is_done_without_a_yes(
    there: Registry, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    code, _, err = run(capsys, "install", "io.github.user/time")
    assert (code, "stdin is no terminal" in err, there.asked) == (2, True, [])
    code, out, _ = run(capsys, "install", "--dry-run", "io.github.user/time")
    assert (code, "mcp-server-time@2026.10.19" in out, "Nothing was changed." in out) == (0, True, True)
    monkeypatch.setattr(command, "confirmed", lambda question: False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert run(capsys, "install", "io.github.user/time")[0] == 1
    assert nothing_changed(data)


def test_an_interrupted_install_changes_nothing(
    there: Registry, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "change", interrupted)
    code, _, _ = install(capsys, "io.github.user/weather", "--set", "WEATHER_API_KEY=k")
    assert code == 130
    assert [path for path in data.rglob("*") if path.is_file()] == []


def test_the_settings_name_another_registry(
    there: Registry, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LINCKIA_MCP_REGISTRY")
    data.mkdir()
    (data / "linckia.toml").write_text(f'mcp_registry = "{there.url}/"\n')
    assert install(capsys, "io.github.user/time")[0] == 0
    assert there.asked == ["/v0.1/servers/io.github.user%2Ftime/versions/latest"]
    (data / "linckia.toml").write_text('mcp_registry = "nothing"\n')
    code, _, err = run(capsys, "search", "x")
    assert (code, "mcp_registry: expected an address" in err) == (2, True)
