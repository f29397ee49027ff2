"""Access that is proposed for an observed server, and access that never is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernel.cli.servers.learned import Attempt, Needs, needs_of, problem


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for folder in ("work/project/sub", ".cache/tool/deep", ".ssh", ".config/google-chrome", "data/services"):
        (tmp_path / "home" / folder).mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    return tmp_path / "home"


def needs(home: Path, *attempts: tuple[str, str], **table: Any) -> Needs:
    tried = [
        Attempt(kind, str(home / path) if kind in ("read", "write", "folder") else path) for kind, path in attempts
    ]
    return needs_of(tried, {"command": "x", **table}, home=home, closed=[str(home / "data")])


@pytest.mark.parametrize(
    ("kind", "path", "root"),
    [
        # An application's own folder, as a whole: files are moved between its parts.
        ("write", ".cache/tool/deep/file", ".cache/tool"),
        ("folder", ".cache/other", ".cache/other"),
        ("folder", ".tool", ".tool"),
        ("write", ".local/share/tool/db", ".local/share/tool"),
        ("write", "work/project/file", "work/project"),
        ("folder", "work/project/new", "work/project"),
        ("folder", "Pictures", "Pictures"),
        ("write", "../outside/file", "../outside"),
    ],
)
def test_the_folder_of_written_files_is_proposed(home: Path, kind: str, path: str, root: str) -> None:
    real = (home / path).resolve()
    found = needs(home, (kind, str(real)))
    wanted = str((home / root).resolve())
    assert (found.roots, found.by_hand) == ([wanted], {})
    assert found.new == ([] if Path(wanted).is_dir() else [wanted])


def test_a_folder_that_the_settings_name_is_proposed_as_a_whole(home: Path) -> None:
    project = str(home / "work/project")
    attempts = ("write", "work/project/sub/file"), ("folder", "work/project/sub/new")
    assert needs(home, *attempts).roots == [f"{project}/sub"]
    assert needs(home, *attempts, args=["--allow", project]).roots == [project]
    assert needs(home, *attempts, args=[f"--allow={project}"]).roots == [project]
    assert needs(home, *attempts, cwd=project).roots == [project]
    # It may be that its tools write there.
    assert needs(home, args=[project]).named == [project]
    assert needs(home, args=[project], roots=[str(home / "work")]).named == []
    assert needs(home, *attempts, args=[project]).named == []
    # These do not justify proposing more than a part.
    assert needs(home, *attempts, args=["/"], cwd=str(home)).roots == [f"{project}/sub"]


def test_only_the_outermost_folders_that_are_no_roots_yet_are_proposed(home: Path) -> None:
    tried = ("write", "work/project/a"), ("write", "work/project/sub/b"), ("write", "../outside/c")
    outside = str(home.parent / "outside")
    attempts = [(kind, str((home / path).resolve())) for kind, path in tried]
    assert needs(home, *attempts).roots == [str(home / "work/project"), outside]
    assert needs(home, *attempts, roots=[str(home / "work")]).roots == [outside]


@pytest.mark.parametrize(
    ("kind", "path", "why"),
    [
        ("write", "file", "other things"),
        ("write", ".ssh/authorized_keys", "keys, passwords"),
        ("folder", ".aws", "keys, passwords"),
        ("folder", ".gnupg/new", "keys, passwords"),
        ("write", ".config/google-chrome/Default", "browser's profile"),
        ("write", ".mozilla/firefox/x", "browser's profile"),
        ("write", ".bashrc", "run or read their configuration"),
        ("write", ".config/systemd/user/x.service", "run or read their configuration"),
        ("write", ".claude.json", "run or read their configuration"),
        ("write", ".local/bin/git", "run or read their configuration"),
        ("write", "data/linckia.toml", "Linckia's own"),
        ("write", "data/services/x", "Linckia's own"),
        ("folder", "", "home directory"),
        ("write", "/new", "it is everything"),
        ("write", "/etc/new", "the system"),
        ("write", "/usr/lib/new", "the system"),
        ("write", "/var/tmp/new", "all programs"),
    ],
)
def test_sensitive_folders_are_never_proposed(home: Path, kind: str, path: str, why: str) -> None:
    found = needs(home, (kind, path))
    assert (found.roots, found.new) == ([], [])
    assert why in " ".join(found.by_hand.values())


def test_folders_above_sensitive_ones_are_never_proposed_either(home: Path) -> None:
    for folder in (home, home.parent, home / ".config", home / ".local", home / ".local/share", Path("/")):
        assert problem(str(folder), home=home, closed=[])
    assert not problem(str(home / "work"), home=home, closed=[])
    assert problem(str(home / "work"), home=home, closed=[str(home / "work" / "project" / "linckia")])


def test_keys_that_are_read_and_connections_are_reported(home: Path) -> None:
    found = needs(
        home,
        ("read", ".ssh/id_ed25519"),
        ("read", "work/project/a"),
        ("connect", "192.0.2.1:443"),
        ("listen", "[::]:0"),
    )
    assert found == Needs(
        roots=[],
        new=[],
        named=[],
        by_hand={},
        secrets=[str(home / ".ssh")],
        connections=["192.0.2.1:443", "[::]:0 (listens)"],
    )
