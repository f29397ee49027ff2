"""Batches: several messages in one JSON array, answered with one array (JSON-RPC 2.0, section 6).

Only the revisions up to 2025-03-26 have batches; 2025-06-18 removed them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec import Raw

from proto.mcp import INVALID_REQUEST, PARSE_ERROR, RequestId
from proto.validation import exceeded
from services.front.protocol.messages import Envelope, error_message, fault_of, read_envelope, request_key

MAX_MESSAGES = 1024
"""Longest batch; all of its messages are in flight at once."""


class Refused(ValueError):
    """The whole batch is refused; `answer` is the error to send."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.answer = error_message(None, code, text)


class Part(NamedTuple):
    """A message of a batch; `fault` is the error for a message that must not be in a batch."""

    data: bytes
    envelope: Envelope | None
    fault: bytes | None


def is_batch(data: bytes) -> bool:
    """Whether the data is a JSON array."""
    return data.lstrip()[:1] == b"["


def parts(data: bytes) -> list[Part]:
    """Return the messages of a batch.

    Raises Refused: the batch is empty, has too many messages, is not JSON, or exceeds a bound; the text says which.
    """
    if (excess := exceeded(data)) is not None:
        raise Refused(PARSE_ERROR, f"Parse error: the batch has {excess}")
    try:
        # Decode the whole batch first, because raw parts are not validated.
        msgspec.json.decode(data)
        messages = msgspec.json.decode(data, type=list[Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(PARSE_ERROR, f"Parse error: {error}") from None
    except RecursionError:
        raise Refused(PARSE_ERROR, "Parse error: nested too deeply") from None
    if not messages:
        raise Refused(INVALID_REQUEST, "An empty batch: send at least one message")
    if len(messages) > MAX_MESSAGES:
        text = f"The batch has {len(messages)} messages; the limit is {MAX_MESSAGES}"
        raise Refused(INVALID_REQUEST, text)
    seen: set[RequestId] = set()
    read = ((bytes(message), read_envelope(bytes(message))) for message in messages)
    return [Part(message, envelope, _fault(envelope, message, seen)) for message, envelope in read]


def _fault(envelope: Envelope | None, message: bytes, seen: set[RequestId]) -> bytes | None:
    """Return the error for a message that must not be in a batch, if any; `seen` collects the ids."""
    fault = fault_of(envelope, message)
    if fault is not None or envelope is None:
        return fault
    request_id = envelope.id if isinstance(envelope.id, int | str) else None
    if envelope.method == "initialize":
        return error_message(request_id, INVALID_REQUEST, "initialize must not be part of a batch")
    key = request_key(envelope)
    if key is not None:
        if key in seen:
            return error_message(request_id, INVALID_REQUEST, "The id occurs twice in this batch")
        seen.add(key)
    return None


def joined(answers: list[bytes]) -> bytes:
    return b"[%b]" % b",".join(answers)


class Pending:
    """The answers of one batch, sent by `post` as one array when the batch is complete.

    It is complete when every request registered with `expect` is answered or dropped, and `seal` was called.
    """

    def __init__(self, post: Callable[[bytes], None]) -> None:
        self._post = post
        self._answers: list[bytes] = []
        self._open = 1

    def expect(self) -> None:
        self._open += 1

    def add(self, answer: bytes) -> None:
        """Add an answer that was not registered with `expect`, to a message that is not a request."""
        self._answers.append(answer)

    def answer(self, answer: bytes) -> None:
        self._answers.append(answer)
        self.drop()

    def drop(self) -> None:
        """Note that a request will not be answered, because its client has withdrawn it."""
        self._open -= 1
        # Nothing is sent if all were notifications.
        if not self._open and self._answers:
            self._post(joined(self._answers))

    seal = drop
