"""`linckia status`: the kernel's report about its services."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proto.control.terminal import Cell, connect, counted, duration, escaped, say, show_json, show_table, size
from proto.host.gpu import GPU, GpuFigures
from proto.json_types import JsonObject
from proto.mounts import ACTIVITY

HEADERS = ("SERVICE", "STATE", "GEN", "PID", "UP", "RESTARTS", "RECOVERY", "MEMORY", "BUSY", "")

VERBOSE_DROP = ("RECOVERY", "PID", "GEN")

SHORT = ("SERVICE", "STATE", "UP", "MEMORY", "RESTARTS", "BUSY", "NOTE")
SHORT_DROP = ("UP", "RESTARTS", "BUSY")

TRENDS = ("SERVICE", "DEATHS/DAY", "STORE", "GROWTH/DAY", "DAYS")

STYLES = {
    "ready": "green", "failed": "bold red", "backoff": "red", "stopped": "dim", "starting": "yellow", "resting": "dim"
}  # fmt: skip


def status(arguments: argparse.Namespace) -> int:
    """Show the status once. Exit code 1 if a service has failed. Raises ControlError."""
    with connect(arguments) as client:
        answer: JsonObject = client.call("kernel_status", {})
    services = answer["services"]
    if arguments.json:
        show_json(answer)
    elif arguments.trends:
        say(*heading(answer).split("\n"), "")
        show_table(TRENDS, [trend(one) for one in answer["trends"]])
    elif not sys.stdout.isatty():
        say(*heading(answer).split("\n"), "")
        show_table(HEADERS, [row(service) for service in services])
    elif arguments.verbose:
        say(*heading(answer).split("\n"), "")
        show_table(HEADERS[:-1], [row(service)[:-1] for service in services], VERBOSE_DROP)
        say("", *_notes(services))
    else:
        lines = summary(answer)
        say(*lines)
        columns, rows = shutil.get_terminal_size()
        used = sum(-(-len(line if isinstance(line, str) else line[0]) // columns) for line in lines)
        # Below the table are the line of the others and the prompt.
        shown, others = fitted(services, rows - used - 3)
        show_table(SHORT, [short_row(service) for service in shown], SHORT_DROP, one_line=True)
        if others:
            say(f"also well: {', '.join(each['name'] for each in others)}")
    return 1 if any(service["state"] == "failed" for service in services) else 0


def summary(answer: Mapping[str, Any]) -> list[Cell]:
    """Return the lines that matter most, for a screen that also has to show all services."""
    services = answer["services"]
    well = sum(each["state"] in ("ready", "resting") for each in services)
    mode = ", read-only" if answer.get("read_only") else ""
    total = memory({"pss_bytes": answer.get("total_pss_bytes")})
    lines: list[Cell] = [
        f"Linckia {answer['version']}{mode}, up {duration(answer['uptime_s'])}, {total}: "
        f"{well} of {counted(len(services), 'service')} well; linckia status -v says more",
        f"page {answer.get('page_url') or 'off'}",
    ]
    state = answer.get("backup")
    if state and (state["error"] or state["problems"]):
        lines.append((f"backup {backup(state)}", "yellow"))
    if (state := answer.get("cluster")) is not None:
        lines += [(line, "yellow" if state["problem"] else "") for line in cluster(state)]
    if problem := _audit(answer.get("audit")):
        lines.append((problem.strip(), "yellow"))
    return lines


def fitted(
    services: Sequence[Mapping[str, Any]], room: int
) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """Return the services to show in `room` lines, and those that are left out: the last ones without anything to
    report. If too many have something to report, all of those are shown."""
    quiet = [each for each in services if each["state"] in ("ready", "resting") and not _short_note(each)]
    excess = len(services) - room
    others = quiet[-excess:] if excess > 0 else []
    return [each for each in services if each not in others], others


def short_row(service: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of a service's row, in the order of SHORT."""
    cells = dict(zip(HEADERS, row(service), strict=True))
    cells["NOTE"] = _short_note(service)
    return [cells[header] for header in SHORT]


def _short_note(service: Mapping[str, Any]) -> str:
    """Return why the service is not ready, or what is worth knowing about it."""
    parts = [service.get("reason") or ""]
    if (retry := service.get("retry_in_s")) is not None:
        parts.append(f"next try in {duration(retry)}")
    parts.append((service.get("info") or {}).get(ACTIVITY, ""))
    parts += [f"{name}: {_backlog(held)}" for name, held in (service.get("backlogs") or {}).items()]
    if service.get("deaths"):
        parts.append(f"last death: {service.get('last_death')}")
    return "; ".join(part for part in parts if part)


def _notes(services: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the notes of all services that have any, wrapped to the terminal."""
    width = max(40, shutil.get_terminal_size().columns)
    for service in services:
        if note := _note(service):
            text = f"{service['name']}: {note}"
            yield from textwrap.wrap(escaped(text), width, subsequent_indent="    ", break_on_hyphens=False)


def heading(answer: Mapping[str, Any], *, secrets: bool = True) -> str:
    """Return a few lines about the kernel as a whole; with `secrets`, the token and the page's address too."""
    read_only = answer.get("read_only_roots", [])
    shown = (f"{root} (read only)" if root in read_only else root for root in answer["roots"])
    roots = ", ".join(shown) or "none: operations on files are refused"
    mode = ", read-only" if answer.get("read_only") else ""
    private = f"token  {token(answer)}\npage   {answer.get('page_url') or 'off'}\n" if secrets else ""
    return (
        f"Linckia {answer['version']}{mode}, process {answer['pid']}, up {duration(answer['uptime_s'])}, "
        f"stdio clients: {answer['clients']}\n"
        f"memory {memory({'pss_bytes': answer.get('total_pss_bytes')})} in all, {memory(answer)} of it the kernel\n"
        f"http   {answer['http_url'] or 'off'}\n"
        f"{private}"
        f"roots  {roots}\n"
        f"data   {answer['data_dir']}"
        + (f"\nbackup {backup(answer['backup'])}" if answer.get("backup") else "")
        + _audit(answer.get("audit"))
        + "".join(f"\n{line}" for line in cluster(answer.get("cluster")))
    )


def cluster(state: Mapping[str, Any] | None) -> list[str]:
    """Return a line about the cluster, and one about each node with what it runs."""
    if state is None:
        return []
    lines = [f"{state['engine']}    {state['address']}: {state['problem'] or counted(len(state['nodes']), 'node')}"]
    for node in state["nodes"]:
        gpus = f", {node['num_gpus']:g} GPUs" if node["num_gpus"] else ""
        cpus = f"{node['num_cpus']:g} processors"
        lines.append(f"       {node['name']}: {cpus}{gpus}; {', '.join(node['services']) or 'nothing of this system'}")
    return lines


def token(answer: Mapping[str, Any]) -> str:
    """Return what a client over HTTP has to send."""
    if answer.get("open"):
        return "off: every user and program on this machine has a client's access"
    return f"Authorization: Bearer {answer['token']}" if answer.get("token") else "-"


def backup(state: Mapping[str, Any]) -> str:
    """Return the age of the latest backup, and what went wrong since."""
    last = "none yet" if state["age_s"] is None else f"{state['snapshot']}, {duration(state['age_s'])} old"
    wrong = [f"the latest failed: {state['error']}"] if state["error"] else state["problems"]
    return "; ".join([f"{last}, to {state['to']}", *wrong])


def _audit(state: Mapping[str, Any] | None) -> str:
    """Return a line if the audit log has a problem."""
    if state is None or not (state["problem"] or state["lost"]):
        return ""
    problem = f"{state['problem']}: {state['waiting']} lines wait" if state["problem"] else "written again"
    return f"\naudit  {problem}, {state['lost']} were lost"


def row(service: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of a service's row, in the order of HEADERS."""
    state = service["state"]
    up, recovery = service.get("uptime_s"), service.get("recovery_ms")
    queued = service.get("queued") or 0
    return [
        service["name"],
        (state, STYLES.get(state, "")),
        str(service["generation"]),
        str(service.get("pid") or "-"),
        "-" if up is None else duration(up),
        str(service["restarts"]),
        "-" if recovery is None else f"{recovery:.0f} ms",
        memory(service),
        f"{service.get('in_flight') or 0}" + (f"+{queued}" if queued else ""),
        _note(service),
    ]


def trend(one: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of a service's trend, in the order of TRENDS."""
    growth, held = one["growth_bytes_per_day"], one["bytes"]
    return [
        one["name"],
        f"{one['deaths_per_day']:.1f}",
        "-" if held is None else size(held),
        "-" if growth is None else ("-" if growth < 0 else "+") + size(abs(growth)),
        f"{one['days']:.0f}",
    ]


_UNSHOWN = ("confined",)
"""Service info shown only with `--json`: it is long and mostly the same for all services."""


def _note(service: Mapping[str, Any]) -> str:
    parts = [service.get("reason") or ""]
    if (retry := service.get("retry_in_s")) is not None:
        parts.append(f"next try in {duration(retry)}")
    if deaths := service.get("deaths"):
        parts.append("deaths: " + ", ".join(f"{cause} {count}" for cause, count in deaths.items()))
        parts.append(f"last: {service.get('last_death')}")
    if service.get("mode"):
        parts.append(service["mode"])
    if service.get("node"):
        parts.append(f"on {service['node']}")
    info = service.get("info") or {}
    gpu = GpuFigures.of(info)
    unshown = _UNSHOWN if gpu is None else (*_UNSHOWN, GPU)
    parts += [f"{name}: {value}" for name, value in info.items() if value and name not in unshown]
    parts += [] if gpu is None else [_gpu(gpu)]
    parts += [f"{name}: {_backlog(held)}" for name, held in (service.get("backlogs") or {}).items()]
    return "; ".join(part for part in parts if part)


def _gpu(gpu: GpuFigures) -> str:
    """Return the name of a GPU, its memory, utilization and temperature."""
    text = f"GPU {gpu.number} {gpu.name}: {size(gpu.used_bytes)} of {size(gpu.total_bytes)}"
    if gpu.utilization is not None:
        text += f", {gpu.utilization:.0%} busy"
    return text if gpu.celsius is None else f"{text}, {gpu.celsius:.0f} °C"


def _backlog(held: Mapping[str, Any]) -> str:
    """Return the progress of background work, its speed, and the time left."""
    text = f"{held['done']:,} of {held['total']:,}"
    if held["per_s"] is not None:
        text += f", {held['per_s']:.0f}/s, {duration(held['left_s'])} left"
    return text


def memory(process: Mapping[str, Any]) -> str:
    """Return the memory of a process, in MiB or GiB."""
    count = process.get("pss_bytes") or process.get("rss_bytes")
    if not count:
        return "-"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
