"""What the guides name is there: files, folders, and the benchmarks whose figures they give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDES = [name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md") if (REPOSITORY / name).exists()]

_PATH = re.compile(r"`((?:proto|kernel|services|tests|scripts)/[A-Za-z0-9_./-]*)`")
_BENCH = re.compile(r"`scripts/bench ([a-z_]+)`")


@pytest.mark.parametrize("guide", GUIDES)
def test_every_path_that_a_guide_names_is_there(guide: str) -> None:
    text = (REPOSITORY / guide).read_text()
    missing = [path for path in _PATH.findall(text) if "NAME" not in path and not (REPOSITORY / path).exists()]
    assert not missing


@pytest.mark.parametrize("guide", GUIDES)
def test_every_benchmark_that_a_guide_names_is_there(guide: str) -> None:
    text = (REPOSITORY / guide).read_text()
    bench = REPOSITORY / "tests" / "bench"
    missing = [
        name for name in _BENCH.findall(text) if not ((bench / f"{name}.py").exists() or (bench / name).is_dir())
    ]
    assert not missing
