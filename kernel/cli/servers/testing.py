"""Tests of mounted servers: starts one, and shows its number of tools, or its last words."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kernel.cli.servers.tables import flags_for
from kernel.cli.settings.loading import load
from kernel.cli.settings_file import SettingsFile, edited
from kernel.cli.stdio import SERVE
from kernel.configure.config import ConfigError
from proto.control.address import last_lines, log_dir
from proto.control.client import CallFailed, Client, ControlError, NoKernel
from proto.control.commands import Failed, Usage
from proto.control.terminal import complain, duration, say
from proto.host import log_lines
from proto.json_types import JsonObject, Layer
from proto.mounts import TABLE, MountSettings, Offered, service_of
from proto.ops.kernel import KernelShutdown, KernelStatusParams
from proto.ops.mounts import MountsOffered

WORDS = 8
"""Number of last lines of a server's log to show."""

LOOKED_AT = 200

_TRACEBACK = re.compile(r"\s*[|+]")
"""Lines of the adapter's tracebacks."""

STARTS_S, ENDS_S, POLL_S = 20.0, 15.0, 0.02

STORED_S = 5.0
"""How long the definitions may take from the adapter to the registry."""

SLACK_S = 10.0

LOOK_S = 2.0
"""Interval of looks at a server that does not answer yet."""


def tested(data_dir: Path, name: str, table: Layer) -> None:
    """Start a server and print its name and number of tools. Raises Failed, with its last words."""
    begun = time.monotonic()
    with _kernel(data_dir, name, table) as (used, is_temporary):
        try:
            with Client(used) as client:
                offered = offered_by(client, name, start_timeout_of(table))
        except CallFailed as error:
            words = last_words(used, name, str(error), is_temporary=is_temporary)
            if table.get("confine") and "command" in table:
                words += f"\nIt is confined. To find out what it may need: linckia mcp test --learn {name}"
            raise Failed(words) from None
    say(f"{name}: {summary(offered)} ({duration(time.monotonic() - begun)})")


def start_timeout_of(table: Layer) -> float:
    """Return how long the server may take to start, in seconds."""
    return float(table.get("start_timeout", MountSettings().start_timeout))


def offered_by(client: Client, name: str, start_timeout_s: float) -> Offered:
    """Start the server, and return its definitions. Raises CallFailed."""
    request = {"method": "tools/list", "params": base64.b64encode(b"{}").decode()}
    _start(client, name, request, start_timeout_s + SLACK_S)
    give_up_at = time.monotonic() + STORED_S
    while True:
        found = client.call(MountsOffered(mount=name))
        if found.version or time.monotonic() > give_up_at:
            return found
        time.sleep(POLL_S)


def _start(client: Client, name: str, request: JsonObject, limit_s: float) -> None:
    """Make the request, and meanwhile show the address of a login that the server needs. Raises CallFailed."""
    give_up_at = time.monotonic() + limit_s
    shown = ""
    while True:
        left_s = give_up_at - time.monotonic()
        try:
            client.call_named(f"{service_of(name)}.read", request, timeout_s=max(POLL_S, min(LOOK_S, left_s)))
        except CallFailed as error:
            if error.failure.get("kind") != "timeout" or left_s <= LOOK_S:
                raise
            if (address := login_of(client, name)) not in ("", shown):
                shown = address
                complain(f"{name} needs a login: open this address in a browser: {address}")
        else:
            return


def login_of(client: Client, name: str) -> str:
    """Return the address of the login that a server waits for; empty if it waits for none."""
    for each in client.call(KernelStatusParams()).services:
        if each.name == service_of(name):
            return each.info.get("login", "")
    return ""


def summary(offered: Offered) -> str:
    """Describe what a server offers in a line: its name and version, and how much there is of each kind."""
    has = offered.definitions
    named = " ".join(str(has.server_info[key]) for key in ("name", "version") if key in has.server_info)
    counts = [(len(has.tools), "tool"), (len(has.prompts), "prompt"), (len(has.resources), "resource")]
    return f"{named or 'unnamed'}: " + ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)


def is_ours(line: str) -> bool:
    """Return whether Linckia wrote this line of a server's log. Servers may log JSON lines, too."""
    logged = log_lines.parsed(line)
    if logged is None:
        return _TRACEBACK.match(line) is not None
    return str(logged.get("logger", "")).startswith("linckia.")


def last_words(data_dir: Path, name: str, why: str, *, is_temporary: bool) -> str:
    """Return why a server does not work, with the last lines that it wrote."""
    words = f"{name} does not work: {why}"
    with contextlib.suppress(OSError):
        lines = last_lines(log_dir(data_dir) / f"{service_of(name)}.log", LOOKED_AT)
        # Each start repeats them.
        if said := list(dict.fromkeys(line for line in lines if line not in why and not is_ours(line)))[-WORDS:]:
            words += "\nits last words:\n  " + "\n  ".join(said)
    if not is_temporary:
        words += f"\nSee: linckia mcp logs {name}"
    return f"{words}\nIts settings are kept: change [{TABLE}.{name}] in linckia.toml, and then: linckia mcp test {name}"


@contextlib.contextmanager
def _kernel(data_dir: Path, name: str, table: Layer) -> Iterator[tuple[Path, bool]]:
    """Yield the data directory of a kernel with the server, and whether it is a temporary one: if none runs, one is
    started in a directory of its own, so that no client joins it. Raises Failed."""
    try:
        Client(data_dir).close()
    except NoKernel:
        with temporary_kernel(name, lambda _: table, denied_by(data_dir)) as temporary:
            yield temporary, True
    else:
        yield data_dir, False


def denied_by(data_dir: Path) -> tuple[str, ...]:
    """Return what a kernel with this data directory denies to clients and confined servers. Raises Usage."""
    try:
        return load(flags_for(data_dir), os.environ).denied
    except ConfigError as error:
        raise Usage(str(error)) from None


@contextlib.contextmanager
def temporary_kernel(name: str, table: Callable[[Path], Layer], denied: Sequence[str]) -> Iterator[Path]:
    """Yield the data directory of a kernel that serves this server alone; `table` gets that, too. Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="linckia-test-") as made:
        temporary = Path(made).resolve()
        # A confined server must not read there what the kernel of this data directory would hide from it.
        settings = edited(edited("", ("deny",), list(denied)), (TABLE, name), table(temporary))
        SettingsFile(temporary).write(settings)
        environment = {
            name: value for name, value in os.environ.items() if name not in ("LINCKIA_CONFIG", "LINCKIA_DATA")
        }
        command = [*SERVE, "--no-http", "--only-mounts", "--data", str(temporary)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            _wait(temporary, process)
            yield temporary
        finally:
            _end(temporary, process)


def _wait(data_dir: Path, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + STARTS_S
    while time.monotonic() < give_up_at and process.poll() is None:
        with contextlib.suppress(ControlError), Client(data_dir) as client:
            client.call(KernelStatusParams(), timeout_s=STARTS_S)
            return
        time.sleep(POLL_S)
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = last_lines(log_dir(data_dir) / "kernel.log", WORDS)
    raise Failed("\n  ".join(["no kernel could be started for the test; the end of its log:", *lines]))


def _end(data_dir: Path, process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ControlError), Client(data_dir) as client:
        client.call(KernelShutdown(), timeout_s=ENDS_S)
    try:
        process.wait(ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
