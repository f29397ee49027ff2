"""The service with the search, and with an embedder that is no model where one is wanted."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from services.memory import main as memory
from services.memory.operations import ListMemories, Memory, Recall, Recalled, Remember, Remembered
from services.retrieve import main as retrieve
from tests.in_process import Bench, services_in_process


@contextlib.asynccontextmanager
async def remembering(
    folder: Path, settings: Mapping[str, dict[str, Any]] | None = None, **others: Any
) -> AsyncIterator[Bench]:
    services = {"retrieve": retrieve.open_service, **others, "memory": memory.open_service}
    async with services_in_process(services, folder, settings=settings or {}) as bench:
        yield bench


class Clock:
    """The time as the service sees it: noon of a day."""

    def __init__(self) -> None:
        self.day = datetime.date(2026, 3, 1)

    @property
    def now_ns(self) -> int:
        return int(datetime.datetime.combine(self.day, datetime.time(12), datetime.UTC).timestamp()) * 10**9

    def pass_days(self, days: int) -> None:
        self.day += datetime.timedelta(days=days)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Give the services this time."""
        time = SimpleNamespace(time=lambda: self.now_ns / 1e9, time_ns=lambda: self.now_ns)
        with contextlib.ExitStack() as stack:
            for module in (
                "memory.writing", "memory.recall", "memory.joining", "memory.main",
                "shared.times", "transcripts.search",
            ):  # fmt: skip
                stack.enter_context(mock.patch(f"services.{module}.time", time))
            yield


async def say(bench: Bench, text: str, session: str = "", **more: Any) -> Remembered:
    return await bench.call(Remember(text=text, **more), session=session)


async def recalled(bench: Bench, query: str, session: str = "", **more: Any) -> list[Recalled]:
    return (await bench.call(Recall(query=query, **more), session=session)).memories


async def texts(bench: Bench, query: str, session: str = "", **more: Any) -> list[str]:
    return [one.text for one in await recalled(bench, query, session, **more)]


async def listed(bench: Bench, session: str = "", **more: Any) -> list[Memory]:
    return (await bench.call(ListMemories(**more), session=session)).memories
