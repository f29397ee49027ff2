"""Two kernels with one set of source data on a server: one dies, and clients go on with the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.postgres import PostgresServer
from tests.store.kernels import MISSING_PROXY, Client, Pair, proxy

ROUNDS = 4


@pytest.fixture
def pair(tmp_path: Path, server: PostgresServer, schema: str) -> Iterator[Pair]:
    made = Pair(tmp_path, server, schema)
    yield made
    made.close()


@pytest.mark.skipif(bool(MISSING_PROXY), reason=MISSING_PROXY)
def test_clients_go_on_while_kernels_are_killed_in_turn(
    tmp_path: Path, server: PostgresServer, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.start("a")
    assert pair.active() == "a"
    pair.start("b")
    pair.wait_standing_by("b")
    assert not pair.is_ready("b")

    async def written(client: Client, more: int) -> None:
        wanted = len(client.acknowledged) + more
        with anyio.move_on_after(45):
            while len(client.acknowledged) < wanted:
                await client.grown.wait()
        assert len(client.acknowledged) >= wanted, client.failures

    async def main(client: Client) -> None:
        done = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.run, done)
            await written(client, 5)
            for _ in range(ROUNDS):
                first = await anyio.to_thread.run_sync(pair.active)
                other = "b" if first == "a" else "a"
                await anyio.to_thread.run_sync(pair.wait_standing_by, other)
                await anyio.to_thread.run_sync(pair.kill, first)
                await written(client, 5)
                assert await anyio.to_thread.run_sync(pair.active) == other
                await anyio.to_thread.run_sync(pair.start, first)
            server.kill()
            server.start()
            await written(client, 5)
            done.set()

    with proxy(tmp_path, pair) as port:
        client = Client(port)
        anyio.run(main, client)
    kernel = pair.kernels[pair.active()]
    count = len(client.acknowledged)
    with capsys.disabled():
        print(f"\n{count} writes of each kind, {client.sessions} sessions, longest {client.longest_s:.1f} s")
        print("\n".join(sorted(client.failures)))
    # At most one more was stored without its acknowledgement.
    memories = kernel.call("memory_list", {"limit": 1000})
    texts = sorted(each["text"] for each in memories["memories"])
    assert texts[:count] == [f"The client remembers number {number:04}" for number in range(count)]
    assert memories["total"] == len(texts) <= count + 1
    paths = sorted(kernel.call("documents_list", {"paths_only": True, "limit": 1000})["paths"])
    assert paths[:count] == [f"document-{number:04}.txt" for number in range(count)]
    assert len(paths) <= count + 1
    nodes = kernel.call("transcript_stats")["root_count"]
    assert count <= nodes <= count + 1
