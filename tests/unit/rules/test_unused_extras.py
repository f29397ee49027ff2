"""Users of one machine pay nothing for servers and clusters: their libraries are not even imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = ("psycopg", "pgvector", "Stemmer", "ray", "pynvml", "cryptography")


@pytest.mark.parametrize(
    "started",
    [
        ("kernel.app", "kernel.cli.serve"),
        ("services.retrieve.main", "services.retrieve.migration"),
        ("services.embed.main", "services.rerank.main"),
    ],
    ids=lambda modules: modules[0],
)
def test_no_library_of_an_optional_part_is_imported(started: tuple[str, ...]) -> None:
    code = f"import sys, {', '.join(started)}; print(*sorted(set({MODULES}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
