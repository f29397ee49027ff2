"""A page at rest: little is sent to it, and its figures count nothing that nobody asked for."""

from __future__ import annotations

import re
from typing import Any

from tests.browser import chromium
from tests.browser.visiting import Visitor
from tests.system.running import RunningKernel

pytestmark = chromium.needed

MOST_A_MINUTE = 200_000
LOOKS = 6
"""Live figures that are waited for; they come every 1.5 s."""

VIEWS = (
    "today", "today/tasks", "notes", "approvals", "system", "calls", "calls?all=yes", "system/retrieve",
    "mounts/weather/log",
)  # fmt: skip


class AtRest:
    """A page with a view, and what it has received since it was loaded."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor
        self.received: list[int] = []
        self.looks: list[float] = []
        self._paths: dict[str, str] = {}
        network = visitor.context.new_cdp_session(visitor.page)
        network.on("Network.responseReceived", lambda told: self.received.append(told["response"]["encodedDataLength"]))
        network.on(
            "Network.requestWillBeSent", lambda told: self._paths.update({told["requestId"]: told["request"]["url"]})
        )
        network.on("Network.dataReceived", self._data)
        network.send("Network.enable")

    def _data(self, told: dict[str, Any]) -> None:
        self.received.append(max(told["dataLength"], told["encodedDataLength"]))
        # The stream of the live figures was opened before.
        if told["requestId"] not in self._paths:
            self.looks.append(told["timestamp"])


def test_little_is_sent_to_a_page_at_rest(kernel: RunningKernel, browser: Any) -> None:
    # All views rest at the same time.
    pages: dict[str, AtRest] = {}
    for view in VIEWS:
        visitor = Visitor(browser)
        visitor.sign_in(kernel)
        visitor.go(view)
        visitor.until("!document.querySelector('main').textContent.includes('Loading…')")
        assert not visitor.page.evaluate("document.hidden")
        pages[view] = AtRest(visitor)
    while any(len(page.looks) < LOOKS for page in pages.values()):
        visitor.page.wait_for_timeout(100)
    for view, page in pages.items():
        taken_s = page.looks[-1] - page.looks[0]
        assert taken_s > LOOKS - 1, view
        assert sum(page.received) / taken_s * 60 < MOST_A_MINUTE, view
        assert page.visitor.complaints == [], view


def test_waits_and_calls_of_services_are_in_no_figure(kernel: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    visitor.sign_in(kernel)
    figures = visitor.page.get_by_role("list", name="Totals")
    # Services wait for changes of files all the time.
    figures.get_by_role("listitem").filter(has_text=re.compile("^0in flight")).wait_for(timeout=20_000)
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
