"""A client that is limited to some roots reaches those alone, in tasks and in threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from proto import grants
from proto.grants import Grant
from services.runtime.roots import Denied, OutsideRoots, Roots


@pytest.fixture
def both(tmp_path: Path) -> Roots:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "note.md").write_text("x")
    return Roots((tmp_path / "mine", tmp_path / "theirs"))


@contextlib.contextmanager
def limited_to(*roots: str) -> Iterator[None]:
    token = grants.current.set(Grant("ci", roots=roots))
    try:
        yield
    finally:
        grants.current.reset(token)


def test_other_roots_are_neither_open_nor_accessible_nor_listed(both: Roots) -> None:
    mine, theirs = both
    note = f"{theirs}/note.md"
    with limited_to(mine):
        assert both.holds(f"{mine}/note.md")
        assert not both.holds(note)
        assert both.reachable == (mine,)
        with pytest.raises(Denied, match="outside the roots of this token"):
            both.check(note)
        with pytest.raises(OutsideRoots):
            both.open(note)
        with pytest.raises(OutsideRoots):
            both.open_folder(theirs)
    assert both.holds(note)
    assert list(both.reachable) == [mine, theirs]


def test_link_out_of_a_root_that_the_client_has_is_not_followed(both: Roots) -> None:
    mine, theirs = both
    Path(mine, "link").symlink_to(f"{theirs}/note.md")
    with limited_to(mine), pytest.raises(OutsideRoots):
        both.open(f"{mine}/link")


def test_root_that_the_service_does_not_have_is_not_reached(both: Roots, tmp_path: Path) -> None:
    with limited_to(str(tmp_path)):
        assert both.reachable == ()
        assert not both.holds(str(tmp_path / "note.md"))


async def test_worker_thread_is_limited_as_its_task_is(both: Roots) -> None:
    with limited_to(both[0]):
        assert not await trio.to_thread.run_sync(both.holds, f"{both[1]}/note.md")
