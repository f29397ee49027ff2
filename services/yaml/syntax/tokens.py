"""The lexical patterns of YAML 1.2.2, written so that none of them can backtrack over what it has matched.

Only LF, CR and CRLF are line breaks and only space and tab are white space: `\\s`, `splitlines` and universal newlines
also take U+0085, U+2028 and others, so none of them appears in this package.
"""

import re
from functools import lru_cache
from typing import Final

BREAK: Final = re.compile(r"\r\n?|\n")
BLANK_LINES: Final = re.compile(r"(?:[ \t]*+(?:\r\n?|\n))*+( *+)(\t[ \t]*+)?")
SPACING: Final = re.compile(r"[ \t]*+")
LINE_REST: Final = re.compile(r"([ \t]*+)(#[^\r\n]*+)?(\r\n?|\n|\Z)?")
TAB_LINE: Final = re.compile(r" *+\t[ \t]*+(?:[\r\n]|\Z)")
COMMENT: Final = re.compile(r"(#[^\r\n]*+)(?:\r\n?|\n|\Z)")
COLON: Final = re.compile(r"[ \t]*+:(?=[ \t\r\n]|\Z)")
MARKER: Final = re.compile(r"(?:---|\.\.\.)(?=[ \t\r\n]|\Z)")

PLAIN_START_BLOCK: Final = r"(?:[^ \t\r\n\-?:,\[\]{}#&*!|>'\"%@`]|[\-?:](?=[^ \t\r\n]))"
PLAIN_START_FLOW: Final = r"(?:[^ \t\r\n\-?:,\[\]{}#&*!|>'\"%@`]|[\-?:](?=[^ \t\r\n,\[\]{}]))"
PLAIN_MORE_BLOCK: Final = r"(?:[^ \t\r\n:]++|:(?=[^ \t\r\n])|[ \t]++(?=[^ \t\r\n#:]|:(?=[^ \t\r\n])))"
PLAIN_MORE_FLOW: Final = (
    r"(?:[^ \t\r\n:,\[\]{}]++|:(?=[^ \t\r\n,\[\]{}])"
    r"|[ \t]++(?=[^ \t\r\n#:,\[\]{}]|:(?=[^ \t\r\n,\[\]{}])))"
)
PLAIN_BLOCK: Final = re.compile(PLAIN_START_BLOCK + PLAIN_MORE_BLOCK + "*+")
PLAIN_FLOW: Final = re.compile(PLAIN_START_FLOW + PLAIN_MORE_FLOW + "*+")
PLAIN_NEXT_BLOCK: Final = re.compile(PLAIN_MORE_BLOCK + "++")
PLAIN_NEXT_FLOW: Final = re.compile(PLAIN_MORE_FLOW + "++")
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

# Characters that YAML 1.2 allows nowhere; and those that it allows in quoted scalars only.
NEVER_ALLOWED: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
QUOTED_ONLY: Final = re.compile("[\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")


@lru_cache(maxsize=256)
def block_scalar_lines(indent: int) -> re.Pattern[str]:
    """The lines of a block scalar whose content starts at a column: content lines, or lines of at most that many
    spaces and nothing else."""
    content = r"[^\r\n]++(?:\r\n?|\n|\Z)"
    content = rf" {{{indent}}}{content}" if indent else rf"(?!(?:---|\.\.\.)(?:[ \t\r\n]|\Z)){content}"
    return re.compile(rf"(?:{content}| {{0,{indent}}}(?:\r\n?|\n|(?<= )\Z))*+")
