"""Lines are kept, also after a kill in the middle of one."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kernel.chronicle.line_file import LineFile


class Line(msgspec.Struct, frozen=True):
    number: int


def test_the_first_line_after_a_kill_is_not_lost_with_the_incomplete_one(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"number":1}\n{"num')
    lines = LineFile(path, Line, 1000)
    lines.append([Line(2)], list)
    lines.append([Line(3)], list)
    assert [each.number for each in lines.read()] == [1, 2, 3]
    assert path.read_bytes().count(b"\n") == 4
