"""Tool search over real servers: tasks in a user's words find the right tool among Linckia's own operations."""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from proto import ops
from proto.errors import Unavailable
from proto.mounts import Mount, Offered
from proto.operation import Operation, operation_of
from proto.ops.embed import Array, EmbedResult, EmbedTexts, TextKind
from proto.origin import Origin
from services.embed.main import open_service as open_embed
from services.front import tool_search
from services.front.composite.run import Composites
from services.front.mounted.tools import tools_of
from services.front.operations.steps import Describe
from services.front.surfaces.finding import Index
from services.front.surfaces.steps import Steps
from services.front.surfaces.surface import Surface
from services.front.tool_search import ToolSearch, ToolSearches, ToolVectors, embed_through, text_of
from tests.in_process import services_in_process
from tests.unit.mounts.real_tools import definitions, mounted, real_tools, tasks
from tests.waiting import until

STEPS = Steps("all", ops.load())
OWN = {name: operation for group in STEPS.ops.values() for name, operation in group.items()}
EVERY: dict[str, Operation[object]] = {**OWN, **real_tools()}
SHOWN = 3


class PlayedEmbed:
    """Plays `embed`: the vector of a text is whether it has each of three words."""

    def __init__(self) -> None:
        self.fingerprint = "first"
        self.fails = False
        self.hangs = False
        self.texts: list[str] = []

    async def __call__(self, params: EmbedTexts) -> EmbedResult:
        if self.fails:
            raise Unavailable("embed is down")
        if self.hangs and params.kind is TextKind.QUERY:
            await trio.sleep_forever()
        self.texts += params.texts
        rows = [[float(word in text) for word in ("weather", "rain", "sun")] for text in params.texts]
        data = array("f", [number for row in rows for number in row]).tobytes()
        return EmbedResult(vectors=Array("<f4", (len(rows), 3), memoryview(data)), fingerprint=self.fingerprint)


def tools(*described: str) -> dict[str, Operation[object]]:
    made = mounted("sky", *({"name": f"t{n}", "description": text} for n, text in enumerate(described)))
    return {tool.name: tool for tool in made}


@contextlib.asynccontextmanager
async def searching(embed: PlayedEmbed, operations: dict[str, Operation[object]]) -> AsyncIterator[ToolSearch]:
    vectors = ToolVectors(embed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(vectors.run)
        yield ToolSearch(operations, vectors)
        nursery.cancel_scope.cancel()


async def found(search: ToolSearch, words: str, wanted: Sequence[str]) -> None:
    async def is_found() -> bool:
        return await search.ranked(words) == list(wanted)

    await until(is_found)


async def test_a_task_is_found_by_meaning_once_vectors_are_computed(autojump_clock: trio.testing.MockClock) -> None:
    embed = PlayedEmbed()
    async with searching(embed, tools("Gives the forecast: rain.", "Adds numbers.")) as search:
        # "rainfall" has the word "rain" for the played vectors, and for no description.
        assert await search.ranked("rainfall") == []
        await found(search, "rainfall", ["sky_t0"])


async def test_each_text_is_embedded_once_for_all_searches(autojump_clock: trio.testing.MockClock) -> None:
    embed = PlayedEmbed()
    operations = tools("rain", "sun")
    vectors = ToolVectors(embed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(vectors.run)
        await found(ToolSearch(operations, vectors), "rainfall", ["sky_t0"])
        more = operations | tools("rain", "sun", "weather")
        await found(ToolSearch(more, vectors), "weatherman", ["sky_t2"])
        nursery.cancel_scope.cancel()
    assert [embed.texts.count(text_of(tool)) for tool in more.values()] == [1, 1, 1]


async def test_without_embed_words_decide(autojump_clock: trio.testing.MockClock) -> None:
    embed = PlayedEmbed()
    embed.fails = True
    async with searching(embed, tools("Gives the forecast: rain.", "Adds numbers.")) as search:
        assert await search.ranked("forecast") == ["sky_t0"]
        embed.fails = False
        await found(search, "rainfall", ["sky_t0"])
        embed.fails = True
        assert await search.ranked("forecast") == ["sky_t0"]
    assert await ToolSearch(tools("Adds numbers."), None).ranked("number") == ["sky_t0"]


async def test_a_search_does_not_wait_for_a_slow_embed(autojump_clock: trio.testing.MockClock) -> None:
    embed = PlayedEmbed()
    async with searching(embed, tools("Gives the forecast: rain.")) as search:
        await found(search, "rainfall", ["sky_t0"])
        embed.hangs = True
        started = trio.current_time()
        assert await search.ranked("forecast") == ["sky_t0"]
        assert trio.current_time() - started <= tool_search.PATIENCE_S


async def test_vectors_of_another_model_are_never_compared(autojump_clock: trio.testing.MockClock) -> None:
    embed = PlayedEmbed()
    async with searching(embed, tools("rain")) as search:
        await found(search, "rainfall", ["sky_t0"])
        embed.fingerprint = "second"
        assert await search.ranked("rainfall") == []
        await found(search, "rainfall", ["sky_t0"])
        assert embed.texts.count("sky t 0: rain") == 2


def test_the_text_of_a_tool_is_short_and_survives_any_schema() -> None:
    parameters: dict[str, object] = {f"someName{n}": {} for n in range(1_000)}
    long = {"name": "createIssue" * 100, "description": "d " * 100_000, "inputSchema": {"properties": parameters}}
    schemas: list[object] = [{}, [], {"properties": []}, {"properties": {"a": True}},
                             {"properties": {"a": {"description": 3}}}]  # fmt: skip
    for tool in mounted("m", long):
        assert len(text_of(tool)) < 1_000
    for schema in schemas:
        (tool,) = mounted("m", {"name": "a", "description": "Adds.", "inputSchema": schema})
        assert text_of(tool).startswith("m a: Adds.")
        assert Index({"a": tool}).ranked("adds") == ["a"]


async def test_tasks_over_real_servers_find_their_tool_by_words_alone() -> None:
    search = ToolSearch(EVERY, None)
    assert await share_found(search, held_out=False) >= 0.85
    assert await share_found(search, held_out=True) >= 0.85


async def test_nineteen_of_twenty_tasks_over_real_servers_find_their_tool(tmp_path: Path) -> None:
    async with services_in_process({"embed": open_embed}, tmp_path) as bench, trio.open_nursery() as nursery:
        vectors = ToolVectors(bench.call)
        nursery.start_soon(vectors.run)
        search = ToolSearch(EVERY, vectors)
        texts = [text_of(operation) for operation in EVERY.values()]

        async def all_computed() -> bool:
            return vectors.get(texts) is not None

        await until(all_computed, within_s=300)
        # The ranking is checked here, not how soon this machine embeds a task.
        vectors.patience_s = 60.0
        both = [await share_found(search, held_out=held_out) for held_out in (False, True)]
        assert sum(both) / 2 >= 0.95, both
        nursery.cancel_scope.cancel()


async def share_found(search: ToolSearch, *, held_out: bool) -> float:
    chosen = [task for task in tasks() if task.held_out is held_out]
    hits = [set(task.tools) & set((await search.ranked(task.task))[:SHOWN]) for task in chosen]
    return sum(map(bool, hits)) / len(chosen)


def copies(times: int) -> dict[str, Operation[object]]:
    """Mount the tools of the real servers `count` times."""
    every = [
        tool
        for number in range(times)
        for name, offered in definitions().items()
        for tool in tools_of(Mount(name=f"{name}{number}"), Offered(definitions=offered))
    ]
    return {tool.name: tool for tool in every}


async def test_a_search_among_700_operations_costs_less_than_50_ms_of_processor_time() -> None:
    operations = {**EVERY, **copies(6)}
    assert len(operations) >= 700
    embed = PlayedEmbed()
    async with searching(embed, operations) as search:
        texts = [text_of(operation) for operation in operations.values()]

        async def all_computed() -> bool:
            return search.vectors is not None and search.vectors.get(texts) is not None

        await until(all_computed)
        used = []
        for task in tasks()[:20]:
            started = time.thread_time()
            await search.ranked(task.task)
            used.append(time.thread_time() - started)
        assert sorted(used)[10] < 0.05


@pytest.mark.parametrize("name", ["core", "compact"])
def test_500_mounted_tools_cost_a_model_nothing_where_few_tools_are_listed(name: str) -> None:
    mounted_tools = copies(7)
    assert len(mounted_tools) >= 500
    with_them = Surface(name, ops.Table([*ops.load().values(), *mounted_tools.values()]))
    assert with_them.listed_tools == Surface(name, ops.load()).listed_tools
    assert with_them.steps.index.ranked("take a screenshot of the current page")[0].startswith("playwright")


class EmbedOnly:
    """A dispatcher that reaches the played `embed` and nothing else; results are plain data, as over the link."""

    def __init__(self, embed: PlayedEmbed) -> None:
        self.embed = embed

    async def call(self, operation: Operation[Any], params: Any, **options: Any) -> object:
        assert (operation.name, options["origin"].caller) == ("embed_texts", "front")
        return msgspec.msgpack.decode(msgspec.msgpack.encode(await self.embed(params)))


async def test_describe_finds_mounted_tools_by_meaning_and_follows_their_changes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    embed = PlayedEmbed()
    searches = ToolSearches(ToolVectors(embed_through(EmbedOnly(embed))))
    steps = Steps("compact", ops.load())
    composites = Composites(EmbedOnly(embed), steps, searches)

    async def first(words: str) -> str:
        answer = msgspec.to_builtins(
            await composites.call(operation_of(Describe), Describe(words=words), origin=Origin("client"))
        )
        return str(answer["ops"][0]["op"]) if answer["ops"] else ""

    async with trio.open_nursery() as nursery:
        nursery.start_soon(searches.vectors.run)
        assert await first("undo a deletion") == "trash_restore"
        assert "undo a deletion" in embed.texts
        for described in ("Gives the forecast: rain.", "Shows the sun."):
            steps.update(ops.Table([*ops.load().values(), *tools(described).values()]))
            task = "rainfall" if "rain" in described else "sunscreen"

            async def is_first(task: str = task) -> bool:
                return await first(task) == "sky_t0"

            await until(is_first)
        nursery.cancel_scope.cancel()
