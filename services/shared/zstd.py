"""Zstandard frames, with the module of Python 3.14's standard library or its backport."""

from __future__ import annotations

import sys
from collections.abc import Iterator

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["Compressor", "ZstdDict", "ZstdError", "decompress", "pieces", "train", "zstd"]

ZstdDict = zstd.ZstdDict
ZstdError = zstd.ZstdError


class Compressor:
    """Compresses blocks, each into a frame that states its size. Not for two threads at once."""

    def __init__(self, level: int, *, checksum: bool = False, dictionary: ZstdDict | None = None) -> None:
        key = zstd.CompressionParameter
        options: dict[int, int] = {key.compression_level: level, key.checksum_flag: int(checksum)}
        # Digested once and kept by the dictionary, for all compressors of this level.
        digested = None if dictionary is None else dictionary.as_digested_dict
        self._compressor = zstd.ZstdCompressor(options=options, zstd_dict=digested)

    def compress(self, data: bytes | memoryview) -> bytes:
        return self._compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)


def decompress(frame: bytes, max_bytes: int | None = None, dictionary: ZstdDict | None = None) -> bytes:
    """Decompress the first frame of `frame`.

    Raises ZstdError if it is damaged or incomplete, or has more than `max_bytes`.
    """
    decompressor = zstd.ZstdDecompressor(dictionary)
    data = decompressor.decompress(frame, -1 if max_bytes is None else max_bytes + 1)
    if max_bytes is not None and len(data) > max_bytes:
        raise ZstdError(f"more than {max_bytes} bytes")
    if not decompressor.eof:
        raise ZstdError("the compressed data is incomplete")
    return data


def pieces(data: bytes, piece_bytes: int) -> Iterator[bytes]:
    """Yield the content of all frames in `data`, at most `piece_bytes` at a time; an incomplete last frame up to its
    end.

    Raises ZstdError if it is damaged.
    """
    while data:
        decompressor = zstd.ZstdDecompressor()
        while not decompressor.eof and (piece := decompressor.decompress(data, piece_bytes)):
            yield piece
            data = b""
        data = decompressor.unused_data


def train(samples: list[bytes], dictionary_bytes: int) -> bytes:
    """Return a dictionary for texts like these. Raises ZstdError if they have nothing in common or are too few."""
    return zstd.train_dict(samples, dictionary_bytes).dict_content
