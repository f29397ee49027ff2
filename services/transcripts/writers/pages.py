"""A conversation as one Markdown or HTML file, for people to read.

Texts may be hostile. In HTML everything is escaped, nothing is loaded, and there are no scripts. In Markdown each text
is a quotation, or a code block if it contains HTML, images or link definitions, so that no text gets out of its turn.
Characters that control a terminal or the direction of text are shown as escapes.
"""

from __future__ import annotations

import base64
import functools
import html
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from services.shared.date_ranges import rfc3339
from services.transcripts.messages import ASSISTANT, IMAGE, TOOL_RESULT
from services.transcripts.operations.conversations import Block, Conversation
from services.transcripts.writers import Part, ReadTurn, is_picture

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_RUN = re.compile("`{3,}|~{3,}")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#|~&$])")
_ACTIVE = frozenset({"html_inline", "html_block", "image"})

_MAX_MARKDOWN = 200_000
"""Longer texts are shown as they are."""

_STYLE = """\
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 50rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
article { border-inline-start: 3px solid #8888; margin: 1.5rem 0; padding-inline-start: 1rem; }
article.assistant { border-color: #2a7; }
article.user { border-color: #38d; }
h2 { font-size: 1rem; margin: 0; }
h2 time { font-weight: normal; opacity: .7; }
pre { overflow-x: auto; white-space: pre-wrap; background: #8882; padding: .5rem; }
p.plain { white-space: pre-wrap; }
table { border-collapse: collapse; }
td, th { border: 1px solid #8888; padding: .2rem .5rem; }
img { max-width: 100%; }
dt { font-weight: bold; }
"""


def visible(text: str) -> str:
    """Return text in which characters that hide or reorder others are escapes."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _line(text: str) -> str:
    return " ".join(visible(text).split())


def _about(about: Conversation) -> list[tuple[str, str]]:
    facts = {
        "Project": about.project, "Agent": about.agent, "Model": about.model, "Began": about.began,
        "Ended": about.ended, "Id": about.id,
    }  # fmt: skip
    return [(name, _line(value)) for name, value in facts.items() if value]


def _who(turn: ReadTurn) -> str:
    name = {"user": "User", ASSISTANT: "Assistant", "tool": "Tool"}.get(turn.role, _line(turn.role).capitalize())
    is_result = bool(turn.content) and all(block.type == TOOL_RESULT for block in turn.content)
    return "Tool" if is_result else name


def _when(turn: ReadTurn) -> str:
    return rfc3339(turn.at, "seconds") or ""


def _call(block: Block) -> str:
    arguments = msgspec.json.encode(block.tool_input or {})
    return visible(msgspec.json.format(arguments, indent=2).decode())


def _medium(block: Block) -> str:
    named = f": {_line(block.image_url)}" if block.image_url else ""
    return f"[{_line(block.media_type) or 'image'}{named}]"


@functools.cache
def _parser(*, html: bool = False) -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": html}).enable("table")


# Markdown


def markdown(about: Conversation, part: Part) -> Iterator[str]:
    """Yield the pieces for a part of a Markdown file."""
    if part.is_first:
        yield f"# {_escaped(_line(about.title) or 'Conversation')}\n\n"
        for name, value in _about(about):
            yield f"- {name}: {_escaped(value)}\n"
    for turn in part.turns:
        model = f" ({_escaped(_line(turn.model))})" if turn.model and turn.role == ASSISTANT else ""
        yield f"\n## {_escaped(_who(turn))}{model}, {_when(turn)}\n"
        for block in turn.content:
            yield f"\n{_markdown(block)}\n"


def _markdown(block: Block) -> str:
    match block.type:
        case "tool_use":
            return f"Tool call {_escaped(_line(block.tool_name))}:\n\n{fenced(_call(block), 'json')}"
        case "tool_result":
            return f"{'Error' if block.is_error else 'Result'}:\n\n{fenced(visible(block.tool_output))}"
        case "image":
            return _escaped(_medium(block))
    said = visible(block.text).strip("\n")
    if not said.strip():
        return "*(empty)*"
    return "\n".join(f"> {line}".rstrip() for line in said.split("\n")) if _is_calm(said) else fenced(said)


def fenced(text: str, language: str = "") -> str:
    """Return a code block whose fence is longer than any in the text."""
    longest = max((len(run) for run in _RUN.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip(chr(10))}\n{fence}"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _is_calm(text: str) -> bool:
    """Return True for Markdown that stays within a quotation, and loads and runs nothing."""
    if len(text) > _MAX_MARKDOWN:
        return False
    env: dict[str, object] = {}
    tokens = _parser(html=True).parse(text, env)
    inner = (child for token in tokens for child in (token, *(token.children or ())))
    return not env.get("references") and all(token.type not in _ACTIVE for token in inner)


# HTML


def page(about: Conversation, part: Part) -> Iterator[str]:
    """Yield the pieces for a part of an HTML file."""
    if part.is_first:
        yield _head(about)
    for turn in part.turns:
        who, when, model = _who(turn), _when(turn), _line(turn.model) if turn.role == ASSISTANT else ""
        yield f'<article class="{turn.role if turn.role in ("user", ASSISTANT) else "other"}">\n'
        told = f" ({html.escape(model)})" if model else ""
        yield f'<h2>{html.escape(who)}{told} <time datetime="{when}">{when}</time></h2>\n'
        for block in turn.content:
            yield f"{_html(block, turn.role)}\n"
        yield "</article>\n"
    if part.is_last:
        yield "</body>\n</html>\n"


def _head(about: Conversation) -> str:
    title = html.escape(_line(about.title) or "Conversation")
    facts = "".join(f"<dt>{name}</dt><dd>{html.escape(value)}</dd>\n" for name, value in _about(about))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{title}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f"<dl>\n{facts}</dl>\n"
    )


def _html(block: Block, role: str) -> str:
    match block.type:
        case "tool_use":
            return _folded(f"Tool call {_line(block.tool_name)}", _call(block))
        case "tool_result":
            return _folded("Error" if block.is_error else "Result", visible(block.tool_output))
        case "image" if is_picture(block):
            data = base64.b64encode(base64.b64decode(block.image_base64)).decode()
            return f'<img alt="{html.escape(block.media_type)}" src="data:{block.media_type};base64,{data}">'
        case "image":
            return f"<p>{html.escape(_medium(block))}</p>"
    said = visible(block.text).strip("\n")
    if role != ASSISTANT or len(said) > _MAX_MARKDOWN:
        return f'<p class="plain">{html.escape(said)}</p>'
    return _rendered(said)


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{html.escape(summary)}</summary><pre>{html.escape(text)}</pre></details>"


def _rendered(text: str) -> str:
    """Render Markdown without HTML of its own, and with addresses in place of images."""
    parser = _parser()
    tokens = parser.parse(text)
    for token in tokens:
        for child in token.children or ():
            if child.type == IMAGE:
                shown = f"[image: {child.content} {child.attrGet('src') or ''}]"
                child.type, child.tag, child.content, child.children = "text", "", shown, []
            elif child.type == "link_open":
                child.attrSet("rel", "noopener noreferrer nofollow")
    return str(parser.renderer.render(tokens, parser.options, {}))
