"""The table of what the injected faults run over: one entry for each service that has a database.

To add a service is to add a `Subject`, at the end: how its service is opened, a numbered write, and which numbers a
client sees.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from PIL import Image

from proto.errors import LinckiaError, OperationError
from proto.ops.approvals import ApprovalListParams, ApprovalWait
from proto.ops.documents.reading import DocumentsGet
from proto.ops.events import EventAdd, EventKind, EventsRead
from proto.ops.graph import GraphNeighbors, GraphNodes, GraphPut, NodeState, Outgoing
from proto.ops.media import MediaInspect
from proto.ops.retrieve import Group, Item, RetrieveGroups, RetrievePut, RetrieveSearch
from proto.ops.tasks import TaskListParams, TaskStart
from proto.ops.watch import WatchStatus, WatchSubscribe
from services.approvals.main import open_service as open_approvals
from services.decode.main import open_service as open_decode
from services.documents.main import open_service as open_documents
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.listing import DocumentsList
from services.events.main import open_service as open_events
from services.files.main import open_service as open_files
from services.files.operations.sets import ResourceSetCreate, ResourceSetList
from services.graph.main import open_service as open_graph
from services.knowledge.main import open_service as open_knowledge
from services.knowledge.operations.notes import KnowledgeIngest, ListDirectoryStructure
from services.media.main import open_service as open_media
from services.memory.main import open_service as open_memory
from services.memory.operations import ListMemories, Remember
from services.retrieve.main import open_service as open_retrieve
from services.runtime.handlers import OpenService
from services.tasks.main import open_service as open_tasks
from services.transcripts.main import open_service as open_transcripts
from services.transcripts.operations.conversations import TranscriptHistories
from services.transcripts.operations.intake import TranscriptIngest
from services.watch.main import open_service as open_watch
from tests.in_process import Bench
from tests.unit.files.plans.planning import Kernel


@dataclass(frozen=True)
class Subject:
    """A service under test.

    `services`: it and those that it cannot work without, in the order of their start. `write(bench, root, n)` is one
    acknowledged write, which may be asked for again after it failed. `seen(bench, root)` returns the writes that a
    client sees, and raises AssertionError if one is there in part. `fed`: another service states its data again.
    """

    name: str
    services: Mapping[str, OpenService]
    write: Callable[[Bench, Path, int], Awaitable[None]]
    seen: Callable[[Bench, Path], Awaitable[set[int]]]
    fed: bool = False


async def write_graph(bench: Bench, root: Path, n: int) -> None:
    nodes = [NodeState(id=f"n{n}-{part}", edges=[Outgoing(kind="CITES", target=f"t{n}")]) for part in range(3)]
    await bench.call(GraphPut(corpus="notes", nodes=nodes))


async def seen_graph(bench: Bench, root: Path) -> set[int]:
    ids = (await bench.call(GraphNodes(corpus="notes"))).ids
    found = {int(id_[1:].partition("-")[0]) for id_ in ids}
    for n in found:
        assert {f"n{n}-{part}" for part in range(3)} <= set(ids)
        around = await bench.call(GraphNeighbors(id=f"t{n}"))
        assert len(around.edges) == 3
    return found


async def write_retrieve(bench: Bench, root: Path, n: int) -> None:
    items = [Item(key=str(part), text=f"linckia arm{n} part{part}", embed=False) for part in range(3)]
    await bench.call(RetrievePut(collection="notes", groups=[Group(id=f"g{n}", items=items)]))


async def seen_retrieve(bench: Bench, root: Path) -> set[int]:
    found = {int(id_[1:]) for id_ in (await bench.call(RetrieveGroups(collection="notes"))).ids}
    for n in found:
        answer = await bench.call(RetrieveSearch(collection="notes", query=f"arm{n}", limit=10))
        assert answer.hits or answer.degraded, f"g{n} is stored but not found"
    return found


async def write_documents(bench: Bench, root: Path, n: int) -> None:
    await bench.call(DocumentsAdd(name=f"{n}.txt", content=text_of(n)))


async def seen_documents(bench: Bench, root: Path) -> set[int]:
    found = {int(Path(one.name).stem) for one in (await bench.call(DocumentsList())).documents}
    for n in found:
        answer = await bench.call(DocumentsGet(name=f"{n}.txt", include_content=True))
        assert answer.content == text_of(n)
    return found


def text_of(n: int) -> str:
    return f"document {n}\n" + "arms of a sea star\n" * 50 * n


async def write_files(bench: Bench, root: Path, n: int) -> None:
    if n not in await seen_files(bench, root):
        await bench.call(ResourceSetCreate(name=f"set-{n}", description="of pictures"))


async def seen_files(bench: Bench, root: Path) -> set[int]:
    sets = (await bench.call(ResourceSetList())).resource_sets
    return {int(one.name.removeprefix("set-")) for one in sets}


async def write_knowledge(bench: Bench, root: Path, n: int) -> None:
    folder = root / str(n)
    folder.mkdir(exist_ok=True)
    (folder / "note.md").write_text(f"# Note {n}\n\nAn arm grows back.\n")
    await bench.call(KnowledgeIngest(vectors=False))


async def seen_knowledge(bench: Bench, root: Path) -> set[int]:
    folders = await bench.call(ListDirectoryStructure())
    return {int(name.strip("/")) for name in folders if name.strip("./")}


async def write_transcripts(bench: Bench, root: Path, n: int) -> None:
    turn = {
        "provider": "openai",
        "request": {"model": "m", "messages": [{"role": "user", "content": f"question {n}"}]},
        "response": {
            "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": f"answer {n}"}}],
        },
    }
    await bench.call(TranscriptIngest(body=json.dumps(turn).encode()))


async def seen_transcripts(bench: Bench, root: Path) -> set[int]:
    found: set[int] = set()
    for each in (await bench.call(TranscriptHistories())).histories:
        text = msgspec.json.encode(each).decode()
        (n,) = [n for n in range(10) if f"question {n}" in text]
        assert f"answer {n}" in text
        found.add(n)
    return found


async def write_watch(bench: Bench, root: Path, n: int) -> None:
    await bench.call(WatchSubscribe(name=f"s{n}", paths=[str(root)]))


async def seen_watch(bench: Bench, root: Path) -> set[int]:
    status = await bench.call(WatchStatus())
    return {int(one.name[1:]) for one in status.subscriptions}


async def write_media(bench: Bench, root: Path, n: int) -> None:
    path = root / f"{n}.png"
    Image.new("RGB", (40 + n, 30), "red").save(path)
    assert (await bench.call(MediaInspect(path=str(path)))).metadata["width"] == 40 + n


async def seen_media(bench: Bench, root: Path) -> set[int]:
    # The store is a cache: missing entries are made again, which needs free space.
    found = set()
    for path in root.glob("*.png"):  # noqa: ASYNC240  # a test's own small folder
        try:
            inspection = await bench.call(MediaInspect(path=str(path)))
        except OperationError as error:
            if "disk is full" not in str(error):
                raise
            continue
        assert inspection.metadata["width"] == 40 + int(path.stem)
        found.add(int(path.stem))
    return found


async def write_memory(bench: Bench, root: Path, n: int) -> None:
    await bench.call(Remember(text=f"The sea star has {n} spines", source=str(n)))


async def seen_memory(bench: Bench, root: Path) -> set[int]:
    memories = (await bench.call(ListMemories())).memories
    there = {one.id for one in memories}
    for one in memories:
        assert [said.source for said in one.said] == [one.text.split()[4]]
        # Those that contradict each other are kept together or not at all.
        assert there == {one.id, *one.conflicts_with}
    return {int(one.text.split()[4]) for one in memories}


async def write_events(bench: Bench, root: Path, n: int) -> None:
    await bench.call(EventAdd(id=str(n), kind=EventKind.TASK, subject=f"arm {n}", what="done", details={"n": n}))


async def seen_events(bench: Bench, root: Path) -> set[int]:
    events = (await bench.call(EventsRead(after=0, kinds=[EventKind.TASK]))).events
    assert all(each.subject == f"arm {each.details['n']}" for each in events)
    return {each.details["n"] for each in events}


async def write_approvals(bench: Bench, root: Path, n: int) -> None:
    # Its time is over at once, so that it is decided.
    call = ApprovalWait(
        wait=f"w{n}", operation=f"n{n}", who="ci", params=b"\x80", size=1, timeout_s=0.001, allow_on_time_out=True
    )
    assert (await bench.call(call, caller="kernel")).approved


async def seen_approvals(bench: Bench, root: Path) -> set[int]:
    found = await bench.call(ApprovalListParams(recent=500), caller="operator")
    assert all(each.state == "approved" and each.by for each in found.recent)
    return {int(each.operation[1:]) for each in found.recent}


async def write_tasks(bench: Bench, root: Path, n: int) -> None:
    await bench.call(TaskStart(operation=f"arm{n}"))


async def seen_tasks(bench: Bench, root: Path) -> set[int]:
    tasks = (await bench.call(TaskListParams(limit=500))).tasks
    assert all((each.state == "working") == (each.ended == "") for each in tasks)
    return {int(each.operation.removeprefix("arm")) for each in tasks}


SUBJECTS: Mapping[str, Subject] = {
    each.name: each
    for each in (
        Subject("graph", {"graph": open_graph}, write_graph, seen_graph, fed=True),
        Subject("retrieve", {"retrieve": open_retrieve}, write_retrieve, seen_retrieve, fed=True),
        Subject("documents", {"documents": open_documents}, write_documents, seen_documents),
        Subject("files", {"files": open_files}, write_files, seen_files),
        Subject("knowledge", {"retrieve": open_retrieve, "knowledge": open_knowledge}, write_knowledge, seen_knowledge),
        Subject("transcripts", {"transcripts": open_transcripts}, write_transcripts, seen_transcripts),
        Subject("memory", {"memory": open_memory}, write_memory, seen_memory),
        Subject("events", {"events": open_events}, write_events, seen_events),
        Subject("watch", {"watch": open_watch}, write_watch, seen_watch, fed=True),
        Subject("media", {"decode": open_decode, "media": open_media}, write_media, seen_media),
        Subject("approvals", {"approvals": open_approvals}, write_approvals, seen_approvals),
        Subject("tasks", {"kernel": Kernel().open, "tasks": open_tasks}, write_tasks, seen_tasks),
    )
}


def check_typed(error: LinckiaError) -> None:
    """A caller can act on it: the disk or the file is named, or the time to try again."""
    assert isinstance(error, OperationError) or error.failure.retry_after_ms is not None, repr(error)
