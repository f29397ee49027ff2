"""The models over HTTP, for programs that know no MCP: `POST /v1/embeddings` and `GET /v1/models` as OpenAI has them,
`POST /v1/rerank` as Jina and Cohere do.

A request for a model that is not the one in use is refused: vectors of two models look alike and must not be mixed.
What a model did not read of a text is said in `truncated`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.routing import BaseRoute, Route

from kernel.json_types import JsonObject
from kernel.ports import Dispatcher
from kernel.web.openai import ModelNotFound, endpoint
from proto.errors import InvalidParams, LinckiaError
from proto.operation import Params, operation_of
from proto.ops.embed import EmbedModel, EmbedModelParams, EmbedResult, EmbedTexts, TextKind
from proto.ops.rerank import RerankModel, RerankModelParams, RerankPairs, RerankResult

R = TypeVar("R")

MAX_INPUTS = 2048
"""OpenAI's own bound."""

MAX_DOCUMENTS = 1000
"""Cohere's own bound."""

WAITED_FOR = 100
"""Documents that somebody may wait for; more of them may wait until no search does."""

_ANY = ("", "auto", "default")


class EmbeddingsRequest(Params[Any], frozen=True, kw_only=True):
    """The body of `POST /v1/embeddings`."""

    input: Annotated[
        str | list[str | int | list[int]],
        Meta(description="A text, texts, the token ids of one, or of several by the model's own tokenizer"),
    ]
    model: str = ""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None
    input_type: Annotated[
        Literal["query", "passage", "document"] | None, Meta(description="Which prefix the model wants before the text")
    ] = None


class RerankRequest(Params[Any], frozen=True, kw_only=True):
    """The body of `POST /v1/rerank`."""

    query: Annotated[str, Meta(min_length=1, max_length=65536)]
    documents: Annotated[list[str | JsonObject], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    model: str = ""
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None


class ModelsRequest(Params[Any], frozen=True, kw_only=True):
    """`GET /v1/models`, which asks for nothing in particular."""


class Models:
    """The endpoints, over the operations of `embed` and `rerank`."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._embed: EmbedModel | None = None

    def routes(self, max_body_bytes: int) -> list[BaseRoute]:
        return [
            Route("/v1/embeddings", endpoint(EmbeddingsRequest, self.embeddings, max_body_bytes), methods=["POST"]),
            Route("/v1/rerank", endpoint(RerankRequest, self.rerank, max_body_bytes), methods=["POST"]),
            Route("/v1/models", endpoint(ModelsRequest, self.models, max_body_bytes), methods=["GET"]),
        ]

    async def embeddings(self, request: EmbeddingsRequest) -> JsonObject:
        """Raises LinckiaError, its field in the request's own words."""
        texts, tokens = _inputs(request.input)
        model = await self._embed_model(request.model)
        if request.dimensions not in (None, model.dimensions):
            raise InvalidParams(
                f"parameter `dimensions`: the vectors of {model.model} have {model.dimensions} and cannot be shortened",
                field="dimensions",
            )
        kind = TextKind.QUERY if request.input_type == "query" else TextKind.PASSAGE
        result = await self._call(EmbedTexts(texts=texts, tokens=tokens, kind=kind), EmbedResult, "input")
        if result.fingerprint != model.fingerprint:
            # It was changed under way; the name that was asked for is another model's now, or is still right.
            self._embed = None
            model = await self._embed_model(request.model)
        result.vectors.check()
        count, width = result.vectors.shape
        row_bytes = 4 * width
        rows = [result.vectors.data[n * row_bytes : (n + 1) * row_bytes] for n in range(count)]
        shown = _as_base64 if request.encoding_format == "base64" else _as_floats
        body: JsonObject = {
            "object": "list",
            "data": [{"object": "embedding", "index": n, "embedding": shown(row)} for n, row in enumerate(rows)],
            "model": model.model,
            "usage": {"prompt_tokens": result.tokens, "total_tokens": result.tokens},
        }
        return body | ({"truncated": result.truncated} if result.truncated else {})

    async def rerank(self, request: RerankRequest) -> JsonObject:
        """Raises LinckiaError, its field in the request's own words."""
        texts = [_document(index, document) for index, document in enumerate(request.documents)]
        if request.model not in _ANY:
            model = await self._call(RerankModelParams(), RerankModel)
            if model.available and not _is_named(request.model, model.model):
                raise _not_served(request.model, model.model)
        pairs = RerankPairs(query=request.query, texts=texts, limit=request.top_n, bulk=len(texts) > WAITED_FOR)
        result = await self._call(pairs, RerankResult, "documents")
        results: list[JsonObject] = []
        for ranked in result.ranked:
            entry: JsonObject = {"index": ranked.index, "relevance_score": ranked.score}
            if request.return_documents:
                entry["document"] = {"text": texts[ranked.index]}
            results.append(entry)
        body: JsonObject = {
            "object": "list",
            "model": result.model,
            "results": results,
            "usage": {"prompt_tokens": result.tokens, "total_tokens": result.tokens},
        }
        if result.query_truncated:
            body["query_truncated"] = True
        return body | ({"truncated": result.truncated} if result.truncated else {})

    async def models(self, request: ModelsRequest) -> JsonObject:
        """The models in use."""
        names = [(await self._call(EmbedModelParams(), EmbedModel)).model]
        reranker = await self._call(RerankModelParams(), RerankModel)
        if reranker.available:
            names.append(reranker.model)
        listed = [{"id": name, "object": "model", "created": 0, "owned_by": "linckia"} for name in names]
        return {"object": "list", "data": listed}

    async def _embed_model(self, name: str) -> EmbedModel:
        """The model in use.  Raises ModelNotFound where `name` is another's."""
        known = self._embed
        if known is None or not (name in _ANY or _is_named(name, known.model)):
            known = self._embed = await self._call(EmbedModelParams(), EmbedModel)
        if not (name in _ANY or _is_named(name, known.model)):
            raise _not_served(name, known.model)
        return known

    async def _call(self, params: Params[R], tp: type[R], called: str = "") -> R:
        try:
            answer = await self._dispatcher.call(operation_of(params), params)
        except LinckiaError as error:
            failure = error.failure
            own, bracket, rest = (failure.field or "").partition("[")
            if own not in ("texts", "tokens") or not called:
                raise
            # The service names its own parameter; the caller knows it by another name.
            field = f"{called}{bracket}{rest}"
            raise type(error)(
                failure.message.replace(f"`{failure.field}`", f"`{field}`"),
                executed=failure.executed,
                field=field,
                retry_after_ms=failure.retry_after_ms,
                data=failure.data,
            ) from error
        return msgspec.convert(answer, tp)


def _inputs(given: str | Sequence[str | int | list[int]]) -> tuple[list[str], list[list[int]]]:
    """Texts or token ids; one of the two is empty."""
    if isinstance(given, str):
        given = [given]
    texts = [item for item in given if isinstance(item, str)]
    ids = [item for item in given if isinstance(item, int)]
    lists = [item for item in given if isinstance(item, list)]
    if max(len(texts), len(ids), len(lists)) != len(given) or not given:
        raise InvalidParams(
            "parameter `input`: a text, a list of texts, a list of token ids, or a list of such lists; "
            + ("not all of these at once" if given else "not an empty list"),
            field="input",
        )
    for index, text in enumerate(texts):
        if not text:
            raise InvalidParams(f"parameter `input[{index}]`: a text cannot be empty", field=f"input[{index}]")
    tokens = [ids] if ids else lists
    if len(texts) + len(tokens) > MAX_INPUTS:
        raise InvalidParams(f"parameter `input`: at most {MAX_INPUTS} at once", field="input")
    return texts, tokens


def _document(index: int, document: str | JsonObject) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise InvalidParams(
            f'parameter `documents[{index}]`: a text, or an object {{"text": …}}', field=f"documents[{index}]"
        )
    return text


def _is_named(name: str, model: str) -> bool:
    """Whether `name` means `model`: an id may be given without its owner."""
    return name.lower() in (model.lower(), model.rsplit("/", 1)[-1].lower())


def _not_served(name: str, model: str) -> ModelNotFound:
    return ModelNotFound(f"the model {name!r} is not served here; the one in use is {model!r}", field="model")


def _as_base64(row: memoryview) -> str:
    return base64.b64encode(row).decode("ascii")


def _as_floats(row: memoryview) -> list[float]:
    return list(struct.unpack(f"<{len(row) // 4}f", row))
