"""The figures are Prometheus' text format, and they are those of the supervisor and the router."""

from __future__ import annotations

import re

import msgspec

from kernel.router.generation import ServiceState
from kernel.router.ports import CauseKind
from proto.ops.kernel import (
    BackupStatus,
    KernelFigures,
    LaneFigures,
    OperationFigures,
    ServiceFigures,
    ZygoteFigures,
)
from proto.wire.frames import Backlog
from services.front.web.metrics import exposition

LINE = re.compile(r'^(?P<name>[a-z_]+)(\{(?P<labels>([a-z_]+="([^"\\]|\\.)*",?)*)\})? (?P<value>[0-9.e+-]+)$')


FIGURES_OF_A_GPU = '{"name":"NVIDIA L4","number":1,"used_bytes":3,"total_bytes":24,"utilization":0.5,"celsius":61.0}'


def service(name: str, *, state: ServiceState = ServiceState.READY, deaths: int = 0) -> ServiceFigures:
    figures = ServiceFigures(
        name=name, state=state, generation=1 + deaths, pid=7, uptime_s=3.0, restarts=deaths, rss_bytes=1024,
        ping_ms=0.25, info={"gpu": FIGURES_OF_A_GPU if name == "embed" else "unknown"},
        backlogs={"vectors of notes": Backlog(done=3, total=5, per_s=0.5, left_s=4.0)},
    )  # fmt: skip
    dead = {"deaths": {"signal": deaths}, "answered_ms": 1.5, "recovery_ms": 12.5} if deaths else {}
    return msgspec.structs.replace(figures, **dead)


def series(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.match(line)
            assert match, line
            assert line.rpartition(" ")[0] not in found
            found[line.rpartition(" ")[0]] = float(match["value"])
    return found


def exposed() -> str:
    figures = KernelFigures(
        version="1",
        rss_bytes=4096,
        worst_turn_s=0.03,
        worst_turn_cpu_s=0.004,
        late_turns=1,
        backup=BackupStatus(to="/mnt", age_s=60.0, error="no room"),
        services=[service("embed"), service("embed-2", deaths=2), service("yaml", state=ServiceState.FAILED)],
        lanes={
            "embed": LaneFigures(queued=0, calls=12, replays=3, failures={"overloaded": 2}),
            "yaml": LaneFigures(queued=0, calls=0, replays=0, failures={}),
        },
        zygotes=[ZygoteFigures(name="torch", up=True, deaths=0)],
        operations={
            "embed_texts": OperationFigures(
                service="embed",
                failures=1,
                seconds=1.5,
                buckets=[0, 2, *[0] * 12, 1],
                queued_seconds=0.5,
                queued_buckets=[3, *[0] * 14],
            )
        },
        stores={"yaml": 4096},
        states=[state.value for state in ServiceState],
        causes=[cause.value for cause in CauseKind],
    )
    return exposition(figures).decode()


def test_every_family_has_its_help_and_type_and_every_line_is_well_formed() -> None:
    text = exposed()
    assert text.endswith("\n")
    families = set(re.findall(r"^# TYPE (\S+) (?:gauge|counter|histogram)$", text, re.MULTILINE))
    assert families == set(re.findall(r"^# HELP (\S+) ", text, re.MULTILINE))
    named = {re.sub(r"_(?:bucket|sum|count)$", "", name.partition("{")[0]) for name in series(text)}
    assert named == families
    counters = set(re.findall(r"^# TYPE (\S+) counter$", text, re.MULTILINE))
    assert all(name.endswith("_total") for name in counters)


def test_operations_have_cumulative_histograms() -> None:
    found = series(exposed())
    labels = 'operation="embed_texts",service="embed"'
    bucket = "linckia_operation_duration_seconds_bucket"
    assert [found[f'{bucket}{{le="{limit}",{labels}}}'] for limit in ("0.001", "0.0025", "30.0", "+Inf")] == [
        0,
        2,
        2,
        3,
    ]
    assert found[f"linckia_operation_duration_seconds_sum{{{labels}}}"] == 1.5
    assert found[f"linckia_operation_queue_seconds_count{{{labels}}}"] == 3
    assert found[f"linckia_operation_failures_total{{{labels}}}"] == 1
    assert found['linckia_store_bytes{service="yaml"}'] == 4096


def test_services_have_their_own_labels_and_a_pool_shares_its_calls() -> None:
    found = series(exposed())
    assert found['linckia_service_up{service="embed-2"}'] == 1
    assert found['linckia_service_up{service="yaml"}'] == 0
    assert found['linckia_service_state{service="yaml",state="failed"}'] == 1
    assert found['linckia_service_generation{service="embed-2"}'] == 3
    assert found['linckia_service_deaths_total{cause="signal",service="embed-2"}'] == 2
    assert found['linckia_service_deaths_total{cause="signal",service="embed"}'] == 0
    assert found['linckia_service_recovery_seconds{service="embed-2"}'] == 0.0125
    assert 'linckia_service_recovery_seconds{service="embed"}' not in found
    assert found['linckia_service_calls_total{service="embed"}'] == 12
    assert 'linckia_service_calls_total{service="embed-2"}' not in found
    assert found['linckia_service_failures_total{kind="overloaded",service="embed"}'] == 2
    assert found['linckia_service_replays_total{service="embed"}'] == 3
    assert found['linckia_service_in_flight{service="embed-2"}'] == 0
    assert found['linckia_backlog_waiting{of="vectors of notes",service="embed"}'] == 2
    assert found['linckia_backlog_left_seconds{of="vectors of notes",service="embed"}'] == 4
    assert found["linckia_kernel_memory_bytes"] == 4096
    assert found['linckia_gpu_memory_used_bytes{gpu="1",service="embed"}'] == 3
    assert found['linckia_gpu_temperature_celsius{gpu="1",service="embed"}'] == 61
    assert 'linckia_gpu_memory_used_bytes{gpu="1",service="embed-2"}' not in found
    assert found['linckia_kernel_loop_lateness_seconds{clock="processor"}'] == 0.004
    assert found["linckia_kernel_loop_late_turns_total"] == 1
    assert found["linckia_backup_age_seconds"] == 60
    assert found["linckia_backup_failed"] == 1
    assert found['linckia_zygote_up{zygote="torch"}'] == 1
