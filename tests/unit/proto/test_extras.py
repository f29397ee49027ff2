"""The command that adds an optional part fits the installation that is running."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from proto.host import extras, models

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "gpu_present", lambda: False)


def test_in_a_checkout_it_is_the_script() -> None:
    variable, script, command = shlex.split(extras.command_for(extras.TORCH))
    assert variable == "LINCKIA_EXTRA=torch"
    assert Path(script) == REPOSITORY / "scripts" / "linckia"
    assert command == "doctor"


@pytest.mark.parametrize(
    ("receipt", "torch", "video"),
    [
        (
            "uv-receipt.toml",
            "uv tool install 'linckia[torch]' --torch-backend auto",
            "uv tool install 'linckia[video]'",
        ),
        (
            "pipx_metadata.json",
            f"pipx install --force 'linckia[torch]' --pip-args='--extra-index-url {extras.CPU_INDEX}'",
            "pipx install --force 'linckia[video]'",
        ),
        (
            "pyvenv.cfg",
            f"{sys.executable} -m pip install 'linckia[torch]' --extra-index-url {extras.CPU_INDEX}",
            f"{sys.executable} -m pip install 'linckia[video]'",
        ),
    ],
)
def test_elsewhere_it_is_the_program_that_installed_it_and_without_a_gpu_no_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receipt: str, torch: str, video: str
) -> None:
    monkeypatch.setattr(extras, "checkout_script", lambda: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / receipt).touch()
    assert extras.command_for(extras.TORCH) == torch
    assert extras.command_for(extras.VIDEO) == video


def test_with_a_gpu_the_ordinary_index_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "checkout_script", lambda: None)
    monkeypatch.setattr(extras, "gpu_present", lambda: True)
    assert extras.CPU_INDEX not in extras.command_for(extras.TORCH)


def test_the_names_are_those_of_the_metadata() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert {extras.TORCH, extras.VIDEO} <= project["project"]["optional-dependencies"].keys()
    assert project["tool"]["linckia"]["setup"]["alone"] == [models.PACKAGE]
