"""Whoever uses one machine pays nothing for servers and clusters: their libraries are not even imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = ("psycopg", "pgvector", "Stemmer", "ray", "pynvml", "cryptography")


@pytest.mark.parametrize(
    "started",
    [
        ("linckia.kernel.app", "linckia.kernel.cli.serve"),
        ("linckia.services.retrieve.main", "linckia.services.retrieve.migration"),
        ("linckia.services.embed.main", "linckia.services.rerank.main"),
    ],
    ids=lambda modules: modules[0],
)
def test_no_library_of_an_optional_part_is_imported(started: tuple[str, ...]) -> None:
    code = f"import sys, {', '.join(started)}; print(*sorted(set({MODULES}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
