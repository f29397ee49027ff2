"""A compromised front damages its listening socket: the next front serves as usual."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.hostile.front import ATTACKS
from tests.system.running import HTTP, RunningKernel, free_port, running, wait_until


@pytest.fixture(scope="module", params=["a port of the system's", "a port that was named", "two fronts"])
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    data: Path = tmp_path_factory.mktemp("listening")
    address = f"127.0.0.1:{free_port()}" if "named" in request.param else HTTP[1]
    workers = "2" if "two" in request.param else "1"
    environment = {"LINCKIA_SERVICES__FRONT__WORKERS": workers}
    options = ("--http", address, "--with", "tests.hostile")
    with running(data, options=options, services=["front", "echo"], environment=environment) as found:
        yield found


def get(kernel: RunningKernel, path: str) -> str | None:
    """Return the answer; None if nobody answers."""
    address = urlsplit(kernel.status()["http_url"]).netloc
    connection = http.client.HTTPConnection(address, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    return None


def fronts(kernel: RunningKernel) -> dict[str, int]:
    return {each["name"]: each["pid"] for each in kernel.status()["services"] if each["name"].startswith("front")}


@pytest.mark.parametrize("then", ["die", "live"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_front_that_harms_its_socket_leaves_the_next_one_able_to_serve(
    kernel: RunningKernel, attack: str, then: str
) -> None:
    url, before = kernel.status()["http_url"], fronts(kernel)
    outcome = get(kernel, f"/attack/{attack}/{then}")
    if attack == "drop" and then == "live":
        assert outcome == "[Errno 1] Operation not permitted"
    if then == "live" and attack not in ("shut", "shut_for_reading"):
        # As far as can be seen, it still serves.
        for name in before:
            kernel.call("kernel_restart", {"service": name})
    wait_until(lambda: fronts(kernel) != before)
    kernel.wait_ready()
    assert kernel.status()["http_url"] == url
    # Each of the fronts is reached.
    for _ in range(20):
        assert wait_until(lambda: get(kernel, "/ping")) == '"pong"'


def test_front_that_lives_on_without_its_socket_is_ended_for_it(kernel: RunningKernel) -> None:
    before = fronts(kernel)
    get(kernel, "/attack/shut/live")
    wait_until(lambda: fronts(kernel) != before)
    struck = next(name for name, pid in fronts(kernel).items() if pid != before[name])
    assert kernel.service(struck)["deaths"].get("protocol"), kernel.service(struck)
