"""A real Prometheus scrapes Linckia, and the queries of the Grafana dashboard and the alert rules find figures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.running import HTTP, RunningKernel, free_port, running, wait_until

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus is installed here")

MAYBE_EMPTY = {"linckia_backlog_waiting", "linckia_backup_age_seconds", "linckia_store_bytes"}
"""Metrics without a series while there is no background work, no backup, and before stores were measured."""


def expressions() -> list[str]:
    dashboard = json.loads((HOW_TO / "grafana.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(found) > 10
    return [each.replace("$__rate_interval", "10s") for each in found]


class Prometheus:
    """A Prometheus server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def query(self, expression: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self.port}/api/v1/query?query={urllib.parse.quote(expression)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        assert found["status"] == "success"
        result: list[dict[str, Any]] = found["data"]["result"]
        return result


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("prometheus")
    with running(folder / "data", options=HTTP, services=["echo", "yaml"], token=True) as kernel:
        kernel.kill("echo")
        kernel.wait_ready("echo")
        yield kernel


@pytest.fixture(scope="module")
def prometheus(kernel: RunningKernel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "token").write_text(kernel.status()["token"])
    rules = re.search(r"```yaml\n# linckia.rules.yml\n(.+?)```", (HOW_TO / "prometheus.md").read_text(), re.DOTALL)
    assert rules is not None
    (folder / "linckia.rules.yml").write_text(rules[1])
    netloc = urllib.parse.urlsplit(kernel.status()["http_url"]).netloc
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        "scrape_configs:\n  - job_name: linckia\n"
        f"    authorization: {{credentials_file: {folder / 'token'}}}\n"
        f'    static_configs: [{{targets: ["{netloc}"]}}]\n'
        "rule_files: [linckia.rules.yml]\n"
    )
    port = free_port()
    process = subprocess.Popen(
        [
            "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    server = Prometheus(port)

    def is_scraping() -> bool:
        try:
            return len(server.query("up == 1")) == 1
        except OSError:
            return False

    try:
        wait_until(is_scraping, 60)
        yield server
    finally:
        process.terminate()
        process.wait()


def test_every_query_of_the_dashboard_finds_figures(kernel: RunningKernel, prometheus: Prometheus) -> None:
    def has_rates() -> bool:
        kernel.call("mcp_echo", {"message": "x"})
        return bool(prometheus.query('rate(linckia_operation_duration_seconds_count{operation="mcp_echo"}[10s]) > 0'))

    wait_until(has_rates, 60)
    for expression in expressions():
        result = prometheus.query(expression)
        filtered = expression.rpartition(" > 0")[0] or expression
        assert result or filtered in MAYBE_EMPTY or prometheus.query(filtered), expression
    buckets = 'linckia_operation_duration_seconds_bucket{operation="mcp_echo"}'
    (quantile,) = prometheus.query(f"histogram_quantile(0.99, sum by (le) (rate({buckets}[10s])))")
    assert 0 < float(quantile["value"][1]) < 1


def test_the_alert_rules_are_valid(prometheus: Prometheus, tmp_path: Path) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{prometheus.port}/api/v1/rules", timeout=10) as answer:
        (group,) = json.loads(answer.read())["data"]["groups"]
    assert len(group["rules"]) >= 5
    assert [each["name"] for each in group["rules"] if each["health"] not in ("ok", "unknown")] == []
