"""What `telemetry` reads of the logs: each line once, across rotations, and none from before it began."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel.control import observation
from kernel.control.observation import new_lines


def test_each_line_is_read_once_from_the_first_look_on(tmp_path: Path) -> None:
    log = tmp_path / "echo.log"
    log.write_text("old\n")
    first = new_lines(tmp_path, {})
    assert first.lines == []
    with log.open("a") as file:
        file.write("one\ntwo\nhal")
    (tmp_path / "yaml.log").write_text("begins\n")
    second = new_lines(tmp_path, first.positions)
    assert second.lines == [("echo", "one"), ("echo", "two"), ("yaml", "begins")]
    with log.open("a") as file:
        file.write("f\n")
    third = new_lines(tmp_path, second.positions)
    assert third.lines == [("echo", "half")]
    assert new_lines(tmp_path, third.positions).lines == []


def test_a_rotated_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "echo.log"
    log.write_text("a long line before the rotation\n")
    positions = new_lines(tmp_path, {}).positions
    log.write_text("new\n")
    assert new_lines(tmp_path, positions).lines == [("echo", "new")]


def test_a_flood_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "LOG_BYTES", 64)
    log = tmp_path / "echo.log"
    log.touch()
    positions = new_lines(tmp_path, {}).positions | {"echo": 0}
    seen: list[str] = []
    log.write_text("".join(f"line {number}\n" for number in range(30)) + "x" * 200 + "\n")
    for _ in range(20):
        found = new_lines(tmp_path, positions)
        positions, seen = found.positions, seen + [text for _, text in found.lines]
    assert seen[:30] == [f"line {number}" for number in range(30)]
    assert "".join(seen[30:]) == "x" * 200
