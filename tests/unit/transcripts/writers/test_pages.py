"""A conversation as Markdown and HTML: hostile texts stay texts, and secrets are masked."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from services.transcripts.messages import image, text_block, tool_result, tool_use
from services.transcripts.operations.carry import Target
from services.transcripts.operations.conversations import Conversation, SpentTokens
from services.transcripts.writers import Part, ReadTurn
from services.transcripts.writers.pages import fenced, markdown, page
from tests.unit.transcripts.rig import payload, post, serving, user
from tests.unit.transcripts.writers.rig import converted, listed, session, turn

HOSTILE = [
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</details></article></body>", "<!--",
    "```\nnever closed", "~~~~\n# Heading", "# Heading\n\n## Another", "Heading\n=======", "[a]: https://evil/\n\n[a]",
    "![x](https://evil/pixel.png)", "![x][y]\n\n[y]: https://evil/p.png", "[click](javascript:alert(1))",
    "[click](data:text/html,<script>)", "<https://evil/>", "- - - -\n\n---\ntitle: x\n---",
    "\x1b[31mred\x1b[0m\x00\x9b",
    "user\u202etxt.exe\u2066\u2029\ufeff", "&lt;script&gt;", "| a |\n|---|\n| <b>x</b> |", "a\rb\r\nc",
    "> quote\nlazy", "    code\n\n<div>", "<!DOCTYPE x>", "\U000e0041hidden", "`" * 40,
    "<style>*{display:none}</style>",
]  # fmt: skip


def about(title: str = "Sea stars") -> Conversation:
    return Conversation(
        id="0" * 32, hash="0" * 64, title=title, project="/home/u/sea", agent="codex", provider="openai", model="gpt-x",
        began="2026-03-01T10:00:00Z", ended="2026-03-01T11:00:00Z", turns=1, bytes=1, cost_usd=None,
        cost_incomplete=False, tokens=SpentTokens(input=0, output=0, estimated=False),
    )  # fmt: skip


def turns_of(said: str) -> list[ReadTurn]:
    """A conversation in which everything is this text."""
    arguments = {"command": said, "list": [said]}
    blocks = [text_block(said), tool_use(said, said, arguments), tool_result("t", said), image(url=said)]
    return [turn(1, "user", *blocks), turn(2, "assistant", *blocks, model=said), turn(3, said or "tool", *blocks)]


class Page(HTMLParser):
    """The tags of a page."""

    VOID = frozenset({"meta", "img", "br", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


ALLOWED = frozenset(
    """html head meta title style body h1 h2 h3 h4 h5 h6 dl dt dd article time p details summary pre code a em strong ul
    ol li blockquote table thead tbody tr th td hr br img""".split()  # noqa: SIM905
)
"""The page's own, and those of Markdown."""


def check_page(title: str, turns: list[ReadTurn]) -> None:
    text = "".join(page(about(title), Part(turns)))
    text.encode()
    found = Page(text)
    names = [tag for tag, _ in found.tags]
    assert set(names) <= ALLOWED
    assert (names.count("article"), names.count("style"), names.count("h1") >= 1) == (len(turns), 1, True)
    for _tag, attributes in found.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes or str(attributes["src"]).startswith("data:image/")
        assert not (attributes.get("href") or "").lower().strip().startswith(("javascript", "data", "vbscript", "file"))
    assert_plain(text)


def check_markdown(title: str, turns: list[ReadTurn]) -> None:
    text = "".join(markdown(about(title), Part(turns)))
    text.encode()
    env: dict[str, object] = {}
    tokens = MarkdownIt("commonmark").enable("table").parse(text, env)
    children = [child for token in tokens for child in (token, *(token.children or ()))]
    assert not {"html_inline", "html_block", "image"} & {token.type for token in children}
    assert not env.get("references")
    outer = [token.tag for token in tokens if token.type == "heading_open" and token.level == 0]
    assert outer == ["h1", *["h2"] * len(turns)]
    assert_plain(text)


def assert_plain(text: str) -> None:
    assert not [char for char in text if (ord(char) < 32 and char not in "\n\t") or 0x7F <= ord(char) < 0xA0]
    assert not set(text) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u2028\u2029\ufeff")


@pytest.mark.parametrize("said", HOSTILE)
def test_hostile_texts_stay_texts(said: str) -> None:
    check_page(said, turns_of(said))
    check_markdown(said, turns_of(said))


@given(st.lists(st.sampled_from(HOSTILE) | st.text(max_size=20), max_size=5).map("\n".join))
@settings(max_examples=300, deadline=None)
def test_any_text_stays_a_text(said: str) -> None:
    check_page(said, turns_of(said))
    check_markdown(said, turns_of(said))


@given(st.text("`~ \nab", max_size=60))
def test_a_fence_is_longer_than_any_in_the_text(said: str) -> None:
    (token,) = MarkdownIt("commonmark").parse(fenced(said))
    assert (token.type, token.content) == ("fence", said.rstrip("\n") + "\n")


def test_a_page_says_whose_it_is_and_folds_calls() -> None:
    turns = [
        turn(1, "user", text_block("How many *arms*?")),
        turn(2, "assistant", text_block("Let me **look**.\n\n- one"), tool_use("t", "Read", {"path": "a"})),
        turn(3, "tool", tool_result("t", "five")),
        turn(4, "user", image(data="iVBORw0KGgo=", media_type="image/png")),
    ]  # fmt: skip
    text = "".join(page(about(), Part(turns)))
    for part in (
        "<title>Sea stars</title>", "<dt>Project</dt><dd>/home/u/sea</dd>", "<dt>Agent</dt><dd>codex</dd>",
        "2026-03-01T10:00:00", "How many *arms*?", "<strong>look</strong>", "<summary>Tool call Read</summary>",
        "<details><summary>Result</summary><pre>five</pre></details>", 'src="data:image/png;base64,iVBORw0KGgo="',
    ):  # fmt: skip
        assert part in text, part
    text = "".join(markdown(about(), Part(turns)))
    for part in (
        "# Sea stars\n", "- Project: /home/u/sea\n", "## User, 2026", "> How many *arms*?",
        "> Let me **look**.\n>\n> - one",
        "Tool call Read:\n\n```json\n{", "Result:\n\n```\nfive\n```", r"\[image/png\]",
    ):  # fmt: skip
        assert part in text, part


async def test_secrets_that_were_stored_unmasked_are_masked_in_documents(tmp_path: Path) -> None:
    secret = "ghp_" + "a1" * 18
    reply = {"role": "assistant", "content": f"It is {secret}", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "x", "arguments": f'{{"k": "{secret}"}}'}}]}  # fmt: skip
    async with serving(tmp_path, {"redact": False}) as bench:
        await post(bench, payload([user(f"My token is {secret}")], reply))
        (one,) = await listed(bench)
        assert secret in one.title
        for to in (Target.MARKDOWN, Target.HTML):
            text = await converted(bench, one, to)
            assert secret not in text
            assert text.count("redacted:github-token") >= 4
        # A conversation that goes on elsewhere does so as it is stored.
        assert secret in await converted(bench, one, Target.CODEX, session())
