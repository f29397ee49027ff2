"""Operations of `transcripts` that take conversations in. When they return, the turns are on disk; repeating a call
stores nothing twice.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import Params
from services.transcripts.operations.conversations import operator, served

MAX_BODY_BYTES = 64 * 1024 * 1024


class Problem(enum.StrEnum):
    """Why nothing was stored."""

    NONE = ""
    PAYLOAD = "payload"
    TURN = "turn"


class IngestResult(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of turns; accepted ones are on disk."""

    accepted: int = 0
    rejected: int = 0
    errors: list[str] = []
    problem: Problem = Problem.NONE
    head_hash: Annotated[str, Meta(description="Hash of the last turn's reply")] = ""
    nodes: Annotated[int, Meta(description="New nodes")] = 0


@served.write("transcript_ingest", idempotent=True, deadline_s=60)
class TranscriptIngest(Params[IngestResult], frozen=True, kw_only=True):
    """Store turns, posted as JSON: `{provider, agent_name, request, response}`, or `{"turns": […]}` of such."""

    body: Annotated[bytes, Meta(max_length=MAX_BODY_BYTES, description="The JSON text")]
    batch: bool = False


@operator.write("transcript_record", idempotent=True, deadline_s=60)
class TranscriptRecord(Params[IngestResult], frozen=True, kw_only=True):
    """Store one exchange with a provider, as sent over the wire."""

    provider: str
    agent_name: str = ""
    project: str = ""
    at: Annotated[float | None, Meta(description="Time the reply was complete, Unix seconds")] = None
    request: Annotated[bytes, Meta(max_length=MAX_BODY_BYTES, description="The request's body")]
    request_encoding: Annotated[str, Meta(description="Its Content-Encoding")] = ""
    response: Annotated[bytes, Meta(max_length=MAX_BODY_BYTES, description="The reply's body, streamed or not")]
    response_encoding: Annotated[str, Meta(description="Its Content-Encoding")] = ""
    partial: Annotated[bool, Meta(description="The connection broke during the reply; what came of it is stored")] = (
        False
    )


# Files that agents leave on disk

Source = Annotated[str, Meta(min_length=1, max_length=4096, description="The file's path, its identity")]


class ImportState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a file has been imported."""

    position: Annotated[int, Meta(description="Bytes of the file already imported")] = 0
    tail: Annotated[str, Meta(description="Digest of the bytes before it, to detect rewritten files")] = ""
    layout: Annotated[str, Meta(description="Detected layout; empty while nothing was read")] = ""


@operator.read("transcript_import_state", deadline_s=30)
class TranscriptImportState(Params[ImportState], frozen=True, kw_only=True):
    """Return how far a file has been imported."""

    source: Source


class ImportResult(msgspec.Struct, frozen=True, kw_only=True):
    """Counts for a part of a file, all of it on disk."""

    messages: Annotated[int, Meta(description="Messages in it")] = 0
    nodes: Annotated[int, Meta(description="Of those: new messages")] = 0
    unreadable: Annotated[int, Meta(description="Records that are not JSON or of unknown form")] = 0
    mended: Annotated[int, Meta(description="Missing records that a stored one refers to")] = 0
    problem: Annotated[str, Meta(description="The first of these, and why")] = ""
    layout: Annotated[str, Meta(description="Detected layout")] = ""
    moved: (
        Annotated[ImportState, Meta(description="Progress of another import; nothing of this part was stored")] | None
    ) = None


@operator.write("transcript_import", idempotent=True, deadline_s=120)
class TranscriptImport(Params[ImportResult], frozen=True, kw_only=True):
    """Import the next records of an agent's file, and remember how far it has been read.

    Repeating a part, as after a lost reply, changes nothing and returns the same result; a part that starts at 0
    restarts the file. Concurrent imports of one file each continue where the other got to (`moved`).
    """

    source: Source
    start: Annotated[int, Meta(ge=0, description="Where these records begin: 0, or the position reached")]
    position: Annotated[int, Meta(ge=0, description="Where they end")]
    tail: Annotated[str, Meta(max_length=64, description="Digest of the bytes before that")]
    records: Annotated[list[str], Meta(max_length=100_000, description="JSON texts, one a record")]
    final: Annotated[bool, Meta(description="Whether the file ends here, for now")] = False
