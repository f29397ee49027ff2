"""Treemaps: a directory's content as rectangles proportional to size, with directories nested.

The layout is the squarified treemap (Bruls, Huizing, van Wijk 2000), which keeps rectangles close to squares. Areas are
exact; entries that would be thinner than a pixel share a rectangle with their neighbours.
"""

from __future__ import annotations

import colorsys
import hashlib
import io
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

HEADER = 16
"""Height of a directory's title line, in pixels."""

SMALLEST = 3.0
"""Minimum width and height of a box, in pixels."""

_FONT = 11


class Item(NamedTuple):
    """Something drawn as a rectangle."""

    name: str
    size: int
    is_folder: bool
    extension: str
    id: int


class Box(NamedTuple):
    """A rectangle of the map, in pixels; levels start at 0."""

    item: Item
    x: float
    y: float
    width: float
    height: float
    level: int
    open: bool
    """True if its content is drawn too."""


def draw(top: Item, children: Callable[[int], Sequence[Item]], width: int, height: int, depth: int) -> list[Box]:
    """Return all boxes, each before those inside it.

    Args:
        children: returns the entries of a directory, given its id, largest first.
        depth: number of levels below the top.
    """
    boxes: list[Box] = []
    _fill(boxes, top, children, (0.0, 0.0, float(width), float(height)), 0, depth)
    return boxes


def _fill(
    boxes: list[Box], item: Item, children: Callable[[int], Sequence[Item]], area: tuple[float, ...], level: int,
    depth: int,
) -> None:  # fmt: skip
    x, y, width, height = area
    opens = item.is_folder and level < depth and width > 4 * SMALLEST and height > HEADER + 4 * SMALLEST
    inside = [each for each in children(item.id) if each.size > 0] if opens else []
    boxes.append(Box(item, x, y, width, height, level, bool(inside)))
    if not inside:
        return
    room = (x + 1, y + HEADER, width - 2, height - HEADER - 1)
    for each, (x1, y1, width1, height1) in zip(inside, squarified([each.size for each in inside], *room), strict=False):
        if width1 >= SMALLEST and height1 >= SMALLEST:
            _fill(boxes, each, children, (x1, y1, width1, height1), level + 1, depth)


def squarified(
    sizes: Sequence[int], x: float, y: float, width: float, height: float
) -> list[tuple[float, float, float, float]]:
    """Return a rectangle (x, y, width, height) for each size, largest first; together they fill the area."""
    total = sum(sizes)
    if not total or width <= 0 or height <= 0:
        return []
    scale = width * height / total
    boxes: list[tuple[float, float, float, float]] = []
    at = 0
    while at < len(sizes):
        side = min(width, height)
        if side <= 0:
            break
        row, area = [sizes[at] * scale], sizes[at] * scale
        at += 1
        while at < len(sizes):
            more = sizes[at] * scale
            if _worst(row[0], more, area + more, side) > _worst(row[0], row[-1], area, side):
                break
            row.append(more)
            area += more
            at += 1
        thick = area / side
        along = 0.0
        for each in row:
            long = each / thick if thick else 0.0
            boxes.append((x, y + along, thick, long) if width >= height else (x + along, y, long, thick))
            along += long
        if width >= height:
            x, width = x + thick, width - thick
        else:
            y, height = y + thick, height - thick
    return boxes


def _worst(largest: float, smallest: float, area: float, side: float) -> float:
    """Return the greatest aspect ratio in a row of rectangles."""
    if not smallest:
        return float("inf")
    return max(side * side * largest / (area * area), area * area / (side * side * smallest))


def colour(box: Box) -> tuple[int, int, int]:
    """Choose a colour: greyish by level for directories, by extension for files."""
    if box.item.is_folder:
        light = max(0.55, 0.93 - 0.06 * box.level)
        red, green, blue = colorsys.hls_to_rgb(0.6, light, 0.2)
    else:
        hue = hashlib.blake2b(box.item.extension.encode(), digest_size=2).digest()
        red, green, blue = colorsys.hls_to_rgb(int.from_bytes(hue, "big") / 65536, 0.66, 0.55)
    return round(red * 255), round(green * 255), round(blue * 255)


def label(item: Item) -> str:
    """Return name and size."""
    return f"{item.name}  {readable(item.size)}"


def readable(size: int) -> str:
    """Format a size in the largest suitable unit, like `du -h`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def svg(boxes: Sequence[Box], width: int, height: int) -> str:
    """Draw as SVG; each rectangle's title is its name and size."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' font-family="sans-serif" font-size="{_FONT}">'
    ]
    for box in boxes:
        title = _plain(label(box.item))
        parts.append(
            f'<g><title>{title}</title><rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}"'
            f' height="{box.height:.1f}" fill="#{bytes(colour(box)).hex()}" stroke="#555" stroke-width="0.5"/>'
        )
        if text := _fitting(label(box.item), box):
            parts.append(f'<text x="{box.x + 3:.1f}" y="{box.y + 12:.1f}">{_plain(text)}</text>')
        parts.append("</g>")
    parts.append("</svg>")
    return "".join(parts)


def _plain(text: str) -> str:
    # XML does not allow control characters, which file names may contain.
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text))


def _fitting(text: str, box: Box) -> str:
    room = int((box.width - 6) / (_FONT * 0.58))
    if box.height < _FONT + 4 or room < 3:
        return ""
    return text if len(text) <= room else text[: room - 1] + "…"


def png(boxes: Sequence[Box], width: int, height: int) -> bytes:
    """Draw as PNG."""
    image = Image.new("RGB", (width, height), "white")
    canvas = ImageDraw.Draw(image)
    font = ImageFont.load_default(_FONT)
    for box in boxes:
        corners = (box.x, box.y, max(box.x, box.x + box.width - 1), max(box.y, box.y + box.height - 1))
        canvas.rectangle(corners, fill=colour(box), outline=(90, 90, 90))
        if text := _fitting(label(box.item), box):
            canvas.text((box.x + 3, box.y + 2), text, fill=(0, 0, 0), font=font)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
