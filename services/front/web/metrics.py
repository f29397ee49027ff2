"""`GET /metrics`: the figures of the supervisor and the router, for Prometheus.

Names follow its conventions: base units, counters end in `_total`. A service with several processes has one series for
each process, and one with the service's own name for shared figures (calls, failures, the queue).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import structs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry
from starlette import routing
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from proto.errors import Kind, LinckiaError
from proto.host.gpu import GpuFigures
from proto.operation import Route, operation_of
from proto.ops.kernel import (
    BUCKETS_S,
    BackupStatus,
    ClusterStatus,
    KernelFigures,
    KernelFiguresParams,
    LaneFigures,
    ServiceFigures,
)
from proto.wire.frames import Backlog
from proto.wire.front import SERVICE
from services.front.transport.access import ORIGIN
from services.front.web.routes import failed
from services.runtime.dispatch import Dispatcher

_ROUTE: Final = Route("GET", "/metrics")

_TAKES_CALLS: Final = ("ready", "resting")


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


_OF_PROCESSES: Final[dict[str, tuple[str, Callable[[ServiceFigures], float | None]]]] = {
    "service_up": ("Whether the service accepts calls; a resting one does.", lambda each: each.state in _TAKES_CALLS),
    "service_generation": ("How many times the process has been started.", lambda each: each.generation),
    "service_restarts_total": ("Restarts after a crash.", lambda each: each.restarts),
    "service_uptime_seconds": ("Time since the process became ready.", lambda each: each.uptime_s),
    "service_recovery_seconds": (
        "Time from the detection of the latest death until ready again.", lambda each: _seconds(each.recovery_ms),
    ),
    "service_answered_seconds": (
        "Time from the detection of the latest death until every caller was answered or queued again.",
        lambda each: _seconds(each.answered_ms),
    ),
    "service_memory_bytes": ("Resident memory of the process.", lambda each: each.rss_bytes),
    "service_ping_seconds": ("Round trip of the latest ping.", lambda each: _seconds(each.ping_ms)),
    "service_in_flight": ("Calls delivered and not yet answered.", lambda each: each.in_flight),
}  # fmt: skip
"""Metrics with a series for each process of a service, if the figure is known."""

_OF_BACKLOGS: Final[dict[str, tuple[str, Callable[[Backlog], float | None]]]] = {
    "backlog_waiting": ("Background work that remains.", lambda each: each.total - each.done),
    "backlog_done": ("Background work of the same kind that is done.", lambda each: each.done),
    "backlog_per_second": ("Current rate of the background work.", lambda each: each.per_s),
    "backlog_left_seconds": ("Remaining time at that rate.", lambda each: each.left_s),
}
"""Metrics with a series for each kind of unfinished background work of a process."""

_OF_GPUS: Final[dict[str, tuple[str, Callable[[GpuFigures], float | None]]]] = {
    "gpu_memory_used_bytes": ("Used memory of the process's GPU, by all processes.", lambda gpu: gpu.used_bytes),
    "gpu_memory_total_bytes": ("Memory of the process's GPU.", lambda gpu: gpu.total_bytes),
    "gpu_utilization_ratio": ("Share of the last second in which the GPU computed.", lambda gpu: gpu.utilization),
    "gpu_temperature_celsius": ("Temperature of the process's GPU.", lambda gpu: gpu.celsius),
}  # fmt: skip
"""Metrics with a series for each process with a GPU."""

_OF_SERVICES: Final[dict[str, tuple[str, Callable[[LaneFigures], float]]]] = {
    "service_queued": ("Calls that wait for a process.", lambda lane: lane.queued),
    "service_calls_total": ("Calls accepted.", lambda lane: lane.calls),
    "service_replays_total": (
        "Calls sent again after the death of the process that had them.", lambda lane: lane.replays,
    ),
}  # fmt: skip


def routes(dispatcher: Dispatcher) -> list[BaseRoute]:
    """Return the route of the endpoint."""

    async def metrics(request: Request) -> Response:
        # The figures are about the whole system, so a client with a limited token does not get them.
        origin = structs.replace(request.scope[ORIGIN], caller=SERVICE, key="")
        try:
            answer = await dispatcher.call(operation_of(KernelFiguresParams), KernelFiguresParams(), origin=origin)
        except LinckiaError as error:
            return failed(_ROUTE, error)
        text = exposition(msgspec.convert(answer, KernelFigures))
        return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    return [routing.Route(_ROUTE.path, metrics, methods=[_ROUTE.method])]


def exposition(figures: KernelFigures) -> bytes:
    """Return all series in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(figures))
    return generate_latest(registry)


def described() -> list[Metric]:
    """Return all families of metrics, without figures."""
    nothing = KernelFigures(
        version="", rss_bytes=0, worst_turn_s=0, worst_turn_cpu_s=0, late_turns=0, backup=BackupStatus(to="", age_s=0),
        services=[], lanes={}, zygotes=[], states=[], causes=[], cluster=ClusterStatus(engine="", address=""),
    )  # fmt: skip
    return list(_Collector(nothing).collect())


@dataclass(eq=False)
class _Collector(Collector):
    _figures: KernelFigures

    def collect(self) -> Iterator[Metric]:
        figures = self._figures
        processes, lanes = figures.services, figures.lanes
        yield _family("build_info", "The running version.", ["version"], [((figures.version,), 1)])
        yield _family("kernel_memory_bytes", "Resident memory of the kernel.", [], [((), figures.rss_bytes)])
        turns = [(("wall",), figures.worst_turn_s), (("processor",), figures.worst_turn_cpu_s)]
        text = "The longest turn of the kernel's event loop in the last minute or two."
        yield _family("kernel_loop_lateness_seconds", text, ["clock"], turns)
        text = "Turns of the kernel's event loop that took more than 20 ms of its own processor time."
        yield _family("kernel_loop_late_turns_total", text, [], [((), figures.late_turns)])
        if (backup := figures.backup) is not None:
            text = "Time since the last successful backup."
            yield _family("backup_age_seconds", text, [], [((), backup.age_s)])
            yield _family("backup_failed", "1 if the latest backup failed.", [], [((), bool(backup.error))])
        if (cluster := figures.cluster) is not None:
            yield from _of_cluster(cluster)
        for name, (text, of_process) in _OF_PROCESSES.items():
            yield _family(name, text, ["service"], (((each.name,), of_process(each)) for each in processes))
        states = (((each.name, one), each.state == one) for each in processes for one in figures.states)
        yield _family("service_state", "1 for the state that the process is in.", ["service", "state"], states)
        # All causes have a series from the start, because an alert on an increase needs the zero.
        deaths = (((each.name, cause), each.deaths.get(cause, 0)) for each in processes for cause in figures.causes)
        yield _family("service_deaths_total", "Deaths by cause.", ["service", "cause"], deaths)
        for name, (text, of_backlog) in _OF_BACKLOGS.items():
            samples = (((one.name, work), of_backlog(each)) for one in processes for work, each in one.backlogs.items())
            yield _family(name, text, ["service", "of"], samples)
        gpus = [(each.name, gpu) for each in processes if (gpu := GpuFigures.of(each.info)) is not None]
        for name, (text, of_gpu) in _OF_GPUS.items():
            samples_of_gpus = (((process, str(gpu.number)), of_gpu(gpu)) for process, gpu in gpus)
            yield _family(name, text, ["service", "gpu"], samples_of_gpus)
        for name, (text, of_lane) in _OF_SERVICES.items():
            yield _family(name, text, ["service"], (((service,), of_lane(lane)) for service, lane in lanes.items()))
        failures = (((name, kind), lane.failures.get(kind, 0)) for name, lane in lanes.items() for kind in Kind)
        yield _family("service_failures_total", "Calls that failed, by kind.", ["service", "kind"], failures)
        calls = [((name, each.service), each.buckets, each.seconds) for name, each in figures.operations.items()]
        yield _histogram("operation_duration_seconds", "Time from a call's arrival to its answer.", calls)
        queued = [
            ((name, each.service), each.queued_buckets, each.queued_seconds)
            for name, each in figures.operations.items()
        ]
        yield _histogram("operation_queue_seconds", "Time from a call's arrival until a process got it.", queued)
        failed = (((name, each.service), each.failures) for name, each in figures.operations.items())
        yield _family("operation_failures_total", "Calls that failed.", ["operation", "service"], failed)
        stores = (((name,), size) for name, size in figures.stores.items())
        yield _family("store_bytes", "Size of the service's folder, measured every hour.", ["service"], stores)
        zygote = "the process that services are forked from"
        up = (((each.name,), each.up) for each in figures.zygotes)
        yield _family("zygote_up", f"Whether {zygote} is running.", ["zygote"], up)
        zygote_deaths = (((each.name,), each.deaths) for each in figures.zygotes)
        yield _family("zygote_deaths_total", f"Deaths of {zygote}.", ["zygote"], zygote_deaths)


def _of_cluster(cluster: ClusterStatus) -> Iterator[Metric]:
    yield _family("cluster_connected", "Whether the cluster is connected.", [], [((), not cluster.problem)])
    yield _family("cluster_nodes", "Nodes of the cluster that are alive.", [], [((), len(cluster.nodes))])
    text = "Times that the connection to the cluster was started again."
    yield _family("cluster_restarts_total", text, [], [((), cluster.restarts)])
    placed = (((node.name,), len(node.services)) for node in cluster.nodes)
    yield _family("cluster_node_processes", "Processes of services that run on the node.", ["node"], placed)


def _family(name: str, text: str, labels: list[str], samples: Iterable[tuple[tuple[str, ...], float | None]]) -> Metric:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(f"linckia_{name}", text, labels=labels)
    for values, figure in samples:
        if figure is not None:
            family.add_metric(values, figure)
    return family


def _histogram(name: str, text: str, samples: Iterable[tuple[tuple[str, ...], Sequence[int], float]]) -> Metric:
    """Return a family of histograms by operation and service; `samples` are labels, counts by bucket, and the sum."""
    family = HistogramMetricFamily(f"linckia_{name}", text, labels=["operation", "service"])
    limits = [*map(str, BUCKETS_S), "+Inf"]
    for values, counts, total in samples:
        family.add_metric(values, list(zip(limits, itertools.accumulate(counts), strict=True)), total)
    return family
