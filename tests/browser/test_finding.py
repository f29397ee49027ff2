"""What an operator looks for, found with the mouse or with the keyboard alone, at two widths and in two themes."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium
from tests.browser.visiting import CROSSED_WAYS, WAYS, Visitor, axe_violations, filled_kernel
from tests.system.cli.clients import linckia
from tests.system.running import RunningKernel

pytestmark = chromium.needed

in_ways = pytest.mark.parametrize(("by", "width", "theme"), WAYS)
in_crossed_ways = pytest.mark.parametrize(("by", "width", "theme"), CROSSED_WAYS)

MOST_TABS = 150
LINES = 300
GROWTH = itertools.count(1)

FOCUSED = "(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent).trim()"


class Seeker(Visitor):
    """A visitor who activates things in one way: with the mouse, or by going to them with the Tab key."""

    def __init__(self, browser: Any, by: str, width: str, theme: str) -> None:
        super().__init__(browser, width, theme)
        self.by = by

    def tab_to(self, name: str) -> None:
        for _ in range(MOST_TABS):
            self.page.keyboard.press("Tab")
            if self.page.evaluate(FOCUSED).startswith(name):
                return
        raise AssertionError(f"{MOST_TABS} tabs do not reach {name!r}")

    def activate(self, target: Any, name: str) -> None:
        """Click on `target`, or go to what has this name and press Enter."""
        target.wait_for()
        if self.by == "mouse":
            target.click()
        else:
            self.tab_to(name)
            self.page.keyboard.press("Enter")

    def follow(self, name: str) -> None:
        self.activate(self.page.get_by_role("link", name=name).first, name)

    def unfold(self, name: str) -> None:
        self.activate(self.page.locator("summary", has_text=name).first, name)

    def is_content(self) -> None:
        """Assert that the page is accessible, has room, and has nothing to complain about."""
        assert axe_violations(self.page) == []
        assert self.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert self.complaints == []


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    with filled_kernel(tmp_path_factory.mktemp("finding")) as kernel:
        yield kernel


@pytest.fixture
def seeker(kernel: RunningKernel, browser: Any, by: str, width: str, theme: str) -> Seeker:
    visitor = Seeker(browser, by, width, theme)
    visitor.sign_in(kernel)
    return visitor


def with_tool_calls(path: Path) -> None:
    """Write a conversation with a tool call that has a long result."""
    result = json.dumps({"lines": [f"line {number} of the log" for number in range(LINES)]})
    contents: list[Any] = [
        "Why did the tide gauge stop?",
        [{"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "/var/log/gauge.log"}}],
        [{"type": "tool_result", "tool_use_id": "t1", "content": result}],
        [{"type": "text", "text": "Its battery was empty."}],
    ]
    head = {"sessionId": "5e551011-0000-4000-8000-000000000009", "cwd": "/home/me/tides", "version": "2.0.0"}
    turns = []
    for number, content in enumerate(contents):
        role = "assistant" if number % 2 else "user"
        message: dict[str, Any] = {"role": role, "content": content}
        if role == "assistant":
            usage = {"input_tokens": 1000, "output_tokens": 50}
            message |= {"id": f"g{number}", "model": "claude-sonnet-4-5", "type": "message", "usage": usage}
        name = "{:08x}-0000-4000-8000-000000000009".format
        turns.append(
            {
                **head, "type": role, "message": message, "uuid": name(number),
                "timestamp": f"2026-11-11T10:00:0{number}Z", "parentUuid": name(number - 1) if number else None,
            }
        )  # fmt: skip
    path.write_text("".join(json.dumps(each) + "\n" for each in turns))


@in_ways
def test_the_folder_that_grew_since_a_date_is_found(kernel: RunningKernel, seeker: Seeker) -> None:
    number = next(GROWTH)
    root = Path(kernel.status()["roots"][0])
    folder = root / f"logs{number}" / "deep"
    folder.mkdir(parents=True)
    (folder / "big.bin").write_bytes(b"x" * number * 300_000)
    kernel.call("index", {"path": str(root), "async": False, "maxAge": 0})
    today = datetime.date.today()
    seeker.follow("Disk")
    seeker.sees("photos/")
    seeker.follow("Growth")
    seeker.sees("Compared with the scan of")
    field = seeker.page.get_by_label("Since", exact=True)
    if seeker.by == "mouse":
        field.fill(today.isoformat())
    else:
        for _ in range(MOST_TABS):
            seeker.page.keyboard.press("Tab")
            if seeker.page.evaluate("document.activeElement.type") == "date":
                break
        seeker.page.keyboard.type(f"{today:%m%d%Y}")
    seeker.sees("No scan is that old. Compared with the first one")
    way = (
        f"[...document.querySelectorAll('ol.way a')].map(each => each.textContent).join(' ') === 'logs{number}/ deep/'"
    )
    seeker.until(way)
    seeker.is_content()
    seeker.follow("Show what is there")
    seeker.page.get_by_role("button", name="big.bin").wait_for()
    seeker.is_content()


@in_crossed_ways
def test_a_tool_call_in_a_conversation_is_read(kernel: RunningKernel, seeker: Seeker, tmp_path: Path) -> None:
    with_tool_calls(tmp_path / "session.jsonl")
    done = linckia(kernel.data_dir, "import-chats", str(tmp_path / "session.jsonl"))
    assert done.returncode == 0, done.stderr
    seeker.follow("Conversations")
    seeker.follow("Why did the tide gauge stop?")
    seeker.sees("Its battery was empty.")
    assert seeker.page.get_by_text("/var/log/gauge.log").locator("visible=true").count() == 1
    seeker.unfold("calls read_file")
    arguments = seeker.page.get_by_label("Arguments of read_file")
    arguments.wait_for()
    assert json.loads(arguments.inner_text()) == {"path": "/var/log/gauge.log"}
    seeker.unfold("result of read_file")
    # The page had only its beginning.
    result = seeker.page.get_by_label("Result", exact=True)
    result.get_by_text(f"line {LINES - 1} of the log").wait_for()
    assert len(json.loads(result.inner_text())["lines"]) == LINES
    seeker.is_content()


@in_crossed_ways
def test_two_versions_of_a_document_are_compared(seeker: Seeker) -> None:
    seeker.follow("Documents")
    seeker.follow("star.py")
    seeker.sees("class SeaStar")
    seeker.follow("Compare versions")
    seeker.sees("1 line added, 1 removed")
    page = seeker.page
    rows = page.locator("table.diff tbody tr")
    gone, come = page.locator("table.diff td.text.gone"), page.locator("table.diff td.text.come")
    assert gone.inner_text()[1:].strip() == "return 5"
    assert come.inner_text()[1:].strip() == "return 6"
    beside = page.locator("table.diff tr:has(td.gone):has(td.come)")
    assert beside.count() == (0 if page.viewport_size["width"] < 500 else 1)
    page.locator("table.diff .c-keyword", has_text="return").first.wait_for()
    before = rows.count()
    seeker.activate(page.get_by_role("button", name="7 equal lines"), "7 equal lines")
    seeker.sees("Stars of the sea.")
    assert rows.count() == before + 6
    seeker.is_content()
    seeker.follow("Open the first")
    seeker.sees("return 5")
    seeker.is_content()


def search(seeker: Seeker, query: str) -> None:
    """Search from the field in the header."""
    if seeker.by == "mouse":
        seeker.page.get_by_label("Search everything").click()
    else:
        seeker.page.keyboard.press("/")
        seeker.until("document.activeElement.id === 'search-everything'")
    seeker.page.keyboard.type(query)
    seeker.page.keyboard.press("Enter")


@in_ways
def test_everything_is_searched_from_any_view_and_the_best_hit_opened(kernel: RunningKernel, seeker: Seeker) -> None:
    page = seeker.page
    for view in ("memory", "disk/map", "tools"):
        seeker.go(view)
        # The heading of a new view takes the focus, which is over once its data are there.
        seeker.until(f"document.title.toLowerCase().startsWith('{view.split('/')[0]}')")
        seeker.until("!document.querySelector('main').textContent.includes('Loading…')")
        search(seeker, "How does a sea star regrow an arm?")
        hit = page.locator("a.hit").first
        hit.wait_for()
        seeker.sees("How does a sea star regrow an arm?")
        seeker.is_content()
        if seeker.by == "mouse":
            hit.click()
        else:
            page.keyboard.press("ArrowDown")
            seeker.until("document.activeElement === document.querySelector('a.hit')")
            page.keyboard.press("Enter")
        page.locator("article.turn.marked", has_text="How does a sea star regrow an arm?").wait_for()
        seeker.until("document.activeElement.classList.contains('marked')")


def test_the_keys_go_from_hit_to_hit_and_are_listed(kernel: RunningKernel, browser: Any) -> None:
    seeker = Seeker(browser, "keyboard", "desktop", "light")
    seeker.sign_in(kernel)
    page = seeker.page
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("Search everything").wait_for()
    assert axe_violations(page) == []
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") != "search-everything"
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    search(seeker, "sea.png")
    # What was typed into the field is text there.
    page.keyboard.press("/")
    page.keyboard.press("?")
    page.locator("section[aria-label=Names] a.hit", has_text="sea.png").wait_for()
    page.locator("section[aria-label=Passages][aria-busy=false]").wait_for()
    hits = page.locator("a.hit")
    for index in range(hits.count()):
        page.keyboard.press("ArrowDown")
        seeker.until(f"document.activeElement === document.querySelectorAll('a.hit')[{index}]")
        if page.evaluate("document.activeElement.textContent").startswith("sea.png"):
            break
    page.keyboard.press("Enter")
    page.get_by_alt_text("Preview of sea.png").wait_for()


def test_the_nearest_passages_are_shown_if_none_is_likely(kernel: RunningKernel, browser: Any) -> None:
    seeker = Seeker(browser, "keyboard", "phone", "dark")
    seeker.sign_in(kernel)
    search(seeker, "zzqqxx gibberish frobnicate")
    seeker.sees("No likely passage")
    badges = seeker.page.locator(".badge", has_text="unlikely")
    assert 1 <= badges.count() <= 3
    assert badges.count() == seeker.page.locator("article").count()
    search(seeker, "everything_search")
    seeker.page.locator("section[aria-label=Names] a.hit", has_text="everything_search").wait_for()


def test_the_boxes_of_the_map_are_reached_by_the_arrows(kernel: RunningKernel, browser: Any) -> None:
    seeker = Seeker(browser, "keyboard", "desktop", "light")
    seeker.sign_in(kernel)
    root = kernel.status()["roots"][0]
    page = seeker.page
    seeker.go(f"disk/map?path={root}")
    seeker.page.get_by_text("on the disk", exact=False).first.wait_for()
    canvas = page.locator("canvas")
    canvas.focus()
    spoken = page.locator(".treemap [role=status]")
    names = []
    for _ in range(50):
        names.append(spoken.inner_text().partition(",")[0])
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(20)
        if spoken.inner_text().partition(",")[0] == names[-1]:
            break
    assert {"photos/", "notes/", "code/"} <= set(names)
    assert page.locator(".tip").inner_text().startswith(names[-1])
    while spoken.inner_text().partition(",")[0] != "photos/":
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(20)
    page.keyboard.press("ArrowDown")
    seeker.until("/^(copy|sea).png/.test(document.querySelector('.treemap [role=status]').textContent)")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    seeker.until("decodeURIComponent(location.hash).endsWith('/photos')")
    seeker.page.get_by_role("button", name="sea.png").wait_for()
    assert seeker.complaints == []
