"""Tables: with colours and wrapping by rich on a terminal, aligned plain text elsewhere, from the same rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

Cell = str | tuple[str, str]
"""Text, or text and the style it has on a terminal."""


def text_of(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def plain(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns padded to their widest cell, two spaces apart, without trailing spaces."""
    lines = [list(headers), *([text_of(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def rich_table(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """The same for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for header in headers:
        table.add_column(header, no_wrap=header != headers[-1])
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else Text(cell[0], style=cell[1]) for cell in row))
    return table


def show(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table in the way that suits stdout."""
    if not sys.stdout.isatty():
        print(plain(headers, rows))
        return
    from rich.console import Console

    Console().print(rich_table(headers, rows))
