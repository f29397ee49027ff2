"""Commands that write copies of protected data refuse places that clients could read."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel.cli.__main__ import main
from kernel.cli.settings import loading
from kernel.cli.settings.layers import Flags
from tests.unit.backup import writing

WRITERS = {
    "backup to a folder": ("backup", "{to}"),
    "backup to a file": ("backup", "{to}.tar"),
    "export": ("export", "{to}"),
    "restored data": ("restore", "{backup}", "--data", "{to}"),
    "token of a project": ("install-client", "claude-code", "--project", "--http", "--yes"),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory whose settings serve the folder `root`, in which the command is called."""
    for name in ("root", "data", "home"):
        (tmp_path / name).mkdir()
    writing.make(tmp_path / "data")
    (tmp_path / "data" / "linckia.toml").write_text(f"roots = ['{tmp_path / 'root'}']\n")
    (tmp_path / "linked").symlink_to("root")
    writing.backup(tmp_path / "data", tmp_path / "backup")
    monkeypatch.setenv("LINCKIA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "root")
    return tmp_path


@pytest.mark.parametrize("to", ["root/copy", "root/a/b/copy", "linked/copy", "root"])
@pytest.mark.parametrize("words", WRITERS.values(), ids=WRITERS)
def test_no_copy_is_written_below_a_root(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], to: str
) -> None:
    given = [word.format(to=place / to, backup=place / "backup") for word in words]
    if given[-1].endswith("root.tar"):
        pytest.skip("it is beside the root")
    assert main(given) == 2
    assert f"is below the root {place / 'root'}, where clients could read" in capsys.readouterr().err
    assert list((place / "root").iterdir()) == []


@pytest.mark.parametrize("words", [WRITERS["backup to a folder"], WRITERS["restored data"]], ids=["backup", "restore"])
def test_a_folder_that_is_denied_may_be_below_a_root(place: Path, words: tuple[str, ...]) -> None:
    with (place / "data" / "linckia.toml").open("a") as settings:
        settings.write(f"deny = ['{place / 'root' / 'private'}']\n")
    given = [word.format(to=place / "root" / "private" / "copy", backup=place / "backup") for word in words]
    assert main(given) == 0


def test_another_data_directory_is_not_written_below_the_roots_of_the_usual_one(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "other").mkdir()
    assert main(["backup", str(place / "root" / "copy"), "--data", str(place / "other")]) == 2
    assert "is below the root" in capsys.readouterr().err


def test_an_export_is_for_its_owner_only(place: Path) -> None:
    # There is no kernel, so it stays unfinished.
    assert main(["export", str(place / "out")]) != 0
    assert (place / "out.partial").stat().st_mode & 0o077 == 0


def test_a_data_directory_that_was_moved_aside_stays_out_of_reach(place: Path) -> None:
    assert main(["restore", str(place / "backup"), "--replace"]) == 0
    (aside,) = place.glob("data.replaced-*")
    found = loading.load(Flags(data_dir=str(place / "data"), roots=(str(place),)), {})
    assert str(aside) in found.denied
