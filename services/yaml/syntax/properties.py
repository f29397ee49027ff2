"""Node properties (anchor and tag), the tag handles of a document, and its directives."""

import re
from typing import Final, NamedTuple

from services.yaml.errors import SyntaxFault
from services.yaml.syntax.tokens import ANCHOR, SPACING, TAG

DEFAULT_TAGS: Final = {"!": "!", "!!": "tag:yaml.org,2002:"}

_YAML_DIRECTIVE: Final = re.compile(r"%YAML[ \t]++([0-9]+)\.([0-9]+)(?=[ \t\r\n]|\Z)")
_TAG_DIRECTIVE: Final = re.compile(
    r"%TAG[ \t]++(!(?:[0-9A-Za-z\-]*!)?)[ \t]++"
    r"((?:%[0-9A-Fa-f]{2}|[0-9A-Za-z\-#;/?:@&=+$,_.!~*'()\[\]])++)(?=[ \t\r\n]|\Z)"
)
_OTHER_DIRECTIVE: Final = re.compile(r"%([^ \t\r\n]++)(?:[ \t]++[^ \t\r\n#][^ \t\r\n]*+)*+")
_DIRECTIVE_END: Final = re.compile(r"[ \t]*+(?:(?<=[ \t])(#[^\r\n]*+))?(?:\r\n?|\n|\Z)")
_PERCENT: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")


class Properties(NamedTuple):
    """The properties of one node. `start` and `stop` are the offsets of the first and after the last."""

    anchor: str | None
    tag: str | None
    start: int
    stop: int

    def joined(self, later: "Properties") -> "Properties":
        """Both sets of one node, this one first. Raises SyntaxFault where a node would have two of a kind."""
        if self.anchor is not None and later.anchor is not None:
            raise SyntaxFault("a node can have one anchor only", later.start)
        if self.tag is not None and later.tag is not None:
            raise SyntaxFault("a node can have one tag only", later.start)
        return Properties(self.anchor or later.anchor, self.tag or later.tag, self.start, later.stop)


def read_properties(text: str, start: int, tags: dict[str, str], flow: bool) -> tuple[Properties, int]:
    """Read the anchor and tag that begin at `start`, on this line only.

    Returns them and the offset of what follows (after white space). Raises SyntaxFault.
    """
    anchor: str | None = None
    tag: str | None = None
    at = start
    size = len(text)
    while True:
        if text[at] == "&":
            match = ANCHOR.match(text, at)
            if match is None:
                raise SyntaxFault("an anchor needs a name after &", at)
            if anchor is not None:
                raise SyntaxFault("a node can have one anchor only", at)
            anchor = match.group(1)
        else:
            match = TAG.match(text, at)
            if match is None:
                raise SyntaxFault("this is no tag: write !name, !handle!name or !<uri>", at)
            if tag is not None:
                raise SyntaxFault("a node can have one tag only", at)
            tag = resolve_tag(match, tags)
        stop = match.end()
        at = SPACING.match(text, stop).end()  # type: ignore[union-attr]  # a pattern of stars always matches
        if at == size or text[at] in "\r\n" or (at == stop and flow and text[at] in ",]}"):
            break
        if at == stop:
            raise SyntaxFault("white space is needed after an anchor or tag", stop)
        if text[at] not in "&!":
            break
    return Properties(anchor, tag, start, stop), at


def read_alias(text: str, at: int, own: Properties | None) -> tuple[str, int]:
    """The name of the alias at `at`, and the offset after it; `own`: properties before it. Raises SyntaxFault."""
    match = ANCHOR.match(text, at)
    if match is None:
        raise SyntaxFault("an alias needs a name after *", at)
    if own is not None:
        raise SyntaxFault("an alias can have no anchor or tag", at)
    return match.group(1), match.end()


def resolve_tag(match: re.Match[str], tags: dict[str, str]) -> str:
    verbatim, handle, suffix = match.groups()
    if verbatim is not None:
        return str(verbatim)
    if not handle:
        # "!" alone keeps a scalar from being resolved; "!name" uses the primary handle.
        return tags["!"] + _decode(suffix) if suffix else "!"
    if handle == "!":
        if not suffix:
            raise SyntaxFault("a tag needs a name after !!", match.start())
        return tags["!!"] + _decode(suffix)
    prefix = tags.get("!" + handle)
    if prefix is None:
        raise SyntaxFault(f"the tag handle !{handle} is not declared: a %TAG directive must name it", match.start())
    if not suffix:
        raise SyntaxFault(f"a tag needs a name after !{handle}", match.start())
    return prefix + _decode(suffix)


def _decode(suffix: str) -> str:
    if "%" not in suffix:
        return suffix
    return _PERCENT.sub(lambda m: bytes.fromhex(m.group(0).replace("%", "")).decode("utf-8", "replace"), suffix)


class Directives:
    """The directives before one document, collected line by line."""

    def __init__(self) -> None:
        self.tags = dict(DEFAULT_TAGS)
        self.any = False
        self._version = False
        self._handles: set[str] = set()

    def read(self, text: str, at: int, comments: list[tuple[int, int]]) -> int:
        """Read the directive line at `at`; returns where the next line begins. Raises SyntaxFault."""
        self.any = True
        if match := _YAML_DIRECTIVE.match(text, at):
            if self._version:
                raise SyntaxFault("a document can have one %YAML directive only", at)
            if match.group(1) != "1":
                raise SyntaxFault(f"YAML {match.group(1)}.{match.group(2)} is not supported: version 1.2 is", at)
            self._version = True
        elif match := _TAG_DIRECTIVE.match(text, at):
            handle, prefix = match.groups()
            if handle in self._handles:
                raise SyntaxFault(f"the tag handle {handle} is declared twice", at)
            self._handles.add(handle)
            self.tags[handle] = prefix
        else:
            match = _OTHER_DIRECTIVE.match(text, at)
            if match is None or match.group(1) in ("YAML", "TAG"):
                raise SyntaxFault("this directive is malformed: write %YAML 1.2 or %TAG !handle! prefix", at)
        end = _DIRECTIVE_END.match(text, match.end())
        if end is None:
            raise SyntaxFault("unexpected text after this directive", match.end())
        if end.group(1):
            comments.append(end.span(1))
        return end.end()
