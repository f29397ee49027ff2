"""Where session files are written, and that none is ever replaced or half written."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from proto.control.commands import Failed
from services.transcripts.resuming.places import hashed, place
from services.transcripts.resuming.resume import write_new

ID = "f2bcf893-813b-4bfe-9743-6ffc446f0698"
NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


def test_claude_has_a_folder_for_each_project(tmp_path: Path) -> None:
    for project, name in {"/home/u/sea": "-home-u-sea", "/a_b/c.d é": "-a-b-c-d--"}.items():
        assert place("claude", tmp_path, ID, project, NOW) == tmp_path / "projects" / name / f"{ID}.jsonl"


def test_a_long_path_is_cut_and_hashed_unless_the_agent_has_a_folder_for_it(tmp_path: Path) -> None:
    project, cut = "/" + "x" * 250, "-" + "x" * 199
    assert place("claude", tmp_path, ID, project, NOW).parent.name == f"{cut}-{hashed(project)}"
    # As the agent's own hash of it: h = 31 h + c in 32 bits, in base 36.
    assert (hashed("a"), hashed("abc"), hashed("")) == ("2p", "22ci", "0")
    (tmp_path / "projects" / f"{cut}-other").mkdir(parents=True)
    assert place("claude", tmp_path, ID, project, NOW).parent.name == f"{cut}-other"


def test_codex_has_a_folder_for_each_day(tmp_path: Path) -> None:
    name = f"rollout-2026-03-01T12-00-00-{ID}.jsonl"
    assert place("codex", tmp_path, ID, "/home/u/sea", NOW) == tmp_path / "sessions" / "2026" / "03" / "01" / name


def test_gemini_names_a_folder_by_its_registry_its_marks_or_a_hash(tmp_path: Path) -> None:
    name = f"session-2026-03-01T12-00-{ID[:8]}.jsonl"

    def folder() -> str:
        path = place("gemini", tmp_path, ID, "/home/u/sea", NOW)
        assert path == tmp_path / "tmp" / path.parent.parent.name / "chats" / name
        return path.parent.parent.name

    hashed = hashlib.sha256(b"/home/u/sea").hexdigest()
    assert folder() == hashed
    registry = tmp_path / "projects.json"
    for broken in ("{", "[]", '{"projects": []}', '{"projects": {"/home/u/sea": "../../etc"}}'):
        registry.write_text(broken)
        assert folder() == hashed
    registry.write_text(json.dumps({"projects": {"/home/u/sea": "sea-1"}}))
    assert folder() == "sea-1"
    for owned, by in {"sea-1": "/elsewhere", "sea-2": "/home/u/sea\n"}.items():
        (tmp_path / "tmp" / owned).mkdir(parents=True)
        (tmp_path / "tmp" / owned / ".project_root").write_text(by)
    assert folder() == "sea-2"


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "session.jsonl"
    write_new(path, iter([b"one\n", b"two\n"]))
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"one\ntwo\n", 0o600)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(Failed, match="exists already; nothing was written"):
        write_new(path, iter([b"three\n"]))
    link = tmp_path / "new" / "link.jsonl"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(Failed, match="exists already"):
        write_new(link, iter([b"three\n"]))
    assert path.read_bytes() == b"one\ntwo\n"
    assert sorted(each.name for each in path.parent.iterdir()) == ["link.jsonl", "session.jsonl"]


def test_a_file_has_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"

    def pieces() -> Iterator[bytes]:
        yield b"one\n" * 100_000
        assert not path.exists()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_new(path, pieces())
    assert list(tmp_path.iterdir()) == []
