"""The state of a local client's session, kept where it outlives the front, and the kernel.

`linckia stdio` makes the memory.  The front notes there what it has read and not yet looked at, which requests wait
for their answer, and what the client has said that made the session what it is, so that the next front goes on with it.

A record is written beside the last one and then made the current one by a single byte, so that a kill at any point
leaves one that is whole.  Input is read into the memory itself, numbered before, and the record tells up to which
number it has been taken in: there is no moment at which what was read is in the front's own memory alone.  An answer
is noted once it is written: killed between the two, a front leaves a request that will be answered a second time,
which clients pass over, where the other order would leave one that never is.
"""

from __future__ import annotations

import mmap
import os
import re
import secrets

import msgspec

from linckia.proto.json_types import JsonObject
from linckia.services.front.protocol.messages import RequestId, correlation_key, readable_id
from linckia.services.front.protocol.session import SessionState
from linckia.services.front.transport.descriptors import READ_BYTES
from linckia.services.front.transport.json_lines import BEGUN_BYTES

SLOT_BYTES = 2 * 1024 * 1024
_HEADER_BYTES = 16
"""Which record is the current one (a byte, 0 for none), and at 8 the number of the last read."""

_LANDING = _HEADER_BYTES + 2 * SLOT_BYTES
"""Where input is read to; zeros but for what was read and not taken in."""

BYTES = _LANDING + READ_BYTES
"""Size of the memory; pages that are never written cost nothing."""

LONGEST_BYTES = 64 * 1024
"""Of one message; of a longer one its beginning is kept, which has its id."""

_BEGINNING_BYTES = 256
_MOST = 2048
"""Where more requests are in flight than there is room for: bytes kept of each, and their number."""

_NAME = re.compile("[0-9a-f]{32}")


class Kept(msgspec.Struct, array_like=True):
    """A session as the last front left it.

    `said` made it what it is, in order, and is answered; `asked` waits for its answer; `rest` was read and not looked
    at, and `short` says that it is only the beginning of a message; `cut` that the last one was written in part.
    `revivals` counts how often it was taken over with what was in hand before: what it says may be what kills fronts.
    """

    said: list[bytes] = []
    asked: list[bytes] = []
    rest: bytes = b""
    short: bool = False
    cut: bool = False
    reads: int = 0
    """The number of the last read that is in `rest`, or done with."""
    landed: bytes = b""
    """Where `short`: what was read after that; in no record."""
    revivals: int = 0
    name: str = ""
    """What services know the session by."""


_decode = msgspec.msgpack.Decoder(Kept).decode


class SessionMemory:
    """The record of one session; without memory (`None`) it keeps nothing.

    `fd` is empty at first, and afterwards as another has left it.  Raises OSError, ValueError: it is no such memory.
    """

    def __init__(self, fd: int | None) -> None:
        if fd is not None and not os.fstat(fd).st_size:
            os.ftruncate(fd, BYTES)
        self._memory = None if fd is None else mmap.mmap(fd, BYTES)
        before = self._record()
        # A client may write there what it likes, but not the name of another's session over HTTP.
        self.name = before.name if _NAME.fullmatch(before.name) else secrets.token_hex(16)
        # Not kept here: it is in what the client said.
        self.state = SessionState()
        self._said: dict[str, bytes] = {}
        self._asked: dict[RequestId, tuple[str, bytes]] = {}
        self._rest = b""
        self._short = False
        self._cut = False
        self._reads = 0
        self._revivals = 0
        # Of what was in hand when this front took over, what still is, and whether there is input among that.
        self._inherited: set[RequestId] = set()
        self._unread = False
        self._landing = memoryview(b"") if self._memory is None else memoryview(self._memory)[_LANDING:]

    def close(self) -> None:
        """What was noted stays with the client's process."""
        if self._memory is not None:
            self._landing.release()
            self._memory.close()
            self._memory = None

    def take_over(self) -> Kept | None:
        """What the last front left, if there was one; it is this one's to see to, and is kept until it has."""
        memory = self._memory
        if memory is None:
            return None
        self._reads = int.from_bytes(memory[8:_HEADER_BYTES], "little")
        if not memory[0] and not self._reads:
            return None
        kept = self._record()
        if kept.reads != self._reads:
            # Read, and the front was killed before it knew.  No message has a zero byte.
            landed = bytes(self._landing).partition(b"\0")[0]
            if kept.short:
                kept.landed = landed
            else:
                kept.rest += landed
        kept.revivals += 1
        self._rest, self._short, self._cut, self._revivals = kept.rest, kept.short, kept.cut, kept.revivals
        for message in kept.said:
            self._note(_read(message).method, message)
        for message in kept.asked:
            read = _read(message)
            if read.id is not None:
                self._asked[correlation_key(read.id)] = (read.method, message)
        self._inherited, self._unread = set(self._asked), bool(kept.rest)
        self._write()
        self._landing[:] = bytes(READ_BYTES)
        return kept

    def _record(self) -> Kept:
        """The current one; an empty one where there is none."""
        memory = self._memory
        if memory is None or not memory[0]:
            return Kept()
        at = _HEADER_BYTES + (memory[0] - 1) * SLOT_BYTES
        length = int.from_bytes(memory[at : at + 4], "little")
        return _decode(memory[at + 4 : at + 4 + length])

    def receive(self, fd: int) -> bytes:
        """Read some input.  Raises OSError as `os.read`."""
        memory = self._memory
        if memory is None:
            return os.read(fd, READ_BYTES)
        memory[8:_HEADER_BYTES] = (self._reads + 1).to_bytes(8, "little")
        count = os.readv(fd, [self._landing])
        self._reads += 1
        data = bytes(self._landing[:count])
        if not self._short:
            self._rest += data
        self._write()
        self._landing[:count] = bytes(count)
        return data

    def read(self, rest: bytes, *, begun: bool = False) -> None:
        """This of the input has not been looked at; `begun`, it is the beginning of a message."""
        if self._memory is not None and (begun or rest != self._rest):
            self._short = begun and len(rest) >= BEGUN_BYTES
            self._rest = rest
            self._write()

    def ask(self, key: RequestId, method: str, message: bytes, rest: bytes) -> None:
        """A request is in flight, and `rest` follows it."""
        if self._memory is not None:
            self._asked[key] = (method, message[:LONGEST_BYTES])
            self._rest, self._short = rest, False
            self._write()

    def answered(self, key: RequestId) -> None:
        """The client has its answer, or does not want one any more."""
        found = self._asked.pop(key, None)
        if found is not None:
            self.say(*found)

    def say(self, method: str, message: bytes) -> None:
        """Note a message that was answered, or needs no answer, if it makes the session what it is."""
        if self._memory is not None:
            self._note(method, message)
            self._write()

    def _note(self, method: str, message: bytes) -> None:
        match method:
            case "initialize" | "notifications/initialized" | "logging/setLevel":
                self._said[method] = message
            case "resources/subscribe":
                self._said[str(_read(message).params.get("uri"))] = message
            case "resources/unsubscribe":
                self._said.pop(str(_read(message).params.get("uri")), None)

    def written(self, *, cut: bool) -> None:
        """Whether the last message was written in part only."""
        if self._memory is not None and cut is not self._cut:
            self._cut = cut
            self._write()

    def _write(self) -> None:
        memory = self._memory
        assert memory is not None
        self._inherited &= self._asked.keys()
        self._unread = self._unread and bool(self._rest)
        if not self._inherited and not self._unread:
            # Under load there is always something in hand; what came since is not what the fronts before died of.
            self._revivals = 0
        said = list(self._said.values())
        asked = [message for _, message in self._asked.values()]
        own = self._short, self._cut, self._reads, b"", self._revivals, self.name
        record = msgspec.msgpack.encode(Kept(said, asked, self._rest, *own))
        if len(record) > SLOT_BYTES - 4:
            # Enough to answer them; a session with so many subscriptions has to subscribe again.
            asked = [message[:_BEGINNING_BYTES] for message in asked[-_MOST:]]
            said = [message for message in said if len(message) < _BEGINNING_BYTES][:_MOST]
            record = msgspec.msgpack.encode(Kept(said, asked, self._rest, *own))
        slot = 1 if memory[0] != 1 else 2
        at = _HEADER_BYTES + (slot - 1) * SLOT_BYTES
        memory[at : at + 4 + len(record)] = len(record).to_bytes(4, "little") + record
        memory[0] = slot


class _Message(msgspec.Struct):
    id: RequestId | None = None
    method: str = ""
    params: JsonObject = {}


def _read(message: bytes) -> _Message:
    """Of one of which only the beginning is there, the id."""
    try:
        return msgspec.json.decode(message, type=_Message)
    except msgspec.DecodeError:
        return _Message(readable_id(message))


def id_of(message: bytes) -> RequestId | None:
    """The id of a message, also where only its beginning is there."""
    return _read(message).id
