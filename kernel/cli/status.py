"""`linckia status`: the kernel's report about its services."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kernel.configure.config import STANDS_BY
from proto.control.terminal import Cell, connect, counted, duration, escaped, say, show_json, show_table, size
from proto.host.gpu import GPU, GpuFigures
from proto.mounts import ACTIVITY

if TYPE_CHECKING:
    from proto.ops.kernel import (
        AuditStatus,
        BackupStatus,
        ClusterStatus,
        KernelStatus,
        ServiceStatus,
        Trend,
    )
    from proto.wire.frames import Backlog

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
    from proto.ops.kernel import KernelStatusParams

    with connect(arguments) as client:
        answer = client.call(KernelStatusParams())
    services = answer.services
    if arguments.json:
        show_json(answer)
    elif arguments.trends:
        say(*heading(answer).split("\n"), "")
        show_table(TRENDS, [trend(one) for one in answer.trends])
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
            say(f"also well: {', '.join(each.name for each in others)}")
    return 1 if any(service.state == "failed" for service in services) else 0


def summary(answer: KernelStatus) -> list[Cell]:
    """Return the lines that matter most, for a screen that also has to show all services."""
    services = answer.services
    well = sum(each.state in ("ready", "resting") for each in services)
    mode = ", read-only" if answer.read_only else ""
    total = memory(answer.total_pss_bytes)
    lines: list[Cell] = [
        f"Linckia {answer.version}{mode}, up {duration(answer.uptime_s)}, {total}: "
        f"{well} of {counted(len(services), 'service')} well; linckia status -v says more",
        f"page {answer.page_url or 'off'}",
    ]
    state = answer.backup
    if state and (state.error or state.problems):
        lines.append((f"backup {backup(state)}", "yellow"))
    if (nodes := answer.cluster) is not None:
        lines += [(line, "yellow" if nodes.problem else "") for line in cluster(nodes)]
    if problem := _audit(answer.audit):
        lines.append((problem.strip(), "yellow"))
    return lines


def fitted(services: Sequence[ServiceStatus], room: int) -> tuple[Sequence[ServiceStatus], Sequence[ServiceStatus]]:
    """Return the services to show in `room` lines, and those that are left out: the last ones without anything to
    report. If too many have something to report, all of those are shown."""
    quiet = [each for each in services if each.state in ("ready", "resting") and not _short_note(each)]
    excess = len(services) - room
    others = quiet[-excess:] if excess > 0 else []
    return [each for each in services if each not in others], others


def short_row(service: ServiceStatus) -> list[Cell]:
    """Return the cells of a service's row, in the order of SHORT."""
    cells = dict(zip(HEADERS, row(service), strict=True))
    cells["NOTE"] = _short_note(service)
    return [cells[header] for header in SHORT]


def _short_note(service: ServiceStatus) -> str:
    """Return why the service is not ready, or what is worth knowing about it."""
    parts = [service.reason]
    if (retry := service.retry_in_s) is not None:
        parts.append(f"next try in {duration(retry)}")
    parts.append(service.info.get(ACTIVITY, ""))
    parts += [f"{name}: {_backlog(held)}" for name, held in service.backlogs.items()]
    if service.deaths:
        parts.append(f"last death: {service.last_death}")
    return "; ".join(part for part in parts if part)


def _notes(services: Sequence[ServiceStatus]) -> Iterator[str]:
    """Yield the notes of all services that have any, wrapped to the terminal."""
    width = max(40, shutil.get_terminal_size().columns)
    for service in services:
        if note := _note(service):
            text = f"{service.name}: {note}"
            yield from textwrap.wrap(escaped(text), width, subsequent_indent="    ", break_on_hyphens=False)


def heading(answer: KernelStatus, *, secrets: bool = True) -> str:
    """Return a few lines about the kernel as a whole; with `secrets`, the token and the page's address too."""
    read_only = answer.read_only_roots
    shown = (f"{root} (read only)" if root in read_only else root for root in answer.roots)
    roots = ", ".join(shown) or "none: operations on files are refused"
    mode = ", read-only" if answer.read_only else ""
    own = memory(answer.pss_bytes, answer.rss_bytes)
    private = f"token  {token(answer)}\npage   {answer.page_url or 'off'}\n" if secrets else ""
    return (
        f"Linckia {answer.version}{mode}, process {answer.pid}, up {duration(answer.uptime_s)}, "
        f"stdio clients: {answer.clients}\n"
        f"memory {memory(answer.total_pss_bytes)} in all, {own} of it the kernel\n"
        f"http   {answer.http_url or 'off'}\n"
        f"{private}"
        f"roots  {roots}\n"
        f"data   {answer.data_dir}"
        + (f"\nbackup {backup(answer.backup)}" if answer.backup else "")
        + _audit(answer.audit)
        + "".join(f"\n{line}" for line in cluster(answer.cluster))
    )


def cluster(state: ClusterStatus | None) -> list[str]:
    """Return a line about the cluster, and one about each node with what it runs."""
    if state is None:
        return []
    lines = [f"{state.engine}    {state.address}: {state.problem or counted(len(state.nodes), 'node')}"]
    for node in state.nodes:
        gpus = f", {node.num_gpus:g} GPUs" if node.num_gpus else ""
        cpus = f"{node.num_cpus:g} processors"
        lines.append(f"       {node.name}: {cpus}{gpus}; {', '.join(node.services) or 'nothing of this system'}")
    return lines


def token(answer: KernelStatus) -> str:
    """Return what a client over HTTP has to send."""
    if answer.open:
        return "off: every user and program on this machine has a client's access"
    return f"Authorization: Bearer {answer.token}" if answer.token else "-"


def backup(state: BackupStatus) -> str:
    """Return the age of the latest backup, and what went wrong since."""
    last = "none yet" if state.age_s is None else f"{state.snapshot}, {duration(state.age_s)} old"
    wrong = [f"the latest failed: {state.error}"] if state.error else state.problems
    return "; ".join([f"{last}, to {state.to}", *wrong])


def _audit(state: AuditStatus | None) -> str:
    """Return a line if the audit log has a problem."""
    if state is None or not (state.problem or state.lost):
        return ""
    problem = f"{state.problem}: {state.waiting} lines wait" if state.problem else "written again"
    return f"\naudit  {problem}, {state.lost} were lost"


def row(service: ServiceStatus) -> list[Cell]:
    """Return the cells of a service's row, in the order of HEADERS."""
    state = service.state
    up, recovery = service.uptime_s, service.recovery_ms
    queued = service.queued
    return [
        service.name,
        (state, STYLES.get(state, "")),
        str(service.generation),
        str(service.pid or "-"),
        "-" if up is None else duration(up),
        str(service.restarts),
        "-" if recovery is None else f"{recovery:.0f} ms",
        memory(service.pss_bytes, service.rss_bytes),
        f"{service.in_flight or 0}" + (f"+{queued}" if queued else ""),
        _note(service),
    ]


def trend(one: Trend) -> list[Cell]:
    """Return the cells of a service's trend, in the order of TRENDS."""
    growth, held = one.growth_bytes_per_day, one.bytes
    return [
        one.name,
        f"{one.deaths_per_day:.1f}",
        "-" if held is None else size(held),
        "-" if growth is None else ("-" if growth < 0 else "+") + size(abs(growth)),
        f"{one.days:.0f}",
    ]


_UNSHOWN = ("confined", STANDS_BY)
"""Service info shown only with `--json`: it is long and mostly the same for all services, or said in another way."""


def _note(service: ServiceStatus) -> str:
    parts = [service.reason]
    if (retry := service.retry_in_s) is not None:
        parts.append(f"next try in {duration(retry)}")
    if deaths := service.deaths:
        parts.append("deaths: " + ", ".join(f"{cause} {count}" for cause, count in deaths.items()))
        parts.append(f"last: {service.last_death}")
    if service.mode:
        parts.append(service.mode)
    if service.node:
        parts.append(f"on {service.node}")
    info = service.info
    gpu = GpuFigures.of(info)
    unshown = _UNSHOWN if gpu is None else (*_UNSHOWN, GPU)
    parts += [f"{name}: {value}" for name, value in info.items() if value and name not in unshown]
    parts += [] if gpu is None else [_gpu(gpu)]
    parts += [f"{name}: {_backlog(held)}" for name, held in service.backlogs.items()]
    return "; ".join(part for part in parts if part)


def _gpu(gpu: GpuFigures) -> str:
    """Return the name of a GPU, its memory, utilization and temperature."""
    text = f"GPU {gpu.number} {gpu.name}: {size(gpu.used_bytes)} of {size(gpu.total_bytes)}"
    if gpu.utilization is not None:
        text += f", {gpu.utilization:.0%} busy"
    return text if gpu.celsius is None else f"{text}, {gpu.celsius:.0f} °C"


def _backlog(held: Backlog) -> str:
    """Return the progress of background work, its speed, and the time left."""
    text = f"{held.done:,} of {held.total:,}"
    if held.per_s is not None and held.left_s is not None:
        text += f", {held.per_s:.0f}/s, {duration(held.left_s)} left"
    return text


def memory(pss_bytes: int | None, rss_bytes: int | None = None) -> str:
    """Return the memory of a process, in MiB or GiB."""
    count = pss_bytes or rss_bytes
    if not count:
        return "-"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
