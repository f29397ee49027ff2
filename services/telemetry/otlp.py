"""Converts calls and log lines to OpenTelemetry's protocol (OTLP 1.x, protobuf).

Each call is a span. Its parent is the span of the call that made it, or the client's own span, if the client sent a
W3C traceparent. Names follow the semantic conventions for RPC where there is one.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from proto.host import log_lines
from proto.ops.observation import CallRecord

SCOPE = InstrumentationScope(name="linckia")

_SEVERITIES = {
    "debug": SeverityNumber.SEVERITY_NUMBER_DEBUG,
    "info": SeverityNumber.SEVERITY_NUMBER_INFO,
    "warning": SeverityNumber.SEVERITY_NUMBER_WARN,
    "error": SeverityNumber.SEVERITY_NUMBER_ERROR,
    "critical": SeverityNumber.SEVERITY_NUMBER_FATAL,
}


def traces(calls: Iterable[CallRecord], resource: Mapping[str, str]) -> bytes:
    """Return the body of a request to `/v1/traces`."""
    by_service: dict[str, list[Span]] = {}
    for call in calls:
        by_service.setdefault(call.service, []).append(_span(call))
    found = [
        ResourceSpans(resource=_resource(service, resource), scope_spans=[ScopeSpans(scope=SCOPE, spans=spans)])
        for service, spans in by_service.items()
    ]
    return bytes(ExportTraceServiceRequest(resource_spans=found).SerializeToString())


def _span(call: CallRecord) -> Span:
    start_ns = int(call.at * 1e9)
    about: dict[str, Any] = {
        "rpc.system": "linckia",
        "rpc.service": call.service,
        "rpc.method": call.operation,
        "linckia.process": call.process,
        "linckia.generation": call.generation,
        "linckia.target": call.target,
        "linckia.outcome": call.outcome,
        "linckia.deaths": call.deaths,
        "enduser.id": call.who,
    }
    if call.queued_ms is not None:
        about["linckia.queued_ms"] = call.queued_ms
    failed = call.outcome != "ok"
    return Span(
        trace_id=bytes.fromhex(call.trace),
        span_id=bytes.fromhex(call.span),
        parent_span_id=bytes.fromhex(call.parent),
        name=call.operation,
        kind=Span.SpanKind.SPAN_KIND_SERVER,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + int(call.duration_ms * 1e6),
        attributes=_attributes(about),
        status=Status(
            code=Status.StatusCode.STATUS_CODE_ERROR if failed else Status.StatusCode.STATUS_CODE_UNSET,
            message=call.message,
        ),
    )


def logs(lines: Iterable[tuple[str, str]], resource: Mapping[str, str], now_ns: int) -> bytes:
    """Return the body of a request to `/v1/logs`, for lines with the names of their logs."""
    by_service: dict[str, list[LogRecord]] = {}
    for service, line in lines:
        by_service.setdefault(service, []).append(_record(line, now_ns))
    found = [
        ResourceLogs(resource=_resource(service, resource), scope_logs=[ScopeLogs(scope=SCOPE, log_records=records)])
        for service, records in by_service.items()
    ]
    return bytes(ExportLogsServiceRequest(resource_logs=found).SerializeToString())


def _record(line: str, now_ns: int) -> LogRecord:
    fields = log_lines.parsed(line)
    if fields is None:
        return LogRecord(observed_time_unix_nano=now_ns, body=AnyValue(string_value=line))
    level, trace = fields.pop("level"), str(fields.pop("trace", ""))
    record = LogRecord(
        time_unix_nano=_nanoseconds(fields.pop("time")),
        observed_time_unix_nano=now_ns,
        severity_number=_SEVERITIES.get(level, SeverityNumber.SEVERITY_NUMBER_UNSPECIFIED),
        severity_text=level,
        body=AnyValue(string_value=fields.pop("message")),
        attributes=_attributes(fields),
    )
    if len(trace) == 32:
        record.trace_id = bytes.fromhex(trace)
    return record


def _nanoseconds(time: str) -> int:
    try:
        since = datetime.datetime.fromisoformat(time) - datetime.datetime.fromtimestamp(0, datetime.UTC)
    except (ValueError, TypeError):
        return 0
    # A float could not hold nanoseconds.
    return (since // datetime.timedelta(microseconds=1)) * 1000


def _resource(service: str, resource: Mapping[str, str]) -> Resource:
    named = {"service.name": f"linckia.{service}", "service.namespace": "linckia", **resource}
    return Resource(attributes=_attributes(named))


def _attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    """Return the attributes, without empty texts and nulls."""
    return [
        KeyValue(key=key, value=_value(value)) for key, value in values.items() if value is not None and value != ""
    ]


def _value(value: object) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
    return AnyValue(string_value=str(value))
