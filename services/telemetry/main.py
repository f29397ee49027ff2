"""The service `telemetry`: sends calls and log lines to an OpenTelemetry collector, over OTLP/HTTP.

It runs only if `[telemetry] endpoint` is set. Calls and lines that the collector did not accept are sent again, as long
as the kernel keeps them; what it no longer keeps is counted. After a restart of this service, some may be sent twice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator
from typing import Annotated
from urllib.parse import urlsplit

import httpx2
import msgspec
import trio
from msgspec import Meta

from proto.errors import InvalidParams, LinckiaError
from proto.ops.observation import KernelNewLogLines, KernelSpans
from services.runtime.calls import Outgoing
from services.runtime.handlers import Environment, Handlers
from services.telemetry import otlp

LIMIT = 500
LONGEST_PAUSE_S = 60.0
_PROTOBUF = "application/x-protobuf"

_log = logging.getLogger("linckia.service")


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `[telemetry]`; without `endpoint`, nothing is sent anywhere."""

    endpoint: Annotated[str, Meta(description="Collector's OTLP/HTTP endpoint, such as http://127.0.0.1:4318")]
    headers_env: Annotated[str, Meta(description="Environment variable with headers: NAME=VALUE,NAME=VALUE")] = ""
    interval_s: Annotated[float, Meta(ge=0.1, le=3600, description="Pause between two exports")] = 5.0
    logs: Annotated[bool, Meta(description="Whether logs are sent, too")] = True
    timeout_s: Annotated[float, Meta(gt=0, le=300, description="Time limit for one export")] = 10.0
    resource: Annotated[dict[str, str], Meta(description="Attributes of the resource, such as host.name")] = {}

    def __post_init__(self) -> None:
        """Raise ValueError if the endpoint is not valid."""
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"`endpoint` is {self.endpoint[:200]!r}; it must be http://HOST:PORT or https://HOST")


def headers_of(text: str) -> dict[str, str]:
    """Parse headers as in OTEL_EXPORTER_OTLP_HEADERS. Raises InvalidParams."""
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise InvalidParams("settings of telemetry: the variable in `headers_env` must be NAME=VALUE,NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


class Exporter:
    """Sends what is new; `run` does so until cancelled. `shown` is what `status` shows."""

    def __init__(self, outgoing: Outgoing, settings: TelemetrySettings, shown: dict[str, str]) -> None:
        self._outgoing = outgoing
        self._settings = settings
        self._shown = shown
        self._url = settings.endpoint.rstrip("/").removesuffix("/v1/traces")
        self._kernel, self._after = "", 0
        self._positions: dict[str, int] = {}
        self._with_logs = settings.logs
        self._sent = self._lost = 0

    async def run(self) -> None:
        """Export at intervals; after failures at longer ones."""
        pause_s = self._settings.interval_s
        headers = {"content-type": _PROTOBUF, **headers_of(os.environ.get(self._settings.headers_env or "-", ""))}
        async with httpx2.AsyncClient(headers=headers, timeout=self._settings.timeout_s, trust_env=False) as client:
            while True:
                try:
                    more = await self._export(client)
                    pause_s = 0.0 if more else self._settings.interval_s
                    self._shown["export"] = f"{self._sent} calls sent"
                except (httpx2.HTTPError, LinckiaError, Refused) as error:
                    pause_s = min(LONGEST_PAUSE_S, max(self._settings.interval_s, 2 * pause_s))
                    problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                    if self._shown.get("export") != problem:
                        _log.warning("the collector at %s did not accept an export: %s", self._url, problem)
                    self._shown["export"] = problem
                if self._lost:
                    self._shown["lost"] = f"{self._lost} calls"
                await trio.sleep(pause_s)

    async def _export(self, client: httpx2.AsyncClient) -> bool:
        """Send one lot; return whether there may be more."""
        spans = await self._outgoing.call(KernelSpans(kernel=self._kernel, after=self._after, limit=LIMIT))
        resource = self._settings.resource
        if spans.calls:
            await self._post(client, "/v1/traces", otlp.traces(spans.calls, resource))
            self._kernel, self._after = spans.kernel, spans.calls[-1].number
            self._sent += len(spans.calls)
            self._lost += spans.lost
        if self._with_logs:
            new = await self._outgoing.call(KernelNewLogLines(positions=self._positions))
            if new.lines:
                await self._post(client, "/v1/logs", otlp.logs(new.lines, resource, time.time_ns()))
            self._positions = new.positions
        return len(spans.calls) == LIMIT

    async def _post(self, client: httpx2.AsyncClient, path: str, body: bytes) -> None:
        answer = await client.post(self._url + path, content=body)
        if answer.status_code == httpx2.codes.NOT_FOUND and path == "/v1/logs":
            # Some collectors take only traces.
            _log.warning("the collector takes no logs: %s%s is not found", self._url, path)
            self._with_logs = False
        elif answer.status_code == httpx2.codes.BAD_REQUEST:
            # Sending the same again would not help.
            _log.warning("the collector refused a lot as invalid: %s", answer.text[:200])
        elif not answer.is_success:
            raise Refused(f"{path}: HTTP {answer.status_code} {answer.text[:200]}")


class Refused(Exception):
    """The collector did not accept an export."""


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service, which is ready at once."""
    settings = env.settings_as(TelemetrySettings)
    for name in ("httpx", "httpx2", "httpcore"):
        # They log each request, and that line would be the next export.
        logging.getLogger(name).setLevel(logging.WARNING)
    env.background.start_soon(Exporter(env.outgoing, settings, env.shown).run)
    yield Handlers()
