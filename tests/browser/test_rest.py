"""A page at rest: little is sent to it, and its figures count nothing that nobody asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser import chromium
from tests.browser.visiting import Visitor
from tests.system.running import RunningKernel

pytestmark = chromium.needed

MOST_A_MINUTE = 200_000
LOOKS = 6
"""Live figures that are waited for; they come every 1.5 s."""


@pytest.mark.parametrize(
    "view",
    [
        "today",
        "today/tasks",
        "notes",
        "approvals",
        "system",
        "calls",
        "calls?all=yes",
        "system/retrieve",
        "mounts/weather/log",
    ],
)
def test_little_is_sent_to_a_page_at_rest(kernel: RunningKernel, browser: Any, view: str) -> None:
    visitor = Visitor(browser)
    visitor.sign_in(kernel)
    visitor.go(view)
    visitor.until("!document.querySelector('main').textContent.includes('Loading…')")
    network = visitor.context.new_cdp_session(visitor.page)
    received: list[int] = []
    looks: list[float] = []
    paths: dict[str, str] = {}
    network.on("Network.responseReceived", lambda told: received.append(told["response"]["encodedDataLength"]))
    network.on("Network.requestWillBeSent", lambda told: paths.update({told["requestId"]: told["request"]["url"]}))

    def data(told: dict[str, Any]) -> None:
        received.append(max(told["dataLength"], told["encodedDataLength"]))
        # The stream of the live figures was opened before.
        if told["requestId"] not in paths:
            looks.append(told["timestamp"])

    network.on("Network.dataReceived", data)
    network.send("Network.enable")
    while len(looks) < LOOKS:
        visitor.page.wait_for_timeout(100)
    a_minute = sum(received) / (looks[-1] - looks[0]) * 60
    assert a_minute < MOST_A_MINUTE
    assert looks[-1] - looks[0] > LOOKS - 1
    assert visitor.complaints == []


def test_waits_and_calls_of_services_are_in_no_figure(kernel: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    visitor.sign_in(kernel)
    figures = visitor.page.get_by_role("list", name="Totals")
    # Services wait for changes of files all the time; other calls between services end soon.
    in_flight = figures.get_by_role("listitem").filter(has_text="in flight")
    in_flight.get_by_text("0", exact=True).wait_for(timeout=20_000)
    row = visitor.page.get_by_role("row").filter(has=visitor.page.get_by_role("link", name="watch", exact=True))
    assert "min" not in row.inner_text()
    visitor.go("calls")
    visitor.sees("everything_search")
    table = visitor.page.get_by_role("table", name="Calls")
    assert table.get_by_text("watch_changes").count() == 0
    visitor.page.get_by_role("combobox", name="Calls", exact=True).select_option("yes")
    table.get_by_text("watch_changes").first.wait_for(timeout=20_000)
    head = visitor.page.locator("thead th").first
    assert head.evaluate("element => getComputedStyle(element).position") == "sticky"
    width = "[...document.querySelectorAll('.wide')].every((each) => each.scrollWidth <= each.clientWidth)"
    assert visitor.page.evaluate(width)
