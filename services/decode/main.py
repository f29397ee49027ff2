"""The service `decode`: one file at a time, in a thread; a file that takes too long ends the process."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import resource
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, BinaryIO, TypeVar

import msgspec
import trio
from msgspec import Meta

from proto.errors import Unavailable
from proto.host import extras
from proto.ops import decode as ops
from proto.ops.media import MediaBytes, MediaKind
from services.decode.images import FORMATS, image, pdf
from services.decode.results import TOO_LARGE, NotDecoded, RemoteFile, Result
from services.decode.symbols import parse_all
from services.decode.text.documents import text_of
from services.runtime.handlers import Context, Environment, Handlers, handles

T = TypeVar("T")

TEXT_SHARE = 0.6
"""Share of a file's time for reading its text page by page; the rest is reserved for a page that overruns."""
GRACE_S = 2
"""Processor time allowed beyond the limit; after that, the system ends a process whose event loop cannot."""

SPENT_EXIT = 75
ANSWERED_WITHIN_S = 0.3
"""How long a process stays after a timeout, so that its last answers are delivered."""
BACK_WITHIN_S = 0.6

_DECODERS: dict[MediaKind, Callable[[BinaryIO, Result], None]] = {
    MediaKind.IMAGE: image,
    MediaKind.PDF: pdf,
}
_CONTAINERS: list[str] = []

if extras.is_installed(extras.VIDEO):
    from services.decode.video import CONTAINERS, audio, video

    _DECODERS |= {MediaKind.VIDEO: video, MediaKind.AUDIO: audio}
    _CONTAINERS += CONTAINERS.split(",")

_WITHOUT_VIDEO = (
    f"video and sound are not decoded, since PyAV is not installed: run `{extras.command_for(extras.VIDEO)}`, then "
    "`linckia restart decode`"
)
_log = logging.getLogger("linckia.decode")


class DecodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `[services.decode]`."""

    time_limit_s: Annotated[float, Meta(gt=0, le=ops.TIME_LIMIT_S)] = ops.TIME_LIMIT_S
    """Seconds for one file."""
    memory_limit_bytes: Annotated[int, Meta(ge=0)] = ops.MEMORY_BYTES
    """Memory limit of the process; 0 means no system limits, neither of memory nor of processor time."""


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service, which is ready at once. Raises msgspec.ValidationError if a setting is invalid."""
    settings = msgspec.convert(env.settings, DecodeSettings)
    if limit := settings.memory_limit_bytes:
        # Limits private writable memory; more address space may be reserved and never used.
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    decoder = Decoder(settings, env.background)
    env.background.start_soon(decoder.end_when_spent)
    yield Handlers(decoder)


class Decoder:
    """The service's operations, which process one file at a time.

    A thread can neither be killed nor its memory reclaimed, so after one that took too long, the process must end.
    """

    def __init__(self, settings: DecodeSettings, nursery: trio.Nursery) -> None:
        self._settings = settings
        self._nursery = nursery
        self._turn = trio.CapacityLimiter(1)
        self._spent = trio.Event()

    async def end_when_spent(self) -> None:
        await self._spent.wait()
        await trio.sleep(ANSWERED_WITHIN_S)
        os._exit(SPENT_EXIT)

    @handles(ops.DecodeFile)
    async def decode_file(self, params: ops.DecodeFile, ctx: Context) -> ops.Decoded:
        if (decoder := _DECODERS.get(params.kind)) is None:
            if params.kind in (MediaKind.VIDEO, MediaKind.AUDIO):
                return ops.Decoded(metadata={}, pictures=[], problem=_WITHOUT_VIDEO, is_final=False)
            return ops.Decoded(metadata={}, pictures=[], problem=None)

        async def ask(offset: int, limit: int) -> bytes:
            return (await ctx.call(MediaBytes(hash=params.hash, offset=offset, limit=limit))).data

        source = RemoteFile(lambda offset, limit: trio.from_thread.run(ask, offset, limit), params.size)
        refused = partial(ops.Decoded, metadata={}, pictures=[])
        return await self._run(partial(decode, decoder, source), lambda problem: refused(problem=problem))

    @handles(ops.DecodeText)
    async def decode_text(self, params: ops.DecodeText, ctx: Context) -> ops.DecodedText:
        work = partial(text_of, params.data, self._settings.time_limit_s * TEXT_SHARE)
        return await self._run(work, lambda problem: ops.DecodedText(text=None, problem=problem))

    @handles(ops.DecodeCode)
    async def decode_code(self, params: ops.DecodeCode, ctx: Context) -> ops.ParsedCode:
        return await self._run(partial(parse_all, params.contents), lambda _: ops.ParsedCode(contents=[]))

    @handles(ops.DecodeFormats)
    async def decode_formats(self, params: ops.DecodeFormats, ctx: Context) -> ops.Formats:
        return ops.Formats(pictures=list(FORMATS), containers=_CONTAINERS, documents=["PDF", *ops.DOCUMENT_TYPES])

    async def _run(self, work: Callable[[], T], refused: Callable[[str], T]) -> T:
        # The caller may be cancelled; the thread keeps running, as do its limit and its turn.
        send, receive = trio.open_memory_channel[T | Exception](1)

        async def run() -> None:
            try:
                send.send_nowait(await self._in_time(work, refused))
            except Exception as error:  # noqa: BLE001  # raised in the task that called
                send.send_nowait(error)

        self._nursery.start_soon(run)
        answer = await receive.receive()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _in_time(self, work: Callable[[], T], refused: Callable[[str], T]) -> T:
        limit_s = self._settings.time_limit_s
        async with self._turn:
            if self._spent.is_set():
                # If started now, it would be lost with this process and count against a file that may be good.
                raise Unavailable("the decoder is restarting", retry_after_ms=round(BACK_WITHIN_S * 1000))
            if self._settings.memory_limit_bytes:
                most = math.ceil(time.process_time() + limit_s + GRACE_S)
                _, hard = resource.getrlimit(resource.RLIMIT_CPU)
                resource.setrlimit(resource.RLIMIT_CPU, (most, hard))
            with trio.move_on_after(limit_s):
                return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
            self._spent.set()
        _log.error("a file was not decoded within %g s; this process ends", limit_s)
        return refused(f"decoding exceeds the limit of {limit_s:g} s per file")


def decode(decoder: Callable[[BinaryIO, Result], None], source: RemoteFile) -> ops.Decoded:
    """Decode a file, with the reason if the result is incomplete; blocks. Raises LinckiaError if it cannot be read."""
    result = Result()
    try:
        decoder(source.buffered(), result)
    except NotDecoded as error:
        result.problem = str(error)
    except MemoryError:
        result.problem = TOO_LARGE
    except Exception as error:  # noqa: BLE001  # libraries raise anything at broken files
        _log.info("cannot decode a file: %s", error, exc_info=True)
        result.problem = f"cannot be decoded: {str(error)[:300] or type(error).__name__}"
    if source.failure is not None:
        raise source.failure
    return ops.Decoded(metadata=result.metadata, pictures=result.pictures, problem=result.problem)
