"""What went over the wire compressed is kept as it was said; what is not what it claims to be is refused and said."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from proto.ops.transcripts import Problem, TranscriptHistories, TranscriptRecord
from tests.unit.transcripts.rig import payload, serving, user

TURN = payload([user("How many arms?")], "Five.")
REQUEST, RESPONSE = json.dumps(TURN["request"]).encode(), json.dumps(TURN["response"]).encode()


def _deflated(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


def _brotlied(data: bytes) -> bytes:
    compressed: bytes = pytest.importorskip("brotli", reason="the package brotli is not installed").compress(data)
    return compressed


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": _deflated,
    "zstd": zstandard.compress,
    "br": _brotlied,
    "gzip, zstd": lambda data: zstandard.compress(gzip.compress(data)),
}


def recorded(encoding: str, response: bytes) -> TranscriptRecord:
    return TranscriptRecord(provider="openai", request=REQUEST, response=response, response_encoding=encoding)


@pytest.mark.parametrize(("encoding", "encode"), ENCODINGS.items(), ids=ENCODINGS)
async def test_a_reply_is_kept_as_it_was_before_it_was_compressed(
    tmp_path: Path, encoding: str, encode: Callable[[bytes], bytes]
) -> None:
    response = encode(RESPONSE)
    async with serving(tmp_path) as bench:
        assert (await bench.call(recorded(encoding, response))).accepted == 1
        (history,) = (await bench.call(TranscriptHistories())).histories
        assert [message.content[0].text for message in history.messages] == ["How many arms?", "Five."]


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name != "identity"])
async def test_a_reply_that_is_not_compressed_as_it_says_is_refused(tmp_path: Path, encoding: str) -> None:
    async with serving(tmp_path) as bench:
        result = await bench.call(recorded(encoding, b"\x00this is none"))
        assert (result.accepted, result.problem) == (0, Problem.TURN)
        assert "Content-Encoding" in result.errors[0] or "cannot parse response" in result.errors[0]


async def test_an_encoding_that_nobody_knows_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        result = await bench.call(recorded("snappy", RESPONSE))
        assert "(snappy) is not known" in result.errors[0]
