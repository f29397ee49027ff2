"""What agents left on disk and clients post: records of each layout, requests and replies of each provider."""

from __future__ import annotations

import functools
import json
from functools import partial
from typing import cast

import msgspec

from services.runtime.database import Database
from services.transcripts.importing import LAYOUTS, _layout, detect
from services.transcripts.ingest import Ingest, _exchange, decoded
from services.transcripts.layouts import Layout
from services.transcripts.messages import Stripper
from services.transcripts.operations.intake import TranscriptIngest, TranscriptRecord
from services.transcripts.providers.wire import Unreadable, decode, objects
from services.transcripts.redaction import Redactor
from tests.fuzz.coverage import parted


def _seed(kind: bytes, *records: object) -> bytes:
    return kind + b"\n".join(json.dumps(record).encode() for record in records)


_CLAUDE = {
    "type": "assistant", "uuid": "b", "parentUuid": "a", "sessionId": "s", "timestamp": "2026-01-01T00:00:00Z",
    "message": {
        "id": "m", "role": "assistant", "model": "x", "usage": {"input_tokens": 1, "output_tokens": 2},
        "content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "1", "name": "n", "input": {}}],
    },
}  # fmt: skip
_OPENAI = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "token=abc123def456"}]}]}
_ANSWER = {"choices": [{"message": {"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}}]}

SEEDS = [
    _seed(b"i", {"type": "user", "uuid": "a", "message": {"role": "user", "content": "hello"}}, _CLAUDE),
    _seed(
        b"i",
        {"type": "session_meta", "payload": {"id": "s", "timestamp": "2026-01-01T00:00:00Z", "instructions": "x"}},
        {"type": "response_item", "payload": {"type": "message", "role": "user", "content": [{"text": "hi"}]}},
        {"type": "response_item", "payload": {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"}},
        {"type": "event_msg", "payload": {"type": "token_count", "info": {}}},
    ),
    _seed(b"i", {"sessionId": "s", "messages": [{"type": "gemini", "content": "x", "thoughts": [{"subject": "y"}]}]}),
    _seed(b"i", {"mapping": {"a": {"message": {"author": {"role": "user"}, "content": {"parts": ["x"]}}}}}),
    _seed(b"i", {"chat_messages": [{"sender": "human", "text": "x", "uuid": "1"}], "uuid": "c"}),
    _seed(b"p", {"provider": "openai", "request": _OPENAI, "response": _ANSWER}),
    _seed(b"p", {"provider": "anthropic", "request": {"messages": []}, "response": "data: {}\n\ndata: [DONE]\n\n"}),
    _seed(b"p", {"provider": "ollama", "request": _OPENAI, "response": [{"message": {"content": "x"}, "done": True}]}),
    _seed(b"b", {"turns": [{"provider": "openai", "request": {"input": [{"type": "message", "content": "x"}]}}, 1]}),
    b"r" + json.dumps(_OPENAI).encode() + b"\0event: x\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n",
    b"r{}\0data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"type\":\"response.completed\"}\n\n",
    b"zx\x9c\x03\x00\x00\x00\x00\x01",
]  # fmt: skip

_MAX_BYTES = 64 * 1024


@functools.cache
def _ingest() -> Ingest:
    # Nothing is kept here.
    return Ingest(cast("Database", None), Redactor(), Stripper())


def read(data: bytes) -> None:
    """The first byte says what it is: a file's records, a posted turn or batch, an exchange, something compressed."""
    kind, body = data[:1], data[1:]
    try:
        match kind:
            case b"p" | b"b":
                _ingest()._read(TranscriptIngest(body=body, batch=kind == b"b"))
            case b"r":
                request, response = parted(body, 2)
                for provider in ("openai", "anthropic", "ollama"):
                    exchange = TranscriptRecord(provider=provider, request=request, response=response)
                    _ingest()._prepared(partial(_exchange, exchange))
            case b"z":
                for encoding in ("gzip", "deflate", "br", "zstd"):
                    assert len(decoded(body, encoding, _MAX_BYTES)) <= _MAX_BYTES
            case _:
                _imported(body)
    except Unreadable:
        return


def _imported(data: bytes) -> None:
    """Read one part as `importing` does; an import that continues elsewhere finds the state unchanged."""
    layout: Layout | None = None
    for line in data.split(b"\n"):
        text = line.decode("utf-8", "replace")
        try:
            found = [decode(text)]
        except Unreadable:
            found = objects(text)
        for record in found:
            if not isinstance(record, dict):
                continue
            layout, steps = detect(record) if layout is None else (layout, layout.read(record))
            for step in steps or ():
                _ingest()._prepared(lambda step=step: step)  # type: ignore[misc]  # it is a turn
            if layout is not None:
                state = msgspec.json.encode(layout)
                layout = _layout(layout.name, state)
                assert msgspec.json.encode(layout) == state
    if layout is not None:
        assert layout.name in LAYOUTS
        for step in (*layout.in_hand(), *layout.finish()):
            _ingest()._prepared(lambda step=step: step)  # type: ignore[misc]
