"""A store of documents in this process, with a root to add from; the search and the graph may be there or not."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from proto.ops.documents.change import AddResult
from proto.ops.documents.reading import Document
from services.decode import main as decode
from services.documents.main import open_service
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.listing import DocumentsList
from services.runtime.handlers import OpenService
from tests.in_process import Bench, services_in_process


@contextlib.asynccontextmanager
async def documents(
    folder: Path, others: Mapping[str, OpenService] | None = None, **settings: object
) -> AsyncIterator[Bench]:
    """The service with its data in `folder/data` and the root `folder/root`."""
    root = folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    async with services_in_process(
        {"decode": decode.open_service, **(others or {}), "documents": open_service},
        folder / "data",
        roots=[root],
        settings={"decode": {"memory_limit_bytes": 0}, "documents": settings},
    ) as bench:
        yield bench


def tree(root: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files below a root."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


async def add_text(bench: Bench, name: str, content: str, **more: Any) -> AddResult:
    return await bench.call(DocumentsAdd(name=name, content=content, **more))


async def listed(bench: Bench, **conditions: Any) -> list[Document]:
    return (await bench.call(DocumentsList(**conditions))).documents
