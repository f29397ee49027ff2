"""The paths whose cost may depend on what is stored: notes, documents, turns, memories and files."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from proto.control.client import Client
from tests.bench.files import make_tree
from tests.bench.growth.fills import fill_chats, fill_documents, fill_memory, fill_notes, turn
from tests.bench.growth.measuring import (
    CALLS,
    WARM,
    Figures,
    ask,
    calls,
    disk_mb,
    memory_mb,
    processor_ns,
    since,
    started,
)
from tests.bench.parts.collections import Corpus
from tests.system.running import RunningKernel

QUERIES = Corpus(1).queries(4 * (CALLS + WARM))
_WRITES = Corpus(2 * (CALLS + WARM), seed=5)
_TEXTS = [text for texts, _ in _WRITES.blocks() for text in texts]


class Stored(NamedTuple):
    """A kind of thing that is stored, and its paths.

    Attributes:
        holders: services that hold it; `services` are all that run.
        fill: stores this many in a data directory, with a folder as root.
        write: stores one more.
        search: finds some by a query.
    """

    services: list[str]
    holders: list[str]
    fill: Callable[[Path, Path, int], None]
    write: Callable[[Client, Path, int], Any]
    search: Callable[[Client, str], Any]


def _write_note(client: Client, root: Path, number: int) -> Any:
    path = root / f"area-{number % 100}/written-{number}.md"
    return ask(client, "notes_write", path=str(path), content=f"# Written {number}\n\n{_TEXTS[number]}\n")


def _add_document(client: Client, root: Path, number: int) -> Any:
    return ask(client, "documents_add", name=f"written-{number}.txt", content=f"{_TEXTS[number]} {number}")


def _post_turn(client: Client, root: Path, number: int) -> Any:
    body = json.dumps(turn([f"{_TEXTS[number]} {number}", f"{_TEXTS[-number]} {number}"])).encode()
    return ask(client, "transcript_ingest", body=base64.b64encode(body).decode())


def _remember(client: Client, root: Path, number: int) -> Any:
    return ask(client, "memory_add", text=f"{_TEXTS[number][:100]} {number}")


def _search_notes(client: Client, query: str) -> Any:
    return ask(client, "notes_search", query=query, min_score=0)["metadata"]


STORED = {
    "notes": Stored(
        ["embed", "retrieve", "knowledge", "graph", "watch", "llm"],
        ["knowledge", "retrieve", "graph"],
        fill_notes, _write_note, _search_notes,
    ),
    "documents": Stored(
        ["embed", "retrieve", "documents", "graph"],
        ["documents", "retrieve", "graph"],
        fill_documents, _add_document, lambda client, query: ask(client, "documents_search", query=query, min_score=0),
    ),
    "chats": Stored(
        ["embed", "retrieve", "transcripts"],
        ["transcripts", "retrieve"],
        fill_chats, _post_turn, lambda client, query: ask(client, "chats_search", query=query),
    ),
    "memory": Stored(
        ["embed", "retrieve", "memory"],
        ["memory", "retrieve"],
        fill_memory, _remember, lambda client, query: ask(client, "memory_recall", query=query),
    ),
}  # fmt: skip


def stored(kind: str, folder: Path, size: int) -> Figures:
    """Return the costs of a kind at a size."""
    one = STORED[kind]
    data, root = folder / "data", folder / "root"
    root.mkdir(parents=True)
    began, used = time.perf_counter(), time.process_time()
    one.fill(data, root, size)
    figures = {"fill s": time.perf_counter() - began, "fill CPU s": time.process_time() - used}
    disk = disk_mb(data / "services")

    def whole(client: Client) -> bool:
        return not one.search(client, QUERIES[-1]).get("degraded")

    with started(data, [root], one.services, whole) as (kernel, start), Client(data) as client:
        figures |= start | {"memory MiB": memory_mb(kernel, one.holders), "disk MB": disk}
        figures |= calls(kernel, lambda number: one.search(client, QUERIES[number]), "search")
        figures |= calls(kernel, lambda number: one.write(client, root, number), "write")
        figures |= _lists(kind, kernel, client)
    return figures


_LISTS: dict[str, tuple[str, dict[str, Any]]] = {
    "notes": ("notes_status", {}),
    "documents": ("documents_list", {"limit": 20}),
    "chats": ("chats_list", {}),
    "memory": ("memory_list", {"limit": 20}),
}


def _lists(kind: str, kernel: RunningKernel, client: Client) -> Figures:
    name, given = _LISTS[kind]
    return calls(kernel, lambda number: ask(client, name, **given), "list")


FILES = ["files"]


def files(folder: Path, size: int) -> Figures:
    """Return the costs of the index of files; one write is one changed file that is indexed again."""
    data, root = folder / "data", folder / "root"
    make_tree(root, size)
    index = {"root": str(root), "async": False, "force": True}
    with started(data, [root], FILES, lambda client: True) as (kernel, _), Client(data) as client:
        figures = _timed(kernel, "fill", lambda: ask(client, "files_index", **index))
        figures |= _timed(kernel, "scan again", lambda: ask(client, "files_index", **index))

    def whole(client: Client) -> bool:
        return bool(_find(client, 1)["entries"])

    with started(data, [root], FILES, whole) as (kernel, start), Client(data) as client:
        figures |= start | {"memory MiB": memory_mb(kernel, FILES), "disk MB": disk_mb(data / "services")}
        figures |= calls(kernel, partial(_find, client), "search")
        figures |= calls(kernel, partial(_change, client, root), "write")
        browse = {"path": str(root / "project0/module0/folder number 0")}
        figures |= calls(kernel, lambda number: ask(client, "files_browse", **browse), "list")
    return figures


def _find(client: Client, number: int) -> Any:
    return ask(client, "files_find", name_contains=f"file {number}-3", limit=20)


def _change(client: Client, root: Path, number: int) -> Any:
    path = root / f"project0/module{number // 20}/folder number {number % 20}/some file {number}-3.mp4"
    path = next(path.parent.glob(f"some file {number}-3*"))
    path.write_text(f"changed {number}\n")
    return ask(client, "files_index", **{"root": str(path), "async": False, "force": True})


def _timed(kernel: RunningKernel, name: str, action: Callable[[], object]) -> Figures:
    before, began = processor_ns(kernel.process.pid), time.perf_counter()
    action()
    wall = time.perf_counter() - began
    return {f"{name} s": wall, f"{name} CPU s": since(before, kernel.process.pid)}
