"""The identity and access in each service's launch configuration; no process is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.configure import catalog, users
from kernel.configure.launch import LaunchConfigs, RootFolders
from proto import ops
from proto.manifest import Roots
from proto.wire.launch import LaunchConfig

BY_NAME = {entry.spec.name: entry for entry in catalog.ENTRIES}


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that root runs, on a file system that keeps owners."""
    monkeypatch.setattr(users, "obstacle", lambda: None)
    monkeypatch.setattr(users, "admit", lambda _data_dir: None)


def born(tmp_path: Path, name: str, **environment: str) -> LaunchConfig:
    roots = (tmp_path / "root",)
    for folder in (*roots, tmp_path / "data"):
        folder.mkdir(exist_ok=True)
    config = load(Flags(data_dir=str(tmp_path / "data"), roots=tuple(map(str, roots))), environment)
    return LaunchConfigs(config, BY_NAME, ops.load(), RootFolders(roots))(BY_NAME[name].spec, 1, "")


def test_the_key_of_the_language_model_is_given_to_its_service_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    monkeypatch.setenv("SSL_CERT_FILE", "/own.pem")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    settings = {"LINCKIA_SERVICES__LLM__KEY_ENV": "MY_KEY", "LINCKIA_SERVICES__FETCH__KEY_ENV": "MY_KEY"}
    told = {name: born(tmp_path, name, **settings).environment for name in BY_NAME}
    assert {name: each for name, each in told.items() if each} == {
        "llm": {"MY_KEY": "secret", "SSL_CERT_FILE": "/own.pem"},
        "fetch": {"SSL_CERT_FILE": "/own.pem"},
        "telemetry": {"SSL_CERT_FILE": "/own.pem"},
    }
    wall = born(tmp_path, "fetch").confinement
    assert wall is not None
    assert "/own.pem" in wall.read


@pytest.mark.usefixtures("as_root")
def test_under_root_only_services_that_write_to_the_roots_stay_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "enclosed", lambda _data_dir: None)
    monkeypatch.setattr(users, "unreachable", lambda _folders: None)
    walls = {name: born(tmp_path, name).confinement for name in BY_NAME}
    by_files: dict[str, set[str]] = {}
    for name, wall in walls.items():
        assert wall is not None
        by_files.setdefault(wall.files_of_others, set()).add(name)
        assert (wall.user is None) == bool(wall.write) == (wall.files_of_others == "write"), name
    writers = {name for name, entry in BY_NAME.items() if entry.manifest.roots is Roots.WRITE}
    readers = {name for name, entry in BY_NAME.items() if entry.manifest.roots is Roots.READ}
    assert by_files == {"write": writers, "read": readers, "": BY_NAME.keys() - writers - readers}


@pytest.mark.usefixtures("as_root")
def test_if_others_cannot_reach_the_installation_services_get_users_that_may_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "enclosed", lambda _data_dir: "/root can be entered by its owner only")
    wall = born(tmp_path, "echo").confinement
    assert wall is not None
    assert (wall.user is not None, wall.files_of_others) == (True, "read")


def test_an_ordinary_user_s_services_run_as_that_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for name in BY_NAME:
        wall = born(tmp_path, name).confinement
        assert wall is not None
        assert wall.user is None
