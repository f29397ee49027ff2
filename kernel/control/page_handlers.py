"""Handlers of the operations that only the operator's page calls (`kernel.control.page_operations`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from kernel.chronicle.history import Recorder, rounded
from kernel.chronicle.samples import FIGURES, Sample, history_of, merged
from kernel.configure.config import ConfigError
from kernel.configure.shown_settings import Refused, SettingShown
from kernel.control import page_operations as ops
from kernel.router.ports import LocalHandler
from kernel.router.router import Router
from kernel.supervisor.supervisor import Supervisor
from proto.control.address import last_lines, log_dir
from proto.errors import InvalidParams, OperationError
from proto.operation import Params

MOST_BYTES = 1024 * 1024
"""How much of a log is sent at once; of more, the last lines."""


@dataclass(kw_only=True, eq=False)
class PageHandlers:
    """Registers the handlers with the router."""

    data_dir: Path
    router: Router
    supervisor: Supervisor
    recorder: Recorder
    settings: ops.SettingsEditor
    settings_changed: Callable[[Any], None]
    """Applies what acts at once; gets the new settings in force."""

    def __post_init__(self) -> None:
        self._changing = trio.Lock()
        handlers: dict[type[Params[Any]], LocalHandler] = {
            ops.KernelHistory: self._history,
            ops.KernelLogAfter: self._log_after,
            ops.KernelMount: self._mount,
            ops.KernelSettings: self._settings,
            ops.KernelSet: self._set,
        }
        self.router.serve_local(handlers)

    async def _history(self, params: ops.KernelHistory, caller: str) -> ops.Figures:
        now = time.time()
        if params.span == "hour":
            return _figures(params, self.recorder.samples(now))
        read = self.recorder.long.day if params.span == "day" else self.recorder.long.month
        return await trio.to_thread.run_sync(lambda: _figures(params, read(now)))

    async def _log_after(self, params: ops.KernelLogAfter, caller: str) -> ops.LogPart:
        if params.service != "kernel":
            self.supervisor.known(params.service)
        path = log_dir(self.data_dir) / f"{params.service}.log"
        try:
            return await trio.to_thread.run_sync(_log_part, path, params.position, params.lines)
        except OSError as error:
            raise OperationError(f"cannot read {path}: {error.strerror}") from error

    async def _mount(self, params: ops.KernelMount, caller: str) -> ops.MountFigures:
        name = self.supervisor.known(params.service)
        report = next(each for each in self.supervisor.status().services if each.name == name)
        counted = self.router.calls.tools.services.get(self.router.lane(name).service, {})
        return ops.MountFigures(
            tools=[
                ops.ToolFigures(name=tool, calls=each.ended, failed=each.failed, p50_ms=round(each.p50_ms, 2))
                for tool, each in sorted(counted.items())
            ],
            ping_ms=rounded(report.ping_ms),
        )

    async def _settings(self, params: ops.KernelSettings, caller: str) -> ops.SettingsShown:
        try:
            return ops.SettingsShown(settings=await trio.to_thread.run_sync(self.settings.shown))
        except ConfigError as error:
            raise OperationError(str(error)) from None

    async def _set(self, params: ops.KernelSet, caller: str) -> SettingShown:
        change = partial(self.settings.change, params.name, params.value, reset=params.reset)
        async with self._changing:
            try:
                # Once begun, it is finished: the file is written or not, whoever still waits.
                shown, config = await trio.to_thread.run_sync(change)
            except Refused as error:
                raise InvalidParams(str(error), field=error.field) from None
            except (OSError, ConfigError) as error:
                raise OperationError(f"the settings cannot be changed: {error}") from error
            self.settings_changed(config)
        return shown


def _figures(params: ops.KernelHistory, samples: Sequence[Sample]) -> ops.Figures:
    """Return the samples that were asked for, as series."""
    found = [each for each in samples if each.at > params.after]
    if len(found) > params.points:
        size = -(-len(found) // params.points)
        found = [merged(found[at : at + size]) for at in range(0, len(found), size)]
    series = history_of(found)
    names = params.figures or FIGURES
    return ops.Figures(
        at=series.at,
        services={
            name: {each: list(getattr(one, each)) for each in names}
            for name, one in series.services.items()
            if params.service in ("", name)
        },
    )


def _log_part(path: Path, position: int, count: int) -> ops.LogPart:
    """Return the lines after this position; the last ones if there is none, or the file is another. Blocks."""
    size = path.stat().st_size if path.exists() else 0
    if not 0 <= position <= size or size - position > MOST_BYTES:
        lines = last_lines(path, count) if size else []
        return ops.LogPart(path=str(path), lines=lines, position=size, again=True)
    data = b""
    if size > position:
        with path.open("rb") as file:
            file.seek(position)
            data = file.read(size - position)
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.decode(errors="replace").splitlines()
    return ops.LogPart(path=str(path), lines=lines, position=position + len(whole), again=False)
