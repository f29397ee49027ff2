"""The service with the search, and with an embedder that is no model where one is wanted."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from services.memory import main as memory
from services.memory.operations import ListMemories, Memory, Recall, Recalled, Remember, Remembered
from services.retrieve import main as retrieve
from tests.in_process import Bench, services_in_process


@contextlib.asynccontextmanager
async def remembering(folder: Path, **others: Any) -> AsyncIterator[Bench]:
    services = {"retrieve": retrieve.open_service, **others, "memory": memory.open_service}
    async with services_in_process(services, folder) as bench:
        yield bench


async def say(bench: Bench, text: str, session: str = "", **more: Any) -> Remembered:
    return await bench.call(Remember(text=text, **more), session=session)


async def recalled(bench: Bench, query: str, session: str = "", **more: Any) -> list[Recalled]:
    return (await bench.call(Recall(query=query, **more), session=session)).memories


async def texts(bench: Bench, query: str, session: str = "", **more: Any) -> list[str]:
    return [one.text for one in await recalled(bench, query, session, **more)]


async def listed(bench: Bench, session: str = "", **more: Any) -> list[Memory]:
    return (await bench.call(ListMemories(**more), session=session)).memories
