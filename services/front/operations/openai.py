"""The models over HTTP, for programs without MCP: `POST /v1/embeddings` and `GET /v1/models` in OpenAI's format,
`POST /v1/rerank` in that of Jina and Cohere, over the operations of `embed` and `rerank`.

A request for a model that is not in use is refused: vectors of two models look alike and must not be mixed. Texts that
were longer than the model reads are listed in `truncated`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from msgspec import Meta
from msgspec.structs import replace

from proto.errors import InvalidParams, LinckiaError
from proto.http import Call, Endpoint, HttpError
from proto.operation import Params, Route
from proto.ops.embed import EmbedModel, EmbedModelParams, EmbedTexts, TextKind
from proto.ops.rerank import RerankModelParams, RerankPairs

R = TypeVar("R")
Json: TypeAlias = dict[str, Any]
"""A JSON object of the API."""

MAX_INPUTS = 2048
"""OpenAI's limit."""

MAX_DOCUMENTS = 1000
"""Cohere's limit."""

INTERACTIVE_DOCUMENTS = 100
"""Most documents of an interactive request; larger requests wait until no search does."""

_ANY = ("", "auto", "default")


class EmbeddingsRequest(Endpoint, frozen=True, kw_only=True):
    """Compute vectors of texts."""

    route: ClassVar = Route("POST", "/v1/embeddings", like_openai=True)
    service: ClassVar = "embed"
    input: Annotated[
        str | list[str | int | list[int]],
        Meta(description="A text, texts, or token ids of one or several texts by the model's tokenizer"),
    ]
    model: str = ""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None
    input_type: Annotated[
        Literal["query", "passage", "document", "search_query", "search_document"] | None,
        Meta(description="Which prefix the model wants before the text, by the names of several APIs"),
    ] = None

    async def answer(self, call: Call) -> Json:
        """Raises LinckiaError, naming the request's own field."""
        texts, tokens = _inputs(self.input)
        model = await self._model(call)
        if self.dimensions not in (None, model.dimensions):
            why = f"the vectors of {model.model} have {model.dimensions} and cannot be shortened"
            raise _wrong("dimensions", why)
        kind = TextKind.QUERY if self.input_type in ("query", "search_query") else TextKind.PASSAGE
        result = await _renamed(call, EmbedTexts(texts=texts, tokens=tokens, kind=kind), "input")
        if result.fingerprint != model.fingerprint:
            # The model changed between the two calls: check the requested name again.
            model = await self._model(call)
        result.vectors.check()
        count, width = result.vectors.shape
        rows = [result.vectors.data[4 * n * width : 4 * (n + 1) * width] for n in range(count)]
        in_base64 = self.encoding_format == "base64"
        shown = [
            base64.b64encode(row).decode("ascii") if in_base64 else struct.unpack(f"<{width}f", row) for row in rows
        ]
        data = [{"object": "embedding", "index": n, "embedding": one} for n, one in enumerate(shown)]
        body: Json = {"object": "list", "data": data, "model": model.model, "usage": _usage(result.tokens)}
        return body | ({"truncated": result.truncated} if result.truncated else {})

    async def _model(self, call: Call) -> EmbedModel:
        model = await call(EmbedModelParams())
        _require(self.model, model.model)
        return model


class RerankRequest(Endpoint, frozen=True, kw_only=True):
    """Rank documents by how well they answer a query."""

    route: ClassVar = Route("POST", "/v1/rerank", like_openai=True)
    service: ClassVar = "rerank"
    query: Annotated[str, Meta(min_length=1, max_length=65536)]
    documents: Annotated[list[str | Json], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    model: str = ""
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None

    async def answer(self, call: Call) -> Json:
        """Raises LinckiaError, naming the request's own field."""
        texts = [_document(index, document) for index, document in enumerate(self.documents)]
        if self.model not in _ANY and (model := await call(RerankModelParams())).available:
            _require(self.model, model.model)
        bulk = len(texts) > INTERACTIVE_DOCUMENTS
        pairs = RerankPairs(query=self.query, texts=texts, limit=self.top_n, bulk=bulk)
        result = await _renamed(call, pairs, "documents")
        results: list[Json] = [{"index": ranked.index, "relevance_score": ranked.score} for ranked in result.ranked]
        if self.return_documents:
            for entry in results:
                entry["document"] = {"text": texts[entry["index"]]}
        body: Json = {"object": "list", "model": result.model, "results": results, "usage": _usage(result.tokens)}
        if result.query_truncated:
            body["query_truncated"] = True
        return body | ({"truncated": result.truncated} if result.truncated else {})


class ModelsRequest(Endpoint, frozen=True, kw_only=True):
    """List the models in use."""

    route: ClassVar = Route("GET", "/v1/models", like_openai=True)
    service: ClassVar = "embed"

    async def answer(self, call: Call) -> Json:
        """Raises LinckiaError."""
        return {"object": "list", "data": [_entry(name) for name in await _names(call)]}


class ModelRequest(Endpoint, frozen=True, kw_only=True):
    """Return one of the models in use."""

    # An id contains its owner, with a slash.
    route: ClassVar = Route("GET", "/v1/models/{model:path}", like_openai=True)
    service: ClassVar = "embed"
    model: Annotated[str, Meta(description="Its id, with or without the owner")]

    async def answer(self, call: Call) -> Json:
        """Raises LinckiaError."""
        names = await _names(call)
        if not self.model:
            # The list, asked for with a slash at its end.
            return {"object": "list", "data": [_entry(name) for name in names]}
        for name in names:
            if _is_called(self.model, name):
                return _entry(name)
        listed = ", ".join(map(repr, names))
        message = f"the model {self.model[:200]!r} is not served here; in use: {listed}"
        raise HttpError(404, message, field="model", error_code="model_not_found")


async def _names(call: Call) -> list[str]:
    """Return the ids of the models in use."""
    names = [(await call(EmbedModelParams())).model]
    reranker = await call(RerankModelParams())
    return [*names, reranker.model] if reranker.available else names


def _entry(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": "linckia"}


async def _renamed(call: Call, params: Params[R], name: str) -> R:
    """Call, and rename the fields `texts` and `tokens` in a failure to the client's `name`."""
    try:
        return await call(params)
    except LinckiaError as error:
        own, bracket, rest = (error.failure.field or "").partition("[")
        if own in ("texts", "tokens"):
            field = f"{name}{bracket}{rest}"
            message = error.failure.message.replace(f"`{error.failure.field}`", f"`{field}`")
            error.failure = replace(error.failure, message=message, field=field)
        raise


def _inputs(given: str | Sequence[str | int | list[int]]) -> tuple[list[str], list[list[int]]]:
    """Return texts and lists of token ids; one of the two is empty."""
    if isinstance(given, str):
        given = [given]
    texts = [item for item in given if isinstance(item, str)]
    ids = [item for item in given if isinstance(item, int)]
    lists = [item for item in given if isinstance(item, list)]
    if max(len(texts), len(ids), len(lists)) != len(given) or not given:
        no = "not all of these at once" if given else "not an empty list"
        raise _wrong("input", f"a text, a list of texts, a list of token ids, or a list of such lists; {no}")
    if "" in texts:
        raise _wrong(f"input[{texts.index('')}]", "a text cannot be empty")
    tokens = [ids] if ids else lists
    if len(texts) + len(tokens) > MAX_INPUTS:
        raise _wrong("input", f"at most {MAX_INPUTS} at once")
    return texts, tokens


def _wrong(field: str, why: str) -> InvalidParams:
    return InvalidParams(f"parameter `{field}`: {why}", field=field)


def _document(index: int, document: str | Json) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise _wrong(f"documents[{index}]", 'a text, or an object {"text": …}')
    return text


def _require(name: str, model: str) -> None:
    """Raises HttpError if `name` is not `model`; the owner in an id may be omitted."""
    if name not in _ANY and not _is_called(name, model):
        message = f"the model {name!r} is not served here; the one in use is {model!r}"
        raise HttpError(404, message, field="model", error_code="model_not_found")


def _is_called(name: str, model: str) -> bool:
    return name.lower() in (model.lower(), model.rsplit("/", 1)[-1].lower())


def _usage(tokens: int) -> Json:
    return {"prompt_tokens": tokens, "total_tokens": tokens}
