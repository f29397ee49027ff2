"""Looking at some files and folders finds what a walk of everything finds there."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from services.knowledge.ingest.note_walk import look
from services.knowledge.notes.files import Place, Stamp
from services.runtime.roots import Roots
from tests.unit.knowledge.rig import write


def below(notes: dict[Place, Stamp], files: set[str], folders: set[str]) -> dict[Place, Stamp]:
    return {
        place: stamp
        for place, stamp in notes.items()
        if place.absolute in files or any(place.absolute.startswith(folder + "/") for folder in folders)
    }


NAMES = ("a.md", "B.MD", "c.txt", ".hidden.md", "sub", "deep", ".git", "node_modules", "env", "drafts")
IGNORES = ("drafts/\n", "a.md\n", "/sub/a.md\n", "*.md\n!B.MD\n", "!a.md\n", "")


def random_path(chance: random.Random) -> str:
    folders = [chance.choice(NAMES[4:]) for _ in range(chance.randrange(3))]
    return "/".join([*folders, chance.choice(NAMES[:4])])


@pytest.mark.parametrize("seed", range(4))
def test_looking_at_a_single_file_finds_the_same_as_a_walk(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    inner = tmp_path / "sub/deep"
    roots = Roots([tmp_path, inner])
    inner.mkdir(parents=True)
    for _ in range(150):
        files, folders = set(), set()
        path = tmp_path / random_path(chance)
        match chance.randrange(6):
            case 0 | 1 | 2:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("x")
                files.add(str(path))
            case 3:
                path.unlink(missing_ok=True)
                files.add(str(path))
            case 4:
                rules = path.parent / chance.choice((".gitignore", ".ignore", "pyvenv.cfg"))
                if rules.parent.is_dir():
                    rules.write_text(chance.choice(IGNORES))
                    if chance.random() < 0.5:
                        rules.unlink()
                folders.add(str(rules.parent))
            case 5:
                if path.parent != tmp_path and path.parent not in (inner, inner.parent):
                    shutil.rmtree(path.parent, ignore_errors=True)
                folders.add(str(path.parent))
        found = look(roots, files, folders)
        assert found.notes == below(look(roots, (), roots).notes, files, folders)
        assert found.unreadable == []


def test_notes_of_a_missing_root_are_hidden_and_not_deleted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    file = write(root, "sub/a.md", "x")
    roots = Roots([root])
    (place,) = look(roots, (), roots).notes
    shutil.rmtree(root)
    for files, folders in (([str(file)], []), ([], [str(root)]), ([], [str(root / "sub")])):
        found = look(roots, files, folders)
        assert found.notes == {}
        assert found.is_hidden_from_view(place)


def test_file_outside_the_roots_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    file = write(tmp_path, "rooted/a.md", "x")
    assert look(Roots([tmp_path / "root"]), [str(file)], [str(file.parent)]).notes == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read what it likes")
def test_folder_that_cannot_be_searched_hides_what_is_in_it(tmp_path: Path) -> None:
    file = write(tmp_path, "sub/a.md", "x")
    roots = Roots([tmp_path])
    (place,) = look(roots, (), roots).notes
    (tmp_path / "sub").chmod(0)
    try:
        assert look(roots, [str(file)], []).is_hidden_from_view(place)
    finally:
        (tmp_path / "sub").chmod(0o755)
