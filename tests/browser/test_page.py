"""The operator's page in a real browser, over a real kernel with data: every view, at two widths and in two themes."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium
from tests.browser.visiting import Visitor, axe_violations
from tests.system.access.tokens import HttpClient
from tests.system.running import HTTP, RunningKernel, running

pytestmark = chromium.needed

PICTURES = os.environ.get("PICTURES_FOLDER")
"""Folder for screenshots, which are the pictures of the documentation."""


def places(kernel: RunningKernel) -> dict[str, str]:
    """Return the addresses of all views and their parts, each with a text of the data that it shows."""
    root = kernel.status()["roots"][0]
    conversation = kernel.call("chats_list", {"limit": 1})["conversations"][0]["hash"]
    snapshots = [each["id"] for each in kernel.call("documents_snapshots", {})["snapshots"]]
    document = kernel.call("documents_list", {})["documents"][0]["hash"]
    at = f"?path={root}"
    http = HttpClient(kernel, kernel.status()["token"])
    searched = http.request("POST", "/call/search_everything", {"query": "how do animals regrow"})
    return {
        "system": "processes well",
        "system/retrieve": "Figures",
        "system/retrieve?span=day": "Deaths and recoveries",
        "system/retrieve/log": "retrieve.log",
        "system/retrieve/calls": "retrieve_search",
        "system/retrieve/setup": "Supervision",
        "approvals": "No call waits.",
        "calls": "everything_search",
        f"calls/{searched.headers['linckia-trace']}": "retrieve_search",
        "calls/slow": "recorded since",
        "calls/failed": "recorded since",
        "calls/audit": "memory_add",
        "search?query=regrow a lost arm": "similarity",
        "search/note/stars": "Backlinks",
        "notes": "Sea stars",
        "notes?find=sea stars": "with “sea stars”",
        "notes/note/stars?depth=2": "Backlinks",
        "notes/edit/stars": "Ctrl+S saves",
        "notes/graph": "as a list",
        "notes/orphans": "A note links to each of them",
        "notes/broken": "No link is broken",
        "notes/duplicates": "say the same",
        "notes/gaps": "no link between them",
        f"disk/map{at}": "photos/",
        f"disk/duplicates{at}": "could be freed",
        f"disk/growth{at}": "only one scan",
        f"disk/pictures{at}": "sea.png",
        "disk/jobs": "completed",
        "disk/trash": "in the trash",
        "today": "The latest first",
        "today/tasks": "tasks of the last 24 hours",
        "system/mcp_weather/definitions": "as they were approved, or first seen",
        "conversations": "How does a sea star regrow an arm?",
        f"conversations/{conversation}": "From its central disc",
        f"conversations/{conversation}/tree": "2 branches",
        f"conversations/{conversation}?find=regrow": "1 turn with these words",
        "conversations/costs": "By project",
        "conversations/find?query=regrow": "turn",
        "documents": "star.py",
        "documents/collections": "None",
        f"documents/snapshots?before={snapshots[-1]}&after={snapshots[0]}": "1 changed",
        f"documents/file/{document}": "class SeaStar",
        f"documents/version/{document}?path=star.py": "class SeaStar",
        f"documents/compare?path={root}/code/star.py": "1 line added, 1 removed",
        "documents/graph?name=star.py": "SeaStar.regrow",
        "memory": "Deploys happen on Mondays",
        "mounts": "weather",
        "mounts/weather": "tokens in each conversation",
        "mounts/weather/log": "mcp_weather.log",
        "mounts/weather/definitions": "as they were approved, or first seen",
        "tools": "everything_search",
        "tools/surfaces": "Tokens, about",
        "tools/weather_forecast": "Forecast the weather of a city",
        "admin": "Create a token",
        "admin/backups": "Back up now",
        "admin/doctor": "python",
        "admin/settings": "events.keep_days",
    }


@pytest.mark.slow
@pytest.mark.parametrize(("theme", "width"), [("light", "desktop"), ("dark", "phone")])
def test_every_view_shows_its_data_and_is_accessible(
    kernel: RunningKernel, browser: Any, width: str, theme: str
) -> None:
    visitor = Visitor(browser, width, theme)
    visitor.sign_in(kernel)
    violations = {}
    for address, text in places(kernel).items():
        visitor.go(address)
        visitor.sees(text)
        # Everything has been loaded, or has said why not.
        visitor.until("!document.querySelector('main').textContent.includes('Loading…')")
        assert visitor.page.locator("main .error").all_inner_texts() == [], address
        overhang = visitor.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overhang <= 0, f"{address} is {overhang} pixels too wide"
        if found := axe_violations(visitor.page):
            violations[address] = found
        name = re.sub("[0-9a-f]{32}", "trace", address.partition("?")[0]).replace("/", "-")
        if PICTURES and (theme, width) == ("light", "desktop") and len(name) < 40:
            visitor.page.screenshot(path=str(Path(PICTURES) / f"{name}.png"))
    assert violations == {}
    assert visitor.complaints == []


def test_a_call_that_waits_is_approved_or_denied_by_its_buttons(kernel: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    visitor.sign_in(kernel)
    visitor.go("approvals")
    visitor.sees("No call waits.")
    file = Path(kernel.status()["roots"][0]) / "settings.yaml"
    file.write_text("retries: 1\n")
    client = HttpClient(kernel, kernel.status()["token"])
    answers: list[str] = []

    def change(value: int) -> threading.Thread:
        arguments = {"file": str(file), "path": "retries", "value": str(value)}
        thread = threading.Thread(target=lambda: answers.append(client.tool("yaml_set", arguments).text))
        thread.start()
        return thread

    waiting = change(2)
    visitor.sees("yaml_set")
    visitor.sees("the call waits")
    violations = axe_violations(visitor.page)
    visitor.page.get_by_role("button", name="Approve yaml_set").click()
    waiting.join(20)
    assert file.read_text() == "retries: 2\n"
    visitor.sees("approved")
    # The card of the first call would take the reason.
    visitor.sees("No call waits.")
    waiting = change(3)
    visitor.page.get_by_label("Reason").fill("enough retries")
    visitor.page.get_by_role("button", name="Deny yaml_set").click()
    waiting.join(20)
    assert "denied by operator's page: enough retries" in answers[-1]
    assert file.read_text() == "retries: 2\n"
    assert violations == []
    assert visitor.complaints == []


def test_a_service_restarted_by_its_button_and_a_killed_one_return(kernel: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    visitor.sign_in(kernel)
    page = visitor.page
    # A service that rests is in another table, which is folded.
    kernel.call("mcp_echo", {"message": "stay"})
    before = kernel.service("echo")["generation"]
    page.get_by_role("button", name="Restart echo").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert kernel.service("echo")["generation"] == before
    page.get_by_role("button", name="Restart echo").click()
    page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    visitor.sees(f"echo is ready, generation {before + 1}")

    kernel.kill("yaml")
    visitor.sees("ready ")
    row = page.get_by_role("row").filter(has_text="died").filter(has_text="yaml")
    row.first.wait_for(timeout=20_000)
    assert "SIGKILL" in row.first.inner_text()
    assert visitor.complaints == []


def test_a_wrong_token_is_reported_and_a_sign_in_lasts_in_a_new_tab(kernel: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    page, url = visitor.page, kernel.status()["page_url"]
    plain = url.partition("#")[0]
    page.goto(plain)
    visitor.sees("This kernel requires its token")
    page.get_by_label("Address of the page, or token").fill("a-wrong-token-of-some-length")
    page.get_by_role("button", name="Sign in").click()
    visitor.sees("unknown to the kernel")
    # The token alone gives a client's access.
    page.get_by_label("Address of the page, or token").fill(kernel.status()["token"])
    page.get_by_role("button", name="Sign in").click()
    visitor.sees("client's access only")
    visitor.go("memory")
    visitor.sees("Deploys happen on Mondays")

    page.goto("about:blank")
    page.goto(url)
    visitor.sees("Changed files")
    assert "#/today" in page.url
    other = visitor.context.new_page()
    other.goto(plain)
    other.get_by_text("Changed files").wait_for()
    page.get_by_role("button", name="Sign out").click()
    visitor.sees("This kernel requires its token")
    other.get_by_text("This kernel requires its token").wait_for()


REDRAWN = """() => { window.redrawn = 0;
    new MutationObserver(() => { window.redrawn++ })
        .observe(document.querySelector("main"), { subtree: true, childList: true, characterData: true }); }"""


def test_the_keyboard_reaches_everything_and_the_focus_follows(kernel: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    visitor.sign_in(kernel)
    page = visitor.page
    # The first view is read from the top.
    page.reload()
    visitor.sees("processes well")
    focused = "document.activeElement.textContent"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "To the content"
    for _ in ("Today", "System", "Notes", "Calls"):
        page.keyboard.press("Tab")
    assert page.evaluate(focused) == "Calls"
    page.keyboard.press("Enter")
    visitor.until("document.activeElement.tagName === 'H1' && document.activeElement.textContent === 'Calls'")
    # Each view moves the focus as soon as it is there.
    for link in page.get_by_role("navigation", name="Views").get_by_role("link").all():
        name = link.inner_text()
        link.click()
        page.locator("main h1", has_text=name).wait_for()
        assert page.evaluate("document.activeElement.tagName") == "H1", name
    # Live figures redraw the table; the focus stays.
    kernel.call("mcp_echo", {"message": "stay"})
    visitor.go("system")
    visitor.sees("processes well")
    page.get_by_role("button", name="Restart echo").focus()
    page.evaluate(REDRAWN)
    visitor.until("window.redrawn > 1")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Restart echo"
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    visitor.until("document.activeElement.getAttribute('aria-label') === 'Restart echo'")


def test_an_operation_is_called_by_its_form_and_its_trace_is_shown(kernel: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    visitor.sign_in(kernel)
    page = visitor.page
    visitor.go("tools/weather_forecast")
    page.get_by_label("city").fill("Bern")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Call", exact=True).click()
    visitor.sees("Bern: sunny for 3 days")
    visitor.go("tools/everything_search")
    page.get_by_label("query").fill("regrow a lost arm")
    page.get_by_role("button", name="Call", exact=True).click()
    page.get_by_role("link", name="trace").click()
    page.get_by_role("list", name="Calls of this trace").get_by_text("retrieve_search").first.wait_for()
    # A wrong value is refused with the name of its field.
    visitor.go("tools/graph_neighbors")
    page.get_by_label("id").first.fill("stars")
    page.get_by_label("kinds").fill("[1]")
    page.get_by_role("button", name="Call", exact=True).click()
    page.locator("main .error").first.wait_for()
    assert "kinds" in page.locator("main .error").first.inner_text()


def test_a_token_is_created_and_revoked(kernel: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    visitor.sign_in(kernel)
    page = visitor.page
    visitor.go("admin")
    page.get_by_label("Name").fill("operator")
    page.get_by_role("button", name="Create").click()
    visitor.sees("has another meaning")
    page.get_by_label("Name").fill("ci")
    page.get_by_label("Expires").fill("30d")
    page.get_by_role("button", name="Create").click()
    visitor.sees("It is shown only this once")
    assert page.get_by_label("Token", exact=True).inner_text().startswith("linckia_")
    page.get_by_role("button", name="Revoke ci").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    visitor.sees("None besides the kernel's own")


def test_a_deleted_file_is_restored_from_the_trash(kernel: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    visitor.sign_in(kernel)
    root = Path(kernel.status()["roots"][0])
    lost = root / "photos" / "copy.png"
    visitor.go(f"disk/map?path={root}/photos")
    visitor.page.get_by_role("button", name="copy.png").click()
    visitor.page.get_by_alt_text("Preview of copy.png").wait_for()
    visitor.page.get_by_role("button", name="Delete").click()
    visitor.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    visitor.sees("in the trash")
    assert not lost.exists()
    visitor.go("disk/trash")
    visitor.page.get_by_role("button", name=f"Restore {lost}").click()
    visitor.sees("The trash is empty")
    assert lost.exists()


def test_the_end_of_a_kernel_is_reported_and_the_page_reconnects(tmp_path: Path, browser: Any) -> None:
    with running(tmp_path / "data", options=HTTP, services=["echo"], all_ready=False, token=True) as kernel:
        kernel.wait_ready("echo")
        while kernel.status()["page_url"] is None:
            time.sleep(0.02)
        visitor = Visitor(browser)
        visitor.sign_in(kernel)
        url = kernel.status()["http_url"].removesuffix("/mcp").removeprefix("http://")
    visitor.sees("The kernel does not answer")
    again = running(tmp_path / "data", options=("--http", url), services=["echo"], all_ready=False, token=True)
    with again as kernel:
        visitor.page.get_by_text("● live").wait_for(timeout=30_000)
