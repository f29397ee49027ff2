"""Zstandard frames come back unchanged; damaged and oversized ones are refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.shared import zstd

COMPRESSOR = zstd.Compressor(3, checksum=True)
TEXT = b"A sea star grows back any arm that it loses. " * 50


@given(st.lists(st.binary(max_size=2000), max_size=4), st.integers(1, 500))
def test_frames_come_back_whole_and_in_pieces(blocks: list[bytes], piece_bytes: int) -> None:
    frames = [COMPRESSOR.compress(block) for block in blocks]
    assert [zstd.decompress(frame, len(block)) for frame, block in zip(frames, blocks, strict=True)] == blocks
    found = list(zstd.pieces(b"".join(frames), piece_bytes))
    assert b"".join(found) == b"".join(blocks)
    assert all(len(piece) <= piece_bytes for piece in found)


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_is_an_error_or_changes_nothing(at: int, value: int) -> None:
    frame = bytearray(COMPRESSOR.compress(TEXT))
    frame[at % len(frame)] = value
    with contextlib.suppress(zstd.ZstdError):
        assert zstd.decompress(bytes(frame)) == TEXT


def test_no_more_is_decompressed_than_the_caller_allows() -> None:
    bomb = COMPRESSOR.compress(bytes(10_000_000))
    assert len(bomb) < 2000
    with pytest.raises(zstd.ZstdError, match="more than 1000 bytes"):
        zstd.decompress(bomb, 1000)


def test_an_incomplete_frame_is_an_error_as_a_whole_and_read_as_far_as_it_goes_in_pieces() -> None:
    stream = zstd.zstd.ZstdCompressor()
    cut = stream.compress(TEXT, stream.FLUSH_BLOCK)
    with pytest.raises(zstd.ZstdError, match="incomplete"):
        zstd.decompress(cut)
    assert b"".join(zstd.pieces(cut, 100)) == TEXT


def test_a_dictionary_makes_short_texts_shorter_and_is_needed_to_read_them() -> None:
    samples = [f'{{"id": {number}, "species": "Linckia", "arms": {number % 7}}}'.encode() * 4 for number in range(500)]
    dictionary = zstd.ZstdDict(zstd.train(samples, 4096))
    frame = zstd.Compressor(3, dictionary=dictionary).compress(samples[0])
    assert len(frame) < len(COMPRESSOR.compress(samples[0]))
    assert zstd.decompress(frame, len(samples[0]), dictionary) == samples[0]
    with pytest.raises(zstd.ZstdError):
        zstd.decompress(frame)
