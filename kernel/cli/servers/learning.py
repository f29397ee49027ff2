"""`linckia mcp test --learn`: finds what a confined server needs, by observing it within its walls.

The server runs in a kernel of its own, confined as its settings say, and below an observer
(`services.mounts.observer`). What the walls refuse is proposed as settings. The server gets nothing that the user has
not agreed to: it is started again, with the new settings, after they are written.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kernel.cli.servers.learned import Attempt, Needs, needs_of
from kernel.cli.servers.tables import change, mounts, written
from kernel.cli.servers.testing import denied_by, last_words, offered_by, start_timeout_of, summary, temporary_kernel
from kernel.cli.settings_file import edited
from proto.control.client import CallFailed, Client
from proto.control.commands import Failed, Usage
from proto.control.terminal import complain, confirmed, say
from proto.json_types import JsonObject, Layer
from proto.mounts import TABLE, TOOLS_CALL, MountSettings, Offered, service_of
from proto.names import module
from proto.suggestions import nearest

OBSERVER = (sys.executable, "-I", "-m", module("services.mounts.observer"))
REPORT = "observed.jsonl"

ROUNDS = 8
"""A server often stops at the first thing that is refused, so that it is started again to find the next one."""

_RESULT_CHARS = 500

_OTHERWISE = """\
No setting would have changed that: it tried to write nowhere else. Confined servers may not use sockets of the file
system, such as those of Docker or a session bus, and signal no other programs: `confine = false` lets them."""


class _Tool(msgspec.Struct, frozen=True):
    """A call to make while the server is observed."""

    name: str
    arguments: Layer


def learn(arguments: argparse.Namespace, data_dir: Path, name: str) -> int:
    """Observe a server, and propose and write settings until it needs no more. Raises Failed, Usage, CallFailed."""
    tool = _tool(arguments)
    closed = denied_by(data_dir)
    for number in range(ROUNDS):
        table = _table(data_dir, name)
        attempts, failure = _observed(data_dir, name, table, tool, closed)
        needs = needs_of(attempts, table, home=Path.home(), closed=closed)
        news = _news(table, needs, is_called=tool is not None and not failure)
        _show(name, table, needs, news)
        if not news:
            if failure:
                raise Failed(f"{failure}\n{_OTHERWISE}")
            say(f"{name} needs nothing that its settings do not give it.")
            return 0
        if failure:
            say(f"While it was observed, it failed: {failure.splitlines()[0]}")
        if not _is_wanted(data_dir, name, news, needs, is_agreed=arguments.yes):
            say("Nothing was changed." if not number else "Nothing else was changed.")
            return 0
        for folder in needs.new:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        change(data_dir, {(name, key): value for key, value in news.items()})
        say(f"This is in [{TABLE}.{name}] of {data_dir / 'linckia.toml'} now.")
        if not needs.roots:
            return 0
    complain(f"{name} was observed {ROUNDS} times, and still asks for more; run this again to go on")
    return 1


def _tool(arguments: argparse.Namespace) -> _Tool | None:
    if arguments.call is None:
        if arguments.call_arguments is not None:
            raise Usage("--arguments is for --call TOOL")
        return None
    try:
        given = json.loads(arguments.call_arguments or "{}")
    except json.JSONDecodeError as error:
        raise Usage(f"--arguments is not valid JSON: {error}") from None
    if not isinstance(given, dict):
        raise Usage('--arguments: expected a JSON object, such as \'{"path": "x"}\'')
    return _Tool(arguments.call, given)


def _table(data_dir: Path, name: str) -> Layer:
    """Return the table of a server that is in the settings. Raises Usage.

    Only these have been chosen by the user; a project's file is no settings file.
    """
    table = mounts(data_dir).get(name)
    if table is None:
        raise Usage(f"{name} is not in the settings of {data_dir}; `linckia mcp add` and `import` add servers")
    if "command" not in table:
        raise Usage(f"{name} is reached over HTTP: there is no program here that could be observed")
    return table


def _observed(
    data_dir: Path, name: str, table: Layer, tool: _Tool | None, closed: Sequence[str]
) -> tuple[list[Attempt], str]:
    """Run the server within its walls; return what it tried to do, and how it failed. Raises Failed."""
    failure = ""
    command = [table["command"], *table.get("args", [])]

    def observed(used: Path) -> Layer:
        first, *args = [*OBSERVER, str(_report(used, name)), *command]
        return {**table, "command": first, "args": args, "confine": True}

    with temporary_kernel(name, observed, closed) as used:
        try:
            with Client(used) as client:
                offered = offered_by(client, name, start_timeout_of(table))
                say(f"{name}: {summary(offered)}")
                if tool is not None:
                    failure = _called(client, name, tool, offered, table)
        except CallFailed as error:
            failure = last_words(used, name, str(error), is_temporary=True)
        report = _report(used, name)
        lines = report.read_bytes().splitlines() if report.exists() else []
    attempts = []
    for line in lines:
        # The server may write there as well.
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            each = msgspec.json.decode(line, type=Attempt)
            if not each.path.startswith(f"{used}/"):
                attempts.append(each)
    for each in attempts:
        if each.kind == "problem":
            raise Failed(f"a server cannot be observed on this system: {each.path}")
    if not any(each.kind == "begun" for each in attempts):
        raise Failed(failure or f"{name} was not started, so that nothing was observed")
    return attempts, failure


def _report(used: Path, name: str) -> Path:
    """Return the observer's report: in the server's own folder, since the observer is within the same walls."""
    return used / "services" / service_of(name) / REPORT


class _Named(msgspec.Struct):
    """The definition of a tool, as far as it matters here."""

    name: str


def _called(client: Client, name: str, tool: _Tool, offered: Offered, table: Layer) -> str:
    """Call the tool, and show its result; return how it failed. Raises CallFailed, Usage."""
    names = [msgspec.json.decode(each, type=_Named).name for each in offered.definitions.tools]
    if tool.name not in names:
        raise Usage(f"{name} has no tool {tool.name!r}{nearest(tool.name, names) if names else ''}")
    params = json.dumps({"name": tool.name, "arguments": tool.arguments}).encode()
    request = {"method": TOOLS_CALL, "name": tool.name, "params": base64.b64encode(params).decode()}
    limit_s = float(table.get("timeout", MountSettings().timeout))
    reply: JsonObject = client.call_named(f"{service_of(name)}.change", request, timeout_s=limit_s)
    result = reply.get("result") or {}
    texts = [str(each.get("text", "")) for each in result.get("content", ()) if isinstance(each, dict)]
    said = " ".join(texts).strip() or json.dumps(reply.get("error") or result)
    say(f"{tool.name}: {said[:_RESULT_CHARS]}")
    return f"{tool.name} failed: {said[:_RESULT_CHARS]}" if "error" in reply or result.get("isError") else ""


def _show(name: str, table: Layer, needs: Needs, news: Layer) -> None:
    """Show what is not proposed."""
    if needs.by_hand:
        say(f"{name} also tried to write here, which only you can allow, by `roots` in [{TABLE}.{name}]:")
        say(*(f"  {path}: {why}" for path, why in needs.by_hand.items()))
    if needs.named:
        say(f"Its settings name {', '.join(needs.named)}, where it did not try to write.")
        say("If its tools do, learn that with --call, or add `roots` yourself.")
    if needs.secrets:
        say(f"It reads these, which confinement does not hide; `deny` in linckia.toml does: {', '.join(needs.secrets)}")
    if table.get("network", True) is False:
        say("`network = false` refuses all connections, so that none were observed.")
    elif needs.connections:
        say(f"It connects to {', '.join(needs.connections)}: `network` must stay true.")
    elif "network" in news:
        say("It made no connection. If another tool needs one, leave `network` as it is.")
    else:
        say("It made no connection. If its tools need none, `network = false` closes the network to it.")


def _news(table: Layer, needs: Needs, *, is_called: bool) -> Layer:
    """Return the keys to change."""
    news: Layer = {} if table.get("confine") else {"confine": True}
    if needs.roots:
        news["roots"] = [*table.get("roots", []), *needs.roots]
    if is_called and not needs.connections and not needs.roots and table.get("network", True):
        # A server that only lists its tools says nothing about what they need.
        news["network"] = False
    return news


def _is_wanted(data_dir: Path, name: str, news: Layer, needs: Needs, *, is_agreed: bool) -> bool:
    """Show the proposal, and ask. Raises Usage."""
    say("It needs these settings:")
    say(*edited("", (TABLE, name), news).rstrip().splitlines())
    if needs.new:
        say(f"New folders: {', '.join(needs.new)}")
    if name not in written(data_dir):
        say(f"{name} is not in {data_dir / 'linckia.toml'}; write them where it is set.")
        return False
    if is_agreed:
        return True
    if not sys.stdin.isatty():
        say("To write them, answer on a terminal, or add --yes.")
        return False
    return confirmed("Write them? [y/N]")
