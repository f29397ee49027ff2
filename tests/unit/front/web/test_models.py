"""The models over HTTP answer as OpenAI's, Jina's and Cohere's do, and so do their failures."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from proto.errors import (
    Internal,
    InvalidParams,
    LinckiaError,
    OperationError,
    Overloaded,
    Quarantined,
    Timeout,
    Unavailable,
)
from proto.ops import load
from proto.ops.embed import (
    Array,
    EmbedMaxSim,
    EmbedModel,
    EmbedModelParams,
    EmbedResult,
    EmbedTexts,
    MaxSimResult,
)
from proto.ops.rerank import Ranked, RerankModel, RerankModelParams, RerankPairs, RerankResult
from proto.wire.front import Http
from services.front.web.routes import routes
from services.runtime.handlers import Context, Environment, Handlers
from tests.unit.front.httpwire import HttpWire, Reply, served
from tests.unit.front.inprocess import InProcess, in_process

EMBED = EmbedModel(
    model="owner/Small-Model", fingerprint="Small-Model:1", dimensions=2, max_tokens=16, device="cpu", precision="fp32"
)
RERANK = RerankModel(available=True, model="owner/ranker", max_tokens=16, device="cpu", precision="fp32")


class Fake:
    """Stands in for the services: a text's vector is its length and 1, the longest text ranks best."""

    def __init__(self) -> None:
        self.embedded: list[EmbedTexts] = []
        self.ranked: list[RerankPairs] = []
        self.failure: LinckiaError | None = None
        self.hangs = False

    @contextlib.asynccontextmanager
    async def open_service(self, env: Environment) -> AsyncIterator[Handlers]:
        handlers = Handlers()

        @handlers.handle(EmbedTexts)
        async def embed_texts(params: EmbedTexts, ctx: Context) -> EmbedResult:
            self.embedded.append(params)
            if self.hangs:
                await trio.sleep_forever()
            if self.failure is not None:
                raise self.failure
            lengths = [len(item) for item in (*params.texts, *params.tokens)]
            rows = b"".join(struct.pack("<2f", length, 0.1) for length in lengths)
            long = [index for index, length in enumerate(lengths) if length > 16]
            return EmbedResult(
                vectors=Array("<f4", (len(lengths), 2), memoryview(rows)),
                fingerprint=EMBED.fingerprint,
                tokens=sum(lengths),
                truncated=long,
            )

        @handlers.handle(EmbedMaxSim)
        async def maxsim(params: EmbedMaxSim, ctx: Context) -> MaxSimResult:
            return MaxSimResult(scores=[0.5] * len(params.texts))

        @handlers.handle(EmbedModelParams)
        async def embed_model(params: EmbedModelParams, ctx: Context) -> EmbedModel:
            return EMBED

        @handlers.handle(RerankPairs)
        async def rerank_pairs(params: RerankPairs, ctx: Context) -> RerankResult:
            self.ranked.append(params)
            if self.failure is not None:
                raise self.failure
            order = sorted(range(len(params.texts)), key=lambda index: -len(params.texts[index]))
            ranked = [Ranked(index=index, score=1 / (1 + place)) for place, index in enumerate(order[: params.limit])]
            return RerankResult(ranked=ranked, model=RERANK.model, tokens=7)

        @handlers.handle(RerankModelParams)
        async def rerank_model(params: RerankModelParams, ctx: Context) -> RerankModel:
            return RERANK

        yield handlers


@contextlib.asynccontextmanager
async def serving(
    settings: Http | None = None, *, max_body_bytes: int = 1 << 20
) -> AsyncIterator[tuple[HttpWire, Fake, InProcess]]:
    fake = Fake()
    async with (
        in_process(fake.open_service) as dispatcher,
        served(settings, routes=routes(dispatcher, load(), max_body_bytes)) as (http, *_),
    ):
        yield http, fake, dispatcher


async def post(http: HttpWire, path: str, body: object, **headers: str) -> Reply:
    return await http.request("POST", path, json.dumps(body).encode(), headers)


def answer(reply: Reply) -> Any:
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


def error(reply: Reply) -> Any:
    assert reply.headers["content-type"] == "application/json"
    body = json.loads(reply.body)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


async def test_embeddings_have_openai_s_format() -> None:
    async with serving() as (http, fake, _):
        body = answer(await post(http, "/v1/embeddings", {"input": ["abc", "z"], "model": "small-model", "user": "u"}))
        assert body["object"] == "list"
        assert body["model"] == "owner/Small-Model"
        assert body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
        assert [(item["object"], item["index"]) for item in body["data"]] == [("embedding", 0), ("embedding", 1)]
        assert [item["embedding"][0] for item in body["data"]] == [3.0, 1.0]
        # The very float32 that the model answered, not one rounded on the way.
        assert array("f", [body["data"][0]["embedding"][1]])[0] == array("f", [0.1])[0]
        assert "truncated" not in body
        assert (fake.embedded[0].texts, fake.embedded[0].kind.value) == (["abc", "z"], "passage")


async def test_base64_is_little_endian_float32() -> None:
    async with serving() as (http, *_):
        body = answer(await post(http, "/v1/embeddings", {"input": "abc", "encoding_format": "base64"}))
        assert struct.unpack("<2f", base64.b64decode(body["data"][0]["embedding"])) == pytest.approx((3.0, 0.1))


@pytest.mark.parametrize(
    ("given", "texts", "tokens"),
    [
        ("one", ["one"], []),
        (["one", "two"], ["one", "two"], []),
        ([101, 7, 102], [], [[101, 7, 102]]),
        ([[101, 102], [101, 5, 102]], [], [[101, 102], [101, 5, 102]]),
    ],
)
async def test_input_may_be_texts_or_token_ids(given: object, texts: list[str], tokens: list[list[int]]) -> None:
    async with serving() as (http, fake, _):
        answer(await post(http, "/v1/embeddings", {"input": given, "input_type": "query"}))
        assert (fake.embedded[0].texts, fake.embedded[0].tokens) == (texts, tokens)
        assert fake.embedded[0].kind.value == "query"


async def test_truncation_is_reported() -> None:
    async with serving() as (http, *_):
        body = answer(await post(http, "/v1/embeddings", {"input": ["short", "long " * 9]}))
        assert body["truncated"] == [1]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 1}, "dimensions"),
        ({"input": "a", "dimension": 1}, "dimension"),
        ([], None),
    ],
)
async def test_bad_input_is_refused_by_the_name_of_its_field(body: object, param: str | None) -> None:
    async with serving() as (http, fake, _):
        reply = await post(http, "/v1/embeddings", body)
        assert reply.status == 400
        assert error(reply)["param"] == param
        assert error(reply)["type"] == "invalid_request_error"
        assert fake.embedded == []


async def test_a_body_that_is_not_json_and_one_that_is_too_long_are_refused() -> None:
    async with serving(max_body_bytes=100) as (http, *_):
        assert (await http.request("POST", "/v1/embeddings", b"\xff{")).status == 400
        reply = await post(http, "/v1/embeddings", {"input": "a" * 200})
        assert (reply.status, error(reply)["type"]) == (413, "invalid_request_error")


@pytest.mark.parametrize(
    ("path", "rest"), [("embeddings", {"input": "a"}), ("rerank", {"query": "q", "documents": ["a"]})]
)
async def test_another_model_than_the_one_in_use_is_not_found(path: str, rest: dict[str, object]) -> None:
    async with serving() as (http, fake, _):
        reply = await post(http, f"/v1/{path}", {"model": "text-embedding-3-small", **rest})
        assert reply.status == 404
        assert (error(reply)["code"], error(reply)["param"]) == ("model_not_found", "model")
        assert not fake.embedded
        assert not fake.ranked


@pytest.mark.parametrize(
    ("failure", "status", "sort"),
    [
        (InvalidParams("parameter `texts[2]`: wrong", field="texts[2]"), 400, "invalid_request_error"),
        (OperationError("text 2 cannot be embedded", field="texts[2]"), 400, "invalid_request_error"),
        (Quarantined("it kills"), 422, "invalid_request_error"),
        (Overloaded("full", retry_after_ms=1200), 429, "rate_limit_error"),
        (Unavailable("down", retry_after_ms=300), 503, "service_unavailable_error"),
        (Timeout("late"), 504, "timeout_error"),
        (Internal("a defect"), 500, "server_error"),
    ],
)
async def test_failures_have_openais_shape_and_status(failure: LinckiaError, status: int, sort: str) -> None:
    async with serving() as (http, fake, _):
        fake.failure = failure
        reply = await post(http, "/v1/embeddings", {"input": ["a", "b", "c"]})
        assert (reply.status, error(reply)["type"]) == (status, sort)
        assert error(reply)["code"] == failure.kind.value
        assert error(reply)["param"] == ("input[2]" if failure.failure.field else None)
        if failure.failure.field:
            assert "texts[2]" not in error(reply)["message"]
        wait_ms = failure.failure.retry_after_ms
        assert reply.headers.get("retry-after") == (None if wait_ms is None else str(-(-wait_ms // 1000)))


async def test_a_defect_is_answered_without_internal_details() -> None:
    async with serving() as (http, _, dispatcher):
        dispatcher.failing["embed_texts"] = KeyError("secret")
        reply = await post(http, "/v1/embeddings", {"input": "a"})
        assert reply.status == 500
        assert "secret" not in error(reply)["message"]


async def test_a_client_that_goes_away_withdraws_its_call() -> None:
    async with serving() as (http, fake, dispatcher):
        fake.hangs = True
        stream, connection = await http.connect()
        await http.start(stream, connection, "POST", "/v1/embeddings", b'{"input": "a"}')
        with trio.fail_after(5):
            while not fake.embedded:
                await trio.lowlevel.checkpoint()
        await stream.aclose()
        with trio.fail_after(5):
            await dispatcher.withdrawn.wait()
        assert dispatcher.cancelled == ["embed_texts"]


async def test_rerank_has_the_format_of_jina_and_cohere() -> None:
    async with serving() as (http, fake, _):
        given = {"model": "ranker", "query": "q", "documents": ["a", {"text": "ccc"}, "bb"], "top_n": 2}
        body = answer(await post(http, "/v1/rerank", {**given, "return_documents": True}))
        assert body["model"] == "owner/ranker"
        assert body["results"] == [
            {"index": 1, "relevance_score": 1.0, "document": {"text": "ccc"}},
            {"index": 2, "relevance_score": 0.5, "document": {"text": "bb"}},
        ]
        assert body["usage"]["total_tokens"] == 7
        assert (fake.ranked[0].texts, fake.ranked[0].limit, fake.ranked[0].bulk) == (["a", "ccc", "bb"], 2, False)
        plain = answer(await post(http, "/v1/rerank", {"query": "q", "documents": ["a"] * 101}))
        assert "document" not in plain["results"][0]
        assert fake.ranked[1].bulk


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "q", "documents": ["a", {"title": "b"}]}, "documents[1]"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
    ],
)
async def test_bad_rerank_input_is_refused_by_the_name_of_its_field(body: object, param: str) -> None:
    async with serving() as (http, fake, _):
        reply = await post(http, "/v1/rerank", body)
        assert (reply.status, error(reply)["param"]) == (400, param)
        assert fake.ranked == []


async def test_without_a_reranker_rerank_is_unavailable_and_says_what_to_do() -> None:
    async with serving() as (http, fake, _):
        fake.failure = Unavailable("no reranking model is on this machine; download one")
        reply = await post(http, "/v1/rerank", {"query": "q", "documents": ["a"]})
        assert reply.status == 503
        assert "download one" in error(reply)["message"]


async def test_the_models_in_use_are_listed() -> None:
    async with serving() as (http, *_):
        body = answer(await http.request("GET", "/v1/models"))
        assert [item["id"] for item in body["data"]] == ["owner/Small-Model", "owner/ranker"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("owner/Small-Model", "owner/Small-Model"),
        ("owner%2FSmall-Model", "owner/Small-Model"),
        ("small-model", "owner/Small-Model"),
        ("owner/ranker", "owner/ranker"),
    ],
)
async def test_a_model_in_use_is_found_by_its_id(asked: str, found: str) -> None:
    async with serving() as (http, *_):
        body = answer(await http.request("GET", f"/v1/models/{asked}"))
        assert body == {"id": found, "object": "model", "created": 0, "owned_by": "linckia"}
        assert body in answer(await http.request("GET", "/v1/models"))["data"]


async def test_the_list_may_be_asked_for_with_a_slash_at_its_end() -> None:
    async with serving() as (http, *_):
        listed = answer(await http.request("GET", "/v1/models"))
        assert answer(await http.request("GET", "/v1/models/")) == listed


@pytest.mark.parametrize(
    ("given", "kind"),
    [("query", "query"), ("search_query", "query"), ("document", "passage"), ("search_document", "passage")],
)
async def test_the_kind_of_a_text_has_the_names_of_several_apis(given: str, kind: str) -> None:
    async with serving() as (http, fake, _):
        answer(await post(http, "/v1/embeddings", {"input": "a", "input_type": given}))
        assert [each.kind.value for each in fake.embedded] == [kind]


@pytest.mark.parametrize("asked", ["gpt-4o", "owner", "other/Small-Model", "default"])
async def test_a_model_that_is_not_in_use_is_not_found(asked: str) -> None:
    async with serving() as (http, *_):
        reply = await http.request("GET", f"/v1/models/{asked}")
        assert (reply.status, error(reply)["code"], error(reply)["param"]) == (404, "model_not_found", "model")
        assert "'owner/Small-Model', 'owner/ranker'" in error(reply)["message"]


async def test_the_models_are_behind_the_token_and_the_origin_check() -> None:
    async with serving(Http(port=0, token="a-token-of-some-length")) as (http, *_):
        assert (await post(http, "/v1/embeddings", {"input": "a"})).status == 401
        bearer = {"authorization": "Bearer a-token-of-some-length"}
        assert (await post(http, "/v1/embeddings", {"input": "a"}, **bearer)).status == 200
        assert (
            await post(http, "/v1/embeddings", {"input": "a"}, origin="http://evil.example", **bearer)
        ).status == 403
