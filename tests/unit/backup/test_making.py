"""A target's snapshots count only when they are whole, and stay whole regardless of the next backup."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import msgspec
import pytest

from kernel.cli.care import data_format
from kernel.configure.config import Config
from kernel.control.schedule import Schedule
from proto import backup as outcomes
from proto.backup import BackupFailed, File, Manifest
from proto.control.address import hold
from proto.host import durable
from proto.manifest import Keep
from services.backup import packing, target
from services.backup.target import Folder, listed
from tests.unit.backup import writing
from tests.unit.backup.writing import PROGRAM, TRASH, backup, restore


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    writing.make(data)
    with writing.writing(data) as writer:
        writer.begin(30)
        writer.wait()
    (data / TRASH / "1" / "link").symlink_to("file")
    (data / "services/echo").mkdir()
    (data / "services/echo/forgotten").write_bytes(os.urandom(300_000))
    return data


def content(folder: Path) -> dict[str, bytes | str | None]:
    """Every path with its content, its link's target, or nothing for a folder."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if PROGRAM.stores.keep_of(name) not in (Keep.DERIVED, Keep.PASSING) and not name.endswith(("-wal", "-shm")):
            is_file = path.is_file() and not path.is_symlink()
            found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if is_file else None
    return found


@pytest.mark.parametrize("name", ["folder", "one.tar"])
def test_a_backup_is_restored_completely(data: Path, tmp_path: Path, name: str) -> None:
    made = backup(data, tmp_path / name)
    restore(tmp_path / name, tmp_path / "again")
    assert writing.counts(tmp_path / "again") == [30] * 4
    assert set(content(tmp_path / "again")) == set(content(data))
    assert made.stores == 3
    assert not made.problems
    for each in ("token", "services/echo/forgotten", f"{TRASH}/1/link"):
        assert content(tmp_path / "again")[each] == content(data)[each]
    assert (tmp_path / "again" / "token").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "again" / "logs").exists()


def test_a_second_backup_adds_only_what_is_new(data: Path, tmp_path: Path) -> None:
    first = backup(data, tmp_path / "to")
    (data / "services/echo/new").write_bytes(os.urandom(5000))
    second = backup(data, tmp_path / "to")
    assert first.new > 1_000_000
    assert 5000 < second.new < 30_000, "the file, and the manifest"


def test_a_backup_that_ends_at_any_write_leaves_the_earlier_ones(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "to"
    first = backup(data, to)
    (data / "services/echo/forgotten").write_bytes(os.urandom(900_000))
    before = content(to)
    really, writes, full_at = durable.replace_file, 0, 0

    def replace(path: Path, block: bytes, *, sync: bool = True) -> None:
        nonlocal writes
        writes += 1
        if writes == full_at:
            path.with_name(f"{path.name}.new").write_bytes(block[: len(block) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        really(path, block, sync=sync)

    monkeypatch.setattr(target, "replace_file", replace)
    second = None
    while second is None:
        writes, full_at = 0, full_at + 1
        try:
            second = backup(data, to, keep=5)
            break
        except BackupFailed as error:
            said = str(error)
        assert "no space left" in said
        now = content(to)
        assert {name: now[name] for name in before} == before
        assert [each.id for each in manifests(to)] == [first.snapshot]
        noted = outcomes.known(data)[str(to)]
        assert (noted.snapshot, noted.succeeded) == (first.snapshot, first.at)
        assert "no space left" in noted.error
    assert full_at > 4
    assert [each.id for each in manifests(to)] == [first.snapshot, second.snapshot]
    assert not list(to.rglob("*.new")), "the remains of an interrupted backup are removed"
    assert outcomes.known(data)[str(to)].error == ""
    for each in (first, second):
        restore(to, tmp_path / each.snapshot, at=each.snapshot)


def manifests(to: Path) -> list[Manifest]:
    with Folder(to) as folder:
        found = list(listed(folder))
    assert all(isinstance(each, Manifest) for each in found)
    return [each for each in found if isinstance(each, Manifest)]


def test_old_snapshots_go_and_the_others_stay_whole(data: Path, tmp_path: Path) -> None:
    to, forgotten = tmp_path / "to", data / "services/echo/forgotten"
    versions: dict[str, bytes] = {}
    for _ in range(4):
        forgotten.write_bytes(os.urandom(300_000))
        versions[backup(data, to, keep=2).snapshot] = forgotten.read_bytes()
    kept = [each.id for each in manifests(to)]
    assert kept == list(versions)[-2:]
    for name in kept:
        restore(to, tmp_path / name, at=name)
        assert (tmp_path / name / "services/echo/forgotten").read_bytes() == versions[name]
    needed = {chunk for each in manifests(to) for file in each.files for chunk in file.chunks}
    assert {path.name for path in (to / "chunks").glob("*/*")} == needed


def test_nothing_is_removed_beside_a_snapshot_that_cannot_be_read(data: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    first = backup(data, to)
    file = to / "snapshots" / f"{first.snapshot}{target.ENDING}"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    chunks = set((to / "chunks").glob("*/*"))
    (data / "services/echo/forgotten").unlink()
    second = backup(data, to, keep=1)
    assert "is damaged" in second.problems[0]
    assert chunks <= set((to / "chunks").glob("*/*"))


def test_the_last_snapshot_of_what_was_whole_stays(data: Path, tmp_path: Path) -> None:
    whole = backup(data, tmp_path / "to", keep=1)
    (data / "services/transcripts/transcripts.db").write_bytes(b"damaged" * 1000)
    (data / "services/transcripts/transcripts.db-wal").unlink(missing_ok=True)
    assert backup(data, tmp_path / "to", keep=1).problems
    newest = backup(data, tmp_path / "to", keep=1)
    assert [each.id for each in manifests(tmp_path / "to")] == [whole.snapshot, newest.snapshot]


def test_a_damaged_chunk_is_refused_by_a_restore_and_made_good_by_the_next_backup(data: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    first = backup(data, to)
    chunk = next(iter(manifests(to)[0].files[-1].chunks))
    path = to / "chunks" / chunk[:2] / chunk
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(BackupFailed, match=f"the chunk {chunk} is damaged"):
        restore(to, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    assert not list(tmp_path.glob(".again*"))
    backup(data, to)
    restore(to, tmp_path / "again", at=first.snapshot)


def test_existing_data_is_replaced_only_on_request_and_never_under_a_kernel(data: Path, tmp_path: Path) -> None:
    to, there = tmp_path / "to", tmp_path / "there"
    backup(data, to)
    there.mkdir()
    (there / "mine").write_text("kept")
    with pytest.raises(BackupFailed, match=r"is not empty; choose another one with --data, or .* --replace"):
        restore(to, there)
    with hold(there), pytest.raises(BackupFailed, match="held by another kernel"):
        restore(to, there, replace=True)
    _, aside = restore(to, there, replace=True)
    assert aside is not None
    assert (aside / "mine").read_text() == "kept"
    assert (there / "token").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data_format": data_format.FORMAT + 1, "version": "9.9.9"}, r"Linckia 9\.9\.9 \(data format"),
        ({"format": packing.FORMAT + 1, "version": "9.9.9"}, r"was made by Linckia 9\.9\.9; use that version"),
        ({"files": [File("../outside", 0o600, sha256="", chunks=())]}, "outside the data directory"),
        (
            {"files": [File("a", 0o777, link="/tmp"), File("a/b", 0o600, sha256="")]},
            "outside the data directory",
        ),
    ],
    ids=["newer data", "newer backup", "dots", "link"],
)
def test_a_restore_refuses(data: Path, tmp_path: Path, changes: dict[str, object], said: str) -> None:
    made = backup(data, tmp_path / "to")
    path = tmp_path / "to" / "snapshots" / f"{made.snapshot}{target.ENDING}"
    manifest = packing.decode(made.snapshot, path.read_bytes())
    path.write_bytes(packing.encode(msgspec.structs.replace(manifest, **changes)))
    with pytest.raises(BackupFailed, match=said):
        restore(tmp_path / "to", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_place_in_the_data_directory_is_refused(data: Path) -> None:
    with pytest.raises(BackupFailed, match="is inside the data directory"):
        backup(data, data / "backups")
    assert not (data / "backups").exists()


def test_the_status_of_backups_survives_nonsense(data: Path, tmp_path: Path) -> None:
    (data / outcomes.FILE).write_text(json.dumps({"to": 1}))
    assert outcomes.known(data) == {}
    made = backup(data, tmp_path / "to")
    assert outcomes.known(data)[str(tmp_path / "to")].snapshot == made.snapshot


async def test_a_mistyped_destination_does_not_hide_existing_backups(tmp_path: Path) -> None:
    good, wrong = outcomes.Outcome(to="/there", at=1, succeeded=1), outcomes.Outcome(to="/tehre", at=2, error="no")
    outcomes.note(tmp_path, wrong)
    latest = Schedule(Config(data_dir=tmp_path)).latest
    assert await latest() == wrong
    outcomes.note(tmp_path, good)
    outcomes.note(tmp_path, wrong)
    assert await latest() == good


def test_files_before_the_first_folder_are_in_the_backup(tmp_path: Path) -> None:
    data = tmp_path / "data"
    writing.make(data)
    for name in ("format.json", "linckia.toml"):
        (data / name).write_text("")
    backup(data, tmp_path / "to")
    restore(tmp_path / "to", tmp_path / "again")
    assert {"format.json", "linckia.toml"} <= {each.name for each in (tmp_path / "again").iterdir()}
