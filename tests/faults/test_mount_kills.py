"""A kill at each step of a change in the registry of mounts: the old state or the new one is on disk, never a third."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.mounts.offers.canonical import Parsed, parse
from services.mounts.offers.store import Kept, Store

KILLED, PASSED = 9, 0
OLD, NEW = ([{"name": name, "description": "d" * 5_000}] for name in ("old", "new"))


def parsed(tools: list[dict[str, str]]) -> Parsed:
    return parse(json.dumps({"tools": tools}).encode())


def state(store: Store) -> tuple[str, bool] | None:
    """Return the tools of the mount as clients see them, and whether something is held back."""
    kept = store.kept.get("github")
    return None if kept is None else (*kept.seen.items["tools"], kept.held_back)  # type: ignore[return-value]  # one tool


def hold_back(store: Store) -> None:
    store.put("github", Kept(parsed(NEW), parsed(OLD), pin=True))


def adopt(store: Store) -> None:
    store.put("github", Kept(parsed(NEW), parsed(NEW), pin=True))


def forget(store: Store) -> None:
    store.forget("github")


def die_at(step: int, store: Store, change: Callable[[Store], None]) -> None:
    """End this process at the `step`th call that changes the disk."""
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                os._exit(KILLED)
            return function(*args, **named)

        return call

    for name in ("open", "fsync", "unlink", "rename"):
        setattr(os, name, counted(getattr(os, name)))
    change(store)


def kills(folder: Path, change: Callable[[Store], None]) -> Iterator[int]:
    """Make the change in a new process for each step, and yield after its death; `folder/STEP` is the data."""
    for step in range(1, 100):
        data = folder / str(step)
        data.mkdir()
        store = Store(data)
        store.put("github", Kept(parsed(OLD), parsed(OLD), pin=True))
        child = os.fork()
        if not child:
            try:
                die_at(step, store, change)
                os._exit(PASSED)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (KILLED, PASSED)
        if code == PASSED:
            return
        yield step


@pytest.mark.parametrize(
    ("change", "after"), [(hold_back, ("old", True)), (adopt, ("new", False)), (forget, None)]
)  # fmt: skip
def test_a_kill_at_each_step_leaves_the_old_state_or_the_new_one(
    change: Callable[[Store], None], after: tuple[str, bool] | None, tmp_path: Path
) -> None:
    seen = []
    for step in kills(tmp_path, change):
        store = Store(tmp_path / str(step))
        assert store.damaged() == []
        seen.append(state(store))
        assert seen[-1] in (("old", False), after)
        change(store)
        assert state(store) == after
        assert state(Store(tmp_path / str(step))) == after
    assert len(seen) >= 4
    assert seen == sorted(seen, key=lambda each: each == after), "a later step undid an earlier one"
