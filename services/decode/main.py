"""The service `decode`: one file at a time, in a thread; one that takes too long ends the process."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
from collections.abc import AsyncIterator, Callable
from typing import Annotated, BinaryIO

import msgspec
import trio
from msgspec import Meta

from proto.errors import OperationError, Unavailable
from proto.ops.decode import TIME_LIMIT_S, Decoded, DecodeFile, DecodeFormats, Formats, version_of
from proto.ops.media import MediaKind
from services.decode.images import FORMATS, image, pdf
from services.decode.results import NotDecoded, Result
from services.decode.video import CONTAINERS, audio, video
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.runtime.roots import OutsideRoots, Roots

MEMORY_BYTES = 3 * 1024**3
"""Of address space: past it an allocation fails, which is an error and not the end."""

SPENT_EXIT = 75
ANSWERED_WITHIN_S = 0.3
"""How long a spent process stays, so that what it still answers arrives."""
BACK_WITHIN_S = 0.6

_DECODERS: dict[MediaKind, Callable[[BinaryIO, Result], None]] = {
    MediaKind.IMAGE: image,
    MediaKind.VIDEO: video,
    MediaKind.AUDIO: audio,
    MediaKind.PDF: pdf,
}

_log = logging.getLogger("linckia.decode")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the table `services.decode`."""

    time_limit_s: Annotated[float, Meta(gt=0, le=TIME_LIMIT_S)] = TIME_LIMIT_S
    limit_memory: bool = True


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready at once.  Raises msgspec.ValidationError where a setting is no good."""
    settings = msgspec.convert(env.settings, Settings)
    if settings.limit_memory:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    async with trio.open_nursery() as nursery:
        decoder = Decoder(env.roots, settings.time_limit_s, nursery)
        nursery.start_soon(decoder.end_when_spent)
        yield Handlers(decoder)
        nursery.cancel_scope.cancel()


class Decoder:
    """The operations: one file at a time.

    A thread cannot be ended, and what it holds cannot be had back: after one that took too long, the process is spent.
    """

    def __init__(self, roots: Roots, time_limit_s: float, nursery: trio.Nursery) -> None:
        self._roots = roots
        self._time_limit_s = time_limit_s
        self._nursery = nursery
        self._turn = trio.CapacityLimiter(1)
        self._spent = trio.Event()

    async def end_when_spent(self) -> None:
        await self._spent.wait()
        await trio.sleep(ANSWERED_WITHIN_S)
        os._exit(SPENT_EXIT)

    @handles(DecodeFile)
    async def decode_file(self, params: DecodeFile, ctx: Context) -> Decoded:
        # The caller may go; the thread stays, and so do its limit and its turn.
        send, receive = trio.open_memory_channel[Decoded | Exception](1)

        async def run() -> None:
            try:
                send.send_nowait(await self._in_time(params))
            except Exception as error:  # noqa: BLE001  # raised in the task that called
                send.send_nowait(error)

        self._nursery.start_soon(run)
        answer = await receive.receive()
        if isinstance(answer, Exception):
            raise answer
        return answer

    @handles(DecodeFormats)
    async def decode_formats(self, params: DecodeFormats, ctx: Context) -> Formats:
        return Formats(pictures=list(FORMATS), containers=CONTAINERS.split(","), documents=["PDF"])

    async def _in_time(self, params: DecodeFile) -> Decoded:
        async with self._turn:
            if self._spent.is_set():
                # Begun now it would be lost with this process, and count against a file that may be a good one.
                raise Unavailable("the decoder restarts", retry_after_ms=round(BACK_WITHIN_S * 1000))
            with trio.move_on_after(self._time_limit_s):
                return await trio.to_thread.run_sync(decode, params, self._roots, abandon_on_cancel=True)
            self._spent.set()
        _log.error("%s is not decoded after %g s: this process ends", params.path, self._time_limit_s)
        return _nothing(f"decoding it takes more than the {self._time_limit_s:g} s that a file may have")


def _nothing(problem: str | None = None, *, changed: bool = False) -> Decoded:
    return Decoded(metadata={}, pictures=[], problem=problem, changed=changed)


def decode(params: DecodeFile, roots: Roots) -> Decoded:
    """Blocks.  Raises OperationError where the file cannot be opened, or is not below the roots."""
    decoder = _DECODERS.get(params.kind)
    if decoder is None:
        return _nothing()
    try:
        descriptor, status = roots.open(params.path)
    except OSError as error:
        raise OperationError(f"{params.path} cannot be opened: {error.strerror}") from None
    except OutsideRoots as error:
        raise OperationError(str(error)) from None
    with open(descriptor, "rb") as file:
        if version_of(status) != params.version:
            return _nothing(changed=True)
        result = _decoded(decoder, file, params)
        if version_of(os.fstat(descriptor)) != params.version:
            return _nothing(changed=True)
    return Decoded(metadata=result.metadata, pictures=result.pictures, problem=result.problem)


def _decoded(decoder: Callable[[BinaryIO, Result], None], file: BinaryIO, params: DecodeFile) -> Result:
    """What could be made of the file, and why it is not more."""
    result = Result()
    try:
        decoder(file, result)
    except NotDecoded as error:
        result.problem = str(error)
    except MemoryError:
        result.problem = "it takes more memory than a file may have"
    except Exception as error:  # noqa: BLE001  # libraries raise anything at broken files
        _log.info("%s: %s", params.path, error, exc_info=True)
        result.problem = f"it cannot be decoded: {str(error)[:300] or type(error).__name__}"
    return result
