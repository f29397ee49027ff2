"""What agents did, the tasks that run and the calls that wait, with the mouse and with the keyboard alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium
from tests.browser.visiting import CROSSED_WAYS, WAYS, Visitor, axe_violations
from tests.system.access.tokens import HttpClient
from tests.system.running import RunningKernel, wait_until

pytestmark = chromium.needed

HOSTILE = "<img onerror=alert(1) src=x>\u202egnp.txt"

in_ways = pytest.mark.parametrize(("by", "width", "theme"), WAYS)
in_crossed_ways = pytest.mark.parametrize(("by", "width", "theme"), CROSSED_WAYS)


class Hands:
    """Presses buttons by the mouse, or by the keyboard alone."""

    def __init__(self, visitor: Visitor, by: str) -> None:
        self._visitor = visitor
        self._by = by

    def press(self, name: str, *, role: str = "button") -> None:
        """Press the first button with this in its accessible name; in a dialog, if one is open."""
        page = self._visitor.page
        place = page.locator("dialog[open]") if page.locator("dialog[open]").count() else page
        button = place.get_by_role(role, name=name).filter(visible=True).first
        button.wait_for(timeout=20_000)
        if self._by == "mouse":
            button.click()
        else:
            self.reach(button)
            page.keyboard.press("Enter")

    def reach(self, element: Any) -> None:
        """Go on with the tabulator until an element has the focus."""
        for _ in range(200):
            if element.evaluate("element => element === document.activeElement"):
                return
            self._visitor.page.keyboard.press("Tab")
        raise AssertionError(f"the tabulator never reached {element}")


def visiting(
    kernel: RunningKernel, browser: Any, width: str, theme: str, by: str, address: str
) -> tuple[Visitor, Hands]:
    visitor = Visitor(browser, width, theme)
    visitor.sign_in(kernel)
    visitor.go(address)
    return visitor, Hands(visitor, by)


def check(visitor: Visitor) -> None:
    """Check that the view is accessible, fits, and that the browser complains about nothing."""
    assert axe_violations(visitor.page) == []
    assert visitor.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert visitor.complaints == []


def edited(kernel: RunningKernel, name: str) -> Path:
    file = Path(kernel.status()["roots"][0]) / name
    file.write_text("before\nthe same\n")
    kernel.call("files_edit", {"path": str(file), "edits": [{"old": "before", "new": "after"}]})
    return file


@in_ways
def test_a_change_of_today_is_read_and_taken_back(
    kernel: RunningKernel, browser: Any, width: str, theme: str, by: str
) -> None:
    file = edited(kernel, f"{by}-{width}.txt")
    visitor, hands = visiting(kernel, browser, width, theme, by, f"today?path={file}")
    visitor.sees("files_edit")
    summary = visitor.page.locator("summary", has_text="What was changed").first
    if by == "mouse":
        summary.click()
    else:
        hands.reach(summary)
        visitor.page.keyboard.press("Enter")
    visitor.page.locator("ins", has_text="+after").wait_for()
    assert visitor.page.locator("del").inner_text() == "-before"
    check(visitor)
    hands.press(f"Undo files_edit of {file}")
    visitor.sees("1 path would be as before")
    check(visitor)
    assert file.read_text() == "after\nthe same\n"
    hands.press("Undo 1 path")
    visitor.sees("undone by")
    assert file.read_text() == "before\nthe same\n"
    check(visitor)


def test_what_somebody_has_changed_since_is_named_before_the_undo(kernel: RunningKernel, browser: Any) -> None:
    file = edited(kernel, "since.txt")
    file.write_text("by hand\n")
    visitor, hands = visiting(kernel, browser, "phone", "light", "mouse", f"changes?path={file}")
    hands.press("Undo files_edit")
    visitor.sees("Nothing can be undone")
    visitor.sees("was changed since by another program")
    assert visitor.page.get_by_role("button", name="Undo", exact=True).is_disabled()
    check(visitor)
    hands.press("Cancel")
    assert "#/today?path=" in visitor.page.url
    assert file.read_text() == "by hand\n"


def test_a_session_is_undone_as_a_whole(kernel: RunningKernel, browser: Any) -> None:
    root = Path(kernel.status()["roots"][0])
    (root / "session").mkdir()
    client = HttpClient(kernel, kernel.status()["token"])
    session = client.initialize()
    for name in ("one", "two"):
        arguments = {"path": str(root / "session" / f"{name}.txt"), "content": "x\n"}
        message = {
            "jsonrpc": "2.0",
            "id": name,
            "method": "tools/call",
            "params": {"name": "files_write", "arguments": arguments},
        }
        assert client.in_session(session, message).status == 200
    visitor, hands = visiting(kernel, browser, "desktop", "dark", "keyboard", f"today?path={root / 'session'}")
    visitor.sees("files_write")
    hands.press("Undo all of session")
    visitor.sees("paths would be as before")
    hands.press("Undo 2 paths")
    wait_until(lambda: not list((root / "session").glob("*.txt")))
    check(visitor)


def test_other_days_are_reached_by_arrows_and_hostile_names_are_harmless(kernel: RunningKernel, browser: Any) -> None:
    file = edited(kernel, HOSTILE)
    visitor, hands = visiting(kernel, browser, "phone", "dark", "keyboard", "today")
    visitor.sees("onerror")
    assert visitor.page.locator("main img").count() == 0
    hands.press("The day before")
    visitor.sees("Clients changed no file")
    assert "day=" in visitor.page.url
    check(visitor)
    hands.press("The day after")
    visitor.sees(file.name[:10])
    assert "day=" not in visitor.page.url


def test_many_events_of_a_folder_are_one_line_of_the_page_and_of_the_command_line(
    kernel: RunningKernel, browser: Any
) -> None:
    from tests.system.cli.clients import linckia

    many = Path(kernel.status()["roots"][0]) / "many"
    many.mkdir()
    for number in range(2_000):
        (many / f"{number}.md~").touch()

    def created() -> int:
        asked = {"path": str(many), "kinds": ["file"], "limit": 500}
        return sum(
            each.get("count", 1) for each in kernel.call("events_folded", asked)["lines"] if each["what"] == "created"
        )

    wait_until(lambda: created() >= 2_000, 60)
    visitor, _ = visiting(kernel, browser, "desktop", "light", "mouse", f"today?path={many}")
    visitor.sees("2,000 files created")
    check(visitor)
    said = linckia(kernel.data_dir, "events", "--path", str(many))
    assert said.returncode == 0, said.stderr
    assert f"{many}/: 2,000 files created" in said.stdout
    every = linckia(kernel.data_dir, "events", "--path", str(many), "--json", "-n", "1500")
    assert len(every.stdout.splitlines()) == 1_500


@in_crossed_ways
def test_a_running_task_is_cancelled(kernel: RunningKernel, browser: Any, width: str, theme: str, by: str) -> None:
    file = Path(kernel.status()["roots"][0]) / "task.yaml"
    file.write_text("a: 1\n")
    visitor, hands = visiting(kernel, browser, width, theme, by, "today/tasks")
    visitor.sees("Your tasks of the last 24 hours")
    # It runs until its approval is given.
    call = {"operation": "yaml_set", "arguments": {"file": str(file), "path": "a", "value": f"{by} {width}"}}
    id_ = kernel.call("tasks_start", call)["id"]
    timer = kernel.call("timers_create", {**call, "cron": "0 0 1 1 *", "missed": "skip"})["id"]
    hands.press(f"Cancel yaml_set {id_[:8]}")
    check(visitor)
    hands.press("Cancel the task")
    wait_until(lambda: kernel.call("tasks_get", {"id": id_})["state"] == "cancelled")
    visitor.page.get_by_role("article", name=f"Task yaml_set {id_[:8]}").get_by_text("cancelled").wait_for()
    hands.press("Read again")
    hands.press(f"Remove the timer yaml_set {timer}")
    hands.press("Remove")
    wait_until(lambda: timer not in [each["id"] for each in kernel.call("timers_list")["timers"]])
    assert file.read_text() == "a: 1\n"
    check(visitor)


@pytest.fixture
def ask(kernel: RunningKernel) -> Callable[[Path, int], threading.Thread]:
    """Have a client make a call that waits."""

    def start(file: Path, value: int) -> threading.Thread:
        client = HttpClient(kernel, kernel.status()["token"])
        arguments = {"file": str(file), "path": "retries", "value": str(value)}
        thread = threading.Thread(target=lambda: client.tool("yaml_set", arguments))
        thread.start()
        return thread

    return start


@in_ways
def test_a_call_is_approved_after_its_diff_was_read(
    kernel: RunningKernel, browser: Any, ask: Callable[[Path, int], threading.Thread], width: str, theme: str, by: str
) -> None:
    file = Path(kernel.status()["roots"][0]) / f"approved-{by}-{width}.yaml"
    file.write_text("# kept\nretries: 1\n")
    visitor, hands = visiting(kernel, browser, width, theme, by, "today")
    waiting = ask(file, 2)
    visitor.until("document.title.startsWith('(1) Today')")
    hands.press("Approvals", role="link")
    card = visitor.page.get_by_role("group", name="yaml_set").filter(has_text=file.name).first
    card.locator("ins", has_text="+retries: 2").wait_for()
    assert card.locator("del").inner_text() == "-retries: 1"
    check(visitor)
    if by == "mouse":
        card.get_by_role("button", name="Approve yaml_set").click()
    else:
        # Without the focus on the call, the key does nothing.
        visitor.page.keyboard.press("a")
        assert waiting.is_alive()
        hands.reach(card)
        visitor.page.keyboard.press("a")
    waiting.join(20)
    assert file.read_text() == "# kept\nretries: 2\n"
    visitor.until("document.title.startsWith('Approvals')")
    check(visitor)


def test_a_call_whose_file_has_changed_is_shown_again_before_it_is_approved(
    kernel: RunningKernel, browser: Any, ask: Callable[[Path, int], threading.Thread]
) -> None:
    root = Path(kernel.status()["roots"][0])
    first, second = root / "first.yaml", root / "second.yaml"
    for file in (first, second):
        file.write_text("retries: 1\n")
    visitor, hands = visiting(kernel, browser, "desktop", "light", "keyboard", "approvals")
    page = visitor.page
    threads = [ask(first, 2)]
    page.locator("[data-call]", has_text=first.name).wait_for()
    threads.append(ask(second, 3))
    page.locator("[data-call]", has_text=second.name).locator("ins").wait_for()
    first.write_text("other: 5\nretries: 1\n")
    hands.reach(page.locator("[data-call]", has_text=first.name))
    page.keyboard.press("a")
    visitor.sees("Not approved:")
    assert threads[0].is_alive()
    page.locator("[data-call]", has_text=first.name).get_by_text("other: 5").first.wait_for()
    check(visitor)
    page.keyboard.press("a")
    threads[0].join(20)
    assert first.read_text() == "other: 5\nretries: 2\n"
    # The focus goes on to the next call.
    visitor.until("document.activeElement.matches('[data-call]')")
    page.keyboard.press("d")
    threads[1].join(20)
    assert second.read_text() == "retries: 1\n"
    assert visitor.complaints == []
