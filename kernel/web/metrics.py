"""`GET /metrics`: what the supervisor and the router count, in Prometheus' text format (version 0.0.4).

Names follow its conventions: base units, counters end in `_total`. A service of several processes has one series for
each process and one, by the service's own name, for what they share (calls, failures, the queue).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kernel.ports import CauseKind, ServiceState
from kernel.router.router import Router
from kernel.supervisor import procfs
from kernel.supervisor.status import Report, ServiceReport
from kernel.supervisor.supervisor import Supervisor
from kernel.version import VERSION
from proto.errors import Kind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[dict[str, str], float]


def routes(supervisor: Supervisor, router: Router) -> list[BaseRoute]:
    """The endpoint, for a kernel's HTTP front."""

    async def metrics(request: Request) -> Response:
        text = exposition(supervisor.status(), router, procfs.resident_bytes(os.getpid()) or 0)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    return [Route("/metrics", metrics, methods=["GET"])]


def exposition(report: Report, router: Router, kernel_bytes: int) -> str:
    """All series as text.

    Args:
        kernel_bytes: resident memory of the kernel's own process.
    """
    services, lanes = report.services, router.lanes
    families = [
        _family("build_info", "gauge", "The version that runs.", [({"version": VERSION}, 1)]),
        _family("kernel_memory_bytes", "gauge", "Resident memory of the kernel.", [({}, kernel_bytes)]),
        _family(
            "service_up", "gauge", "Whether the service takes calls; one that rests does.",
            _each(services, lambda each: float(each.state in (ServiceState.READY, ServiceState.RESTING))),
        ),
        _family(
            "service_state", "gauge", "1 for the state that the process is in.",
            [
                ({"service": each.name, "state": state.value}, float(each.state is state))
                for each in services
                for state in ServiceState
            ],
        ),
        _family(
            "service_generation", "gauge", "How many times the process has been started.",
            _each(services, lambda each: each.generation),
        ),
        _family(
            "service_restarts_total", "counter", "Starts after the first that a crash caused.",
            _each(services, lambda each: each.restarts),
        ),
        _family(
            "service_deaths_total", "counter", "Deaths by cause.",
            # A series that is there from the start is what an alert on its increase needs.
            [
                ({"service": each.name, "cause": cause.value}, each.deaths.get(cause.value, 0))
                for each in services
                for cause in CauseKind
                if cause is not CauseKind.RESTED
            ],
        ),
        _family(
            "service_uptime_seconds", "gauge", "Since the process was ready.",
            _each(services, lambda each: each.uptime_s),
        ),
        _family(
            "service_recovery_seconds", "gauge", "From the latest death's being noticed to ready again.",
            _each(services, _recovery_s),
        ),
        _family(
            "service_answered_seconds", "gauge",
            "From the latest death's being noticed to every caller answered or queued again.",
            _each(services, lambda each: each.recoveries[-1].answered_ms / 1000 if each.recoveries else None),
        ),
        _family(
            "service_memory_bytes", "gauge", "Resident memory of the process.",
            _each(services, lambda each: each.rss_bytes),
        ),
        _family(
            "service_ping_seconds", "gauge", "Round trip of the latest ping.",
            _each(services, lambda each: None if each.ping_ms is None else each.ping_ms / 1000),
        ),
        _family(
            "service_in_flight", "gauge", "Calls delivered and not yet answered.",
            _each(services, lambda each: router.lane(each.name).in_flight_of(each.name)),
        ),
        _family(
            "service_queued", "gauge", "Calls that wait for a process.",
            [({"service": name}, lane.queued) for name, lane in lanes.items()],
        ),
        _family(
            "service_calls_total", "counter", "Calls accepted.",
            [({"service": name}, lane.calls) for name, lane in lanes.items()],
        ),
        _family(
            "service_replays_total", "counter", "Calls sent again after the death of the process that had them.",
            [({"service": name}, lane.replays) for name, lane in lanes.items()],
        ),
        _family(
            "service_failures_total", "counter", "Calls that failed, by kind.",
            [
                ({"service": name, "kind": kind.value}, lane.failures[kind.value])
                for name, lane in lanes.items()
                for kind in Kind
            ],
        ),
        _family(
            "zygote_up", "gauge", "Whether the process that services are forked from is there.",
            [({"zygote": each.name}, float(each.pid is not None)) for each in report.zygotes],
        ),
        _family(
            "zygote_deaths_total", "counter", "Deaths of the process that services are forked from.",
            [({"zygote": each.name}, each.deaths) for each in report.zygotes],
        ),
    ]  # fmt: skip
    return "".join(families)


def _each(services: Iterable[ServiceReport], value: Callable[[ServiceReport], float | None]) -> list[Sample]:
    """A sample for each service of which the value is known."""
    return [({"service": each.name}, known) for each in services if (known := value(each)) is not None]


def _recovery_s(service: ServiceReport) -> float | None:
    over = [each.ready_ms for each in service.recoveries if each.ready_ms is not None]
    return over[-1] / 1000 if over else None


def _family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> str:
    full = f"linckia_{name}"
    lines = [f"# HELP {full} {help_text}", f"# TYPE {full} {kind}"]
    for labels, value in samples:
        shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{full}{{{shown}}} {value:.15g}" if shown else f"{full} {value:.15g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
