"""`linckia mcp`: mounts other MCP servers, and shows and controls them."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from kernel.cli import logs as service_logs
from kernel.cli.servers.importing import import_servers
from kernel.cli.servers.secret_files import BUNDLES, FOLDER
from kernel.cli.servers.tables import change, known, mounts, reload, remove, server_of, table_of, written
from kernel.cli.servers.testing import tested
from kernel.cli.settings.mount_settings import problem_of
from proto.control.client import CallFailed, Client, NoKernel
from proto.control.commands import Failed, Usage
from proto.control.terminal import Cell, complain, connect, say, show_answer, show_json
from proto.json_types import Layer
from proto.mounts import ACTIVITY, PREFIX, TABLE, Flag, MountSettings, Offered, service_of
from proto.ops.kernel import KernelMounts, KernelRestart, KernelStatusParams, ServiceStatus
from proto.ops.mounts import MountDifference, MountsApprove, MountsDiff, MountsForget, MountsOffered
from proto.ops.observation import KernelService
from proto.wire.launch import FREE_ATTRIBUTES, NO_ATTRIBUTES, NO_SIGNAL_SCOPE

_HEADERS = ("NAME", "STATE", "CONFINED", "TOOLS", "FLAGS", "COMMAND OR URL")

_GAPS = {
    NO_ATTRIBUTES: "cannot change modes, owners and times of files, not even below its roots",
    FREE_ATTRIBUTES: "can change modes, owners and times of files outside its roots",
    NO_SIGNAL_SCOPE: "can signal other processes of its user",
}
"""What it means for a confined server that the system lacks a wall; `linckia doctor` says which."""

_CHANGING = ("collision", "hidden_characters", "cut", "dropped")
"""Kinds of flags of what clients see otherwise than the server wrote it, or not at all."""
_CHANGES = 5
"""How many of them `list` shows of each server."""
_CHANGE_CHARS = 300


_LATER = "from the next start of Linckia"


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server, as `list` shows it."""

    name: str
    state: str
    reason: str
    last_death: str
    login: str
    confine: bool
    activity: str
    confined: str
    tools: int | None
    flags: list[str]
    suspicious: list[Flag]
    server: str


def mcp(arguments: argparse.Namespace) -> int:
    """Run one action. Raises Usage, Failed, ControlError, OSError."""
    return _ACTIONS[arguments.action](arguments, arguments.data_dir)


def _add(arguments: argparse.Namespace, data_dir: Path) -> int:
    name, table = arguments.name, table_of(arguments)
    if problem := problem_of(name):
        raise Usage(problem)
    if name in written(data_dir) or name in mounts(data_dir):
        raise Usage(f"there already is a server {name!r}; `linckia mcp remove {name}` removes it")
    if found := shutil.which(str(table.get("command", ""))):
        # The kernel may have another PATH (systemd's), where another program has this name, or none.
        table["command"] = str(Path(found).absolute())
    is_running = change(data_dir, {(name,): table}) is not None
    say(f"{name} is added: [{TABLE}.{name}] in {data_dir / 'linckia.toml'}.")
    if not arguments.no_test:
        tested(data_dir, name, mounts(data_dir)[name])
    say("Its tools are served now." if is_running else f"Its tools are served {_LATER}.")
    return 0


def _test(arguments: argparse.Namespace, data_dir: Path) -> int:
    if not arguments.learn and (arguments.call or arguments.call_arguments or arguments.yes):
        raise Usage("--call, --arguments and --yes are for --learn")
    # The settings may have been edited.
    _reload(data_dir)
    name = _known(arguments, data_dir)
    there = mounts(data_dir)
    if name not in there and name in written(data_dir):
        raise Usage(f"{name} is disabled; `linckia mcp enable {name}` enables it")
    if arguments.learn:
        from kernel.cli.servers.learning import learn

        return learn(arguments, data_dir, name)
    tested(data_dir, name, there.get(name, {}))
    return 0


def _reload(data_dir: Path) -> None:
    """Let a running kernel read the settings again. Raises Failed."""
    try:
        reload(data_dir)
    except CallFailed as error:
        raise Failed(str(error)) from None


def _known(arguments: argparse.Namespace, data_dir: Path) -> str:
    """Return the name of a server that the running kernel serves, or that is in the settings. Raises Usage."""
    with contextlib.suppress(NoKernel), connect(arguments) as client:
        # It may come from --mcp or --config.
        if (name := _names(client).get(service_of(arguments.name))) is not None:
            return name
    return known(data_dir, arguments.name)


def _list(arguments: argparse.Namespace, data_dir: Path) -> int:
    tables = {**{name: {**table, "enabled": False} for name, table in written(data_dir).items()}, **mounts(data_dir)}
    found = []
    with contextlib.ExitStack() as stack:
        client: Client | None = None
        with contextlib.suppress(NoKernel):
            client = stack.enter_context(connect(arguments))
        status = _statuses(client)
        for name, table in sorted(tables.items()):
            found.append(_described(client, name, table, status.pop(service_of(name), None)))
        # Those that the kernel got by --mcp or --config.
        names = _names(client)
        for service, state in sorted(status.items()):
            found.append(_described(client, names.get(service, service.removeprefix(PREFIX)), {}, state))
    if not found and not arguments.json:
        say("There are no servers; `linckia mcp add --help` shows how to add one.")
        return 0
    show_answer(arguments.json, found, _HEADERS, [_row(each) for each in found])
    if not arguments.json:
        for each in found:
            say(*_remarks(each))
    return 0


def _remarks(found: Server) -> list[Cell]:
    """Return lines about a server that needs somebody's attention."""
    name = found.name
    if found.login:
        return [f"{name} needs a login: open this address in a browser: {found.login}"]
    if found.tools is None and found.last_death:
        return [f"{name} has not started: {found.last_death}; see: linckia mcp logs {name}"]
    remarks: list[Cell] = [f"{name} is {found.activity}"] if found.activity else []
    gaps = [meaning for gap, meaning in _GAPS.items() if gap in found.confined]
    remarks += [f"{name} {meaning}; see: linckia doctor" for meaning in gaps]
    return [*remarks, *_changes(name, found.suspicious)]


def _changes(name: str, flags: Sequence[Flag]) -> Iterator[Cell]:
    """Yield lines about definitions that clients do not see as the server wrote them."""
    changed = [flag for flag in flags if flag.kind in _CHANGING]
    for flag in changed[:_CHANGES]:
        line = f"{name}: {_flagged(flag)}"
        yield line if len(line) <= _CHANGE_CHARS else f"{line[:_CHANGE_CHARS]}…"
    if (more := len(changed) - _CHANGES) > 0:
        yield f"{name}: {more} more; see: linckia mcp diff {name}"


def _flagged(flag: Flag) -> str:
    detail = f" ({flag.detail})" if flag.detail else ""
    return f"{flag.where}: {flag.kind.replace('_', ' ')}{detail}"


def _statuses(client: Client | None) -> dict[str, ServiceStatus]:
    """Return the status of the mounts' services, by name."""
    services = [] if client is None else client.call(KernelStatusParams()).services
    return {each.name: each for each in services if each.name.startswith(PREFIX)}


def _names(client: Client | None) -> dict[str, str]:
    """Return the names of the servers that the kernel serves, by service."""
    mounts = [] if client is None else client.call(KernelMounts(version=-1)).mounts
    return {service_of(each.name): each.name for each in mounts}


def _described(client: Client | None, name: str, table: Layer, status: ServiceStatus | None) -> Server:
    offered = Offered()
    if client is not None and status is not None:
        with contextlib.suppress(CallFailed):
            offered = client.call(MountsOffered(mount=name))
    state = "disabled" if table.get("enabled") is False else "-" if status is None else status.state
    flags = [each.kind.replace("_", " ") for each in offered.flags]
    info = {} if status is None else status.info
    if offered.held_back:
        flags.insert(0, "held back")
    if login := info.get("login", ""):
        flags.insert(0, "needs login")
    return Server(
        name=name,
        state=state,
        reason="" if status is None else status.reason,
        last_death="" if status is None else status.last_death,
        login=login,
        confine=_is_confined(client, name, table, status),
        activity=info.get(ACTIVITY, ""),
        confined=info.get("confined", ""),
        tools=len(offered.definitions.tools) if offered.version else None,
        flags=list(dict.fromkeys(flags)),
        suspicious=offered.flags,
        server=server_of(table),
    )


def _is_confined(client: Client | None, name: str, table: Layer, status: ServiceStatus | None) -> bool:
    """Return whether the server is confined, as the running kernel has it, or else its settings."""
    if client is not None and status is not None:
        with contextlib.suppress(CallFailed):
            return bool(client.call(KernelService(service=service_of(name))).walls["confined"])
    return bool(table.get("confine", MountSettings().confine))


def _row(found: Server) -> list[Cell]:
    tools = "-" if found.tools is None else str(found.tools)
    walls = "yes" if found.confine else "no"
    return [found.name, found.state, walls, tools, ", ".join(found.flags) or "-", found.server or "-"]


def _logs(arguments: argparse.Namespace, data_dir: Path) -> int:
    arguments.service = service_of(arguments.name)
    with contextlib.suppress(Failed):
        return service_logs.logs(arguments)
    known(data_dir, arguments.name)
    say(f"{arguments.name} has no log yet: it has not started.")
    return 0


def _restart(arguments: argparse.Namespace, data_dir: Path) -> int:
    _reload(data_dir)
    with connect(arguments) as client:
        if service_of(arguments.name) not in _statuses(client):
            raise Usage(f"the running kernel does not serve {known(data_dir, arguments.name)}; see `linckia mcp list`")
        result = client.call(KernelRestart(service=service_of(arguments.name)))
    say(result.message)
    return 0


def _switch(arguments: argparse.Namespace, data_dir: Path) -> int:
    name, enabled = known(data_dir, arguments.name), arguments.action == "enable"
    is_running = change(data_dir, {(name, "enabled"): enabled}) is not None
    say(f"{name} is {'served' if enabled else 'no longer served'}{'' if is_running else f', {_LATER}'}.")
    return 0


def _remove(arguments: argparse.Namespace, data_dir: Path) -> int:
    remove(data_dir, arguments.name)
    if (data_dir / FOLDER / BUNDLES).is_dir():
        from kernel.cli.servers.installing.bundles import remove_unused

        remove_unused(data_dir, lambda: {**written(data_dir), **mounts(data_dir)})
    try:
        with contextlib.suppress(NoKernel), connect(arguments) as client:
            client.call(MountsForget(mount=arguments.name))
    except CallFailed as error:
        complain(f"the definitions of its tools are still stored: {error}")
    say(f"{arguments.name} is removed.")
    return 0


def _diff(arguments: argparse.Namespace, data_dir: Path) -> int:
    name = _known(arguments, data_dir)
    with connect(arguments) as client:
        found = client.call(MountsDiff(mount=name))
    if arguments.json:
        show_json(found)
        return 0
    for each in found.changes:
        say(*_difference(each))
    for flag in found.flags:
        say(f"suspicious: {_flagged(flag)}")
    if found.changes:
        say(f"`linckia mcp approve {name}` approves this.")
    elif not found.flags:
        say(f"The definitions of {name} have not changed.")
    return 0


def _difference(change: MountDifference) -> list[Cell]:
    before, after = change.before, change.after
    word = "added" if not before else "removed" if not after else "changed"
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2))[2:]
    return [f"{change.what}: {word}", *(f"  {line}" for line in lines if not line.startswith("@@"))]


def _approve(arguments: argparse.Namespace, data_dir: Path) -> int:
    name = _known(arguments, data_dir)
    with connect(arguments) as client:
        changed = client.call(MountsApprove(mount=name)).changed
    say(f"{name}: approved{': ' + ', '.join(changed) if changed else '; nothing had changed'}.")
    return 0


def _installing(arguments: argparse.Namespace, data_dir: Path) -> int:
    # The library for HTTP would slow down the start of the other actions.
    from kernel.cli.servers.installing import command

    return (command.search_servers if arguments.action == "search" else command.install)(arguments, data_dir)


_ACTIONS: dict[str, Callable[[argparse.Namespace, Path], int]] = {
    "add": _add,
    "list": _list,
    "test": _test,
    "logs": _logs,
    "restart": _restart,
    "enable": _switch,
    "disable": _switch,
    "remove": _remove,
    "diff": _diff,
    "approve": _approve,
    "import": import_servers,
    "search": _installing,
    "install": _installing,
}
