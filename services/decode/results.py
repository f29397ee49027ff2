"""What decoders share: the source file, results, thumbnails, and incremental text output."""

from __future__ import annotations

import functools
import io
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from PIL import Image, ImageOps

from proto.errors import LinckiaError
from proto.ops.decode import MAX_TEXT_CHARACTERS, Picture
from proto.ops.media import MAX_PART_BYTES
from services.shared.text.invisible import without_breaks

SIDE: Final = 320
MAX_PIXELS: Final = 120_000_000
"""Most pixels of a picture that is decoded completely; this takes a few hundred megabytes of memory."""
MAX_TEXT_CHARS: Final = 2000
MAX_TAGS: Final = 200
TOO_LARGE: Final = "decoding exceeds the memory limit per file"

PIECE_BYTES: Final = MAX_PART_BYTES
PIECES: Final = 16
"""Number of cached pieces: data read repeatedly, such as a video's index, stays while the rest passes through."""
READ_AHEAD_BYTES: Final = 64 * 1024


class NotDecoded(Exception):
    """Why there is no picture, in words for the user."""


@dataclass(slots=True)
class Result:
    """The result so far, filled in by a decoder; an exception becomes the problem."""

    # Metadata differs between formats, and is passed on as JSON.
    metadata: dict[str, Any] = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)
    problem: str | None = None


def check_pixels(width: int, height: int) -> None:
    """Raises NotDecoded if a picture is empty or too large."""
    if width <= 0 or height <= 0:
        raise NotDecoded("it has no pixels")
    if width * height > MAX_PIXELS:
        raise NotDecoded(f"it has {width} by {height} pixels, more than the limit of {MAX_PIXELS}")


def picture(name: str, kind: str, source: Image.Image, **metadata: object) -> Picture:
    """Make a JPEG of at most 320 by 320 pixels, never larger than the source; transparency becomes white."""
    image = ImageOps.exif_transpose(source)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    if image.mode.startswith(("I", "F")):
        # Otherwise high grey levels would be clipped rather than scaled.
        image = ImageOps.autocontrast(image.convert("F").point(lambda value: value / 256).convert("L"))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    if image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    out = io.BytesIO()
    # The source's metadata (location, camera, profile) is not copied.
    image.save(out, "JPEG", quality=82, optimize=True)
    return Picture(
        name=name, type=kind, width=image.width, height=image.height, data=out.getvalue(), metadata=dict(metadata)
    )


def plain(value: object) -> Any:
    """Convert a library's value to JSON; None if it has no equivalent."""
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return plain(value.decode("utf-8", "replace")) if len(value) <= MAX_TEXT_CHARS else f"{len(value)} bytes"
    if isinstance(value, str):
        return value.replace("\0", "").encode("utf-8", "replace").decode()[:MAX_TEXT_CHARS].strip()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value[:MAX_TAGS]]
    if isinstance(value, dict):
        return {str(plain(str(key))): plain(each) for key, each in list(value.items())[:MAX_TAGS]}
    try:
        return plain(float(value))  # type: ignore[arg-type]  # a rational; what is none raises
    except (TypeError, ValueError, ZeroDivisionError):
        return plain(str(value))


class RemoteFile(io.RawIOBase):
    """A file of `size` bytes for one thread, read through the service that requested decoding: this process opens no
    files.

    Args:
        read: blocks until it has the given number of bytes from an offset, fewer at the end; raises LinckiaError.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self._piece = functools.lru_cache(PIECES)(self._ask)
        self._size = size
        self._at = 0
        self.failure: LinckiaError | None = None
        """Why it could not be read, since libraries do not propagate the exception."""

    def buffered(self) -> BinaryIO:
        return io.BufferedReader(self, READ_AHEAD_BYTES)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    # Any writable buffer; the protocol only has a name from Python 3.12 on.
    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._at >= self._size:
            return 0
        number, start = divmod(self._at, PIECE_BYTES)
        data = self._piece(number)[start : start + len(view)]
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _ask(self, number: int) -> bytes:
        if self.failure is not None:
            raise OSError(str(self.failure))
        try:
            return self._read(number * PIECE_BYTES, PIECE_BYTES)
        except LinckiaError as error:
            self.failure = error
            raise OSError(str(error)) from error


class Enough(Exception):
    """The limit of text length or time is reached; the message is for the user."""


class Writer:
    """Collects a reader's text for at most `limit_s`; whatever was written before Enough is the text."""

    def __init__(self, limit_s: float) -> None:
        self.place = ""
        """The reader's position, as shown to the user: `page 3 of 10`."""
        self._until = time.monotonic() + limit_s
        self._parts: list[str] = []
        self._left = MAX_TEXT_CHARACTERS

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def scratch(self) -> Writer:
        """Return another one that ends at the same time."""
        return Writer(max(0.0, self._until - time.monotonic()))

    def write(self, text: str) -> None:
        """Append text. Raises Enough."""
        self._parts.append(without_breaks(text[: self._left]))
        self._left -= len(self._parts[-1])
        if self._left <= 0:
            raise Enough(self._cut())
        self.check()

    def block(self, text: str) -> None:
        """Append a paragraph, a heading or a row, unless it is empty. Raises Enough."""
        if text := text.strip():
            self.write(f"{text}\n\n")

    def check(self) -> None:
        """Raises Enough if time is up."""
        if time.monotonic() > self._until:
            raise Enough(self._cut())

    def _cut(self) -> str:
        return f"its text is truncated {f'after {self.place}' if self.place else 'before its end'}"
