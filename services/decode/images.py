"""Decodes still pictures with Pillow, and the first page of PDF files with pdfium (built without JavaScript)."""

from __future__ import annotations

import contextlib
from typing import Any, BinaryIO

import pypdfium2 as pdfium  # type: ignore[import-untyped]  # it has no types
from PIL import ExifTags, Image, UnidentifiedImageError

from proto.ops.media import THUMBNAIL
from services.decode.results import MAX_PIXELS, SIDE, NotDecoded, Result, check_pixels, picture, plain

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "ICO", "AVIF", "PPM", "TGA", "JPEG2000", "PSD", "ICNS")
"""Formats that are opened: none that runs other programs (EPS), and no rare ones."""

_LEFT_OUT = frozenset({"MakerNote", "UserComment", "PrintImageMatching"})


def image(file: BinaryIO, result: Result) -> None:
    """Extract dimensions, format and EXIF, and a thumbnail of the first frame."""
    # Checked below, on the size that is decoded.
    Image.MAX_IMAGE_PIXELS = None
    try:
        opened = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        raise NotDecoded("not a picture in a known format") from None
    with opened as source:
        result.metadata.update(
            width=source.width, height=source.height, format=source.format, mode=source.mode,
            frames=getattr(source, "n_frames", 1),
        )  # fmt: skip
        try:
            result.metadata.update(exif(source))
        except Exception as error:  # noqa: BLE001  # a picture with broken EXIF is one as well
            result.problem = f"cannot read its EXIF: {str(error)[:200]}"
        # Decode no more of a JPEG than the thumbnail needs.
        source.draft("RGB", (2 * SIDE, 2 * SIDE))
        check_pixels(source.width, source.height)
        result.pictures.append(picture("thumb.jpg", THUMBNAIL, source))


def exif(source: Image.Image) -> dict[str, Any]:
    """Return EXIF data by tag name, with the location in degrees."""
    # Otherwise Pillow would decode a PNG, of perhaps 10 GB, to find EXIF after the pixels.
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
    # Metadata differs between formats, and is passed on as JSON.
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


def pdf(file: BinaryIO, result: Result) -> None:
    """Extract the number of pages, the metadata and the first page."""
    try:
        document = pdfium.PdfDocument(file, autoclose=False)
    except pdfium.PdfiumError as error:
        reason = "it is password-protected" if "assword" in str(error) else f"not a readable PDF: {error}"
        raise NotDecoded(reason) from None
    with contextlib.closing(document):
        result.metadata["pages"] = len(document)
        properties = {name: plain(value) for name, value in document.get_metadata_dict(skip_empty=True).items()}
        if properties:
            result.metadata["document"] = properties
        if not len(document):
            raise NotDecoded("it has no pages")
        page = document[0]
        width, height = page.get_size()
        result.metadata.update(page_width=round(width, 2), page_height=round(height, 2), page_unit="pt")
        if not (0 < width < 1e6 and 0 < height < 1e6):
            raise NotDecoded("its first page is empty")
        bitmap = page.render(scale=2 * SIDE / max(width, height))
        result.pictures.append(picture("thumb.jpg", THUMBNAIL, bitmap.to_pil(), page=1))
