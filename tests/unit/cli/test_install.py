"""The set-up script: which parts and which torch it asks for, and what it does after a run that was killed."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import install


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments of these tests are not that of this checkout."""
    monkeypatch.setattr(install, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(install, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(install, "UNFINISHED", tmp_path / ".venv-unfinished")
    (tmp_path / ".venv").mkdir()


@pytest.mark.slow
def test_an_environment_is_made_anew_after_a_run_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    left = install.VENV / "left"
    left.touch()
    monkeypatch.setattr(install, "usable", lambda: True)
    install.make_venv()
    assert left.exists()
    install.UNFINISHED.write_text("video,dev")
    install.make_venv()
    assert not left.exists()
    assert install.PYTHON.exists()
    monkeypatch.setattr(install, "has_amx", lambda: False)
    monkeypatch.setenv("LINCKIA_TORCH", "none")
    assert install.wanted_extras("postgres") == ["postgres", "video", "dev"]


@pytest.mark.parametrize(
    ("version", "is_there"), [("2.13.0", True), ("2.13.0+cpu", True), ("2.13.01", False), ("2.12.0", False)]
)
def test_the_tested_torch_is_there_whatever_its_local_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_there: bool
) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("torch==2.13.0\n")
    monkeypatch.setattr(install, "CONSTRAINTS", constraints)
    (tmp_path / f"torch-{version}.dist-info").mkdir()
    given: list[tuple[str, ...]] = []
    torch: list[str] = []
    monkeypatch.setattr(install, "pip_install", lambda *arguments: given.append(arguments))
    monkeypatch.setattr(install, "install_torch", torch.append)
    install.install({"": ["a>=1"], "torch": ["torch>=2.13.0,<3"]}, ["b==1"], tmp_path)
    assert torch == ([] if is_there else ["torch==2.13.0"])
    assert given[1:] == [("--constraint", str(constraints), "a>=1", "torch>=2.13.0,<3"), ("--no-deps", "b==1")]


def test_torch_may_be_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("cpu", "cuda"):
        monkeypatch.setenv("LINCKIA_TORCH", kind)
        assert install.torch_kind()[0] == kind
    monkeypatch.setenv("LINCKIA_TORCH", "rocm")
    with pytest.raises(install.SetupFailed, match="cpu, cuda or none"):
        install.torch_kind()


@pytest.mark.parametrize(
    ("version", "needs", "cpu"),
    [
        ("2.13.0+cpu", ["filelock"], True),
        ("2.13.0", ["filelock", "nvidia-cudnn-cu13==9; platform_system == 'Linux'"], False),
        ("2.13.0", ["filelock", "triton==3; platform_system == 'Linux'"], False),
        ("2.13.0", ["filelock", "nvidia-x; extra == 'cuda'"], True),
    ],
)
def test_a_build_with_cuda_is_recognized_by_its_requirements(
    monkeypatch: pytest.MonkeyPatch, version: str, needs: list[str], cpu: bool
) -> None:
    report = json.dumps({"install": [{"metadata": {"version": version, "requires_dist": needs}}]})
    answer = subprocess.CompletedProcess([], 0, stdout=report, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: answer)
    assert install.resolves_to_cpu("torch==2.13.0") is cpu


def test_the_cpu_build_is_looked_for_where_pip_would_bring_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(install, "torch_kind", lambda: ("cpu", "no GPU"))
    monkeypatch.setattr(install, "resolves_to_cpu", lambda requirement, *options, timeout_s=None: bool(options))
    monkeypatch.setattr(install, "pip_install", lambda *arguments: asked.extend(arguments))
    install.install_torch("torch==2.13.0")
    assert asked[-1] == "torch==2.13.0+cpu"
    assert install.TORCH_CPU_INDEX in asked


def test_without_a_gpu_cuda_is_never_installed_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(install, "torch_kind", lambda: ("cpu", "no GPU"))
    monkeypatch.setattr(
        install, "resolves_to_cpu", lambda requirement, *options, timeout_s=None: None if options else False
    )
    monkeypatch.setattr(install, "pip_install", lambda *arguments: asked.extend(arguments))
    with pytest.raises(install.SetupFailed, match="LINCKIA_TORCH=cuda to install that build"):
        install.install_torch("torch==2.13.0")
    assert asked == []
    monkeypatch.setattr(install, "torch_kind", lambda: ("cuda", "LINCKIA_TORCH=cuda"))
    install.install_torch("torch==2.13.0")
    assert asked[-1] == "torch==2.13.0"


def test_the_metadata_has_ranges_that_the_tested_versions_satisfy() -> None:
    project = tomllib.loads((install.ROOT / "pyproject.toml").read_text())
    lines = install.CONSTRAINTS.read_text().splitlines()
    pins = (line.split("==") for line in lines if not line.startswith("#"))
    versions = {canonicalize_name(name): version for name, version in pins}
    parts = install.requirements(project, list(install.known_extras(project)))
    for requirement in (each for needed in parts.values() for each in needed):
        wanted = Requirement(requirement)
        assert "==" not in str(wanted.specifier), requirement
        assert wanted.specifier, requirement
        assert wanted.specifier.contains(versions[canonicalize_name(wanted.name)], prereleases=True), requirement


def test_an_extra_may_consist_of_others_and_an_unknown_one_is_refused() -> None:
    settings = {
        "project": {
            "dependencies": ["a>=1"],
            "optional-dependencies": {"one": ["b>=1"], "two": ["c>=1"], "all": ["linckia[one,two]"]},
        },
        "dependency-groups": {"dev": ["d>=1"]},
    }
    assert install.requirements(settings, ["all"]) == {"": ["a>=1"], "all": [], "one": ["b>=1"], "two": ["c>=1"]}
    assert install.requirements(settings, ["dev"]) == {"": ["a>=1"], "dev": ["d>=1"]}
    with pytest.raises(install.SetupFailed, match="unknown extra 'three'"):
        install.requirements(settings, ["three"])


def test_torch_comes_with_a_first_set_up_on_a_gpu_or_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LINCKIA_TORCH", raising=False)
    monkeypatch.setattr(install, "nvidia_gpu", lambda: True)
    monkeypatch.setattr(install, "has_amx", lambda: False)
    assert install.wanted_extras("") == ["torch"]
    monkeypatch.setenv("LINCKIA_TORCH", "none")
    assert install.wanted_extras("video, dev") == ["video", "dev"]
    monkeypatch.setattr(install, "nvidia_gpu", lambda: False)
    monkeypatch.delenv("LINCKIA_TORCH")
    assert install.wanted_extras("") == []
    monkeypatch.setenv("LINCKIA_TORCH", "cpu")
    assert install.wanted_extras("dev") == ["dev", "torch"]


def test_openvino_comes_with_a_first_set_up_on_a_processor_with_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINCKIA_TORCH", "none")
    monkeypatch.setattr(install, "has_amx", lambda: True)
    assert install.wanted_extras("dev") == ["dev", "openvino"]
    install.stamp_path().touch()
    assert install.wanted_extras("dev") == ["dev"]


def test_installed_extras_stay_and_a_gpu_added_later_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LINCKIA_TORCH", raising=False)
    monkeypatch.setattr(install, "nvidia_gpu", lambda: True)
    install.stamp_path().touch()
    assert install.wanted_extras("") == []
    install.stamp_path("video").touch()
    assert install.wanted_extras("dev") == ["dev", "video"]
