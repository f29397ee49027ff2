"""Still pictures, by Pillow."""

from __future__ import annotations

from typing import Any, BinaryIO

from PIL import ExifTags, Image, UnidentifiedImageError

from proto.ops.media import THUMBNAIL
from services.decode.results import MAX_PIXELS, SIDE, NotDecoded, Result, check_pixels, picture, plain

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "ICO", "AVIF", "PPM", "TGA", "JPEG2000", "PSD", "ICNS")
"""Formats that are opened: none that calls other programs (EPS), and no rare ones."""

_LEFT_OUT = frozenset({"MakerNote", "UserComment", "PrintImageMatching"})


def image(file: BinaryIO) -> Result:
    """Dimensions, format, EXIF; and a thumbnail of the first frame."""
    # Checked below, on the size that is decoded.
    Image.MAX_IMAGE_PIXELS = None
    result = Result()
    try:
        opened = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        raise NotDecoded("it is no picture of a format that is known") from None
    with opened as source:
        result.metadata.update(
            width=source.width, height=source.height, format=source.format, mode=source.mode,
            frames=getattr(source, "n_frames", 1),
        )  # fmt: skip
        try:
            result.metadata.update(exif(source))
        except Exception as error:  # noqa: BLE001  # a picture with broken EXIF is one as well
            result.problem = f"its EXIF cannot be read: {str(error)[:200]}"
        try:
            # Of a JPEG, no more is decoded than the thumbnail needs.
            source.draft("RGB", (2 * SIDE, 2 * SIDE))
            check_pixels(source.width, source.height)
            result.pictures.append(picture("thumb.jpg", THUMBNAIL, source))
        except NotDecoded as error:
            result.problem = str(error)
        except MemoryError:
            result.problem = "it takes more memory than a file may have"
        except Exception as error:  # noqa: BLE001  # Pillow raises anything at broken files
            result.problem = f"it cannot be decoded: {str(error)[:300] or type(error).__name__}"
    return result


def exif(source: Image.Image) -> dict[str, Any]:
    """EXIF by the names of its tags, the place in degrees."""
    # To look for what may follow the pixels, a PNG would be decoded: 10 GB of them, perhaps.
    found = source.getexif() if source.width * source.height <= MAX_PIXELS else Image.Image.getexif(source)
    if not found:
        return {}
    tags = {ExifTags.TAGS.get(tag, str(tag)): value for tag, value in found.items()}
    tags |= {ExifTags.TAGS.get(tag, str(tag)): value for tag, value in found.get_ifd(ExifTags.IFD.Exif).items()}
    gps = {ExifTags.GPSTAGS.get(tag, str(tag)): value for tag, value in found.get_ifd(ExifTags.IFD.GPSInfo).items()}
    kept = {
        name: plain(value)
        for name, value in tags.items()
        if name not in _LEFT_OUT and not name.endswith(("IFD", "Offset", "IFDOffset")) and name != "GPSInfo"
    }
    # What a format says of a file differs from format to format; it leaves as JSON.
    answer: dict[str, Any] = {"exif": kept} if kept else {}
    place = {
        key: degrees
        for key, name in (("latitude", "GPSLatitude"), ("longitude", "GPSLongitude"))
        if (degrees := _degrees(gps.get(name), gps.get(f"{name}Ref"))) is not None
    }
    return answer | ({"gps": place} if len(place) == 2 else {})


def _degrees(value: object, reference: object) -> float | None:
    try:
        degrees, minutes, seconds = (float(part) for part in value)  # type: ignore[attr-defined]  # or raises
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    total = degrees + minutes / 60 + seconds / 3600
    if not abs(total) <= 180:
        return None
    return round(-total if str(reference)[:1].upper() in ("S", "W") else total, 7)
