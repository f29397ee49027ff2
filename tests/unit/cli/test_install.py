"""The set-up script: when an installation counts as complete, which parts it repairs, and which torch it requests."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts import install


def package(site: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """An installed package as pip leaves it."""
    metadata = site / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("")
    (metadata / "INSTALLER").write_text("pip\n")
    record = ""
    for path, text in files.items():
        (site / path).parent.mkdir(exist_ok=True)
        (site / path).write_text(text)
        record += f"{path},sha256=x,{len(text)}\n"
    (metadata / "RECORD").write_text(record + f"{name}/__pycache__/x.cpython-311.pyc,,\n{metadata.name}/RECORD,,\n")
    return metadata


def test_a_whole_package_is_left_alone(tmp_path: Path) -> None:
    metadata = package(tmp_path, "whole", "1.0", {"whole/__init__.py": "x = 1\n"})
    install.forget_torn_packages(tmp_path)
    assert metadata.exists()


@pytest.mark.parametrize("harm", ["missing", "short", "no record"])
def test_a_package_in_pieces_is_installed_again(tmp_path: Path, harm: str) -> None:
    metadata = package(tmp_path, "torn", "1.0", {"torn/__init__.py": "x = 1\n"})
    if harm == "missing":
        (tmp_path / "torn/__init__.py").unlink()
    elif harm == "short":
        (tmp_path / "torn/__init__.py").write_text("x")
    else:
        (metadata / "RECORD").unlink()
    install.forget_torn_packages(tmp_path)
    assert not install.is_there("torn==1.0", install.installed(tmp_path))


@pytest.mark.parametrize(
    ("requirement", "there"),
    [("torch==2.13.0", True), ("torch==2.13.1", False), ("my-pack.age==1.0", True), ("absent==1.0", False)],
)
def test_an_exact_version_matches_with_any_local_label(tmp_path: Path, requirement: str, there: bool) -> None:
    package(tmp_path, "torch", "2.13.0+cpu", {})
    package(tmp_path, "my_pack.age", "1.0", {})
    assert install.is_there(requirement, install.installed(tmp_path)) is there


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
    monkeypatch.setattr(install, "pip", lambda *arguments, timeout_s=None: answer)
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
    versions = install.pins()
    parts = install.requirements(project, list(install.known_extras(project)))
    for requirement in (each for needed in parts.values() for each in needed):
        wanted = Requirement(requirement)
        assert "==" not in str(wanted.specifier), requirement
        assert wanted.specifier, requirement
        tested = install.exact(requirement, versions, (3, 11))
        assert tested is not None
        assert wanted.specifier.contains(install.pinned(tested)[1], prereleases=True), requirement


def test_requirements_of_older_pythons_are_left_out_on_newer_ones() -> None:
    backport, versions = 'backports.zstd>=1.8.0,<2; python_version < "3.14"', {"backports-zstd": "1.8.0"}
    assert install.exact(backport, versions, (3, 13)) == "backports.zstd==1.8.0"
    assert install.exact(backport, versions, (3, 14)) is None
    with pytest.raises(install.SetupFailed, match="has no version of other"):
        install.exact("other>=1", versions, (3, 14))


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


def test_torch_comes_with_a_first_set_up_on_a_gpu_or_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "VENV", tmp_path)
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


def test_openvino_comes_with_a_first_set_up_on_a_processor_with_amx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "VENV", tmp_path)
    monkeypatch.setenv("LINCKIA_TORCH", "none")
    monkeypatch.setattr(install, "has_amx", lambda: True)
    assert install.wanted_extras("dev") == ["dev", "openvino"]
    install.stamp_path().touch()
    assert install.wanted_extras("dev") == ["dev"]


def test_installed_extras_stay_and_a_gpu_added_later_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "VENV", tmp_path)
    monkeypatch.delenv("LINCKIA_TORCH", raising=False)
    monkeypatch.setattr(install, "nvidia_gpu", lambda: True)
    install.stamp_path().touch()
    assert install.wanted_extras("") == []
    install.stamp_path("video").touch()
    assert install.wanted_extras("dev") == ["dev", "video"]


def test_a_pin_with_extras_applies_to_the_package() -> None:
    assert install.pinned("PyJWT[crypto]==2.15.1") == ("pyjwt", "2.15.1")
    assert install.is_there("PyJWT[crypto]==2.15.1", {"pyjwt": "2.15.1"})
