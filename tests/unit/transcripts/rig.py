"""Turns as clients post them, and the names of nodes worked out by other means than the service's own."""

from __future__ import annotations

import contextlib
import decimal
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from services.retrieve import main as retrieve
from services.transcripts import main as transcripts
from services.transcripts.operations.intake import IngestResult, TranscriptIngest
from tests.in_process import Bench, services_in_process

Json = dict[str, Any]


def payload(messages: list[Json], reply: str | Json, *, model: str = "m", answered_by: str = "", **more: Any) -> Json:
    """A turn of chat completions."""
    said = reply if isinstance(reply, dict) else {"role": "assistant", "content": reply}
    return {
        "provider": "openai",
        "request": {"model": model, "messages": messages},
        "response": {
            "model": answered_by or model,
            "choices": [{"index": 0, "message": said, "finish_reason": "stop"}],
        },
        **more,
    }


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str) -> Json:
    return {"role": "assistant", "content": text}


async def post(bench: Bench, turn: Json | list[Json]) -> IngestResult:
    batch = isinstance(turn, list)
    body = json.dumps({"turns": turn} if batch else turn).encode()
    return await bench.call(TranscriptIngest(body=body, batch=batch))


@contextlib.asynccontextmanager
async def serving(folder: Path, settings: Mapping[str, Any] | None = None, **services: Any) -> AsyncIterator[Bench]:
    """The service with the search, and whatever else is named."""
    chosen = {"retrieve": retrieve.open_service, **services, "transcripts": transcripts.open_service}
    async with services_in_process(chosen, folder, settings={"transcripts": dict(settings or {})}) as bench:
        yield bench


# RFC 8785, written down a second time and in another way: numbers as ECMAScript prints them, keys by UTF-16 units.


def canonical(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return _number(float(value))
        case str():
            return _text(value)
        case list():
            return "[" + ",".join(canonical(item) for item in value) + "]"
        case dict():
            keys = sorted(value, key=lambda key: [*key.encode("utf-16-be")])
            return "{" + ",".join(f"{_text(key)}:{canonical(value[key])}" for key in keys) + "}"
        case _:
            raise TypeError(value)


def _text(value: str) -> str:
    # JSON.stringify and Python agree but for what they escape beyond the need.
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    if value == 0:
        return "0"
    # The shortest digits that mean this very number; where two are as short, rounding alone would take the wrong one.
    _, figures, last = decimal.Decimal(repr(abs(value))).as_tuple()
    written = "".join(map(str, figures)).lstrip("0")
    digits = written.rstrip("0")
    assert isinstance(last, int)
    point = len(written) + last
    if len(digits) <= point <= 21:
        text = digits + "0" * (point - len(digits))
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        mantissa = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
        text = f"{mantissa}e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return f"-{text}" if value < 0 else text


def name_of(bucket: Json, parent: str) -> str:
    """The hash of a node, from its bucket as it is answered."""
    return hashlib.sha256(canonical({"content": bucket, "parent": parent}).encode()).hexdigest()
