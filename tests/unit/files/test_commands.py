"""Lines of `linckia du`: they fit the terminal, and no name can do anything to it."""

from __future__ import annotations

import os

from proto.control.terminal import size
from services.files.commands import Line, absolute, drawn


def text_of(line: Line, whole: int, width: int) -> str:
    return "".join(cell if isinstance(cell, str) else cell[0] for cell in drawn(line, whole, width))


def test_a_line_fits_the_terminal() -> None:
    line = Line("a very long name of a directory", 512, "├─ ", True)
    for width in (0, 20, 60, 200):
        assert len(text_of(line, 1024, width)) <= max(width, 41)
    assert text_of(line, 1024, 200) == f"    512 B    50%  {'█' * 10}{' ' * 10}  ├─ a very long name of a directory/"
    assert text_of(Line("empty", 0, "", False), 0, 80).startswith("      0 B     0%  ")


def test_sizes_are_in_the_unit_that_suits() -> None:
    assert [size(count) for count in (0, 1023, 1024, 1536 * 1024**2, 1024**6 * 5)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 GiB", "5120.0 PiB",
    ]  # fmt: skip


def test_names_with_control_characters_are_shown_and_not_obeyed() -> None:
    assert text_of(Line("a\x1b[2Jb\n", 1, "", False), 1, 200).endswith(r"  a\x1b[2Jb\n")


def test_names_that_are_not_utf_8_reach_the_service() -> None:
    assert absolute("/x/" + os.fsdecode(b"\xff")) == "/x/\U0010feff"
