"""Turns go in and conversations come out over HTTP in the words and codes that capture tools know."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from proto.errors import LinckiaError, OperationError, Unavailable
from proto.operation import Operation, Params
from proto.ops import load
from proto.origin import Origin
from proto.wire import frames
from proto.wire.frames import Event, pack_body
from proto.wire.front import Http
from services.front.web.routes import routes
from services.runtime.dispatch import ClientRequests, Outlasting
from services.transcripts.operations.conversations import SERVICE
from tests.in_process import Bench
from tests.unit.front.httpwire import HttpWire, Reply, served
from tests.unit.transcripts.rig import Json, assistant, payload, serving, user

ROOT = "9cfb4f1a7ef167a89ffadd1d0915cb8315c2c15dd35272fdacccd0a8389ef76a"
REPLY = "1b6311a761b81b1a410cb8cf62c414caf693f78888cb1d9b8dd4acc2df6de6ac"
TURN = payload(
    [user("How do I set up logging?")], "To configure logging, you'll need to set LOG_LEVEL.", model="test-model"
)


class OverBench:
    """`kernel.router.ports.Dispatcher` over services in this process; `failing` makes every call fail."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.failing: LinckiaError | None = None

    async def call(
        self,
        operation: Operation[Any],
        params: Params[Any],
        *,
        origin: Origin,
        timeout_s: float | None = None,
        client_requests: ClientRequests | None = None,
        written: bool = False,
        outlasting: Outlasting | None = None,
    ) -> object:
        if self.failing is not None:
            raise self.failing
        service = self._bench.running[operation.service].outgoing
        body = await service.raw(operation.name, pack_body(params), origin, limit_s=operation.deadline_ms / 1000)
        json = frames.as_written(body) if written else None
        return frames.read_body(body) if json is None else json

    def subscribe(self, topic: str, receive: Callable[[Event], Awaitable[None] | None]) -> Callable[[], None]:
        return lambda: None


@contextlib.asynccontextmanager
async def web(
    folder: Path, settings: Http | None = None, *, enabled: bool = True
) -> AsyncIterator[tuple[HttpWire, OverBench]]:
    async with serving(folder) as bench:
        dispatcher = OverBench(bench)
        listed = routes(dispatcher, load(), 1 << 20, unserved=() if enabled else (SERVICE,))
        async with served(settings, routes=listed) as (http, *_):
            yield http, dispatcher


async def get(http: HttpWire, path: str) -> tuple[int, Any]:
    reply = await http.request("GET", path)
    assert reply.headers["content-type"] == "application/json"
    return reply.status, json.loads(reply.body)


async def post(http: HttpWire, path: str, body: bytes | Json) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = await http.request("POST", path, data)
    return reply.status, json.loads(reply.body)


async def test_ping_is_pong(tmp_path: Path) -> None:
    async with web(tmp_path) as (http, _):
        assert await get(http, "/ping") == (200, "pong")


async def test_a_turn_that_was_accepted_is_there_at_once(tmp_path: Path) -> None:
    async with web(tmp_path) as (http, _):
        assert await get(http, "/dag/stats") == (200, {"total_nodes": 0, "root_count": 0, "leaf_count": 0})
        assert await post(http, "/v1/ingest", TURN) == (202, {"status": "accepted"})
        assert await get(http, "/dag/stats") == (200, {"total_nodes": 2, "root_count": 1, "leaf_count": 1})
        status, node = await get(http, f"/dag/node/{ROOT}")
        assert (status, node) == (
            200,
            {
                "hash": ROOT,
                "parent_hash": None,
                "bucket": {
                    "type": "message",
                    "role": "user",
                    "content": [{"is_error": False, "text": "How do I set up logging?", "type": "text"}],
                    "model": "test-model",
                    "provider": "openai",
                },
            },
        )
        _, reply = await get(http, f"/dag/node/{REPLY}")
        assert (reply["parent_hash"], reply["stop_reason"]) == (ROOT, "stop")


async def test_a_history_is_oldest_first_and_its_first_message_has_no_parent(tmp_path: Path) -> None:
    async with web(tmp_path) as (http, _):
        await post(http, "/v1/ingest", TURN)
        _, history = await get(http, f"/dag/history/{REPLY}")
        assert (history["head_hash"], history["depth"]) == (REPLY, 2)
        first, second = history["messages"]
        assert "parent_hash" not in first
        assert (first["hash"], second["parent_hash"], second["role"]) == (ROOT, ROOT, "assistant")
        _, every = await get(http, "/dag/history")
        assert every["histories"] == [history]
        assert (every["count"], every["total"], every["head_hash"], every["depth"]) == (1, 1, REPLY, 2)
        assert every["messages"] == history["messages"]


async def test_the_newest_conversations_come_first_as_many_as_are_asked_for(tmp_path: Path) -> None:
    async with web(tmp_path) as (http, _):
        for n in range(4):
            await post(http, "/v1/ingest", payload([user(f"question {n}")], "answer"))
        _, every = await get(http, "/dag/history?limit=2")
        said = [history["messages"][0]["content"][0]["text"] for history in every["histories"]]
        assert (said, every["count"], every["total"]) == (["question 3", "question 2"], 2, 4)
        assert (await get(http, "/dag/history?limit=none"))[0] == 400


@pytest.mark.parametrize("hash_", ["0" * 64, "abc", ROOT.upper(), "x" * 64])
async def test_an_unknown_hash_is_not_found(tmp_path: Path, hash_: str) -> None:
    async with web(tmp_path) as (http, _):
        for path in ("/dag/node", "/dag/history"):
            assert await get(http, f"{path}/{hash_}") == (404, {"error": "node not found"})


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({**TURN, "provider": "foo"}, 422, 'unsupported provider: "foo"'),
        ({}, 422, 'unsupported provider: ""'),
        ({**TURN, "request": {}}, 422, "cannot parse request: "),
        ({**TURN, "response": {"choices": []}}, 422, "cannot parse response: "),
        (b"", 400, "invalid payload: "),
        (b"{", 400, "invalid payload: "),
        (b"[]", 400, "invalid payload: "),
        (b'{"provider": 5}', 400, "invalid payload: "),
        (b"\xff\xfe", 400, "invalid payload: "),
        (b"[" * 100_000, 400, "invalid payload: "),
    ],
)
async def test_invalid_turns_over_http_are_refused_with_the_reason(
    tmp_path: Path, body: bytes | Json, status: int, error: str
) -> None:
    async with web(tmp_path) as (http, _):
        got, answer = await post(http, "/v1/ingest", body)
        assert got == status
        assert answer["error"].startswith(error)
        assert (await get(http, "/dag/stats"))[1]["total_nodes"] == 0


async def test_valid_turns_of_a_batch_are_kept(tmp_path: Path) -> None:
    async with web(tmp_path) as (http, _):
        turns = [TURN, {**TURN, "provider": "foo"}, 7]
        assert await post(http, "/v1/ingest/batch", {"turns": turns}) == (
            202,
            {
                "accepted": 1,
                "rejected": 2,
                "errors": [
                    'turn[1]: unsupported provider: "foo"',
                    "turn[2]: invalid payload: Expected `object`, got `int`",
                ],
            },
        )
        assert await post(http, "/v1/ingest/batch", {"turns": [TURN]}) == (202, {"accepted": 1, "rejected": 0})
        for empty in (b'{"turns": []}', b"{}"):
            assert await post(http, "/v1/ingest/batch", empty) == (400, {"error": "empty batch"})
        assert (await post(http, "/v1/ingest/batch", b"nothing"))[0] == 400


async def test_a_turn_with_half_a_surrogate_pair_is_kept(tmp_path: Path) -> None:
    async with web(tmp_path) as (http, _):
        body = json.dumps(payload([user("PLACE")], "b")).replace("PLACE", "cut \\ud83d here").encode()
        assert await post(http, "/v1/ingest", body) == (202, {"status": "accepted"})
        _, every = await get(http, "/dag/history")
        assert every["messages"][0]["content"][0]["text"] == "cut \ufffd here"


async def test_search_over_http(tmp_path: Path) -> None:
    async with web(tmp_path) as (http, _):
        await post(http, "/v1/ingest", TURN)
        status, found = await get(http, "/v1/search?query=LOG_LEVEL&top_k=1")
        assert (status, found["query"], found["count"]) == (200, "LOG_LEVEL", 1)
        hit = found["results"][0]
        assert set(hit) == {"hash", "score", "role", "preview", "depth", "lineage"}
        assert (hit["hash"], hit["depth"], [set(turn) for turn in hit["lineage"]]) == (
            REPLY,
            2,
            [{"hash", "role", "text"}] * 2,
        )


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("", "query parameter is required"),
        ("?query=", "query parameter is required"),
        ("?top_k=3", "query parameter is required"),
        *(
            (f"?query=x&top_k={top_k}", "top_k must be a positive integer")
            for top_k in ("0", "-1", "x", "1.5", "٣", "1e3", "9" * 30)
        ),
    ],
)
async def test_a_search_that_says_too_little_is_refused(tmp_path: Path, query: str, error: str) -> None:
    async with web(tmp_path) as (http, _):
        assert await get(http, "/v1/search" + quote(query, safe="?=&")) == (400, {"error": error})


async def test_a_body_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with web(tmp_path) as (http, _):
        status, answer = await post(http, "/v1/ingest", b" " * (1 << 20) + b"{}")
        assert (status, answer) == (413, {"error": "the body is longer than 1048576 bytes"})


async def test_an_unavailable_service_is_reported_with_a_retry_time(tmp_path: Path) -> None:
    async with web(tmp_path) as (http, dispatcher):
        dispatcher.failing = Unavailable("transcripts is starting", retry_after_ms=1500)
        reply: Reply = await http.request("POST", "/v1/ingest", json.dumps(TURN).encode())
        assert (reply.status, reply.headers["retry-after"]) == (503, "2")
        assert json.loads(reply.body)["error"].startswith("transcripts is starting. Nothing was done.")


async def test_a_full_disk_is_not_blamed_on_the_client(tmp_path: Path) -> None:
    async with web(tmp_path) as (http, dispatcher):
        dispatcher.failing = OperationError("the disk is full", retry_after_ms=500)
        reply: Reply = await http.request("POST", "/v1/ingest", json.dumps(TURN).encode())
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")


async def test_a_disabled_transcript_route_says_so(tmp_path: Path) -> None:
    async with web(tmp_path, enabled=False) as (http, _):
        assert await get(http, "/ping") == (200, "pong")
        for path in ("/v1/search?query=x", "/dag/stats", "/dag/history"):
            status, answer = await get(http, path)
            assert status == 503
            assert "switched off" in answer["error"]
        assert (await post(http, "/v1/ingest", TURN))[0] == 503


async def test_transcript_routes_have_the_same_access_checks_as_others(tmp_path: Path) -> None:
    async with web(tmp_path, Http(port=0, token="a" * 20)) as (http, _):
        assert (await http.request("GET", "/dag/stats")).status == 401
        allowed = {"authorization": f"Bearer {'a' * 20}"}
        assert (await http.request("GET", "/dag/stats", headers=allowed)).status == 200
        strange = {**allowed, "origin": "https://evil.example"}
        assert (await http.request("GET", "/dag/stats", headers=strange)).status == 403


async def test_a_conversation_that_is_posted_again_and_again_is_kept_once(tmp_path: Path) -> None:
    async with web(tmp_path) as (http, _):
        said: list[Json] = []
        for n in range(20):
            said.append(user(f"question {n}"))
            assert (await post(http, "/v1/ingest", payload(said, f"answer {n}")))[0] == 202
            said.append(assistant(f"answer {n}"))
        assert (await get(http, "/dag/stats"))[1] == {"total_nodes": 40, "root_count": 1, "leaf_count": 1}
