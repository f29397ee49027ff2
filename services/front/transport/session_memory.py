"""The record of a local client's session, in shared memory that outlives the front and the kernel.

`linckia stdio` creates the memory.  The front records there the input that it has not processed, the requests in
flight, and the client's messages that set the session's state, so that the next front can resume the session.

There are two slots for records.  A new record is written to the free one and made current by a single byte, so a kill
at any point leaves a complete record.

Input is read directly into this memory, after the number of the read was written, and the record says up to which read
it includes the input; so input is never in the front's private memory alone.  An answer is recorded after it is
written, at first by a single byte, because a record takes longer.  If the front is killed between the two, the next one
answers the request a second time, which clients ignore; with the reverse order, it might never be answered.
"""

from __future__ import annotations

import mmap
import os
import re
import secrets
import zlib

import msgspec

from proto.json_types import JsonObject
from proto.mcp import RequestId
from services.front.protocol.messages import correlation_key, readable_id
from services.front.protocol.session import SessionState
from services.front.transport.descriptors import READ_BYTES
from services.front.transport.json_lines import PARTIAL_BYTES

SLOT_BYTES = 2 * 1024 * 1024
_HEADER_BYTES = 16
"""Header: byte 0 is the number of the current slot (0 for none). Byte 1 is 1 if the request was answered after that
record whose key has the checksum in bytes 4 to 7. Bytes 8 to 15 are the number of the last read."""

_LANDING = _HEADER_BYTES + 2 * SLOT_BYTES
"""Offset of the landing area that input is read into; zeroed once the record includes the input."""

BYTES = _LANDING + READ_BYTES
"""Size of the memory; pages that are never written take no space."""

LONGEST_BYTES = 64 * 1024
"""Longest recorded message; a longer one is truncated, but its beginning has the id."""

_BEGINNING_BYTES = 256
_MAX_MESSAGES = 2048
"""If the record is too long: bytes recorded of each request in flight, and their greatest number."""

_NAME = re.compile("[0-9a-f]{32}")


class SessionRecord(msgspec.Struct, array_like=True):
    """A session as the last front left it."""

    state_messages: list[bytes] = []
    """The client's answered messages that set the session's state, in order."""
    in_flight: list[bytes] = []
    """Requests that are not answered yet."""
    unread: bytes = b""
    """Input that was read but not processed."""
    truncated: bool = False
    """Whether `unread` is only the beginning of a message."""
    mid_message: bool = False
    """Whether the last message to the client was written only in part."""
    reads: int = 0
    """The number of the last read whose input is in `unread` or processed."""
    landed: bytes = b""
    """If `truncated`, the input read after it; not part of the stored record."""
    revivals: int = 0
    """How often the session was resumed with the same input; that input may be what kills fronts."""
    name: str = ""
    """The name by which services know the session."""


_decode = msgspec.msgpack.Decoder(SessionRecord).decode


class SessionMemory:
    """Reads and writes the record of one session; without memory (`fd` is None) it stores nothing.

    `fd` is empty, or as another front left it.  Raises OSError or ValueError if it is not such a memory.
    """

    def __init__(self, fd: int | None) -> None:
        if fd is not None and not os.fstat(fd).st_size:
            os.ftruncate(fd, BYTES)
        self._memory = None if fd is None else mmap.mmap(fd, BYTES)
        record = self._record()
        # The client can write to the memory, but must not be able to forge the name of an HTTP session.
        self.name = record.name if _NAME.fullmatch(record.name) else secrets.token_hex(16)
        # Not stored itself; the state messages restore it.
        self.state = SessionState()
        self._state_messages: dict[str, bytes] = {}
        self._in_flight: dict[RequestId, tuple[str, bytes]] = {}
        self._unread = b""
        self._truncated = False
        self._mid_message = False
        self._reads = 0
        self._revivals = 0
        # Inherited requests that are still in flight, and whether inherited input is still unread.
        self._inherited: set[RequestId] = set()
        self._inherited_unread = False
        self._landing = memoryview(b"") if self._memory is None else memoryview(self._memory)[_LANDING:]

    def close(self) -> None:
        """Unmap the memory; the client's process keeps its content."""
        if self._memory is not None:
            self._landing.release()
            self._memory.close()
            self._memory = None

    def take_over(self) -> SessionRecord | None:
        """Return the record that the last front left, if any; it stays stored until its content is processed."""
        memory = self._memory
        if memory is None:
            return None
        self._reads = int.from_bytes(memory[8:_HEADER_BYTES], "little")
        if not memory[0] and not self._reads:
            return None
        record = self._record()
        if record.reads != self._reads:
            # The front was killed after a read, before it wrote the record.  No message contains a zero byte.
            landed = bytes(self._landing).partition(b"\0")[0]
            if record.truncated:
                record.landed = landed
            else:
                record.unread += landed
        record.revivals += 1
        answered = list(filter(self._was_answered, record.in_flight))
        record.in_flight = [message for message in record.in_flight if message not in answered]
        self._unread, self._truncated = record.unread, record.truncated
        self._mid_message, self._revivals = record.mid_message, record.revivals
        for message in (*record.state_messages, *answered):
            self._note_state(_decode_message(message).method, message)
        record.state_messages = list(self._state_messages.values())
        for message in record.in_flight:
            decoded = _decode_message(message)
            if decoded.id is not None:
                self._in_flight[correlation_key(decoded.id)] = (decoded.method, message)
        self._inherited, self._inherited_unread = set(self._in_flight), bool(record.unread)
        self._write()
        memory[1] = 0
        self._landing[:] = bytes(READ_BYTES)
        return record

    def _was_answered(self, message: bytes) -> bool:
        memory, request_id = self._memory, id_of(message)
        assert memory is not None
        return memory[1] == 1 and request_id is not None and memory[4:8] == _checksum(correlation_key(request_id))

    def _record(self) -> SessionRecord:
        """Return the current record, or an empty one if there is none."""
        memory = self._memory
        if memory is None or not memory[0]:
            return SessionRecord()
        at = _HEADER_BYTES + (memory[0] - 1) * SLOT_BYTES
        length = int.from_bytes(memory[at : at + 4], "little")
        return _decode(memory[at + 4 : at + 4 + length])

    def receive(self, fd: int) -> bytes:
        """Read some input.  Raises OSError like `os.read`."""
        memory = self._memory
        if memory is None:
            return os.read(fd, READ_BYTES)
        memory[8:_HEADER_BYTES] = (self._reads + 1).to_bytes(8, "little")
        count = os.readv(fd, [self._landing])
        self._reads += 1
        data = bytes(self._landing[:count])
        if not self._truncated:
            self._unread += data
        self._write()
        self._landing[:count] = bytes(count)
        return data

    def record_unread(self, unread: bytes, *, is_partial: bool = False) -> None:
        """Record the unprocessed input; `is_partial` says that it is the beginning of a message."""
        if self._memory is not None and (is_partial or unread != self._unread):
            self._truncated = is_partial and len(unread) >= PARTIAL_BYTES
            self._unread = unread
            self._write()

    def record_request(self, key: RequestId, method: str, message: bytes, unread: bytes) -> None:
        """Record a request in flight, and the unprocessed input after it."""
        if self._memory is not None:
            self._in_flight[key] = (method, message[:LONGEST_BYTES])
            self._unread, self._truncated = unread, False
            self._write()

    def begin_answer(self, key: RequestId) -> None:
        """Note which request is about to be answered, so that `end_answer` is a single byte."""
        if self._memory is not None:
            self._memory[1] = 0
            self._memory[4:8] = _checksum(key)

    def end_answer(self) -> None:
        """Note that the whole answer is written; call `record_answer` next."""
        if self._memory is not None:
            self._memory[1] = 1

    def record_answer(self, key: RequestId) -> None:
        """Record that a request is answered or withdrawn."""
        found = self._in_flight.pop(key, None)
        if found is not None:
            self.record_message(*found)

    def record_message(self, method: str, message: bytes) -> None:
        """Record a message that was answered, or needs no answer, if it sets the session's state."""
        if self._memory is not None:
            self._note_state(method, message)
            self._write()

    def _note_state(self, method: str, message: bytes) -> None:
        match method:
            case "initialize" | "notifications/initialized" | "logging/setLevel":
                self._state_messages[method] = message
            case "resources/subscribe":
                self._state_messages[str(_decode_message(message).params.get("uri"))] = message
            case "resources/unsubscribe":
                self._state_messages.pop(str(_decode_message(message).params.get("uri")), None)

    def record_output(self, *, mid_message: bool) -> None:
        """Record whether the last message to the client is written only in part."""
        if self._memory is not None and mid_message is not self._mid_message:
            self._mid_message = mid_message
            self._write()

    def _write(self) -> None:
        memory = self._memory
        assert memory is not None
        self._inherited &= self._in_flight.keys()
        self._inherited_unread = self._inherited_unread and bool(self._unread)
        if not self._inherited and not self._inherited_unread:
            # All inherited input is processed; newer input did not kill the previous fronts.
            self._revivals = 0
        state_messages = list(self._state_messages.values())
        in_flight = [message for _, message in self._in_flight.values()]
        others = self._truncated, self._mid_message, self._reads, b"", self._revivals, self.name
        record = msgspec.msgpack.encode(SessionRecord(state_messages, in_flight, self._unread, *others))
        if len(record) > SLOT_BYTES - 4:
            # The beginnings are enough to answer the requests; a client with so many subscriptions must resubscribe.
            in_flight = [message[:_BEGINNING_BYTES] for message in in_flight[-_MAX_MESSAGES:]]
            state_messages = [message for message in state_messages if len(message) < _BEGINNING_BYTES][:_MAX_MESSAGES]
            record = msgspec.msgpack.encode(SessionRecord(state_messages, in_flight, self._unread, *others))
        slot = 1 if memory[0] != 1 else 2
        at = _HEADER_BYTES + (slot - 1) * SLOT_BYTES
        memory[at : at + 4 + len(record)] = len(record).to_bytes(4, "little") + record
        memory[0] = slot


class _Message(msgspec.Struct):
    id: RequestId | None = None
    method: str = ""
    params: JsonObject = {}


def _decode_message(message: bytes) -> _Message:
    """Decode a recorded message; of a truncated one, only the id."""
    try:
        return msgspec.json.decode(message, type=_Message)
    except msgspec.DecodeError:
        return _Message(readable_id(message))


def _checksum(key: RequestId) -> bytes:
    return zlib.crc32(repr(key).encode()).to_bytes(4, "little")


def id_of(message: bytes) -> RequestId | None:
    """Return the id of a message, which may be truncated."""
    return _decode_message(message).id
