"""What the live stream of the page sends: everything once, then only what changed."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from services.front.web.live import updated


def overview(**more: Any) -> dict[str, Any]:
    one = {
        "name": "echo",
        "state": "ready",
        "uptime_s": 10.0,
        "cpu": 0.0,
        "pss_bytes": 50_000_000,
        "info": {"model": "a"},
    }
    found = {"at": 100.0, "uptime_s": 20.0, "backup": None, "services": {"echo": one}}
    copy: dict[str, Any] = json.loads(json.dumps(found))
    return copy | more


def later(seconds: float, **changes: Any) -> dict[str, Any]:
    found = overview(at=100.0 + seconds, uptime_s=20.0 + seconds)
    found["services"]["echo"] |= {"uptime_s": 10.0 + seconds, **changes}
    return found


def test_nothing_is_sent_while_nothing_changes() -> None:
    known = overview()
    for seconds in range(1, 100):
        assert updated(known, later(seconds, cpu=0.004, pss_bytes=50_000_000 + seconds % 7 * 1000)) == {}


def test_only_what_changed_is_sent() -> None:
    known = overview()
    assert updated(known, later(2, state="failed", reason="gone")) == {
        "services": {"echo": {"state": "failed", "reason": "gone"}}
    }
    assert updated(known, later(4, state="failed", reason="gone")) == {}
    assert updated(known, later(6, state="failed", info={"mode": "cpu"})) == {
        "services": {"echo": {"reason": None, "info": {"model": None, "mode": "cpu"}}}
    }


def test_a_small_drift_adds_up_until_it_is_sent() -> None:
    known = overview()
    sent = [updated(known, later(each, pss_bytes=50_000_000 + each * 300_000)) for each in range(1, 9)]
    assert [bool(each) for each in sent] == [False, False, False, True, False, False, False, True]


def test_a_restart_is_told_by_the_time_that_it_is_up() -> None:
    known = overview()
    found = later(30)
    found["services"]["echo"]["uptime_s"] = 1.0
    assert updated(known, found) == {"services": {"echo": {"uptime_s": 1.0}}}


def test_a_service_without_a_process_has_no_time() -> None:
    known = overview()
    assert updated(known, later(2, uptime_s=None, pss_bytes=None)) == {
        "services": {"echo": {"uptime_s": None, "pss_bytes": None}}
    }
    assert updated(known, later(4, uptime_s=None, pss_bytes=None)) == {}
    assert updated(known, later(6, uptime_s=0.5, pss_bytes=7)) == {
        "services": {"echo": {"uptime_s": 0.5, "pss_bytes": 7}}
    }


def test_services_come_and_go() -> None:
    known = overview()
    found = later(1)
    found["services"]["yaml"] = found["services"].pop("echo") | {"name": "yaml"}
    sent = updated(known, found)
    assert sent["services"]["echo"] is None
    assert sent["services"]["yaml"]["name"] == "yaml"
    assert msgspec.json.encode(known)
    assert set(known["services"]) == {"yaml"}
