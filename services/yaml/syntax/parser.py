"""The YAML 1.2 parser: turns a stream of text into events, with the exact span of every node, in one pass.

It accepts what YAML 1.2.2 allows and refuses everything else. It never recurses: depth is bounded by `max_depth`, and
aliases stay aliases, so no input can make the result larger than a small multiple of its source.
"""

import re
from bisect import bisect_right
from typing import Final

from services.yaml.errors import SyntaxFault
from services.yaml.syntax.block import BlockReader
from services.yaml.syntax.events import DOCUMENT, DOCUMENT_END, SCALAR, Document, Stream
from services.yaml.syntax.tokens import BLANK_LINES, DEFAULT_TAGS, LINE_REST, MARKER, NEVER_ALLOWED, QUOTED_ONLY

MAX_DEPTH: Final = 2000
_BYTE_ORDER_MARK: Final = "\ufeff"

_YAML_DIRECTIVE: Final = re.compile(r"%YAML[ \t]++([0-9]+)\.([0-9]+)(?=[ \t\r\n]|\Z)")
_TAG_DIRECTIVE: Final = re.compile(
    r"%TAG[ \t]++(!(?:[0-9A-Za-z\-]*!)?)[ \t]++"
    r"((?:%[0-9A-Fa-f]{2}|[0-9A-Za-z\-#;/?:@&=+$,_.!~*'()\[\]])++)(?=[ \t\r\n]|\Z)"
)
_OTHER_DIRECTIVE: Final = re.compile(r"%([^ \t\r\n]++)(?:[ \t]++[^ \t\r\n#][^ \t\r\n]*+)*+")
_DIRECTIVE_END: Final = re.compile(r"[ \t]*+(?:(?<=[ \t])(#[^\r\n]*+))?(?:\r\n?|\n|\Z)")


def parse(
    text: str,
    *,
    max_depth: int = MAX_DEPTH,
    lenient_closers: bool = False,
    tags: dict[str, str] | None = None,
) -> Stream:
    """Parse a stream. Raises SyntaxFault with the offset of the first fault.

    `lenient_closers` also accepts the closing bracket of a flow collection at the column of the enclosing block
    collection, which YAML 1.2 forbids but most other loaders accept; `Stream.lenient` then says that this was needed.
    `tags` are predeclared tag handles, for text that will be inside a document.
    """
    stream = Stream(text, max_depth=max_depth)
    if found := NEVER_ALLOWED.search(text):
        raise SyntaxFault(f"the character U+{ord(found.group()):04X} is not allowed in YAML", found.start())
    _Documents(stream, lenient_closers, tags).read()
    _check_characters(stream)
    return stream


class _Directives:
    """The directives before a document, collected line by line."""

    def __init__(self) -> None:
        self.tags = dict(DEFAULT_TAGS)
        self.any = False
        self._version = False
        self._handles: set[str] = set()

    def read(self, text: str, at: int, comments: list[tuple[int, int]]) -> int:
        """Read the directive line at `at`. Returns where the next line begins. Raises SyntaxFault."""
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


class _Documents:
    def __init__(self, stream: Stream, lenient_closers: bool, tags: dict[str, str] | None) -> None:
        self.given_tags = tags
        self.stream = stream
        self.text = stream.text
        self.lenient_closers = lenient_closers

    def read(self) -> None:
        text = self.text
        pos = 0
        bare_allowed = True  # a document without ---, or a directive, may begin
        directives = _Directives()
        while True:
            pos, at = self._prefix(pos)
            marker = MARKER.match(text, at) if pos == at else None
            if at == len(text) or (marker is not None and text[at] == "."):
                if directives.any:
                    raise SyntaxFault("directives need a document: --- and its content", at)
                if marker is None:
                    return
                pos = self._marker_rest(marker.end())
                bare_allowed = True
            elif text[at] == "%" and pos == at and bare_allowed:
                pos = directives.read(text, at, self.stream.comments)
            elif marker is None and directives.any:
                raise SyntaxFault("after directives a document begins with ---", at)
            elif marker is None and not bare_allowed:
                raise SyntaxFault("unexpected content: a new document begins with ---", at)
            else:
                begin, line = (pos, pos) if marker is None else (marker.end(), at)
                pos, bare_allowed = self._document(begin, line, directives, explicit=marker is not None)
                directives = _Directives()

    def _prefix(self, pos: int) -> tuple[int, int]:
        """Skip blank lines, comments and a byte order mark. Returns the offset of the line reached, and of its
        content."""
        text = self.text
        while True:
            if text.startswith(_BYTE_ORDER_MARK, pos):
                pos += 1
            match = BLANK_LINES.match(text, pos)
            assert match is not None  # a pattern of stars always matches
            at = match.end()
            if text.startswith("#", at):
                pos = self.stream.comment_line(at)
                continue
            if text.startswith(_BYTE_ORDER_MARK, match.start(1)):
                pos = match.start(1)
                continue
            return match.start(1), at

    def _document(self, pos: int, line: int, directives: _Directives, *, explicit: bool) -> tuple[int, bool]:
        """Read a document. Returns the offset after it, and whether the next may begin without ---."""
        stream = self.stream
        event = len(stream.events)
        stream.node((DOCUMENT, "---" if explicit else "", "", None, None), line, pos, pos)
        tags = directives.tags if self.given_tags is None else self.given_tags
        reader = BlockReader(stream, tags, self.lenient_closers)
        stop = reader.read(pos, line, explicit)
        ended = MARKER.match(self.text, stop) is not None and self.text[stop] == "."
        close = len(stream.events)
        stream.node((DOCUMENT_END, "..." if ended else "", "", None, None), stop, stop, stop)
        stream.stops[event] = stop
        stream.closes[event] = close
        stream.documents.append(Document(event, close, pos, stop, tags))
        return (self._marker_rest(stop + 3), True) if ended else (stop, False)

    def _marker_rest(self, at: int) -> int:
        match = LINE_REST.match(self.text, at)
        if match is None or match.group(3) is None or (match.group(2) and not match.group(1)):
            raise SyntaxFault("only a comment may follow ... on its line", at)
        if match.group(2):
            self.stream.comments.append(match.span(2))
        return match.end()


def _check_characters(stream: Stream) -> None:
    """Refuse characters outside quoted scalars that only those may contain."""
    text = stream.text
    if QUOTED_ONLY.search(text) is None:
        return
    quoted = [
        (stream.bodies[index], stream.stops[index])
        for index, event in enumerate(stream.events)
        if event[0] == SCALAR and event[1] in ('"', "'")
    ]
    beginnings = {0} | {document.stop for document in stream.documents}
    for found in QUOTED_ONLY.finditer(text):
        at = found.start()
        before = bisect_right(quoted, (at, len(text))) - 1
        in_quotes = before >= 0 and at < quoted[before][1]
        if not in_quotes and not (text[at] == _BYTE_ORDER_MARK and at in beginnings):
            raise SyntaxFault(f"the character U+{ord(text[at]):04X} is only allowed in quoted scalars", at)
