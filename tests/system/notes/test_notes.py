"""Notes on a real kernel: each service that has a part in them is killed in the middle of ingest and of search."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.system.notes.note_kills import VICTIMS, audit, torment
from tests.system.running import running

NOTES = 60


def test_services_killed_during_ingest_and_search_lose_no_note_and_mix_up_none(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    root = tmp_path / "notes"
    root.mkdir()
    with running(tmp_path / "data", [root], services=[*VICTIMS, "watch", "rerank", "llm"]) as kernel:

        async def work() -> None:
            seen = await torment(kernel, root, notes=NOTES, kills=3 if pytestconfig.option.all else 1)
            assert seen.wrong == []
            assert set(seen.kills) == set(VICTIMS)
            # While parts of it were down it answered nearly always, and said what it went without.
            assert seen.degraded
            assert sum(seen.failures.values()) <= seen.searches / 4
            problems = await trio.to_thread.run_sync(audit, kernel, NOTES, seen.editions)
            assert problems == []

        trio.run(work)
