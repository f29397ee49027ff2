"""Traces and logs reach an OpenTelemetry collector, joined with the client's span; nothing is lost while it is away."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.system.access.tokens import HttpClient
from tests.system.running import HTTP, free_port, running, wait_until
from tests.unit.front.wire import META, MODERN

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Receives OTLP over HTTP, and decodes it with OpenTelemetry's own messages."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.records: list[Any] = []
        self.headers: list[str] = []
        self.answer = 200

    @contextlib.contextmanager
    def served(self, port: int) -> Iterator[None]:
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if collector.answer == 200:
                    collector.take(self.path, body)
                    collector.headers.append(self.headers.get("x-key", ""))
                self.send_response(collector.answer)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            self.spans += [span for one in traces.resource_spans for each in one.scope_spans for span in each.spans]
        else:
            assert path == "/v1/logs"
            logs = ExportLogsServiceRequest.FromString(body)
            self.records += [each for one in logs.resource_logs for lot in one.scope_logs for each in lot.log_records]

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def test_calls_and_logs_reach_the_collector(tmp_path: Path) -> None:
    collector, port = Collector(), free_port()
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    settings = f'[telemetry]\nendpoint = "http://127.0.0.1:{port}"\ninterval_s = 0.1\nheaders_env = "OTLP_HEADERS"\n'
    (data / "linckia.toml").write_text(settings)
    services, environment = ["echo", "yaml", "telemetry"], {"OTLP_HEADERS": "x-key=s3cret"}
    with running(data, options=HTTP, services=services, token=True, environment=environment) as kernel:
        client = HttpClient(kernel, kernel.status()["token"])
        meta = META | {"traceparent": f"00-{TRACE}-{SPAN}-01"}
        with collector.served(port):
            headers = {"mcp_protocol_version": MODERN, "mcp_method": "tools/call", "mcp_name": "mcp_echo"}
            call = {"name": "mcp_echo", "arguments": {"message": "x"}, "_meta": meta}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            assert client.request("POST", "/mcp/all", body, **headers).status == 200
            wait_until(lambda: collector.named("mcp_echo"))
            (span,) = collector.named("mcp_echo")
            # Joined with the client's own span.
            assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
            assert collector.headers[-1] == "s3cret"
            kernel.kill("yaml")
            wait_until(lambda: any("generation 2" in each.body.string_value for each in collector.records))
        # The collector is away, and calls go on.
        for _ in range(5):
            kernel.call("mcp_echo", {"message": "y"})
        wait_until(lambda: "ConnectError" in str(kernel.service("telemetry")["info"].get("export")))
        collector.answer = 503
        with collector.served(port):
            wait_until(lambda: "503" in str(kernel.service("telemetry")["info"].get("export")))
            collector.answer = 200
            wait_until(lambda: len(collector.named("mcp_echo")) >= 6)
            # A death of the service loses nothing that the kernel keeps.
            kernel.kill("telemetry")
            kernel.call("mcp_echo", {"message": "z"})
            wait_until(lambda: len({each.span_id for each in collector.named("mcp_echo")}) == 7)


def test_without_an_endpoint_it_does_not_run(tmp_path: Path) -> None:
    with running(tmp_path / "data", services=["echo"], all_ready=False) as kernel:
        kernel.wait_ready("echo")
        assert "telemetry" not in kernel.services()
