"""Bodies without their Content-Encoding: what went over the wire compressed, as it was said.

What ends too early is read as far as it goes (servers that stream often never finish what they compress); what is
damaged, or longer than is kept, is refused as a whole rather than cut.
"""

from __future__ import annotations

import zlib

import brotli  # type: ignore[import-untyped]  # it ships neither types nor stubs
import zstandard

from proto.ops.transcripts_intake import MAX_BODY_BYTES
from services.transcripts.providers.wire import Unreadable

MAX_DECODED_BYTES = 4 * MAX_BODY_BYTES

_PIECE_BYTES = 1024 * 1024


def decoded(body: bytes, encoding: str, max_bytes: int = MAX_DECODED_BYTES) -> bytes:
    """`body` as it was before `encoding`, the header's value, was applied.  Raises Unreadable."""
    for name in reversed([part.strip().lower() for part in encoding.split(",") if part.strip()]):
        body = _without(body, name, max_bytes)
    return body


def _without(body: bytes, name: str, max_bytes: int) -> bytes:
    try:
        match name:
            case "identity":
                return body
            case "gzip" | "x-gzip":
                return _inflated(body, 16 + zlib.MAX_WBITS, max_bytes)
            case "deflate":
                # Both are sent under this name: with zlib's frame, as the standard says, and without.
                return _inflated(body, zlib.MAX_WBITS if _has_frame(body) else -zlib.MAX_WBITS, max_bytes)
            case "br":
                return _brotli(body, max_bytes)
            case "zstd":
                return _zstd(body, max_bytes)
    except (zlib.error, brotli.error, zstandard.ZstdError) as error:
        raise Unreadable(f"it is not what its Content-Encoding ({name}) says: {error}") from None
    raise Unreadable(f"its Content-Encoding ({name}) is not known here; known are gzip, deflate, br and zstd")


def _has_frame(body: bytes) -> bool:
    """RFC 1950: the method is 8, and the first two bytes are a multiple of 31."""
    return len(body) >= 2 and body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0


def _inflated(body: bytes, wbits: int, max_bytes: int) -> bytes:
    data = bytearray()
    # What was compressed in several goes (RFC 1952, 2.2) comes as members, one after the other.
    while rest := body.lstrip(b"\0") if data else body:
        stream = zlib.decompressobj(wbits)
        data += stream.decompress(rest, max_bytes + 1 - len(data))
        if len(data) > max_bytes or stream.unconsumed_tail:
            raise _too_long(max_bytes)
        body = stream.unused_data
        if not stream.eof:
            break
    return bytes(data)


def _brotli(body: bytes, max_bytes: int) -> bytes:
    stream = brotli.Decompressor()
    data = bytearray()
    while not stream.is_finished():
        data += stream.process(body, output_buffer_limit=_PIECE_BYTES)
        if len(data) > max_bytes:
            raise _too_long(max_bytes)
        if stream.can_accept_more_data():
            # It has no more to give: it ends, or it ends too early.
            break
        body = b""
    return bytes(data)


def _zstd(body: bytes, max_bytes: int) -> bytes:
    data = bytearray()
    with zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True) as stream:
        while piece := stream.read(_PIECE_BYTES):
            data += piece
            if len(data) > max_bytes:
                raise _too_long(max_bytes)
    return bytes(data)


def _too_long(max_bytes: int) -> Unreadable:
    return Unreadable(f"without its Content-Encoding it is longer than {max_bytes} bytes, and is not kept")
