"""Turns as they are posted, up to the moment when they are on disk.

What costs time and needs no database (reading, masking, hashing) is done in threads beside the writer, but for turns
so short that a thread would cost more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import trio
from msgspec import Meta

from proto.ops.transcripts_intake import IngestResult, Problem, TranscriptRecord
from services.runtime.database import Database
from services.transcripts.intake.encodings import decoded
from services.transcripts.intake.redaction import Redactor
from services.transcripts.intake.turns import Rejected, TurnPayload, turn_of
from services.transcripts.messages import Message, Turn, calls_text, spoken_text
from services.transcripts.providers.wire import Unreadable, decode
from services.transcripts.search.passages import Stripper
from services.transcripts.store import forest
from services.transcripts.store.forest import Placed, Prepared
from services.transcripts.store.hashing import OutOfRange

INLINE_BYTES = 16 * 1024
"""Of a body that is read at once: it takes less time than to hand it to a thread."""


class BatchPayload(msgspec.Struct, frozen=True):
    """Several turns as they are posted; each is read for itself, so that one that is wrong spoils no other."""

    turns: Annotated[list[Any], Meta(description="Each as `/v1/ingest` takes it")] = []


class Ingest:
    """From posted bodies to nodes."""

    def __init__(self, database: Database, redactor: Redactor | None, strip: Stripper) -> None:
        self._database = database
        self._redactor = redactor
        self.strip = strip
        self._preparing = trio.CapacityLimiter(2)

    async def post(self, body: bytes, *, batch: bool) -> IngestResult:
        """Keep what was posted.  Raises OperationError where the disk fails."""
        return await self._keep(lambda: self._read(body, batch=batch), len(body), batch=batch)

    async def record(self, params: TranscriptRecord) -> IngestResult:
        """Keep one exchange as it went over the wire.  Raises OperationError where the disk fails."""
        size = len(params.request) + len(params.response)
        return await self._keep(lambda: [self._exchange(params)], size, batch=False)

    async def _keep(self, read: Callable[[], list[Prepared | Rejected]], size: int, *, batch: bool) -> IngestResult:
        try:
            if size <= INLINE_BYTES:
                turns = read()
            else:
                turns = await trio.to_thread.run_sync(read, limiter=self._preparing)
        except Unreadable as error:
            return IngestResult(errors=[f"invalid payload: {error}"], problem=Problem.PAYLOAD)
        if not turns:
            return IngestResult(errors=["empty batch"], problem=Problem.PAYLOAD)
        errors = [
            f"turn[{index}]: {turn}" if batch else str(turn)
            for index, turn in enumerate(turns)
            if isinstance(turn, Rejected)
        ]
        kept = [turn for turn in turns if not isinstance(turn, Rejected)]
        placed = await self.add(kept) if kept else []
        return IngestResult(
            accepted=len(kept),
            rejected=len(errors),
            errors=errors,
            problem=Problem.TURN if errors and not batch else Problem.NONE,
            head_hash=placed[-1].nodes[-1].hash.hex() if placed else "",
            nodes=sum(each.new for each in placed),
        )

    async def add(self, turns: list[Prepared]) -> list[Placed]:
        """Put turns into the forest, each at the root; on disk when this returns."""
        return await self._database.write(lambda db: [forest.add(db, turn, None, self.is_found) for turn in turns])

    def is_found(self, message: Message) -> bool:
        """Whether there is any text to search a message by."""
        return bool(self.strip(spoken_text(message.content)).strip() or calls_text(message.content))

    def prepare(self, turn: Turn, parent: bytes = b"") -> Prepared:
        """Mask and hash; in a thread.  Raises Rejected."""
        try:
            return forest.prepare(turn if self._redactor is None else self._redactor.turn(turn), self.strip, parent)
        except OutOfRange as error:
            raise Rejected(f"cannot be kept: {error}") from None

    def masked(self, messages: list[Message]) -> list[Message]:
        """The same without secrets."""
        return messages if self._redactor is None else [self._redactor.message(message) for message in messages]

    def masked_text(self, text: str) -> str:
        """The same without secrets."""
        return text if self._redactor is None or not text else self._redactor.text(text)

    def _read(self, body: bytes, *, batch: bool) -> list[Prepared | Rejected]:
        given = decode(body)
        try:
            if not batch:
                return [self._turn(msgspec.convert(given, TurnPayload))]
            payload = msgspec.convert(given, BatchPayload)
        except msgspec.ValidationError as error:
            raise Unreadable(str(error)) from None
        turns: list[Prepared | Rejected] = []
        for item in payload.turns:
            try:
                turns.append(self._turn(msgspec.convert(item, TurnPayload)))
            except msgspec.ValidationError as error:
                turns.append(Rejected(f"invalid payload: {error}"))
        return turns

    def _turn(self, payload: TurnPayload) -> Prepared | Rejected:
        try:
            return self.prepare(turn_of(payload))
        except Rejected as error:
            return error
        except RecursionError:
            return Rejected("cannot be kept: nested too deeply")

    def _exchange(self, params: TranscriptRecord) -> Prepared | Rejected:
        try:
            payload = TurnPayload(
                provider=params.provider,
                agent_name=params.agent_name,
                project=params.project,
                request=decoded(params.request, params.request_encoding).decode("utf-8", "replace"),
                response=decoded(params.response, params.response_encoding).decode("utf-8", "replace"),
            )
            turn = turn_of(payload)
            turn.at = params.at
            return self.prepare(turn)
        except (Rejected, Unreadable) as error:
            return Rejected(str(error))
        except RecursionError:
            return Rejected("cannot be kept: nested too deeply")
