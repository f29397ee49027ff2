"""Tasks of an operator in the page, with the mouse and with the keyboard alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium
from tests.browser.visiting import CROSSED_WAYS, WAYS, Visitor, axe_violations
from tests.system.running import RunningKernel

pytestmark = chromium.needed

MOST_TABS = 150


class Hand:
    """Works the page as a user does, with one of both."""

    def __init__(self, visitor: Visitor, kind: str) -> None:
        self.page, self.kind = visitor.page, kind

    def press(self, target: Any) -> None:
        """Click a button or link, or reach it with Tab and press Enter."""
        target.wait_for(timeout=20_000)
        if self.kind == "mouse":
            target.click()
        else:
            self.reach(target)
            self.page.keyboard.press("Enter")

    def write(self, target: Any, text: str) -> None:
        """Replace the text of a field."""
        target.wait_for(timeout=20_000)
        if self.kind == "mouse":
            target.click()
        else:
            self.reach(target)
        self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text)

    def reach(self, target: Any) -> None:
        """Press Tab until the target has the focus, and check that this can be seen."""
        for _ in range(MOST_TABS):
            if target.evaluate("element => document.activeElement === element"):
                outline = target.evaluate("element => getComputedStyle(element).outlineStyle")
                assert outline != "none"
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"{target} is not reached by Tab")


def fits(visitor: Visitor) -> bool:
    return bool(visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.parametrize(("hand", "width", "theme"), CROSSED_WAYS)
def test_the_log_of_a_mounted_server_is_read_and_it_is_restarted(
    kernel: RunningKernel, browser: Any, hand: str, width: str, theme: str
) -> None:
    visitor = Visitor(browser, width, theme)
    visitor.sign_in(kernel)
    page, user = visitor.page, Hand(visitor, hand)
    kernel.call("weather_forecast", {"city": "Bern"})
    before = kernel.service("mcp_weather")["generation"]
    user.press(page.get_by_role("link", name="Mounts", exact=True))
    user.press(page.get_by_role("link", name="weather", exact=True))
    row = page.get_by_role("row").filter(has_text="forecast")
    row.get_by_text(re.compile(r"ms$")).wait_for(timeout=20_000)
    assert axe_violations(page) == []
    user.press(page.get_by_role("link", name="Log", exact=True))
    visitor.sees(f"generation {before} started")
    user.press(page.get_by_role("button", name="Restart mcp_weather"))
    user.press(page.get_by_role("dialog").get_by_role("button", name="Restart"))
    visitor.sees(f"mcp_weather is ready, generation {before + 1}")
    # The log continues without a word from the user.
    visitor.sees(f"generation {before + 1} started")
    assert axe_violations(page) == []
    assert fits(visitor)
    assert visitor.complaints == []


@pytest.mark.parametrize(("hand", "width", "theme"), WAYS)
def test_a_setting_is_changed_and_tells_where_its_value_comes_from(
    kernel: RunningKernel, browser: Any, hand: str, width: str, theme: str
) -> None:
    visitor = Visitor(browser, width, theme)
    visitor.sign_in(kernel)
    page, user = visitor.page, Hand(visitor, hand)
    file = Path(kernel.data_dir) / "linckia.toml"
    before = file.read_text()
    user.press(page.get_by_role("link", name="Administration"))
    user.press(page.get_by_role("link", name="Settings"))
    user.write(page.get_by_label("Words", exact=True), "keep_days")
    card = page.get_by_role("listitem").filter(has_text="events.keep_days")
    card.get_by_text("from the default").wait_for(timeout=20_000)
    user.press(page.get_by_role("button", name="Change events.keep_days"))
    field = page.get_by_label("Value of events.keep_days")
    user.write(field, "0")
    user.press(card.get_by_role("button", name="Save"))
    visitor.sees(">= 1")
    assert field.get_attribute("aria-invalid") == "true"
    assert file.read_text() == before
    assert axe_violations(page) == []
    user.write(field, "9")
    user.press(card.get_by_role("button", name="Save"))
    card.get_by_text(f"from the file: {file}, line").wait_for(timeout=20_000)
    visitor.sees("It acts once events has been restarted")
    assert "keep_days = 9" in file.read_text()
    user.press(page.get_by_role("button", name="Restart events"))
    visitor.sees("events is ready")
    user.press(page.get_by_role("button", name="Change events.keep_days"))
    user.press(card.get_by_role("button", name="Back to the default (7)"))
    card.get_by_text("from the default").wait_for(timeout=20_000)
    assert "keep_days" not in file.read_text()
    assert axe_violations(page) == []
    assert fits(visitor)
    # A browser reports answers with an error, here the refusal of 0.
    assert [each for each in visitor.complaints if "400" not in each] == []


TYPED_AND_REDRAWN = """async (field) => {
    field.value = "keep_days";
    field.dispatchEvent(new InputEvent("input", { bubbles: true }));
    // The page is drawn again, as it is for live figures, before the event that tells of the new address.
    dispatchEvent(new Event("storage"));
    for (let turn = 0; turn < 20; turn++) await null;
    return field.value;
}"""


def test_a_redraw_while_somebody_types_loses_no_letter(kernel: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    visitor.sign_in(kernel)
    visitor.go("admin/settings")
    field = visitor.page.get_by_label("Words", exact=True)
    field.wait_for(timeout=20_000)
    assert field.evaluate(TYPED_AND_REDRAWN) == "keep_days"
    visitor.page.get_by_role("listitem").filter(has_text="events.keep_days").wait_for(timeout=20_000)
    assert visitor.complaints == []
