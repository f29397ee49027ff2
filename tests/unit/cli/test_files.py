"""Lines of `linckia du`: they fit the terminal, and no name can do anything to it."""

from __future__ import annotations

import os

from linckia.kernel.cli.files import Line, absolute, drawn, printable
from linckia.kernel.cli.terminal import size


def test_a_line_fits_the_terminal() -> None:
    line = Line("a very long name of a directory", 512, "├─ ", True)
    for width in (0, 20, 60, 200):
        assert len(drawn(line, 1024, width, False)) <= max(width, 41)
    assert (
        drawn(line, 1024, 200, False) == f"    512 B    50%  {'█' * 10}{' ' * 10}  ├─ a very long name of a directory/"
    )
    assert drawn(Line("empty", 0, "", False), 0, 80, False).startswith("      0 B     0%  ")


def test_sizes_are_in_the_unit_that_suits() -> None:
    assert [size(count) for count in (0, 1023, 1024, 1536 * 1024**2, 1024**6 * 5)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 GiB", "5120.0 PiB",
    ]  # fmt: skip


def test_names_with_control_characters_are_shown_and_not_obeyed() -> None:
    assert printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\x0a"


def test_bytes_that_are_no_text_reach_the_service() -> None:
    assert absolute("/x/" + os.fsdecode(b"\xff")) == "/x/\U0010feff"
