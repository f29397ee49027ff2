"""Calls and log lines as OpenTelemetry's messages."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from proto.errors import InvalidParams
from proto.host import log_lines
from proto.ops.observation import CallRecord
from services.telemetry import otlp
from services.telemetry.main import TelemetrySettings, headers_of

CALL = CallRecord(
    number=1, at=1_700_000_000.5, trace="ab" * 16, span="cd" * 8, parent="ef" * 8, operation="yaml_get",
    service="yaml", process="yaml", generation=2, who="http", target="file=/a", queued_ms=0.5, duration_ms=12.0,
)  # fmt: skip


def test_a_call_is_a_span_below_its_callers() -> None:
    failed = CallRecord(
        number=2, at=1.0, trace="ab" * 16, span="01" * 8, operation="x", service="echo", who="stdio", duration_ms=1.0,
        outcome="timeout", message="late",
    )  # fmt: skip
    found = ExportTraceServiceRequest.FromString(otlp.traces([CALL, failed], {"host.name": "here"}))
    spans = {span.name: span for each in found.resource_spans for scope in each.scope_spans for span in scope.spans}
    span = spans["yaml_get"]
    assert (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()) == ("ab" * 16, "cd" * 8, "ef" * 8)
    assert span.end_time_unix_nano - span.start_time_unix_nano == 12_000_000
    assert span.start_time_unix_nano == 1_700_000_000_500_000_000
    about = {each.key: each.value for each in span.attributes}
    assert about["linckia.queued_ms"].double_value == 0.5
    assert about["linckia.generation"].int_value == 2
    assert span.status.code == span.status.STATUS_CODE_UNSET
    assert (spans["x"].status.code, spans["x"].status.message) == (span.status.STATUS_CODE_ERROR, "late")
    assert spans["x"].parent_span_id == b""
    names = {each.value.string_value for one in found.resource_spans for each in one.resource.attributes}
    assert {"linckia.yaml", "linckia.echo", "linckia", "here"} == names


def test_a_logged_line_keeps_its_level_its_trace_and_its_fields() -> None:
    logged = log_lines.line("error", "linckia.service", "torn", 1_700_000_000.25, trace="ab" * 16, generation=3)
    found = ExportLogsServiceRequest.FromString(otlp.logs([("yaml", logged), ("yaml", "Segmentation fault")], {}, 5))
    first, second = found.resource_logs[0].scope_logs[0].log_records
    assert (first.severity_text, first.body.string_value, first.trace_id.hex()) == ("error", "torn", "ab" * 16)
    assert first.time_unix_nano == 1_700_000_000_250_000_000
    assert {each.key: each.value.int_value for each in first.attributes}["generation"] == 3
    assert (second.body.string_value, second.observed_time_unix_nano, second.trace_id) == ("Segmentation fault", 5, b"")


@pytest.mark.parametrize("text", ['{"time": 1}', "{", '{"time": "x", "level": "info"}', "[1]", "plain"])
def test_other_output_is_no_logged_line(text: str) -> None:
    assert log_lines.parsed(text) is None


def test_settings_name_what_is_wrong() -> None:
    for wrong in ("", "127.0.0.1:4318", "ftp://x", "http://"):
        with pytest.raises(ValueError, match="endpoint"):
            TelemetrySettings(endpoint=wrong)
    assert headers_of("a=b, authorization=Bearer x=") == {"a": "b", "authorization": "Bearer x="}
    with pytest.raises(InvalidParams, match="NAME=VALUE"):
        headers_of("secret")
