"""Every imported package is a declared dependency, so that a fresh installation is complete."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[3]
OURS = {"kernel", "proto", "services", "tests", "scripts"}

BROUGHT_ALONG = {"mcp-types": "mcp"}
"""Distributions that are parts of a declared one, released together with it."""


def imported(folder: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            else:
                continue
            for name in names:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and top not in OURS:
                    yield top, path


def declared(*extras: str) -> set[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    known = {**project["project"]["optional-dependencies"], **project["dependency-groups"]}
    wanted = [*project["project"]["dependencies"], *(pin for extra in extras for pin in known[extra])]
    return {canonicalize_name(re.split(r"[\[>=<;]", requirement)[0]) for requirement in wanted}


LATER = {"compression"}
"""Modules that newer Pythons have in their standard library."""

PEERS = {"sentence_transformers", "fastmcp"}
"""Programs that benchmarks and tests compare with, in environments of their own."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("proto", ()),
        ("kernel", ()),
        ("services", ("openvino", "postgres", "ray", "remote", "torch", "video")),
        ("tests", ("dev", "openvino", "postgres", "ray", "remote", "torch", "video")),
    ],
    ids=str,
)
def test_every_import_is_of_a_declared_dependency(folder: str, extras: tuple[str, ...]) -> None:
    distributions = importlib.metadata.packages_distributions()
    there = declared(*extras)
    undeclared = {
        f"{name} ({path.relative_to(REPOSITORY)})"
        for name, path in imported(folder)
        if name not in PEERS | LATER
        and not any(
            candidate in there or BROUGHT_ALONG.get(candidate) in there
            for candidate in (canonicalize_name(found) for found in distributions.get(name, [name]))
        )
    }
    assert undeclared == set()
