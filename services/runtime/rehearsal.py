"""A rehearsal: a standby's loop serves a few calls to itself, so that the first real ones find everything touched.

In a process that was just forked each page of code and data costs a fault when it is first used, and each cache is
filled by the first call that needs it; together that is most of the time from READY to the first answer: without a
rehearsal a standby takes twice as long from the kill to the next answer (18 → 34 ms, two busy cores).  A service's
module may say what else is to be rehearsed, in a folder that is thrown away (`handlers.Rehearse`); without that, the
loop and the link alone are.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import msgspec
import trio
from msgspec import Raw

from proto import frames
from proto.birth import Birth
from proto.channel import Channel
from proto.errors import Unavailable
from proto.frames import Bye, ByeAck, Call, Drain, Fault, Ready, Return
from proto.link import LinkClosed, NngLink, socket_pair
from proto.operation import Access, Params, operation, operation_of
from services.runtime.handlers import Context, Environment, Handlers, OpenService, Rehearse
from services.runtime.loop import LINK_MESSAGE_BYTES, ServiceLoop, new_trace

TIMEOUT_S = 5.0
"""A rehearsal takes some 20 ms; one that hangs is given up, and the service starts without it."""

CALL_MS = 2000

_IN_MEMORY = Path("/dev/shm")
_PREFIX = "linckia-rehearsal-"


_NOTHING = "rehearsal.nothing"


@operation(_NOTHING, service="rehearsal", access=Access.READ, idempotent=True, deadline_s=2)
class _Nothing(Params[str], frozen=True, kw_only=True):
    """What the loop answers where the service has no rehearsal of its own."""

    text: str = ""


async def rehearse(birth: Birth, module: ModuleType, memory: Path = _IN_MEMORY) -> None:
    """Serve the service's rehearsal, to the end or for `TIMEOUT_S`; nothing is left of it but warm memory.

    Args:
        memory: where its folder is made, if that can be written to.

    Raises whatever the service's `rehearse` or its start-up raises.  Cancellation: given up.
    """
    with _scratch(memory) as folder:
        try:
            # What goes wrong in the service is told by its answers, and what it logs of such a folder only misleads.
            logging.disable(logging.CRITICAL)
            with trio.move_on_after(TIMEOUT_S):
                await _perform(birth, module, folder)
        finally:
            logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _scratch(memory: Path) -> Iterator[Path]:
    """A folder for one rehearsal, in memory where there is such a place: nothing in it is worth a write to a disk.

    Making one removes those of processes that were killed before they could; a lock tells which process lives.
    """
    place = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    for other in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(other):
            shutil.rmtree(other)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    with _locked(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError where another process holds it, or it is not ours to open."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


async def _perform(birth: Birth, module: ModuleType, folder: Path) -> None:
    root, data = folder / "root", folder / "data"
    root.mkdir()
    data.mkdir()
    open_service: OpenService = module.open_service
    hook: Rehearse | None = getattr(module, "rehearse", None)
    wanted = None if hook is None else hook(root, birth.settings)
    if wanted is None:
        open_service = _open_nothing
        birth = msgspec.structs.replace(birth, operations=(_NOTHING,))
        calls = [(_NOTHING, frames.pack_body(_Nothing()))]
    else:
        calls = [(operation_of(params).name, frames.pack_body(params)) for params in wanted]
    birth = msgspec.structs.replace(birth, generation=0, data_dir=str(data), roots=(str(root),))
    ours, theirs = socket_pair()
    with (
        contextlib.closing(NngLink(ours.detach(), max_message_bytes=LINK_MESSAGE_BYTES)) as link,
        contextlib.closing(NngLink(theirs.detach(), max_message_bytes=LINK_MESSAGE_BYTES)) as end,
    ):
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_play_kernel, Channel(link), calls)
                await ServiceLoop(birth, end).run(open_service)
                nursery.cancel_scope.cancel()
        except* LinkClosed:
            pass


async def _play_kernel(channel: Channel, calls: Sequence[tuple[str, Raw]]) -> None:
    """Make the calls, one after the other, and end the service in order; no other service is there."""
    left = iter(enumerate(calls, 1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_sender)
        while True:
            match await channel.receive():
                case Ready() | Return() | Fault():
                    number, (name, params) = next(left, (0, ("", Raw())))
                    post = Call(number, name, params, CALL_MS, new_trace(), "client", 0) if number else Drain(0)
                    channel.post(post)
                case Call(id=number, op=op):
                    channel.post(Fault(number, Unavailable(f"{op}: a rehearsal has no other services").failure))
                case Bye():
                    channel.post(ByeAck())
                case _:
                    continue


@contextlib.asynccontextmanager
async def _open_nothing(env: Environment) -> AsyncIterator[Handlers]:
    handlers = Handlers()

    @handlers.handle(_Nothing)
    async def nothing(params: _Nothing, ctx: Context) -> str:
        return await trio.to_thread.run_sync(str, params.text)

    yield handlers
