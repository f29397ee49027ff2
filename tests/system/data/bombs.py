"""Hostile pictures, videos and PDFs, made here: small files that say they are, or unfold to be, far more."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import av
from PIL import Image


def zeros(length: int) -> bytes:
    """So many NULs, compressed a thousand to one; of one piece, over and over."""
    size = 1 << 20
    packer = zlib.compressobj(9, wbits=-15)
    first = packer.compress(bytes(size)) + packer.flush(zlib.Z_FULL_FLUSH)
    last = zlib.compressobj(9, wbits=-15)
    rest = last.compress(bytes(length % size)) + last.flush()
    # Adler-32 of NULs.
    return b"\x78\xda" + first * (length // size) + rest + struct.pack(">HH", length % 65521, 1)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, body: bytes, *more: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = _chunk(b"IHDR", header) + b"".join(more) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def png_that_unfolds() -> bytes:
    """As large as is still decoded: a third of a gigabyte of pixels in a third of a megabyte."""
    side = 10_900
    return png(side, side, zeros(side * (side * 3 + 1)))


def png_of_text() -> bytes:
    return png(10, 10, zlib.compress(bytes(310)), _chunk(b"zTXt", b"Comment\0\0" + zeros(200 << 20)))


def png_longer_than_it_says() -> bytes:
    return png(10, 10, zeros(200 << 20))


def tiff(width: int, height: int, compression: int, body: bytes) -> bytes:
    """Return a TIFF with one strip; `compression` is 1 for none and 8 for deflate."""
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, compression), (262, 3, 1, 1),
               (273, 4, 1, 8), (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, len(body))]  # fmt: skip
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries) + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(body)) + body + directory


def webp() -> bytes:
    """A canvas of 16,384 by 16,384, the most that the format has."""
    canvas = b"VP8X" + struct.pack("<I", 10) + bytes([0x10, 0, 0, 0]) + (16_383).to_bytes(3, "little") * 2
    size = 16_383 | 16_383 << 14 | 1 << 28
    picture = b"\x2f" + struct.pack("<I", size) + bytes(51)
    body = b"WEBP" + canvas + b"VP8L" + struct.pack("<I", len(picture)) + picture
    return b"RIFF" + struct.pack("<I", len(body)) + body


def gif(width: int, height: int, frames: int) -> bytes:
    """Frames of a pixel each."""
    frame = b"\x21\xf9\x04\0\1\0\0\0" + b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\0"
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return head + frame * frames + b";"


def jpeg_cut_off() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((800, 800), 80).save(file, "JPEG")
    return file.getvalue()[:20_000]


def video(container: str, codec: str = "mpeg4", pixels: str = "yuv420p") -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=10)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 48, pixels
        for _ in range(20):
            frame = av.VideoFrame.from_image(Image.new("RGB", (64, 48), "red"))  # type: ignore[no-untyped-call]  # PyAV
            for packet in stream.encode(frame):
                out.mux(packet)
        for packet in stream.encode():
            out.mux(packet)
    return file.getvalue()


def video_of_giant_frames() -> bytes:
    """Each of its frames, and the header as well, says 65,500 by 65,500."""
    data = bytearray(video("avi", "mjpeg", "yuvj420p"))
    at = data.index(b"vids", data.index(b"strl"))
    header = data.index(b"strf", at) + 12
    data[header : header + 8] = struct.pack("<II", 65_500, 65_500)
    frame = data.find(b"\xff\xc0")
    while frame >= 0:
        data[frame + 5 : frame + 9] = struct.pack(">HH", 65_500, 65_500)
        frame = data.find(b"\xff\xc0", frame + 9)
    return bytes(data)


def video_that_lies_about_its_length() -> bytes:
    """A hundred days and more, of two seconds."""
    data = bytearray(video("mp4"))
    for box, offset in ((b"mvhd", 20), (b"tkhd", 24), (b"mdhd", 20)):
        at = data.index(box) + offset
        data[at : at + 4] = b"\x7f\xff\xff\xf0"
    return bytes(data)


def pdf(*objects: bytes) -> bytes:
    """From the objects in their order, the first of which is the catalogue."""
    out = io.BytesIO()
    out.write(b"%PDF-1.7\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%b\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.write(b"".join(b"%010d 00000 n \n" % place for place in places))
    out.write(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start))
    return out.getvalue()


CATALOGUE = b"<< /Type /Catalog /Pages 2 0 R >>"
PAGES = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"


def page(box: bytes = b"0 0 200 200", more: bytes = b"") -> bytes:
    return b"<< /Type /Page /Parent 2 0 R /MediaBox [%b] %b >>" % (box, more)


def stream(packed: bytes, more: bytes = b"") -> bytes:
    return b"<< /Length %d /Filter /FlateDecode %b >>\nstream\n%b\nendstream" % (len(packed), more, packed)


def pdf_of_a_giant_page() -> bytes:
    return pdf(CATALOGUE, PAGES, page(b"0 0 900000000 900000000"))


def pdf_that_is_its_own_page() -> bytes:
    return pdf(CATALOGUE, b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 4000000 >>")


def pdf_of_deep_objects() -> bytes:
    return pdf(CATALOGUE, PAGES, page(more=b"/Deep " + b"[" * 300_000 + b"]" * 300_000))


def pdf_that_unfolds() -> bytes:
    """A quarter of a gigabyte of what draws the page, in a quarter of a megabyte."""
    return pdf(CATALOGUE, PAGES, page(more=b"/Contents 4 0 R"), stream(zeros(256 << 20)))


def pdf_that_unfolds_twice() -> bytes:
    """Nearly a gigabyte of what draws the page, in two kilobytes."""
    packed = zlib.compress(zeros(900 << 20), 9)
    body = b"<< /Length %d /Filter [/FlateDecode /FlateDecode] >>\nstream\n%b\nendstream" % (len(packed), packed)
    return pdf(CATALOGUE, PAGES, page(more=b"/Contents 4 0 R"), body)


_MAIN = '<Relationships><Relationship Id="a" Type="http://x/officeDocument" Target="%s"/></Relationships>'


def office(name: str) -> bytes:
    """A file of an office program; its `name` unfolds to a quarter of a gigabyte."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_rels/.rels", _MAIN % name)
        with archive.open(name, "w", force_zip64=True) as member:
            member.write(b"<x>")
            for _ in range(1 << 8):
                member.write(b" " * (1 << 20))
    return file.getvalue()


def office_of_entities() -> bytes:
    """A document that is a billion entities."""
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    laughs = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e0 "ha">{entities}]><x>&e9;</x>'
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_rels/.rels", _MAIN % "word/document.xml")
        archive.writestr("word/document.xml", laughs)
    return file.getvalue()


def pdf_of_a_giant_picture() -> bytes:
    about = b"/Type /XObject /Subtype /Image /Width 12000 /Height 12000 /ColorSpace /DeviceRGB /BitsPerComponent 8"
    return pdf(
        CATALOGUE, PAGES, page(more=b"/Contents 4 0 R /Resources << /XObject << /X 5 0 R >> >>"),
        stream(zlib.compress(b"q 200 0 0 200 0 0 cm /X Do Q")), stream(zeros(432_000_000), about),
    )  # fmt: skip


def pdf_of_a_slow_shade(steps: int = 200_000) -> bytes:
    """A page whose every pixel has a colour that takes so many steps to compute: in a few kilobytes, hours."""
    program = zlib.compress(b"{ " + b"dup sin pop " * steps + b"dup dup }")
    function = b"/FunctionType 4 /Domain [0 1 0 1] /Range [0 1 0 1 0 1 0 1]"
    shade = b"/S << /ShadingType 1 /ColorSpace /DeviceCMYK /Matrix [200 0 0 200 0 0] /Function 5 0 R >>"
    first = page(more=b"/Contents 4 0 R /Resources << /Shading << " + shade + b" >> >>")
    return pdf(CATALOGUE, PAGES, first, stream(zlib.compress(b"/S sh")), stream(program, function))


BOMBS: dict[str, Callable[[], bytes]] = {
    "giant.png": lambda: png(60_000, 60_000, zeros(1 << 20)),
    "unfolds.png": png_that_unfolds,
    "text.png": png_of_text,
    "longer.png": png_longer_than_it_says,
    "giant.tif": lambda: tiff(100_000, 100_000, 1, bytes(1000)),
    "unfolds.tif": lambda: tiff(10_900, 10_900, 8, zeros(10_900 * 10_900)),
    "giant.webp": webp,
    "giant.gif": lambda: gif(65_535, 65_535, 1),
    "frames.gif": lambda: gif(10, 10, 100_000),
    "cut off.jpg": jpeg_cut_off,
    "giant.avi": video_of_giant_frames,
    "long.mp4": video_that_lies_about_its_length,
    "cut off.avi": lambda: video("avi")[:3000],
    "giant.pdf": pdf_of_a_giant_page,
    "itself.pdf": pdf_that_is_its_own_page,
    "deep.pdf": pdf_of_deep_objects,
    "unfolds.pdf": pdf_that_unfolds,
    "picture.pdf": pdf_of_a_giant_picture,
}
"""Bombs by file name."""


def write_all(folder: Path) -> None:
    for name, make in BOMBS.items():
        (folder / name).write_bytes(make())
