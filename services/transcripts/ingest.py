"""Stores turns that are posted or recorded from the wire, until they are on disk.

Expensive work that needs no database (reading, masking, hashing) runs in threads in parallel with the writer, unless a
turn is so short that a thread would cost more.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import apsw
import brotli  # type: ignore[import-untyped]  # it ships neither types nor stubs
import msgspec
import trio
from msgspec import Meta

from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.shared import zstd
from services.transcripts import conversations, forest
from services.transcripts.forest import Placed, Prepared
from services.transcripts.messages import Message, OutOfRange, Stripper, Turn, calls_text, spoken_text
from services.transcripts.operations.intake import (
    MAX_BODY_BYTES,
    IngestResult,
    Problem,
    TranscriptIngest,
    TranscriptRecord,
)
from services.transcripts.providers import Rejected, TurnPayload, turn_of
from services.transcripts.providers.wire import Unreadable, decode
from services.transcripts.redaction import Redactor

MAX_DECODED_BYTES = 4 * MAX_BODY_BYTES
_PIECE_BYTES = 1024 * 1024

INLINE_BYTES = 16 * 1024
"""Bodies up to this size are read immediately, which takes less time than handing them to a thread."""


class BatchPayload(msgspec.Struct, frozen=True):
    """A posted batch of turns; each turn is read separately, so an invalid one does not affect the others."""

    turns: Annotated[list[Any], Meta(description="Each as `/v1/ingest` takes it")] = []


class Ingest:
    """Converts posted bodies to nodes."""

    def __init__(
        self, database: Database, redactor: Redactor | None, strip: Stripper, hurry: Callable[[], None] = lambda: None
    ) -> None:
        """`hurry` is called for new turns."""
        self._database = database
        self._redactor = redactor
        self.strip = strip
        self.hurry = hurry
        self._preparing = trio.CapacityLimiter(2)

    @handles(TranscriptIngest)
    async def post(self, params: TranscriptIngest, ctx: Context | None = None) -> IngestResult:
        """Store a posted turn. Raises OperationError if the disk fails."""
        return await self._keep(partial(self._read, params), len(params.body), batch=params.batch)

    @handles(TranscriptRecord)
    async def record(self, params: TranscriptRecord, ctx: Context) -> IngestResult:
        """Store one exchange recorded from the wire. Raises OperationError if the disk fails."""
        size = len(params.request) + len(params.response)
        return await self._keep(lambda: [self._prepared(partial(_exchange, params))], size, batch=False)

    async def _keep(self, read: Callable[[], list[Prepared | Rejected]], size: int, *, batch: bool) -> IngestResult:
        try:
            inline = size <= INLINE_BYTES
            turns = read() if inline else await trio.to_thread.run_sync(read, limiter=self._preparing)
        except Unreadable as error:
            return IngestResult(errors=[f"invalid payload: {error}"], problem=Problem.PAYLOAD)
        if not turns:
            return IngestResult(errors=["empty batch"], problem=Problem.PAYLOAD)
        refused = [(index, turn) for index, turn in enumerate(turns) if isinstance(turn, Rejected)]
        errors = [f"turn[{index}]: {error}" if batch else str(error) for index, error in refused]
        kept = [turn for turn in turns if not isinstance(turn, Rejected)]

        def add(db: apsw.Connection) -> list[Placed]:
            return [self._add(db, turn) for turn in kept]

        def answer(placed: list[Placed]) -> IngestResult:
            return IngestResult(
                accepted=len(kept),
                rejected=len(errors),
                errors=errors,
                nodes=sum(each.new for each in placed),
                problem=Problem.TURN if errors and not batch else Problem.NONE,
                head_hash=placed[-1].nodes[-1].hash.hex() if placed else "",
            )

        placed = await self._database.answer(add, answer) if kept else []
        if any(each.new for each in placed):
            self.hurry()
        return answer(placed)

    def _add(self, db: apsw.Connection, turn: Prepared) -> Placed:
        after = forest.followed(db, turn.turn) if turn.turn.is_linked else None
        if after is not None:
            # Projections name a whole path.
            turn = forest.prepare(turn.turn, self.strip, after.projection)
        placed = forest.add(db, turn, after, self.is_found)
        conversations.claim(db, turn, placed, after, self.strip)
        if turn.turn.is_linked and placed.nodes:
            forest.name_reply(db, turn.turn, placed.nodes[-1])
        return placed

    def is_found(self, message: Message) -> bool:
        """Return True if a message has searchable text."""
        return bool(self.strip(spoken_text(message.content)).strip() or calls_text(message.content))

    def mask(self, turn: Turn) -> None:
        """Mask the secrets of a turn in place."""
        if self._redactor is not None:
            self._redactor.turn(turn)

    def masked(self, text: str) -> str:
        """Return the text with its secrets masked."""
        return text if self._redactor is None else self._redactor.text(text)

    def _read(self, params: TranscriptIngest) -> list[Prepared | Rejected]:
        given = decode(params.body)
        try:
            if not params.batch:
                return [self._prepared(partial(turn_of, msgspec.convert(given, TurnPayload)))]
            payloads = msgspec.convert(given, BatchPayload).turns
        except msgspec.ValidationError as error:
            raise Unreadable(str(error)) from None
        return [self._prepared(partial(_turn, item)) for item in payloads]

    def _prepared(self, read: Callable[[], Turn]) -> Prepared | Rejected:
        """Mask and hash a turn; runs in a thread."""
        try:
            turn = read()
            self.mask(turn)
            return forest.prepare(turn, self.strip)
        except msgspec.ValidationError as error:
            return Rejected(f"invalid payload: {error}")
        except (Rejected, Unreadable) as error:
            return Rejected(str(error))
        except OutOfRange as error:
            return Rejected(f"cannot be stored: {error}")
        except RecursionError:
            return Rejected("cannot be stored: nested too deeply")


def _turn(given: object) -> Turn:
    return turn_of(msgspec.convert(given, TurnPayload))


def _exchange(params: TranscriptRecord) -> Turn:
    payload = TurnPayload(
        provider=params.provider,
        agent_name=params.agent_name,
        project=params.project,
        request=decoded(params.request, params.request_encoding).decode("utf-8", "replace"),
        response=decoded(params.response, params.response_encoding).decode("utf-8", "replace"),
        partial=params.partial,
    )
    turn = turn_of(payload)
    turn.at = params.at
    return turn


def decoded(body: bytes, encoding: str, max_bytes: int = MAX_DECODED_BYTES) -> bytes:
    """Return `body` without its Content-Encoding.

    A truncated body is decoded as far as possible, because streaming servers often never finish the compressed stream.

    Raises Unreadable if the body is damaged or exceeds the limit; it is then rejected as a whole rather than truncated.
    """
    for name in reversed([part.strip().lower() for part in encoding.split(",") if part.strip()]):
        if name == "identity":
            continue
        if (decoder := _DECODERS.get(name)) is None:
            raise Unreadable(f"unknown Content-Encoding ({name}); known are gzip, deflate, br and zstd")
        data = bytearray()
        try:
            for piece in decoder(body):
                data += piece
                if len(data) > max_bytes:
                    raise Unreadable(f"the decoded body exceeds {max_bytes} bytes and is not stored")
        except (zlib.error, brotli.error, zstd.ZstdError) as error:
            raise Unreadable(f"the body does not match its Content-Encoding ({name}): {error}") from None
        body = bytes(data)
    return body


def _deflated(body: bytes) -> Iterator[bytes]:
    # Both variants are sent under this name: with a zlib header, as the standard says (RFC 1950: the method is 8, and
    # the first two bytes are a multiple of 31), and without.
    framed = len(body) >= 2 and body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0
    return _inflated(body, zlib.MAX_WBITS if framed else -zlib.MAX_WBITS)


def _inflated(body: bytes, wbits: int = 16 + zlib.MAX_WBITS) -> Iterator[bytes]:
    # Data compressed in several runs (RFC 1952, 2.2) consists of consecutive members.
    while body:
        stream = zlib.decompressobj(wbits)
        while piece := stream.decompress(body, _PIECE_BYTES):
            yield piece
            body = stream.unconsumed_tail
        if not stream.eof:
            break
        body = stream.unused_data.lstrip(b"\0")


def _brotli(body: bytes) -> Iterator[bytes]:
    stream = brotli.Decompressor()
    while not stream.is_finished():
        yield stream.process(body, output_buffer_limit=_PIECE_BYTES)
        if stream.can_accept_more_data():
            # The data is complete or truncated.
            break
        body = b""


def _zstd(body: bytes) -> Iterator[bytes]:
    return zstd.pieces(body, _PIECE_BYTES)


_DECODERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "gzip": _inflated,
    "x-gzip": _inflated,
    "deflate": _deflated,
    "br": _brotli,
    "zstd": _zstd,
}
