"""What was answered 202 is there, once, whenever the service is killed."""

from __future__ import annotations

from pathlib import Path

import trio

from tests.system.ingesting import free_port, ingest_under_kills
from tests.system.running import running


def test_what_was_accepted_is_there_once_after_kills_at_random(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, options=("--http", f"127.0.0.1:{port}"), services=["transcripts"]) as kernel:
        kept = trio.run(ingest_under_kills, kernel, port, 8, 1)
    assert kept.kills >= 6
    assert kept.accepted
    assert (kept.missing, kept.doubled, kept.strange, kept.sound) == ([], [], [], "ok")
