"""Exports that somebody else has made: `linckia import` says what is wrong, and takes nothing from elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.running import REPOSITORY, RunningKernel, running

SERVICES = ("documents", "transcripts", "files", "watch", "memory")

MAX_BYTES = 1 << 30

OUTSIDE = "what the user has elsewhere"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    root = tmp_path_factory.mktemp("root")
    with running(tmp_path_factory.mktemp("data"), [root], services=SERVICES) as found:
        yield found


def documents(folder: Path, **changes: object) -> None:
    times = dict.fromkeys(("created_ns", "modified_ns", "indexed_ns"), 1)
    row = {"path": "a.txt", "name": "a.txt", "hash": "0" * 64, **times, **changes}
    (folder / "documents" / "documents.jsonl").write_text(json.dumps(row) + "\n")


def path_as_hash(folder: Path) -> None:
    documents(folder, hash="../../../outside")


def link_as_content(folder: Path) -> None:
    hash_ = "ab" + "0" * 62
    home = folder / "documents" / "contents" / hash_[:2] / hash_
    home.mkdir(parents=True)
    (home / "a.txt").symlink_to(folder.parent / "outside" / "secret.txt")
    documents(folder, hash=hash_)


def link_as_folder(folder: Path) -> None:
    hash_ = "cd" + "0" * 62
    (folder / "documents" / "contents" / hash_[:2]).mkdir(parents=True)
    (folder / "documents" / "contents" / hash_[:2] / hash_).symlink_to(folder.parent / "outside")
    documents(folder, hash=hash_)


def link_as_rows(folder: Path) -> None:
    (folder / "documents" / "documents.jsonl").symlink_to(folder.parent / "outside" / "secret.txt")


def pipe_as_rows(folder: Path) -> None:
    os.mkfifo(folder / "documents" / "documents.jsonl")


def endless_rows(folder: Path) -> None:
    (folder / "documents" / "documents.jsonl").symlink_to("/dev/zero")


def folder_as_rows(folder: Path) -> None:
    (folder / "documents" / "documents.jsonl").mkdir()


def folder_as_listing(folder: Path) -> None:
    (folder / "documents" / "snapshots").mkdir()
    (folder / "documents" / "snapshots.jsonl").write_text('{"listing": ".."}\n')


def no_text(folder: Path) -> None:
    (folder / "documents" / "documents.jsonl").write_bytes(b'{"path": "\xff"}\n')


def deep(folder: Path) -> None:
    (folder / "documents" / "documents.jsonl").write_text("[" * 200_000 + "]" * 200_000 + "\n")


def long_line(folder: Path) -> None:
    with (folder / "documents" / "documents.jsonl").open("wb") as file:
        # Most of it is a hole.
        file.truncate(2 << 30)


def wrong_types(folder: Path) -> None:
    (folder / "documents" / "documents.jsonl").write_text('{"hash": [1], "path": 5}\n[]\n5\n')


def huge_number(folder: Path) -> None:
    text = '{"path": "a", "name": "a", "hash": "%s", "created_ns": %s, "modified_ns": 1e999, "indexed_ns": NaN}'
    (folder / "documents" / "documents.jsonl").write_text(text % ("0" * 64, "1" * 5000))


def null_in_hash(folder: Path) -> None:
    documents(folder, hash="\0" * 64)


def half_a_character(folder: Path) -> None:
    documents(folder, name="\ud800", path="\ud800")


def no_object_as_export(folder: Path) -> None:
    (folder / "export.json").write_text("[" * 200_000)


WRONG: tuple[Callable[[Path], None], ...] = (
    path_as_hash, link_as_content, link_as_folder, link_as_rows, pipe_as_rows, endless_rows, folder_as_rows,
    folder_as_listing, no_text, deep, long_line, wrong_types, huge_number, null_in_hash, half_a_character,
    no_object_as_export,
)  # fmt: skip


def limited(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that may take neither long nor much memory."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MAX_BYTES}, {MAX_BYTES}))"
    code = f"{limit}; import sys; from kernel.cli.__main__ import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env={**os.environ, "LINCKIA_DATA": str(data)}, cwd=REPOSITORY,
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("make", WRONG, ids=lambda make: make.__name__)
def test_a_hostile_export_is_refused_with_a_clear_error(
    kernel: RunningKernel, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(OUTSIDE)
    folder = tmp_path / "export"
    (folder / "documents").mkdir(parents=True)
    (folder / "export.json").write_text('{"linckia_export": 1}')
    make(folder)
    done = limited(kernel.data_dir, "import", str(folder))
    said = done.stdout + done.stderr
    assert done.returncode in (1, 2), said
    assert "Traceback" not in said, said
    assert OUTSIDE not in said
    assert len(said) < 5000, said[:5000]
    assert str(folder) in said or "is left out" in said, said
    assert not kernel.call("documents_list", {})["documents"]
