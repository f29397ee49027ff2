"""The house stays walkable: no folder with too many files, no file too long, and the contract stays small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
FOLDERS = ("kernel", "proto", "services", "scripts", "tests")
MAX_FILES, MAX_LINES, MAX_PROTO_LINES = 25, 500, 10_000


def modules(top: str) -> Iterator[Path]:
    return (path for path in (REPOSITORY / top).rglob("*.py") if "__pycache__" not in path.parts)


@pytest.mark.parametrize("top", FOLDERS)
def test_no_folder_has_too_many_modules(top: str) -> None:
    folders = {path.parent for path in modules(top)}
    counts = {str(folder.relative_to(REPOSITORY)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: count for name, count in counts.items() if count > MAX_FILES} == {}


@pytest.mark.parametrize("top", FOLDERS)
def test_no_module_is_too_long(top: str) -> None:
    lengths = {str(path.relative_to(REPOSITORY)): path.read_text("utf-8").count("\n") for path in modules(top)}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_the_contract_stays_small() -> None:
    assert sum(path.read_text("utf-8").count("\n") for path in modules("proto")) <= MAX_PROTO_LINES
