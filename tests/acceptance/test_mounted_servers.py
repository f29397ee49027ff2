"""Real servers through Linckia: clients get the same lists and replies as from the servers themselves."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proto.mounts import service_of
from tests.acceptance.install_servers import folder
from tests.acceptance.mounted_servers import LISTS, NAMES, Request, Server, servers
from tests.acceptance.raw_client import LEGACY, MODERN, RawClient, plain
from tests.system.mounts.mounting import mounted
from tests.system.running import REPOSITORY, RunningKernel, wait_until


class Mounts:
    """A kernel with all installed servers mounted."""

    def __init__(self, kernel: RunningKernel, servers: dict[str, Server]) -> None:
        self.kernel = kernel
        self._servers = servers

    def server(self, name: str) -> Server:
        """Return a server as at its first start; skip the test if it is not installed."""
        if name not in self._servers:
            pytest.skip(f"{name} is not installed in {folder()}: python -m tests.acceptance.install_servers {name}")
        server = self._servers[name]
        if self.kernel.service(service_of(name))["state"] != "resting":
            self.kernel.call("kernel_stop", {"service": service_of(name)})
        server.reset()
        self.kernel.call("kernel_start", {"service": service_of(name)})
        wait_until(lambda: self.kernel.service(service_of(name))["state"] == "ready", 60)
        return server

    def stdio(self, surface: str) -> list[str]:
        """Return the command for clients of a surface."""
        command = [sys.executable, "-P", "-m", "kernel.cli", "stdio"]
        return [*command, "--data", str(self.kernel.data_dir), "--surface", surface]


def opened(tmp_path_factory: pytest.TempPathFactory, *names: str) -> Iterator[Mounts]:
    """A kernel with those of the named servers that are installed."""
    found = {server.name: server for server in servers(tmp_path_factory.mktemp("servers"))}
    there = {name: found[name] for name in names if Path(found[name].command[0]).exists()}
    if shutil.which("chromium") is None:
        there.pop("playwright", None)
    tables = {name: server.table() for name, server in there.items()}
    with mounted(tmp_path_factory.mktemp("data"), tables, services=("yaml", "mounts")) as kernel:
        yield Mounts(kernel, there)


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounts]:
    yield from opened(tmp_path_factory, *NAMES)


def all_replies(client: RawClient, requests: list[Request]) -> dict[str, str]:
    """Return the replies to all lists and requests, keyed by request."""
    lists = [Request(method) for name, methods in LISTS.items() if name in client.capabilities for method in methods]
    return {
        f"{number} {each.method} {each.params}": each.fixed(plain(client.ask(each.method, each.params)))
        for number, each in enumerate([*lists, *requests])
    }


@pytest.mark.parametrize("name", NAMES)
def test_lists_and_replies_equal_the_server_s_own(mounts: Mounts, name: str) -> None:
    server = mounts.server(name)
    with RawClient(server.command, LEGACY, cwd=server.folder, environment=server.environment) as client:
        greeting = client.greeting
        direct = all_replies(client, server.requests)
    # Linckia has an empty list where a server has none.
    lists = {(what, reply) for what, reply in direct.items() if "/list " in what and "Method not found" not in reply}
    for version in (LEGACY, MODERN):
        mounts.server(name)
        with RawClient(mounts.stdio(name), version, cwd=REPOSITORY) as client:
            # A new process sends its lists a moment after it is ready; until then clients see those of the last one.
            wait_until(
                lambda: all_replies(client, []).items() & direct.items() == lists, said=lambda: all_replies(client, [])
            )  # called at once
            through = all_replies(client, server.requests)
        for what, reply in direct.items():
            # Linckia has an empty list where a server has none.
            if "Method not found" not in reply:
                assert through[what] == reply, f"{version}: {what}"
    with RawClient(mounts.stdio(name), LEGACY, cwd=REPOSITORY) as client:
        assert client.greeting["serverInfo"] == greeting["serverInfo"]
        assert client.greeting.get("instructions") == greeting.get("instructions")
