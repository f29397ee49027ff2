"""`linckia` with a stand-in for the adapter of mounted servers.

python -m tests.system.mounts.mounting SERVICE,… ARGUMENT…
"""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit

from proto.mounts import service_of
from tests.system.running import REPOSITORY, RunningKernel, running

SERVER = REPOSITORY / "tests" / "system" / "support" / "mcp_server.py"


def small(*options: str, **settings: object) -> dict[str, object]:
    """The table of the small server."""
    return {"command": sys.executable, "args": [str(SERVER), *options], **settings}


def write(data_dir: Path, mounts: Mapping[str, Mapping[str, object]]) -> None:
    """Write the settings file."""
    data_dir.mkdir(exist_ok=True)
    (data_dir / "linckia.toml").write_text(tomlkit.dumps({"mcp": mounts}))


def call(kernel: RunningKernel, mount: str, tool: str, kind: str = "read", **arguments: object) -> str:
    """Call a tool of a mounted server; return its text. Raises CallFailed."""
    params = json.dumps({"name": tool, "arguments": arguments})
    reply: Any = request(kernel, mount, "tools/call", kind, params)
    text: str = reply["result"]["content"][0]["text"]
    return text


def request(kernel: RunningKernel, mount: str, method: str, kind: str = "read", params: str = "{}") -> Any:
    """Send a request to a mounted server; return its reply. Raises CallFailed."""
    encoded = base64.b64encode(params.encode()).decode()
    return kernel.call(f"{service_of(mount)}.{kind}", {"method": method, "params": encoded}, timeout_s=60)


@contextlib.contextmanager
def mounted(
    data_dir: Path,
    mounts: Mapping[str, Mapping[str, object]],
    *,
    services: Sequence[str] = ("yaml",),
    all_ready: bool = True,
    options: Sequence[str] = ("--no-http",),
    environment: Mapping[str, str] | None = None,
) -> Iterator[RunningKernel]:
    """A kernel with these mounted servers."""
    write(data_dir, mounts)
    with running(data_dir, services=services, environment=environment, all_ready=all_ready, options=options) as kernel:
        yield kernel
