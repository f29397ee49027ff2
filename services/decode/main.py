"""The service `decode`: one file at a time, in a thread; what takes too long is told so, and ends the process."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import stat
from collections.abc import AsyncIterator, Callable
from typing import Annotated, BinaryIO

import msgspec
import trio
from msgspec import Meta

from proto.errors import OperationError, Unavailable
from proto.ops.decode import TIME_LIMIT_S, Decoded, DecodeFile, DecodeFormats, Formats
from proto.ops.media import MediaKind
from services.decode.images import FORMATS, image
from services.decode.pdf import pdf
from services.decode.results import Made, NotDecoded
from services.decode.video import CONTAINERS, audio, video
from services.runtime.handlers import Context, Environment, Handlers

MEMORY_BYTES = 3 * 1024**3
"""Of address space: past it an allocation fails, which is an error and not the end."""

SPENT_EXIT = 75
ANSWERED_WITHIN_S = 0.3
"""How long a spent process stays, so that what it still answers arrives."""
BACK_WITHIN_S = 0.6

_DECODERS: dict[MediaKind, Callable[[BinaryIO], Made]] = {
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
    roots = tuple(str(root) for root in env.roots)
    turn = trio.CapacityLimiter(1)
    handlers = Handlers()
    spent = trio.Event()
    if settings.limit_memory:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    async def end_when_spent() -> None:
        # A thread cannot be ended, and what it holds cannot be had back.
        await spent.wait()
        await trio.sleep(ANSWERED_WITHIN_S)
        os._exit(SPENT_EXIT)

    async def in_time(params: DecodeFile) -> Decoded:
        async with turn:
            if spent.is_set():
                # Begun now it would be lost with this process, and count against a file that may be a good one.
                raise Unavailable("the decoder starts anew", retry_after_ms=round(BACK_WITHIN_S * 1000))
            with trio.move_on_after(settings.time_limit_s):
                return await trio.to_thread.run_sync(decode, params, roots, abandon_on_cancel=True)
            spent.set()
        _log.error("%s is not decoded after %g s: this process ends", params.path, settings.time_limit_s)
        problem = f"decoding it takes more than the {settings.time_limit_s:g} s that a file may have"
        return Decoded(metadata={}, pictures=[], problem=problem)

    async with trio.open_nursery() as nursery:

        @handlers.handle(DecodeFile)
        async def decode_file(params: DecodeFile, ctx: Context) -> Decoded:
            ended = trio.Event()
            ending: list[Decoded | Exception] = []

            async def run() -> None:
                try:
                    ending.append(await in_time(params))
                except Exception as error:
                    # It is told to who asked, not to the task that this one began in.
                    ending.append(error)
                ended.set()

            # Who asked may go; the thread stays, and so do its limit and its turn.
            nursery.start_soon(run)
            await ended.wait()
            (end,) = ending
            if isinstance(end, Exception):
                raise end
            return end

        @handlers.handle(DecodeFormats)
        async def decode_formats(params: DecodeFormats, ctx: Context) -> Formats:
            return Formats(pictures=list(FORMATS), containers=CONTAINERS.split(","), documents=["PDF"])

        nursery.start_soon(end_when_spent)
        yield handlers
        nursery.cancel_scope.cancel()


def decode(params: DecodeFile, roots: tuple[str, ...]) -> Decoded:
    """Blocks.  Raises OperationError where the file cannot be opened, or is not below the roots."""
    decoder = _DECODERS.get(params.kind)
    if decoder is None:
        return Decoded(metadata={}, pictures=[], problem=None)
    try:
        descriptor = os.open(params.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise OperationError(f"{params.path} cannot be opened: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OperationError(f"{params.path} is not a file")
    with open(descriptor, "rb") as file:
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        if not any(real.startswith(root.rstrip("/") + "/") for root in roots):
            raise OperationError(f"{params.path} is no file below the roots")
        if version(status) != params.version:
            return Decoded(metadata={}, pictures=[], problem=None, changed=True)
        made = _decoded(decoder, file, params)
        if version(os.fstat(descriptor)) != params.version:
            return Decoded(metadata={}, pictures=[], problem=None, changed=True)
    return Decoded(metadata=made.metadata, pictures=made.pictures, problem=made.problem)


def _decoded(decoder: Callable[[BinaryIO], Made], file: BinaryIO, params: DecodeFile) -> Made:
    try:
        return decoder(file)
    except NotDecoded as error:
        return Made(problem=str(error))
    except MemoryError:
        return Made(problem="it takes more memory than a file may have")
    except Exception as error:
        # Libraries raise what they like at broken files; it is the file's error, and the log's.
        _log.info("%s: %s", params.path, error, exc_info=True)
        return Made(problem=f"it cannot be decoded: {str(error)[:300] or type(error).__name__}")


def version(status: os.stat_result) -> str:
    """What tells a file from what it was or what else it could be."""
    return f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"
