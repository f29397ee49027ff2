"""The lexical patterns of YAML 1.2.2, written so that none of them can backtrack over text it has matched; and node
properties: anchor and tag.

Only LF, CR and CRLF are line breaks and only space and tab are white space: `\\s`, `splitlines` and universal newlines
also accept U+0085, U+2028 and others, so none of them appears in this package.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from services.yaml.errors import SyntaxFault

DEFAULT_TAGS: Final = {"!": "!", "!!": "tag:yaml.org,2002:"}

BREAK: Final = re.compile(r"\r\n?|\n")
BLANK_LINES: Final = re.compile(r"(?:[ \t]*+(?:\r\n?|\n))*+( *+)(\t[ \t]*+)?")
SPACING: Final = re.compile(r"[ \t]*+")
LINE_REST: Final = re.compile(r"([ \t]*+)(#[^\r\n]*+)?(\r\n?|\n|\Z)?")
TAB_LINE: Final = re.compile(r" *+\t[ \t]*+(?:[\r\n]|\Z)")
COMMENT: Final = re.compile(r"(#[^\r\n]*+)(?:\r\n?|\n|\Z)")
COLON: Final = re.compile(r"[ \t]*+:(?=[ \t\r\n]|\Z)")
MARKER: Final = re.compile(r"(?:---|\.\.\.)(?=[ \t\r\n]|\Z)")


def _plain(ends: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns for a plain scalar's first line, and for further ones, if the characters `ends` end it too
    (7.3.3)."""
    safe = rf"(?=[^ \t\r\n{ends}])"
    more = rf"(?:[^ \t\r\n:{ends}]++|:{safe}|[ \t]++(?=[^ \t\r\n#:{ends}]|:{safe}))"
    start = rf"(?:[^ \t\r\n\-?:,\[\]{{}}#&*!|>'\"%@`]|[\-?:]{safe})"
    return re.compile(f"{start}{more}*+"), re.compile(f"{more}++")


PLAIN_BLOCK, PLAIN_NEXT_BLOCK = _plain("")
PLAIN_FLOW, PLAIN_NEXT_FLOW = _plain(r",\[\]{}")
# From the end of one line of a plain scalar to the first character of its next: the breaks, then the indentation.
PLAIN_FOLD: Final = re.compile(r"[ \t]*+((?:\r\n?|\n)(?:[ \t]*+(?:\r\n?|\n))*+)( *+)[ \t]*+")

DOUBLE_QUOTED: Final = re.compile(r'"((?:[^"\\]++|\\[\s\S])*+)"')
SINGLE_QUOTED: Final = re.compile(r"'((?:[^']++|'')*+)'")

ANCHOR: Final = re.compile(r"[&*]([^ \t\r\n,\[\]{}]++)")
TAG: Final = re.compile(
    r"!(?:<((?:%[0-9A-Fa-f]{2}|[0-9A-Za-z\-#;/?:@&=+$,_.!~*'()\[\]])++)>"
    r"|((?:[0-9A-Za-z\-]*+!)?+)((?:%[0-9A-Fa-f]{2}|[0-9A-Za-z\-#;/?:@&=+$_.~*'()])*+))"
)
BLOCK_HEADER: Final = re.compile(r"[|>](?:([1-9])([+\-])?|([+\-])([1-9])?)?+(?:[ \t]++(#[^\r\n]*+)?+)?+(\r\n?|\n|\Z)")

_PERCENT: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")

# Characters that YAML 1.2 never allows, and those that it only allows in quoted scalars.
NEVER_ALLOWED: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
QUOTED_ONLY: Final = re.compile("[\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")


@lru_cache(maxsize=256)
def block_scalar_lines(indent: int) -> re.Pattern[str]:
    """Return a pattern for the lines of a block scalar whose content starts at a column: content lines, or lines of at
    most that many spaces and nothing else."""
    content = r"[^\r\n]++(?:\r\n?|\n|\Z)"
    content = rf" {{{indent}}}{content}" if indent else rf"(?!(?:---|\.\.\.)(?:[ \t\r\n]|\Z)){content}"
    return re.compile(rf"(?:{content}| {{0,{indent}}}(?:\r\n?|\n|(?<= )\Z))*+")


class Properties(NamedTuple):
    """The properties of a node. `start` is the offset of the first, `stop` the offset after the last."""

    anchor: str | None
    tag: str | None
    start: int
    stop: int

    def joined(self, later: "Properties") -> "Properties":
        """Join both sets of one node, this one first. Raises SyntaxFault if the node would have two of a kind."""
        if self.anchor is not None and later.anchor is not None:
            raise SyntaxFault("a node can have one anchor only", later.start)
        if self.tag is not None and later.tag is not None:
            raise SyntaxFault("a node can have one tag only", later.start)
        return Properties(self.anchor or later.anchor, self.tag or later.tag, self.start, later.stop)


def read_properties(text: str, start: int, tags: dict[str, str], flow: bool) -> tuple[Properties, int]:
    """Read the anchor and tag that begin at `start`, on this line only.

    Returns them and the offset of what follows (after white space). Raises SyntaxFault.
    """
    found = Properties(None, None, start, start)
    at = start
    while True:
        if text[at] == "&":
            match = ANCHOR.match(text, at)
            if match is None:
                raise SyntaxFault("an anchor needs a name after &", at)
            found = found.joined(Properties(match.group(1), None, at, match.end()))
        else:
            match = TAG.match(text, at)
            if match is None:
                raise SyntaxFault("invalid tag: write !name, !handle!name or !<uri>", at)
            found = found.joined(Properties(None, _resolve_tag(match, tags), at, match.end()))
        at = SPACING.match(text, found.stop).end()  # type: ignore[union-attr]  # a pattern of stars always matches
        following = text[at : at + 1]
        if following in ("", "\r", "\n") or (at == found.stop and flow and following in ",]}"):
            return found, at
        if at == found.stop:
            raise SyntaxFault("white space is needed after an anchor or tag", at)
        if following not in "&!":
            return found, at


def _resolve_tag(match: re.Match[str], tags: dict[str, str]) -> str:
    verbatim, handle, suffix = match.groups()
    if verbatim is not None:
        return str(verbatim)
    if not handle and not suffix:
        return "!"  # keeps a scalar from being resolved
    handle = "!" + handle  # "!" is the primary handle, "!!" the secondary
    prefix = tags.get(handle)
    if prefix is None:
        raise SyntaxFault(f"the tag handle {handle} is not declared: a %TAG directive must name it", match.start())
    if not suffix:
        raise SyntaxFault(f"a tag needs a name after {handle}", match.start())
    return prefix + _PERCENT.sub(
        lambda escaped: bytes.fromhex(escaped.group().replace("%", "")).decode("utf-8", "replace"), suffix
    )


def read_alias(text: str, at: int, own: Properties | None) -> tuple[str, int]:
    """Return the name of the alias at `at`, and the offset after it; `own` are properties before it. Raises
    SyntaxFault."""
    match = ANCHOR.match(text, at)
    if match is None:
        raise SyntaxFault("an alias needs a name after *", at)
    if own is not None:
        raise SyntaxFault("an alias can have no anchor or tag", at)
    return match.group(1), match.end()
