"""Opens files below the roots, so that no link leads out of them and no pipe blocks, and detects their types.

The kind of a file is derived from its first bytes, its MIME type from those and its name.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import mimetypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from proto.errors import Forbidden, OperationError
from proto.ops.media import MediaKind
from services.runtime.roots import Denied, OutsideRoots, Roots

_PIECE: Final = 1024 * 1024


def version_of(status: os.stat_result) -> str:
    """Return a string that distinguishes this version of a file from other versions and other files."""
    return f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An open file, its real path, and its version."""

    file: BinaryIO
    path: str
    status: os.stat_result

    version: str

    def kind(self) -> tuple[MediaKind, str]:
        """Return the kind and the MIME type."""
        return kind_of(os.path.basename(self.path), os.pread(self.file.fileno(), HEAD_BYTES, 0))


@contextlib.contextmanager
def opened(path: str, roots: Roots) -> Iterator[OpenFile]:
    """Open a regular file below the roots.

    Raises:
        Forbidden: it is outside or denied, or a link leads there; also if it does not exist, so that nothing can be
            learned about files outside.
        OperationError: it exists but cannot be read, or is not a regular file.
    """
    try:
        real = "" if "\0" in path else os.path.realpath(_absolute(path, roots))
        # Checked before opening, since opening some things has side effects, and again after, since it may have
        # changed.
        if not roots.holds(real):
            raise Forbidden(f"{path[:200]} is not below a root")
        roots.check(real)
        descriptor, status = roots.open(real)
    except OSError as error:
        raise OperationError(f"cannot open {path[:200]}: {error.strerror}") from None
    except Denied:
        raise
    except OutsideRoots:
        raise OperationError(f"{path[:200]} is not a regular file, or has been replaced") from None
    with open(descriptor, "rb", buffering=0) as raw:
        yield OpenFile(raw, real, status, version_of(status))


def _absolute(path: str, roots: Roots) -> str:
    """Resolve a relative path against the first root that contains it."""
    if os.path.isabs(path):
        return path
    candidates = [os.path.join(root, path) for root in roots.reachable]
    return next((each for each in candidates if os.path.lexists(each)), "/")


def digest(file: BinaryIO, check: Callable[[], None]) -> bytes:
    """Return the SHA-256 of a whole file; `check` is called periodically and may raise to abort."""
    file.seek(0)
    found = hashlib.sha256()
    while piece := file.read(_PIECE):
        found.update(piece)
        check()
    return found.digest()


MAX_COUNTED_BYTES: Final = 256 * 1024 * 1024


def counts(file: BinaryIO, check: Callable[[], None]) -> dict[str, Any]:
    """Count lines, words and characters; `check` is called periodically and may raise to abort."""
    start = file.read(4)
    file.seek(0)
    encoding = "utf-8"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif start.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    lines = words = characters = total = 0
    in_word = False
    last = ""
    while piece := file.read(_PIECE):
        check()
        total += len(piece)
        text = decoder.decode(piece)
        if not text:
            continue
        characters += len(text)
        lines += text.count("\n")
        found = len(text.split())
        words += found - (1 if in_word and found and not text[0].isspace() else 0)
        in_word = not text[-1].isspace()
        last = text[-1]
        if total >= MAX_COUNTED_BYTES:
            break
    lines += total < MAX_COUNTED_BYTES and last not in ("", "\n")
    result = {"encoding": encoding, "lines": lines, "words": words, "characters": characters}
    return result if total < MAX_COUNTED_BYTES else {**result, "counted_bytes": total}


HEAD_BYTES: Final = 64 * 1024

_STARTS: Final = (
    (b"\xff\xd8\xff", MediaKind.IMAGE, "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", MediaKind.IMAGE, "image/png"),
    (b"GIF8", MediaKind.IMAGE, "image/gif"),
    (b"BM", MediaKind.IMAGE, "image/bmp"),
    (b"II*\0", MediaKind.IMAGE, "image/tiff"),
    (b"MM\0*", MediaKind.IMAGE, "image/tiff"),
    (b"\0\0\1\0", MediaKind.IMAGE, "image/x-icon"),
    (b"8BPS", MediaKind.IMAGE, "image/vnd.adobe.photoshop"),
    (b"icns", MediaKind.IMAGE, "image/icns"),
    (b"\0\0\0\x0cjP  ", MediaKind.IMAGE, "image/jp2"),
    (b"\x1aE\xdf\xa3", MediaKind.VIDEO, "video/x-matroska"),
    (b"FLV\1", MediaKind.VIDEO, "video/x-flv"),
    (b"\0\0\1\xba", MediaKind.VIDEO, "video/mpeg"),
    (b"\0\0\1\xb3", MediaKind.VIDEO, "video/mpeg"),
    (b"0&\xb2u\x8ef\xcf\x11", MediaKind.VIDEO, "video/x-ms-asf"),
    (b"ID3", MediaKind.AUDIO, "audio/mpeg"),
    (b"fLaC", MediaKind.AUDIO, "audio/flac"),
    (b"OggS", MediaKind.AUDIO, "audio/ogg"),
    (b"wvpk", MediaKind.AUDIO, "audio/x-wavpack"),
    (b"MAC ", MediaKind.AUDIO, "audio/x-ape"),
    (b"#!AMR", MediaKind.AUDIO, "audio/amr"),
    (b"caff", MediaKind.AUDIO, "audio/x-caf"),
)

_RIFF: Final = {
    b"WEBP": (MediaKind.IMAGE, "image/webp"),
    b"AVI ": (MediaKind.VIDEO, "video/x-msvideo"),
    b"WAVE": (MediaKind.AUDIO, "audio/x-wav"),
}

_BRANDS: Final = {
    b"avif": (MediaKind.IMAGE, "image/avif"),
    b"avis": (MediaKind.IMAGE, "image/avif"),
    b"heic": (MediaKind.IMAGE, "image/heic"),
    b"heix": (MediaKind.IMAGE, "image/heic"),
    b"mif1": (MediaKind.IMAGE, "image/heif"),
    b"M4A ": (MediaKind.AUDIO, "audio/mp4"),
    b"M4B ": (MediaKind.AUDIO, "audio/mp4"),
    b"qt  ": (MediaKind.VIDEO, "video/quicktime"),
}

_ALIKE: Final = {
    # Containers for video or audio, distinguished only by name.
    ("video/x-matroska", ".webm"): (MediaKind.VIDEO, "video/webm"),
    ("video/x-matroska", ".mka"): (MediaKind.AUDIO, "audio/x-matroska"),
    ("audio/ogg", ".ogv"): (MediaKind.VIDEO, "video/ogg"),
    ("video/mp4", ".m4a"): (MediaKind.AUDIO, "audio/mp4"),
    ("video/x-ms-asf", ".wma"): (MediaKind.AUDIO, "audio/x-ms-wma"),
}


def kind_of(name: str, head: bytes) -> tuple[MediaKind, str]:
    """Return the kind and the MIME type of a file with this name and these first bytes."""
    kind, mime = _by_content(head)
    if mime:
        return _ALIKE.get((mime, os.path.splitext(name)[1].lower()), (kind, mime))
    guessed = mimetypes.guess_type(name, strict=False)[0]
    if is_text(head):
        # The name may refine the type of a text, but not make it a picture.
        textual = guessed is not None and (
            guessed.startswith("text/")
            or guessed.endswith(("+xml", "+json"))
            or guessed in ("application/json", "application/xml", "application/javascript", "application/x-sh")
        )
        return MediaKind.TEXT, guessed if textual and guessed else "text/plain"
    return MediaKind.OTHER, guessed or "application/octet-stream"


def _by_content(head: bytes) -> tuple[MediaKind, str]:
    if b"%PDF-" in head[:1024]:
        return MediaKind.PDF, "application/pdf"
    for start, kind, mime in _STARTS:
        if head.startswith(start):
            return kind, mime
    if head[:4] == b"RIFF" and head[8:12] in _RIFF:
        return _RIFF[head[8:12]]
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return MediaKind.AUDIO, "audio/aiff"
    if head[4:8] == b"ftyp":
        brand = head[8:12]
        return _BRANDS.get(brand, (MediaKind.VIDEO, "video/3gpp" if brand.startswith(b"3g") else "video/mp4"))
    if head[4:8] in (b"moov", b"mdat", b"wide", b"free") and len(head) > 8:
        return MediaKind.VIDEO, "video/quicktime"
    if len(head) > 376 and head[0] == head[188] == head[376] == 0x47:
        return MediaKind.VIDEO, "video/mp2t"
    if len(head) > 2 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 0x18 != 0x08:
        return MediaKind.AUDIO, "audio/aac" if head[1] & 0xF6 == 0xF0 else "audio/mpeg"
    return MediaKind.OTHER, ""


def is_text(head: bytes) -> bool:
    """True if the first bytes of a file are UTF-8, or UTF-16 with a byte order mark, without control characters."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    if not head or any(byte < 32 and byte not in b"\t\n\r\f\b\x1b" for byte in head[:8192]):
        return not head
    try:
        # The last character may be cut off.
        head[: max(1, len(head) - 3)].decode() if len(head) == HEAD_BYTES else head.decode()
    except UnicodeDecodeError as error:
        return len(head) == HEAD_BYTES and error.start >= len(head) - 8
    return True
