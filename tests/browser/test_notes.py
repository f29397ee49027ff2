"""The page's notes in a real browser: tasks with the mouse or the keyboard alone, at two widths and in two themes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium
from tests.browser.visiting import CROSSED_WAYS, WAYS, Visitor, axe_violations, picture
from tests.system.running import HTTP, RunningKernel, running

pytestmark = chromium.needed

NOTES = {
    "stars.md": "---\ntitle: Sea stars\nhabitat: reef\ntags: [animal/sea]\n---\n# Body\n\nA star has [[arms|five arms]]"
    ", see [more](deep/discs.md) and [[nowhere]]. #linckia\n\n## Pictures\n\n![[sea.png]]\n\n![[deep/discs#Use]]\n",
    "arms.md": "# Arms\n\nEach arm regrows, see [[stars]].\n",
    "alone.md": "# Alone\n\nIt links to [[stars]], but nothing links here.\n",
    "faulty.md": "# Faulty\n\nSee [[arms]].\n\nAnd also [[strs]].\n",
    "more.md": "# More\n\n[[faulty]] and [[hostile]] and [[changing]]\n\n| a |\n|---|\n| [[arms\\|limbs]] |\n\n"
    "[[plan: b]] [part](deep/plan%3A%20b.md) [[#More]] ==marked== %%hidden%%\n",
    "deep/plan: b.md": "# Plan\n",
    "deep/discs.md": "# Discs\n\nIn the middle.\n\n### Use\n\nThe disc feeds the arms.\n\n![[stars]]\n\n"
    "# End\n\nNot embedded.\n",
}  # fmt: skip

HOSTILE = """\
# Hostile

<script>window.pwned = 1</script>
<img src=x onerror="window.pwned = 2"> <img src="https://elsewhere.example/track.png" alt="tracker">
<style>body { background: url(https://elsewhere.example/style.png) }</style>
<p style="background: url(https://elsewhere.example/inline.png)" onclick="window.pwned = 3">styled</p>
<svg onload="window.pwned = 4"><image href="https://elsewhere.example/svg.png"/></svg>
<iframe src="https://elsewhere.example/frame"></iframe><object data="https://elsewhere.example/o"></object>
<video src="https://elsewhere.example/v.mp4" poster="https://elsewhere.example/p.png"></video>
<link rel="stylesheet" href="https://elsewhere.example/l.css"><base href="https://elsewhere.example/">
<form action="https://elsewhere.example/"><input name=x autofocus onfocus="window.pwned = 5"></form>
<a href="javascript:window.pwned = 6">html link</a> <a href=" java&#10;script:window.pwned = 7">broken up</a>
<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=window.pwned=8&gt;"></math>

[script link](javascript:window.pwned=9) [data link](data:text/html,<script>window.pwned=10</script>)
![remote](https://elsewhere.example/remote.png) ![file](file:///etc/passwd) ![svg](data:image/svg+xml,<svg/onload=x>)
[outside](https://elsewhere.example/page) <https://elsewhere.example/auto>

[[<img src=x onerror=window.pwned=11>]] ![[<svg onload=window.pwned=12>]] [[a" onmouseover="window.pwned=13|b]]
`<script>window.pwned = 14</script>` <div data-wiki="stars" data-embed="x" data-image="https://elsewhere.example/d">data</div>

| a | b |
|---|---|
| <img src=x onerror=window.pwned=15> | \u202eright to left\u202c |

The end of it.
"""

in_ways = pytest.mark.parametrize(("hand", "width", "theme"), WAYS)
in_crossed_ways = pytest.mark.parametrize(("hand", "width", "theme"), CROSSED_WAYS)


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("notes")
    root = folder / "vault"
    (root / "deep").mkdir(parents=True)
    (folder / "data").mkdir(mode=0o700)
    for name, text in NOTES.items():
        (root / name).write_text(text)
    (root / "hostile.md").write_text(HOSTILE)
    for hand, width, _ in CROSSED_WAYS:
        (root / f"diary-{hand}-{width}.md").write_text("# Diary\n\nNothing yet.\n")
    (root / "changing.md").write_text("# Changing\n\nFirst.\n")
    picture(root / "sea.png", 60, 40)
    services = [
        "knowledge",
        "retrieve",
        "graph",
        "files",
        "watch",
        "yaml",
        "embed",
        "media",
        "tasks",
        "events",
        "approvals",
    ]
    with running(folder / "data", [root], options=HTTP, services=services, token=True) as kernel:
        while any(kernel.call("notes_status", {})[each] for each in ("scanning", "pending", "vectors_waiting")):
            time.sleep(0.1)
        while kernel.status()["page_url"] is None:
            time.sleep(0.02)
        yield kernel


class Hand:
    """Uses the page with the mouse, or with the keyboard alone."""

    def __init__(self, browser: Any, kernel: RunningKernel, hand: str, width: str, theme: str) -> None:
        self.visitor = Visitor(browser, width, theme)
        self.visitor.sign_in(kernel)
        self.page = self.visitor.page
        self.is_keyboard = hand == "keyboard"

    def _tab_to(self, target: Any) -> None:
        for _ in range(150):
            if target.evaluate("element => element === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"the keyboard does not reach {target}")

    def press(self, role: str, name: str, within: Any = None) -> None:
        """Follow a link, or press a button."""
        target = (within or self.page).get_by_role(role, name=name, exact=True).first
        target.wait_for(timeout=20_000)
        if self.is_keyboard:
            self._tab_to(target)
            self.page.keyboard.press("Enter")
        else:
            target.click()

    def write(self, label: str, text: str, *, at_end: bool = False) -> None:
        target = self.page.locator("input, textarea").and_(self.page.get_by_label(label, exact=True))
        target.wait_for(timeout=20_000)
        if self.is_keyboard:
            self._tab_to(target)
        else:
            target.click()
        if at_end:
            self.page.keyboard.press("Control+End")
        self.page.keyboard.type(text)

    def is_titled(self, title: str) -> None:
        self.page.get_by_role("heading", level=1, name=title, exact=True).wait_for(timeout=20_000)
        self.visitor.until("!document.querySelector('main').textContent.includes('Loading…')")

    def is_fine(self) -> None:
        assert axe_violations(self.page) == []
        assert self.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@in_ways
def test_a_note_is_found_and_read_and_its_links_are_followed_both_ways(
    vault: RunningKernel, browser: Any, hand: str, width: str, theme: str
) -> None:
    user = Hand(browser, vault, hand, width, theme)
    user.press("link", "Notes", user.page.get_by_role("navigation", name="Views"))
    user.visitor.sees("the latest first")
    user.is_fine()
    user.write("Words of titles and paths, or #tag", "#animal stars")
    user.press("button", "Filter")
    user.visitor.sees("1 note with “#animal stars”")
    user.press("link", "Sea stars")
    user.is_titled("Sea stars")
    note = user.page.get_by_label("The note", exact=True)
    note.get_by_text("The disc feeds the arms.").wait_for()
    note.get_by_alt_text("sea.png").wait_for()
    assert "Not embedded" not in note.inner_text()
    assert "reef" in user.page.get_by_label("About the note").inner_text()
    user.is_fine()
    user.press("link", "five arms", note)
    user.is_titled("Arms")
    user.press("link", "Sea stars", user.page.get_by_role("list", name="Backlinks"))
    user.is_titled("Sea stars")
    user.press("link", "#linckia", user.page.get_by_label("The note", exact=True))
    user.visitor.sees("1 note with “#linckia”")
    assert user.visitor.complaints == []


@in_crossed_ways
def test_a_note_is_changed_with_a_preview_and_the_change_taken_back(
    vault: RunningKernel, browser: Any, hand: str, width: str, theme: str
) -> None:
    file = Path(vault.status()["roots"][0]) / f"diary-{hand}-{width}.md"
    before = file.read_bytes()
    user = Hand(browser, vault, hand, width, theme)
    user.visitor.go(f"notes/note/{file.stem}")
    user.is_titled("Diary")
    user.press("link", "Edit")
    user.is_titled("Edit Diary")
    user.write("Markdown", "\nToday *five* [[arms]].", at_end=True)
    preview = user.page.get_by_label("Preview", exact=True)
    preview.get_by_role("link", name="arms").wait_for(timeout=20_000)
    assert preview.locator("em").inner_text() == "five"
    user.is_fine()
    if user.is_keyboard:
        user.page.keyboard.press("Control+s")
    else:
        user.press("button", "Save")
    user.is_titled("Diary")
    user.visitor.sees("Saved.")
    assert file.read_text() == "# Diary\n\nNothing yet.\n\nToday *five* [[arms]]."
    user.is_fine()
    user.press("button", "Undo")
    user.visitor.sees("The change was taken back.")
    assert file.read_bytes() == before
    assert user.visitor.complaints == []


@in_ways
def test_a_note_that_nothing_links_to_and_a_broken_link_are_found(
    vault: RunningKernel, browser: Any, hand: str, width: str, theme: str
) -> None:
    user = Hand(browser, vault, hand, width, theme)
    user.visitor.go("notes")
    user.press("link", "Not linked to")
    user.visitor.sees("No other note links to")
    user.is_fine()
    user.press("link", "Alone")
    user.is_titled("Alone")
    user.visitor.sees("No note links to this one.")
    user.press("link", "Notes", user.page.locator("main"))
    user.press("link", "Broken links")
    user.visitor.sees("strs")
    user.is_fine()
    user.press("link", "Edit faulty at line 5")
    user.is_titled("Edit Faulty")
    user.visitor.until("document.activeElement.tagName === 'TEXTAREA'")
    chosen = (
        "document.activeElement.value.slice(document.activeElement.selectionStart, document.activeElement.selectionEnd)"
    )
    assert user.page.evaluate(chosen) == "And also [[strs]]."
    assert user.visitor.complaints == []


WATCH = """() => { window.said = [];
    addEventListener("securitypolicyviolation", (event) => said.push(event.violatedDirective + event.blockedURI)); }"""
HANDLERS = """[...document.querySelectorAll(".markdown *")].flatMap((each) => each.getAttributeNames())
    .filter((name) => name.startsWith("on"))"""


def test_hostile_markdown_runs_nothing_and_asks_nobody(vault: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    asked: list[str] = []
    visitor.page.on("request", lambda request: asked.append(request.url))
    visitor.sign_in(vault)
    visitor.page.evaluate(WATCH)
    for address in ("notes/note/hostile", "notes/edit/hostile"):
        visitor.go(address)
        shown = visitor.page.locator(".markdown")
        shown.get_by_text("The end of it.").wait_for(timeout=20_000)
        assert axe_violations(visitor.page) == []
        assert (
            shown.locator("script, style, iframe, object, svg, form, input, video, link, base, [style], img").count()
            == 0
        )
        assert visitor.page.evaluate(HANDLERS) == []
        for link in shown.locator("a").all():
            target = link.get_attribute("href") or "#"
            assert target.startswith(("#", "https://elsewhere.example/"))
            if target.startswith("https:"):
                assert "noreferrer" in (link.get_attribute("rel") or "")
        text = shown.inner_text()
        assert "tracker" in text
        assert "https://elsewhere.example/remote.png" in text
        assert "file:///etc/passwd is missing" in text
        for link in shown.get_by_text("script link").all():
            link.click()
    visitor.page.evaluate("new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve, 0)))")
    own = vault.status()["page_url"].partition("#")[0]
    assert [url for url in asked if not url.startswith((own, "blob:" + own, "data:,"))] == []
    assert visitor.page.evaluate("[window.pwned ?? null, said]") == [None, []]
    assert visitor.complaints == []


def test_a_note_that_changed_meanwhile_is_not_overwritten_and_both_texts_stay(
    vault: RunningKernel, browser: Any
) -> None:
    file = Path(vault.status()["roots"][0]) / "changing.md"
    visitor = Visitor(browser)
    visitor.sign_in(vault)
    page = visitor.page
    visitor.go("notes/edit/changing")
    page.get_by_label("Markdown").fill("# Changing\n\nMine.\n")
    file.write_text("# Changing\n\nOf another.\n")
    page.get_by_role("button", name="Save", exact=True).click()
    visitor.sees("Not saved: the note has changed meanwhile")
    visitor.sees("the file has changed: its hash is")
    assert page.get_by_label("The note as it is now", exact=True).inner_text() == "# Changing\n\nOf another.\n"
    assert page.get_by_label("Markdown").input_value() == "# Changing\n\nMine.\n"
    assert file.read_text() == "# Changing\n\nOf another.\n"
    assert axe_violations(page) == []
    # Leaving loses nothing.
    visitor.go("notes")
    visitor.sees("the latest first")
    page.reload()
    visitor.go("notes/note/changing")
    page.get_by_role("link", name="text that you have not saved").click()
    visitor.sees("This is your text that was not saved. The note has changed since.")
    assert page.get_by_label("Markdown").input_value() == "# Changing\n\nMine.\n"
    page.get_by_role("button", name="Save", exact=True).click()
    visitor.sees("Not saved")
    page.get_by_role("button", name="Replace it with mine").click()
    page.get_by_text("Saved.", exact=True).wait_for(timeout=20_000)
    assert file.read_text() == "# Changing\n\nMine.\n"


def test_the_graph_is_filtered_highlighted_and_at_rest(vault: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    visitor.sign_in(vault)
    page = visitor.page
    visitor.go("notes/graph")
    visitor.until("document.querySelector('canvas')?.dataset.state === 'still'")
    notes = page.get_by_role("list", name="Notes of the graph")
    assert (
        "3 links" in notes.get_by_role("listitem").filter(has=page.get_by_role("link", name="Sea stars")).inner_text()
    )
    frames = """new Promise(resolve => { const real = requestAnimationFrame; let count = 0;
        window.requestAnimationFrame = (...given) => { count++; return real(...given); };
        setTimeout(() => { window.requestAnimationFrame = real; resolve(count); }, 400); })"""
    assert page.evaluate(frames) == 0
    page.get_by_label("Highlight").fill("arms")
    page.get_by_role("button", name="Apply").click()
    visitor.sees("1 note highlighted")
    assert notes.get_by_role("listitem").count() == 1
    visitor.go("notes/graph?find=%23animal")
    visitor.sees("1 note, 0 links")
    visitor.go("notes/graph")
    page.get_by_role("button", name="Around Arms").click()
    visitor.sees("Around Arms")
    page.get_by_label("1 step").check()
    visitor.until("document.querySelector('main [role=status]').textContent.startsWith('4 notes')")
    visitor.go("notes/graph?folder=deep/")
    visitor.sees("2 notes, 0 links")
    assert axe_violations(page) == []
    assert visitor.complaints == []


def test_links_lead_to_their_notes_however_they_are_written(vault: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    visitor.sign_in(vault)
    visitor.go("notes/note/more")
    shown = visitor.page.locator(".markdown")
    shown.get_by_role("link", name="limbs").wait_for()
    leads = {link.inner_text(): link.get_attribute("href") for link in shown.locator("a").all()}
    assert leads == {
        "faulty": "#/notes/note/faulty", "hostile": "#/notes/note/hostile", "changing": "#/notes/note/changing",
        "limbs": "#/notes/note/arms", "plan: b": "#/notes/note/plan--b", "part": "#/notes/note/plan--b",
        "More": "#/notes/note/more?heading=More",
    }  # fmt: skip
    assert shown.locator("mark").inner_text() == "marked"
    assert "hidden" not in shown.inner_text()
    assert shown.locator(".broken").count() == 0


def test_an_address_of_former_times_leads_to_the_note(vault: RunningKernel, browser: Any) -> None:
    visitor = Visitor(browser)
    visitor.sign_in(vault)
    visitor.go("search/note/stars")
    visitor.page.get_by_role("heading", level=1, name="Sea stars").wait_for()
    assert visitor.page.url.endswith("#/notes/note/stars")
