"""The parsed form of a YAML stream: flat events in document order, with the exact source span of each.

An event is a plain tuple of what it *means*, without positions, so that two streams are equal exactly when their event
lists are: the check behind every edit is a comparison of lists. Positions live beside the events in parallel arrays.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

# kind, style, value, anchor, resolved tag. The style of a scalar is its indicator (":" for plain), of a flow
# collection its brackets, of a block collection "", of an explicit document marker the marker.
Event = tuple[int, str, str, str | None, str | None]

DOCUMENT: Final = 0
DOCUMENT_END: Final = 1
SEQUENCE: Final = 2
SEQUENCE_END: Final = 3
MAPPING: Final = 4
MAPPING_END: Final = 5
SCALAR: Final = 6
ALIAS: Final = 7

CLOSING: Final[dict[int, Event]] = {
    SEQUENCE: (SEQUENCE_END, "", "", None, None),
    MAPPING: (MAPPING_END, "", "", None, None),
}
EMPTY: Final[Event] = (SCALAR, ":", "", None, None)
BLOCK_MAPPING: Final[Event] = (MAPPING, "", "", None, None)
BLOCK_SEQUENCE: Final[Event] = (SEQUENCE, "", "", None, None)


@dataclass(frozen=True, slots=True)
class Document:
    """One document: the indices of its two events and the offsets around its content.

    `body` is where content may begin (after `---` or after directives), `stop` where the next marker or the end is.
    `tags` are the tag handles in force.
    """

    event: int
    close: int
    body: int
    stop: int
    tags: dict[str, str]


@dataclass(slots=True)
class Stream:
    """A parsed stream. For event i: `starts[i]` is its first character (properties included), `bodies[i]` the first
    after the properties, `stops[i]` the end of the node; offsets are characters of `text`.

    `closes` maps the index of an opening event to that of its closing one.
    """

    text: str
    events: list[Event] = field(default_factory=list)
    starts: "array[int]" = field(default_factory=lambda: array("q"))
    bodies: "array[int]" = field(default_factory=lambda: array("q"))
    stops: "array[int]" = field(default_factory=lambda: array("q"))
    closes: dict[int, int] = field(default_factory=dict)
    comments: list[tuple[int, int]] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    lenient: bool = False
    max_depth: int = 0

    def after(self, index: int) -> int:
        """The index of the event that follows the whole node at `index`."""
        return self.closes.get(index, index) + 1

    def comment_texts(self) -> list[str]:
        text = self.text
        return [text[start:stop] for start, stop in self.comments]


_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\0": "\\0"})


def suite_lines(stream: Stream) -> Iterator[str]:
    """The stream in the event notation of the YAML test suite, one line per event."""
    yield "+STR"
    for kind, style, value, anchor, tag in stream.events:
        properties = (f" &{anchor}" if anchor is not None else "") + (f" <{tag}>" if tag is not None else "")
        match kind:
            case 0:
                yield "+DOC" + (" ---" if style else "")
            case 1:
                yield "-DOC" + (" ..." if style else "")
            case 2:
                yield "+SEQ" + (" []" if style else "") + properties
            case 4:
                yield "+MAP" + (" {}" if style else "") + properties
            case 3:
                yield "-SEQ"
            case 5:
                yield "-MAP"
            case 6:
                yield f"=VAL{properties} {style}{value.translate(_ESCAPES)}"
            case _:
                yield f"=ALI *{value}"
    yield "-STR"
