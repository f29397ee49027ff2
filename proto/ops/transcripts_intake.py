"""Operations of `transcripts` by which conversations come in. What they answer is on disk, and any of them may be
repeated: nothing is kept twice.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from linckia.proto.operation import Params
from linckia.proto.ops.transcripts import operator, served

MAX_BODY_BYTES = 64 * 1024 * 1024


class Problem(enum.StrEnum):
    """Why nothing of what was posted is kept."""

    NONE = ""
    PAYLOAD = "payload"
    TURN = "turn"


class IngestResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the turns; those accepted are on disk."""

    accepted: int = 0
    rejected: int = 0
    errors: list[str] = []
    problem: Problem = Problem.NONE
    head_hash: Annotated[str, Meta(description="Of the last turn's reply")] = ""
    nodes: Annotated[int, Meta(description="Nodes that were not there before")] = 0


@served.write("transcript_ingest", idempotent=True, deadline_s=60)
class TranscriptIngest(Params[IngestResult], frozen=True, kw_only=True):
    """Keep turns, posted as JSON: `{provider, agent_name, request, response}`, or `{"turns": […]}` of such."""

    body: Annotated[bytes, Meta(max_length=MAX_BODY_BYTES, description="The JSON text")]
    batch: bool = False


@operator.write("transcript_record", idempotent=True, deadline_s=60)
class TranscriptRecord(Params[IngestResult], frozen=True, kw_only=True):
    """Keep one exchange with a provider, as it went over the wire."""

    provider: str
    agent_name: str = ""
    project: str = ""
    at: Annotated[float | None, Meta(description="When the reply was complete, Unix seconds")] = None
    request: Annotated[bytes, Meta(max_length=MAX_BODY_BYTES, description="The request's body")]
    request_encoding: Annotated[str, Meta(description="Its Content-Encoding")] = ""
    response: Annotated[bytes, Meta(max_length=MAX_BODY_BYTES, description="The reply's body, streamed or not")]
    response_encoding: Annotated[str, Meta(description="Its Content-Encoding")] = ""


# Files that agents leave on disk

Source = Annotated[str, Meta(min_length=1, max_length=4096, description="The file's path, which tells it from others")]


class ImportState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a file has been imported."""

    position: Annotated[int, Meta(description="Bytes of the file whose conversations are kept")] = 0
    tail: Annotated[str, Meta(description="Digest of the bytes before it; it tells whether the file only grew")] = ""
    layout: Annotated[str, Meta(description="What the file was taken for; empty while nothing was read")] = ""


@operator.read("transcript_import_state", deadline_s=30)
class TranscriptImportState(Params[ImportState], frozen=True, kw_only=True):
    """How far a file has been imported."""

    source: Source


class ImportResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a part of a file held; all of it is on disk."""

    messages: Annotated[int, Meta(description="Messages that were in it")] = 0
    nodes: Annotated[int, Meta(description="Of those: messages that were not there before")] = 0
    unreadable: Annotated[int, Meta(description="Records that are not JSON, or of no known form")] = 0
    mended: Annotated[int, Meta(description="Records that a kept one follows and that are missing")] = 0
    problem: Annotated[str, Meta(description="The first of these, and why")] = ""
    layout: Annotated[str, Meta(description="What the file is taken for")] = ""
    moved: (
        Annotated[ImportState, Meta(description="How far another import has come meanwhile: nothing of this was kept")]
        | None
    ) = None


@operator.write("transcript_import", idempotent=True, deadline_s=120)
class TranscriptImport(Params[ImportResult], frozen=True, kw_only=True):
    """Take in the next records of a file that an agent left, and remember how far it has been read.

    The same part again, as after a lost answer, changes nothing and has the same answer; a part that begins at 0
    begins the file again. Of several imports of one file each goes on where the last one ended (`moved`).
    """

    source: Source
    start: Annotated[int, Meta(ge=0, description="Where these records begin: 0, or the position reached")]
    position: Annotated[int, Meta(ge=0, description="Where they end")]
    tail: Annotated[str, Meta(max_length=64, description="Digest of the bytes before that")]
    records: Annotated[list[str], Meta(max_length=100_000, description="JSON texts, one a record")]
    final: Annotated[bool, Meta(description="Whether the file ends here, for now")] = False
