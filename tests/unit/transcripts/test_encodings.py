"""Compressed traffic is stored decoded; a body that does not match its encoding is refused and reported."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import brotli  # type: ignore[import-untyped]  # it ships neither types nor stubs
import pytest

from proto import validation as bounds
from services.shared.zstd import zstd
from services.transcripts import ingest
from services.transcripts.operations.conversations import TranscriptHistories
from services.transcripts.operations.intake import Problem, TranscriptRecord
from services.transcripts.providers.wire import MESSAGES, Unreadable, decode
from tests.unit.transcripts.rig import payload, serving, user

TURN = payload([user("How many arms?")], "Five.")
REQUEST, RESPONSE = json.dumps(TURN["request"]).encode(), json.dumps(TURN["response"]).encode()


def _deflated(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": _deflated,
    "zstd": zstd.compress,
    "br": brotli.compress,
    "GZIP": lambda data: gzip.compress(data[:20]) + gzip.compress(data[20:]),
    "gzip, zstd": lambda data: zstd.compress(gzip.compress(data)),
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


def _unfinished_gzip(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=31)
    return stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)


def _unfinished_brotli(data: bytes) -> bytes:
    stream = brotli.Compressor()
    return bytes(stream.process(data) + stream.flush())


def _unfinished_zstd(data: bytes) -> bytes:
    stream = zstd.ZstdCompressor()
    return stream.compress(data, stream.FLUSH_BLOCK)


@pytest.mark.parametrize(
    ("encoding", "encode"), [("gzip", _unfinished_gzip), ("br", _unfinished_brotli), ("zstd", _unfinished_zstd)]
)
def test_an_unfinished_compressed_body_is_read_as_far_as_it_goes(
    encoding: str, encode: Callable[[bytes], bytes]
) -> None:
    assert ingest.decoded(encode(RESPONSE), encoding) == RESPONSE


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "br"])
def test_a_body_that_decompresses_beyond_the_limit_is_refused_and_not_cut(encoding: str) -> None:
    assert len(ingest.decoded(ENCODINGS[encoding](bytes(100_000)), encoding, 100_000)) == 100_000
    with pytest.raises(Unreadable, match="exceeds"):
        ingest.decoded(ENCODINGS[encoding](bytes(3_000_000)), encoding, 100_000)


async def test_an_encoding_that_nobody_knows_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        result = await bench.call(recorded("snappy", RESPONSE))
        assert "unknown Content-Encoding (snappy)" in result.errors[0]


def test_a_body_beyond_the_bounds_of_json_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(Unreadable, match="101 levels"):
        decode(b"[" * 101 + b"]" * 101)
    with pytest.raises(Unreadable, match="lists and objects"):
        decode("[" + "[]," * (bounds.MAX_CONTAINERS * MESSAGES) + "[]]")
