"""The folder for temporary files is there and its service can write to it, whatever was in its place."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from proto.host.scratch import provide
from proto.wire.launch import SCRATCH_FOLDER


def nothing(path: Path) -> None:
    pass


def a_folder(path: Path) -> None:
    path.mkdir()


def a_file(path: Path) -> None:
    path.write_text("x")


def a_link_to_a_folder(path: Path) -> None:
    path.symlink_to(path.parent.parent / "elsewhere")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("left", [nothing, a_folder, a_file, a_link_to_a_folder, a_link_to_nothing, a_pipe])
def test_a_folder_takes_the_place_of_what_was_left(data_dir: Path, left: Callable[[Path], None]) -> None:
    left(data_dir / SCRATCH_FOLDER)
    scratch = provide(data_dir)
    assert scratch == data_dir / SCRATCH_FOLDER
    assert scratch.is_dir()
    assert not scratch.is_symlink()
    assert (data_dir.parent / "elsewhere").is_dir()


def test_a_folder_that_is_there_stays_with_its_contents(data_dir: Path) -> None:
    (data_dir / SCRATCH_FOLDER).mkdir()
    (data_dir / SCRATCH_FOLDER / "file").write_text("x")
    assert [path.name for path in provide(data_dir).iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for others")
@pytest.mark.parametrize("left", [nothing, a_folder, a_link_to_a_folder])
def test_it_belongs_to_the_owner_of_the_services_folder(data_dir: Path, left: Callable[[Path], None]) -> None:
    left(data_dir / SCRATCH_FOLDER)
    os.chown(data_dir, 4711, 4712)
    found = provide(data_dir).stat()
    assert (found.st_uid, found.st_gid) == (4711, 4712)
    assert (data_dir.parent / "elsewhere").stat().st_uid == 0


def test_several_processes_may_make_it_at_once(data_dir: Path) -> None:
    failures: list[OSError] = []

    def make(barrier: threading.Barrier) -> None:
        barrier.wait()
        try:
            provide(data_dir)
        except OSError as error:
            failures.append(error)

    for _ in range(100):
        a_link_to_a_folder(data_dir / SCRATCH_FOLDER)
        barrier = threading.Barrier(4)
        threads = [threading.Thread(target=make, args=(barrier,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        (data_dir / SCRATCH_FOLDER).rmdir()
