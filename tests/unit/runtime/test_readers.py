"""Connections to read with are shared one after another, never by two at a time, and given back at rest."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import apsw
import pytest

from services.runtime.readers import Connection, Readers


def of_sqlite3() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", check_same_thread=False)


def of_apsw() -> apsw.Connection:
    return apsw.Connection(":memory:")


@pytest.mark.parametrize("opened", [of_sqlite3, of_apsw])
def test_no_two_have_one_connection_at_the_same_time_and_at_rest_one_is_kept(opened: Callable[[], Connection]) -> None:
    there: list[Connection] = []

    def open_one() -> Connection:
        there.append(opened())
        return there[-1]

    readers = Readers(open_one)
    readers.give_back()
    assert not there
    with readers.one() as first, readers.one() as second:
        assert first is not second
        readers.give_back()
        # Those that are in use stay as they are.
        assert [list(one.execute("SELECT 1")) for one in (first, second)] == [[(1,)]] * 2
    with readers.one() as third, readers.one() as fourth:
        assert {id(third), id(fourth)} == {id(first), id(second)}
    assert len(there) == 2
    readers.give_back()
    with readers.one() as kept:
        assert list(kept.execute("SELECT 1")) == [(1,)]
        (closed,) = (one for one in there if one is not kept)
        with pytest.raises((sqlite3.ProgrammingError, apsw.ConnectionClosedError)):
            closed.execute("SELECT 1")
    with pytest.raises(KeyError), readers.one() as used:
        raise KeyError
    with readers.one() as again:
        assert again is used
    readers.close()
    with pytest.raises((sqlite3.ProgrammingError, apsw.ConnectionClosedError)):
        used.execute("SELECT 1")
