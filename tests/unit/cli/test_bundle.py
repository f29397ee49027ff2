"""`scripts/bundle`: what clients for MCP bundles install."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kernel import VERSION
from kernel.cli.servers.installing import bundles
from tests.system.running import REPOSITORY

VALIDATOR = "@anthropic-ai/mcpb@2.1.2"


def build(out: Path, *options: str) -> Path:
    command = [sys.executable, str(REPOSITORY / "scripts" / "bundling.py"), *options, str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=out.parent)
    return out


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = build(tmp_path / "a.mcpb"), build(tmp_path / "b.mcpb")
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < 40_000
    found = bundles.bundle_at(first)
    assert (found.manifest.version, sorted(found.names)) == (VERSION, ["LICENSE", "manifest.json", "server/launch.js"])


def test_the_official_program_accepts_it(tmp_path: Path) -> None:
    if not shutil.which("npx"):
        pytest.skip("there is no npx to start the official validator with")
    with zipfile.ZipFile(build(tmp_path / "linckia.mcpb")) as archive:
        archive.extractall(tmp_path / "out")
    command = ["npx", "-y", VALIDATOR]
    asked = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=240, check=False)
    if asked.returncode:
        pytest.skip(f"npm's registry does not give {VALIDATOR}: {asked.stderr[-300:]}")
    checked = subprocess.run(
        [*command, "validate", str(tmp_path / "out" / "manifest.json")], capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder for programs that say how they were started."""
    if not shutil.which("node"):
        pytest.skip("there is no node to start the launcher with")
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def launch(tmp_path: Path, *arguments: str, wheel: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
    options = []
    if wheel:
        (tmp_path / "linckia-1-py3-none-any.whl").write_bytes(b"")
        options = ["--wheel", str(tmp_path / "linckia-1-py3-none-any.whl")]
    with zipfile.ZipFile(build(tmp_path / "linckia.mcpb", *options)) as archive:
        archive.extractall(tmp_path / "out")
    environment = {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin"), **variables}
    node = os.path.realpath(shutil.which("node") or "")
    return subprocess.run(
        [node, str(tmp_path / "out" / "server" / "launch.js"), *arguments], env=environment, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


def program(path: Path) -> None:
    path.write_text('#!/bin/sh\nprintf "%s|" "$0" "$@" "$LINCKIA_READ_ONLY"\nexit 7\n')
    path.chmod(0o755)


def test_an_installed_linckia_is_started_with_the_folders(tmp_path: Path, programs: Path) -> None:
    program(programs / "linckia")
    program(programs / "uvx")
    done = launch(tmp_path, "/a", "/b", wheel=True, LINCKIA_READ_ONLY="true")
    assert (done.returncode, done.stdout) == (7, f"{programs}/linckia|stdio|/a|/b|true|")
    done = launch(tmp_path, "${user_config.folders}", LINCKIA_READ_ONLY="${user_config.read_only}")
    assert (done.returncode, done.stdout) == (7, f"{programs}/linckia|stdio||")


@pytest.mark.parametrize(("runner", "options"), [("uvx", "--from"), ("pipx", "run|--spec")])
def test_otherwise_the_wheel_is_started(tmp_path: Path, programs: Path, runner: str, options: str) -> None:
    program(programs / runner)
    done = launch(tmp_path, "/a", wheel=True)
    wheel = tmp_path / "out" / "server" / "linckia-1-py3-none-any.whl"
    assert done.stdout == f"{programs}/{runner}|{options}|{wheel}|linckia|stdio|/a||"


def test_what_is_missing_is_said(tmp_path: Path, programs: Path) -> None:
    done = launch(tmp_path)
    assert (done.returncode, done.stdout, "Linckia is not installed" in done.stderr) == (1, "", True)
    done = launch(tmp_path, wheel=True)
    assert (done.returncode, "neither Linckia nor uv is installed" in done.stderr) == (1, True)


def test_the_description_is_the_one_of_the_registry(tmp_path: Path) -> None:
    with zipfile.ZipFile(build(tmp_path / "linckia.mcpb")) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["description"] == json.loads((REPOSITORY / "server.json").read_text())["description"]
