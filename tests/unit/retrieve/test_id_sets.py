"""Sets of ids come out of SQLite whole and sorted, whatever order and number they stand in."""

from __future__ import annotations

import random

import apsw
import pytest

from services.retrieve import id_sets
from services.retrieve.id_sets import Totals


@pytest.mark.parametrize("ids", [[], [7], [2**62, 1, 2**40], random.Random(0).sample(range(1, 10**9), 5000)])
def test_all_ids_are_there_in_their_order_and_their_totals_are_right(ids: list[int]) -> None:
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE items (item_id INTEGER PRIMARY KEY, odd INTEGER)")
    db.executemany("INSERT INTO items VALUES (?, ?)", ((each, each % 2) for each in ids))
    assert id_sets.items(db).tolist() == sorted(ids)
    odd = id_sets.select(db, "SELECT item_id FROM items WHERE odd = ? ORDER BY item_id DESC", (1,))
    assert odd.tolist() == sorted(each for each in ids if each % 2)
    assert id_sets.totals(db) == Totals(len(ids), max(ids, default=0), sum(ids))
    db.close()
