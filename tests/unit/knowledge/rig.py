"""The service of notes on real files and its real database, with a search in memory that fails as a test chooses."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from proto.errors import LinckiaError
from proto.operation import Params
from proto.ops.retrieve import (
    CollectionEpoch,
    CollectionStatus,
    Filter,
    Group,
    GroupIds,
    Grouping,
    Hit,
    Neighbour,
    Neighbours,
    Outboxes,
    Pair,
    Pairs,
    RetrieveClusters,
    RetrieveDelete,
    RetrieveEpoch,
    RetrieveGroups,
    RetrieveOutboxes,
    RetrievePairs,
    RetrievePut,
    RetrieveScrub,
    RetrieveSearch,
    RetrieveSettle,
    RetrieveSimilar,
    RetrieveStatus,
    RetrieveWaiting,
    Scrubbed,
    SearchResult,
    Settled,
    WaitingItems,
    Written,
)
from services.knowledge.main import open_service
from services.knowledge.operations.notes import (
    ExploreLinks,
    KnowledgeStatus,
    KnowledgeStatusResult,
    ReadNodeContent,
    SearchDocuments,
)
from services.llm.main import open_service as open_llm
from services.retrieve import operations as collections
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.runtime.roots import Roots
from services.yaml.main import open_service as open_yaml
from tests.in_process import Bench, services_in_process


class MemorySearch:
    """A search that finds words; it outlives the services that run on it, as a disk does.

    `refuse` is asked before each put and delete, and may answer a failure.  `puts` and `deletes` record the ids.
    """

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.puts: list[list[str]] = []
        self.deletes: list[list[str]] = []
        self.vectors = True
        self.epoch, self.filled, self.ended = "one", "", trio.Event()
        self.asked_pairs: list[RetrievePairs] = []
        self.most_pairs = 100_000
        self.searches: list[RetrieveSearch] = []
        self.vectors_waiting = 0
        self.refuse: Callable[[list[str]], LinckiaError | None] = lambda ids: None

    def begin_again(self) -> None:
        """Lose everything, and say so by another epoch."""
        self.groups.clear()
        self.epoch += " again"
        self.ended.set()
        self.ended = trio.Event()

    @property
    def put_ids(self) -> list[str]:
        return [id_ for batch in self.puts for id_ in batch]

    @asynccontextmanager
    async def open(self, env: Environment) -> AsyncIterator[Handlers]:
        yield Handlers(self)

    @handles(RetrievePut)
    async def on_put(self, params: RetrievePut, ctx: Context) -> Written:
        ids = [group.id for group in params.groups]
        if (failure := self.refuse(ids)) is not None:
            raise failure
        self.puts.append(ids)
        self.groups.update({group.id: group for group in params.groups})
        return Written()

    @handles(RetrieveDelete)
    async def on_delete(self, params: RetrieveDelete, ctx: Context) -> Written:
        if (failure := self.refuse(params.groups)) is not None:
            raise failure
        self.deletes.append(params.groups)
        for id_ in self.groups.keys() & set(params.groups):
            self.groups.pop(id_)
        return Written()

    @handles(RetrieveEpoch)
    async def on_epoch(self, params: RetrieveEpoch, ctx: Context) -> CollectionEpoch:
        self.filled = params.filled
        if params.filled == self.epoch:
            with trio.move_on_after(params.wait_s):
                await self.ended.wait()
        return CollectionEpoch(epoch=self.epoch)

    @handles(RetrieveScrub)
    async def on_scrub(self, params: RetrieveScrub, ctx: Context) -> Scrubbed:
        return Scrubbed()

    @handles(RetrieveOutboxes)
    async def on_outboxes(self, params: RetrieveOutboxes, ctx: Context) -> Outboxes:
        return Outboxes(outboxes=[])

    @handles(RetrieveWaiting)
    async def on_waiting(self, params: RetrieveWaiting, ctx: Context) -> WaitingItems:
        return WaitingItems()

    @handles(RetrieveSettle)
    async def on_settle(self, params: RetrieveSettle, ctx: Context) -> Settled:
        return Settled()

    @handles(RetrieveGroups)
    async def on_groups(self, params: RetrieveGroups, ctx: Context) -> GroupIds:
        if (failure := self.refuse([])) is not None:
            raise failure
        ids = sorted(id_ for id_ in self.groups if id_ > params.after)
        return GroupIds(ids=ids[: params.limit], more=len(ids) > params.limit)

    @handles(RetrieveStatus)
    async def on_status(self, params: RetrieveStatus, ctx: Context) -> CollectionStatus:
        items = [item for group in self.groups.values() for item in group.items]
        return CollectionStatus(
            collection=params.collection, groups=len(self.groups), items=len(items),
            vectors=sum(item.embed for item in items), vectors_waiting=self.vectors_waiting, fingerprint=None,
            size_bytes=1024 * 1024, index="none",
        )  # fmt: skip

    @handles(RetrieveSearch)
    async def on_search(self, params: RetrieveSearch, ctx: Context) -> SearchResult:
        self.searches.append(params)
        words = params.query.lower().split()
        hits = []
        for group in self.groups.values():
            if not all(_holds(group, condition) for condition in params.filters):
                continue
            score, best = max(
                ((sum(w in item.text.lower() for w in words), -i) for i, item in enumerate(group.items)),
                default=(0, 0),
            )
            if score:
                item = group.items[-best]
                hits.append(
                    Hit(
                        group=group.id, key=item.key, score=score / len(words), title=group.title, vector=0.9,
                        heading=item.heading, text=item.text,
                        group_metadata=group.metadata, item_metadata=item.metadata,
                    )
                )  # fmt: skip
        hits.sort(key=lambda hit: (-hit.score, hit.group))
        stage = "vector" if self.vectors and params.fusion.method == "vector" else "lexical"
        return SearchResult(hits=hits[: params.limit], stages=[stage], degraded=[], source=stage)

    @handles(RetrieveSimilar)
    async def on_similar(self, params: RetrieveSimilar, ctx: Context) -> Neighbours:
        if not self.vectors:
            return Neighbours(neighbours=[], has_vector=False, vectors_waiting=len(self.groups))
        own = self.groups.get(params.group)
        near = [
            Neighbour(group=other.id, similarity=similarity)
            for other in self.groups.values()
            if own is not None and other is not own and (similarity := likeness(own, other)) >= params.threshold
        ]
        near.sort(key=lambda each: (-each.similarity, each.group))
        return Neighbours(neighbours=near[: params.limit], has_vector=own is not None)

    @handles(RetrievePairs)
    async def on_pairs(self, params: RetrievePairs, ctx: Context) -> Pairs:
        self.asked_pairs.append(params)
        if not self.vectors:
            return Pairs(pairs=[], more=False, groups=0, vectors_waiting=len(self.groups))
        found = [
            Pair(first=first.id, second=second.id, similarity=similarity)
            for first, second in itertools.combinations(sorted(self.groups.values(), key=lambda g: g.id), 2)
            if (similarity := likeness(first, second)) >= params.threshold
        ]
        found.sort(key=lambda pair: (-pair.similarity, pair.first, pair.second))
        if params.nearest is not None:
            found = [
                pair
                for pair in found
                if any(
                    [each for each in found if id_ in (each.first, each.second)].index(pair) < params.nearest
                    for id_ in (pair.first, pair.second)
                )
            ]
        limit = min(params.limit, self.most_pairs)
        return Pairs(pairs=found[:limit], more=len(found) > limit, groups=len(self.groups))

    @handles(RetrieveClusters)
    async def on_clusters(self, params: RetrieveClusters, ctx: Context) -> Grouping:
        if not self.vectors:
            return Grouping(clusters=[], groups=0, vectors_waiting=len(self.groups))
        by_word: dict[str, list[str]] = {}
        for id_, group in sorted(self.groups.items()):
            by_word.setdefault(group.title.split()[0], []).append(id_)
        return Grouping(clusters=sorted(by_word.values(), key=lambda ids: (-len(ids), ids)), groups=len(self.groups))

    async def on_clients_collection(self, params: Params[Any], ctx: Context) -> object:
        raise AssertionError(f"notes have nothing to do with {params}")


for _declared in vars(collections).values():
    if isinstance(_declared, type) and issubclass(_declared, Params) and _declared is not Params:
        handles(_declared)(MemorySearch.on_clients_collection)


def likeness(first: Group, second: Group) -> float:
    """Share of words that two groups have in common, to six places."""
    one, other = ({word for item in group.items for word in item.text.lower().split()} for group in (first, second))
    return round(len(one & other) / max(1, len(one | other)), 6)


def _holds(group: Group, condition: Filter) -> bool:
    value = group.metadata[condition.field]
    if condition.any_of is not None:
        return any(one in condition.any_of for one in (value if isinstance(value, list) else [value]))
    if condition.prefix is not None:
        return str(value).startswith(condition.prefix)
    assert isinstance(value, int | float)
    return (condition.at_least is None or value >= condition.at_least) and (
        condition.at_most is None or value <= condition.at_most
    )


@asynccontextmanager
async def notes_service(
    folder: Path, *paths: Path, search: MemorySearch | None = None, roots: Roots | None = None
) -> AsyncIterator[Bench]:
    """The service over these paths, or `roots`, its data in `folder`."""
    memory = search or MemorySearch()
    services = {"retrieve": memory.open, "llm": open_llm, "yaml": open_yaml, "knowledge": open_service}
    settings = {"knowledge": {"scan_interval_s": 0.02}}
    async with services_in_process(services, folder, roots=roots or paths, settings=settings) as bench:
        yield bench
        if "knowledge" in bench.running:
            await bench.stop("knowledge")


async def settled(bench: Bench, notes: int | None = None, within_s: float = 10.0) -> KnowledgeStatusResult:
    """The status once a scan that began after this call left nothing pending (and there are `notes` notes)."""
    before = (await bench.call(KnowledgeStatus())).last_scan
    # The first scan to end from now on may have begun before the caller wrote its files; the next one has not.
    before = (await until(bench, lambda status: status.last_scan != before, within_s)).last_scan
    return await until(
        bench,
        lambda status: (
            status.last_scan != before
            and not status.pending
            and not status.scanning
            and (notes is None or status.notes == notes)
        ),
        within_s,
    )


async def read(bench: Bench, id_: str) -> str:
    """Return the text of a note."""
    return (await bench.call(ReadNodeContent(id=id_))).text


async def found(bench: Bench, query: str) -> list[str]:
    """Return the ids of the notes that a search finds, best first."""
    return [hit.id for hit in (await bench.call(SearchDocuments(query=query))).results]


async def links(bench: Bench, id_: str, relation: str | None = None) -> list[tuple[str, str]]:
    """Return type and target of the links of a note."""
    return [(link.type, link.target) for link in await bench.call(ExploreLinks(id=id_, relation=relation))]


async def until(
    bench: Bench, holds: Callable[[KnowledgeStatusResult], bool], within_s: float = 10.0
) -> KnowledgeStatusResult:
    """The status once `holds` is true of it."""
    with trio.fail_after(within_s):
        while True:
            status = await bench.call(KnowledgeStatus())
            if holds(status):
                return status
            await trio.sleep(0.01)


def write(root: Path, path: str, text: str) -> Path:
    """A file below `root` with its folders."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())
    return file


__all__ = ["Bench", "MemorySearch", "notes_service", "settled", "until", "write"]
