"""Kills of mounted servers under load: a short version of `tests.chaos.mounted`."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from proto.mounts import CHANGE
from tests.chaos.mounted.servers import small
from tests.chaos.mounted.storm import Storm

KILLS = 20


def test_kills_lose_no_call_repeat_no_change_and_leave_no_process(tmp_path: Path) -> None:
    storm = Storm(tmp_path, small(tmp_path, 3), KILLS, random.Random(7), clients=2, measure_every=0)
    storm.run()
    assert not storm.wrong, storm.wrong
    assert len(storm.ledger.outages) == KILLS
    answered = Counter(each.call.kind == CHANGE for each in storm.ledger.made if each.outcome.ok)
    assert all(answered[is_change] > KILLS for is_change in (True, False)), answered
