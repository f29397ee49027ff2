"""Manifests say all that the kernel must know of services, so that it names none but the front."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.cli.care import data_format
from kernel.configure import manifests
from kernel.configure.manifests import PackagedManifest
from proto.manifest import Keep
from proto.wire.front import SERVICE as FRONT

REPOSITORY = Path(__file__).resolve().parents[3]

WORDS = {"memory"}
"""Names of services that are words of the operating system's too: a cause of death, and a controller of cgroups."""

SYSTEM = manifests.built_in()
FILES = sorted((REPOSITORY / "services").glob("*/manifest.py"))
NAMES = {each.manifest.name for each in SYSTEM}


def test_every_folder_with_a_manifest_is_served_in_a_fixed_order() -> None:
    folders = {file.parent.name for file in (REPOSITORY / "services").glob("*/manifest.py")}
    assert {each.package.rpartition(".")[2] for each in SYSTEM} == folders
    assert folders == {file.parent.name for file in (REPOSITORY / "services").glob("*/main.py")} - {"runtime"}
    order = [each.manifest.order for each in SYSTEM]
    assert order == sorted(set(order)), "each has a number of its own"
    assert SYSTEM[0].manifest.name == FRONT


@pytest.mark.parametrize("found", SYSTEM, ids=lambda found: str(found.manifest.name))
def test_paths_and_modules_named_in_manifests_exist(found: PackagedManifest) -> None:
    manifest = found.manifest
    named = [manifest.module, *manifest.ops_modules, *(manifest.torch.preload if manifest.torch else ())]
    for module in found.modules(named):
        path = REPOSITORY.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), module
    assert {manifest.models_of, *manifest.told_settings.values()} - {""} <= NAMES


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.parent.name))
def test_a_manifest_imports_nothing_but_proto_and_the_standard_library(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert name.startswith("proto") or name.partition(".")[0] in sys.stdlib_module_names, name


def literals(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_kernel_names_no_service_but_the_front() -> None:
    kernel = REPOSITORY / "kernel"
    files = [file for file in kernel.rglob("*.py") if not file.is_relative_to(kernel / "cli")]
    assert len(files) > 20
    others = NAMES - {FRONT} - WORDS
    said = {(str(file.relative_to(REPOSITORY)), each) for file in files for each in literals(file) if each in others}
    assert said == set()


def test_the_data_format_is_the_sum_of_all_schemas() -> None:
    stated = [store.schema for each in SYSTEM for store in each.manifest.stores]
    assert data_format.FORMAT == sum(stated) >= 32, "a version only ever rises"


@pytest.mark.parametrize(
    ("path", "keep"),
    [
        ("services/memory/memory.db", Keep.SOURCE),
        ("services/memory/memory.db-wal", Keep.SOURCE),
        ("services/documents/index.db", Keep.DERIVED),
        ("services/retrieve/own.mine.db", Keep.SOURCE),
        ("services/retrieve/documents.db", Keep.DERIVED),
        ("services/embed-2/onnx/model", Keep.DERIVED),
        ("services/embedder/data.db", None),
        ("services/graph", Keep.DERIVED),
        ("services/files/trash/1/file", Keep.ITEMS),
        ("services/memory/memory.db.damaged-1", Keep.PASSING),
        ("services/fetch/part", Keep.PASSING),
        ("services/echo/forgotten", None),
        ("token", Keep.SOURCE),
    ],
)
def test_each_file_has_the_right_role_in_a_backup(path: str, keep: Keep | None) -> None:
    assert data_format.program().stores.keep_of(path) is keep
