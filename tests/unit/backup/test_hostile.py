"""A backup that somebody else made cannot write outside the data directory, nor unfold without bounds."""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import resource
import shutil
import tarfile
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel.cli.care import backup as backup_commands
from kernel.cli.care import data_format
from proto.backup import BackupFailed, File, Manifest
from services.backup import beneath, packing
from services.backup.beneath import is_normal, open_beneath
from services.backup.packing import CHUNK_BYTES
from services.backup.places import Damaged
from services.backup.target import CHUNKS, ENDING, SNAPSHOTS
from services.shared import zstd
from tests.unit.backup.writing import restore

BLOCK = b"written by the backup"
NAME = hashlib.sha256(BLOCK).hexdigest()


def manifest_of(*files: File) -> Manifest:
    return Manifest(packing.FORMAT, "0", data_format.FORMAT, "20270101T000000Z", 0.0, "/data", {}, [], list(files))


def archive(path: Path, manifest: Manifest, blocks: tuple[bytes, ...] = (BLOCK,)) -> Path:
    """An archive with any manifest."""
    members = {f"{CHUNKS}/{hashlib.sha256(block).hexdigest()}": packing.packed(block) for block in blocks}
    members[f"{SNAPSHOTS}/{manifest.id}{ENDING}"] = packing.encode(manifest)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def file(path: str, **more: object) -> File:
    return msgspec.structs.replace(File(path, 0o600, size=len(BLOCK), sha256="", chunks=(NAME,)), **more)


PARTS = st.sampled_from(["", ".", "..", "a", "b", "services", "outside"])
PATHS = st.lists(PARTS, min_size=1, max_size=5).map("/".join)
LINKS = st.sampled_from(["..", "../outside", ".", "a", "/"])
ENTRIES = st.one_of(
    PATHS.map(file),
    PATHS.map(lambda path: File(path, 0o700)),
    st.tuples(PATHS, LINKS).map(lambda both: File(both[0], 0o777, link=both[1])),
)


@settings(max_examples=150, deadline=None)
@example([File("services//a", 0o777, link="../../outside"), file("services/a/b")])
@example([File("services//a", 0o777, link="../../outside"), file("services//a/b")])
@example([File("services/./a", 0o777, link="../../outside"), file("services/a/b")])
@example([File("a", 0o777, link=".."), file("a/outside/b")])
@example([File("a", 0o777, link="/"), File("a/", 0o777), file("a/b")])
@given(st.lists(ENTRIES, min_size=1, max_size=4))
def test_no_spelling_of_a_path_leads_outside(entries: list[File]) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "outside").mkdir()
        source = archive(place / "hostile.tar", manifest_of(*entries))
        try:
            restore(source, place / "again")
        except (BackupFailed, OSError):
            assert not (place / "again").exists()
        else:
            assert all(is_normal(each.path) for each in entries)
            assert all(os.path.lexists(place / "again" / each.path) for each in entries)
            for each in entries:
                assert not any((place / "again" / parent).is_symlink() for parent in Path(each.path).parents)
        assert {each.name for each in place.iterdir()} - {"again"} == {"outside", "hostile.tar"}
        assert os.listdir(place / "outside") == []


@pytest.mark.parametrize("walks", [False, True], ids=["openat2", "openat"])
@given(st.lists(st.sampled_from(["", ".", "..", "real", "link", "file"]), min_size=1, max_size=5).map("/".join))
@settings(max_examples=100, deadline=None)
@example("link/file")
@example("real/../../outside")
@example("/etc")
def test_no_path_is_opened_outside_or_through_a_link(walks: bool, path: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        root, outside = Path(name, "root"), Path(name, "outside")
        for folder in (root / "real", outside):
            folder.mkdir(parents=True)
            (folder / "file").touch()
        (root / "link").symlink_to(outside)
        (root / "file").touch()
        (root / "real/link").symlink_to("file")
        at = os.open(root, os.O_RDONLY)
        opened = beneath._walked if walks else open_beneath
        try:
            found = opened(at, path, os.O_RDONLY, 0)
        except OSError:
            return
        finally:
            os.close(at)
        try:
            assert Path(f"/proc/self/fd/{found}").readlink().is_relative_to(root.resolve())
        finally:
            os.close(found)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (file("a", size=1), "does not have its size"),
        (file("a", size=CHUNK_BYTES * 2), "contradicts itself"),
        (file("a", chunks=(NAME, NAME)), "contradicts itself"),
        (file("a", size=-1, chunks=()), "contradicts itself"),
        (file("a", chunks=("../../token",)), "contradicts itself"),
        (file("a", mode=-1), "contradicts itself"),
        (file("a", modified_ns=1 << 63), "contradicts itself"),
        (File("a", 0o700, size=5), "contradicts itself"),
        (File("a", 0o777, link="b\0c"), "contradicts itself"),
        (file("a", size=1 << 60, chunks=(NAME,) * 9), "contradicts itself"),
    ],
)
def test_sizes_and_names_that_cannot_be_are_refused(tmp_path: Path, wrong: File, said: str) -> None:
    with pytest.raises(Damaged, match=said):
        restore(archive(tmp_path / "hostile.tar", manifest_of(wrong)), tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_one_block_listed_many_times_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = bytes(CHUNK_BYTES)
    name = hashlib.sha256(block).hexdigest()
    large = File("a", 0o600, size=CHUNK_BYTES * 10_000, sha256="", chunks=(name,) * 10_000)
    source = archive(tmp_path / "hostile.tar", manifest_of(large), (block,))
    assert source.stat().st_size < 200_000
    usage = shutil.disk_usage(tmp_path)._replace(free=CHUNK_BYTES * 9_999)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(BackupFailed, match="free some, or choose another place"):
        restore(source, tmp_path / "again")


@pytest.mark.parametrize("where", ["manifest", "chunk", "sparse"])
def test_a_small_archive_does_not_unfold_without_bounds(tmp_path: Path, where: str) -> None:
    """With so little memory, anything that reads all of it fails otherwise."""
    manifest, bomb = manifest_of(file("a")), zstd.Compressor(1).compress(bytes(1 << 30))
    source = tmp_path / "hostile.tar"
    with tarfile.open(source, "w") as tar:
        for name, content in (
            (f"{CHUNKS}/{NAME}", bomb if where == "chunk" else packing.packed(BLOCK)),
            (f"{SNAPSHOTS}/{manifest.id}{ENDING}", bomb if where == "manifest" else packing.encode(manifest)),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if where == "sparse" and name.startswith(CHUNKS):
                member.pax_headers = {
                    "GNU.sparse.map": f"0,{len(content)}", "GNU.sparse.size": str(4 << 30), "GNU.sparse.numblocks": "1",
                }  # fmt: skip
            tar.addfile(member, io.BytesIO(content))
    assert source.stat().st_size < 200_000
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), before[1]))
    try:
        with pytest.raises(Damaged, match="damaged"):
            restore(source, tmp_path / "again")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_restore_names_the_programs_that_its_settings_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = b'[mcp.evil]\ncommand = "/bin/sh"\n'
    listed = File("linckia.toml", 0o600, size=len(settings), sha256="", chunks=(hashlib.sha256(settings).hexdigest(),))
    source = archive(tmp_path / "theirs.tar", manifest_of(listed), (settings,))
    arguments = argparse.Namespace(
        data=None,
        data_dir=tmp_path / "again",
        sources=[str(source)],
        key_file=None,
        passphrase_file=None,
        endpoint=None,
        at=None,
        replace=False,
    )
    assert backup_commands.restore(arguments) == 0
    assert "start other programs ([mcp.NAME]): evil" in capsys.readouterr().err
