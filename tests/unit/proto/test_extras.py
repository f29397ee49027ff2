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


def test_a_checkout_suggests_its_install_script() -> None:
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
def test_other_installations_suggest_their_installer_and_no_cuda_without_a_gpu(
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


def test_extras_have_the_names_of_the_package_metadata() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert {extras.TORCH, extras.VIDEO} <= project["project"]["optional-dependencies"].keys()
    assert project["tool"]["linckia"]["setup"]["alone"] == [models.PACKAGE]
