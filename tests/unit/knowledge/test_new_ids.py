"""The ids of new notes, which are given without a look at all others where that changes nothing."""

from __future__ import annotations

import random
from pathlib import Path

import apsw

from services.knowledge import ids, nodes
from services.knowledge.note_database import open_database
from services.knowledge.notes.files import Place

ROOTS = ("/one", "/other")
NAMES = ("a", "A", "b", "a b", "a-b", "one-a", "deep-a", "deep-deep-a", "Übung")
FOLDERS = ("", "deep/", "deep/deep/", "one/")


def _stored(db: apsw.Connection) -> dict[Place, str]:
    return {Place(root, path): id_ for root, path, id_ in db.execute("SELECT root, path, id FROM node")}


def test_notes_that_come_one_by_one_have_the_ids_that_all_together_would_get(tmp_path: Path) -> None:
    dice = random.Random(3)
    every = [Place(root, f"{folder}{name}.md") for root in ROOTS for folder in FOLDERS for name in NAMES]
    quick = 0
    for number in range(40):
        database = open_database(tmp_path / f"{number}.db")
        with database.transaction() as db:
            there: list[Place] = []
            for _ in range(30):
                new = dice.sample([place for place in every if place not in there], dice.choice((1, 1, 2)))
                gone = dice.sample(there, 1) if there and dice.random() < 0.3 else []
                quick += not gone and ids.of_new(db, new) is not None
                nodes.depart(db, [_stored(db)[place] for place in gone], frozenset())
                nodes.arrive(db, new, {}, ROOTS, nothing_else=not gone)
                there = [place for place in (*there, *new) if place not in gone]
                assert _stored(db) == ids.ids_of(there, ROOTS)
        database.close()
    assert quick > 100


def test_two_new_notes_with_one_base_name_get_different_ids(tmp_path: Path) -> None:
    database = open_database(tmp_path / "notes.db")
    with database.transaction() as db:
        new = [Place("/one", "a.md"), Place("/one", "deep/a.md")]
        nodes.arrive(db, new, {}, ROOTS, nothing_else=True)
        assert _stored(db) == {new[0]: "a", new[1]: "deep-a"}
    database.close()
