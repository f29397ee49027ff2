"""Conversations over HTTP in the formats that capture tools and scripts expect: ingest turns, search, read the forest.

Routes that return an operation's result unchanged are declared with the operation, in
`services.transcripts.operations.conversations`."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Raw

from proto.http import Answer, Call, Endpoint, HttpError
from proto.operation import Route, operation_of
from services.transcripts.operations.conversations import SERVICE, STATUSES, TranscriptHistories, TranscriptsSearch
from services.transcripts.operations.intake import IngestResult, Problem, TranscriptIngest


class IngestRequest(Endpoint, frozen=True, kw_only=True):
    """Store a turn."""

    route: ClassVar = Route("POST", "/v1/ingest", body="body", detached=True, statuses=STATUSES)
    service: ClassVar = SERVICE
    body: bytes

    async def answer(self, call: Call) -> Answer:
        """Return 202 once the turn is on disk.  Raises LinckiaError."""
        _kept(await call(TranscriptIngest(body=self.body)))
        return Answer(202, {"status": "accepted"})


class IngestBatchRequest(Endpoint, frozen=True, kw_only=True):
    """Store several turns, skipping unreadable ones."""

    route: ClassVar = Route("POST", "/v1/ingest/batch", body="body", detached=True, statuses=STATUSES)
    service: ClassVar = SERVICE
    body: bytes

    async def answer(self, call: Call) -> Answer:
        """Return 202 once the turns are on disk.  Raises LinckiaError."""
        kept = _kept(await call(TranscriptIngest(body=self.body, batch=True)))
        counts = {"accepted": kept.accepted, "rejected": kept.rejected}
        return Answer(202, {**counts, "errors": kept.errors} if kept.errors else counts)


def _kept(result: IngestResult) -> IngestResult:
    if result.problem is not Problem.NONE:
        raise HttpError(400 if result.problem is Problem.PAYLOAD else 422, result.errors[0])
    return result


class SearchRequest(Endpoint, frozen=True, kw_only=True):
    """Search turns."""

    route: ClassVar = Route("GET", "/v1/search", statuses=STATUSES)
    service: ClassVar = SERVICE
    query: str = ""
    top_k: str = ""

    async def answer(self, call: Call) -> Raw:
        """Raises LinckiaError."""
        if not self.query.strip():
            raise HttpError(400, "query parameter is required")
        # Parsed like an MCP client's arguments, so that a value out of bounds is refused by name.
        arguments = {"query": self.query, "top_k": min(_positive("top_k", self.top_k or "5"), 2**31)}
        return await call.json(operation_of(TranscriptsSearch).parse(arguments))


class _Histories(msgspec.Struct):
    """Conversations, kept as raw JSON."""

    histories: list[Raw]
    total: int


class HistoriesRequest(Endpoint, frozen=True, kw_only=True):
    """List the newest conversations; the fields of the newest one are repeated at the top level."""

    route: ClassVar = Route("GET", "/dag/history", statuses=STATUSES)
    service: ClassVar = SERVICE
    limit: str = ""

    async def answer(self, call: Call) -> dict[str, object]:
        """Raises LinckiaError."""
        limit = min(_positive("limit", self.limit or "100"), 1000)
        found = msgspec.json.decode(await call.json(TranscriptHistories(limit=limit)), type=_Histories)
        newest = found.histories[0] if found.histories else Raw(b'{"messages": [], "head_hash": "", "depth": 0}')
        return {
            "count": len(found.histories),
            "total": found.total,
            "histories": found.histories,
            **msgspec.json.decode(newest, type=dict[str, Raw]),
        }


def _positive(name: str, text: str) -> int:
    digits = text.removeprefix("+")
    if digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) > 0:
        return int(digits)
    raise HttpError(400, f"{name} must be a positive integer")
