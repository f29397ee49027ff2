"""The parsed form of a YAML stream: flat events in document order, with the exact source span of each.

An event is a plain tuple of its *meaning*, without positions, so two streams are equal exactly if their event lists
are: every edit is checked by comparing lists. Positions are stored in parallel arrays.
"""

from array import array
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from services.yaml.syntax.tokens import COMMENT, Properties

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


class Document(NamedTuple):
    """A document: the indices of its two events and the offsets around its content.

    `body` is where content may begin (after `---` or after directives), `stop` the offset of the next marker or of the
    end. `tags` are the tag handles in force.
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

    `closes` maps the index of an opening event to that of its closing one. `last_stop` is the end of the last node,
    where an open collection would end. `lenient` says that a closing bracket was further left than YAML 1.2 allows.
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
    last_stop: int = 0

    def after(self, index: int) -> int:
        """Return the index of the event that follows the whole node at `index`."""
        return self.closes.get(index, index) + 1

    def document_of(self, index: int) -> Document | None:
        """Return the document that contains the event at `index`."""
        return next((each for each in self.documents if each.event < index <= each.close), None)

    def comment_texts(self) -> list[str]:
        return [self.text[start:stop] for start, stop in self.comments]

    # Appending

    def node(self, event: Event, start: int, body: int, stop: int) -> None:
        self.events.append(event)
        self.starts.append(start)
        self.bodies.append(body)
        self.stops.append(stop)
        self.last_stop = stop

    def scalar(self, style: str, value: str, own: Properties | None, body: int, stop: int) -> None:
        anchor, tag, start = (None, None, body) if own is None else (own.anchor, own.tag, own.start)
        # `node`, inlined: three of four events are created here.
        self.events.append((SCALAR, style, value, anchor, tag))
        self.starts.append(start)
        self.bodies.append(body)
        self.stops.append(stop)
        self.last_stop = stop

    def empty(self, own: Properties | None, at: int) -> None:
        """Add a null without text: at `at`, or after its properties."""
        self.scalar(":", "", own, at if own is None else own.stop, at if own is None else own.stop)

    def open(self, kind: int, style: str, own: Properties | None, body: int, index: int) -> None:
        """Open a collection before the event `index`, which is usually the next one."""
        anchor, tag, start = (None, None, body) if own is None else (own.anchor, own.tag, own.start)
        self.events.insert(index, (kind, style, "", anchor, tag))
        self.starts.insert(index, start)
        self.bodies.insert(index, body)
        self.stops.insert(index, start)
        # If the first key of a block mapping turned out to be a flow collection, its events move up by one.
        for moved in range(len(self.events) - 2, index - 1, -1):
            if (close := self.closes.pop(moved, None)) is not None:
                self.closes[moved + 1] = close + 1

    def close(self, index: int, kind: int) -> None:
        stop = self.stops[index] = self.last_stop
        self.closes[index] = len(self.events)
        self.node(CLOSING[kind], stop, stop, stop)

    def add_properties(self, index: int, own: Properties) -> None:
        """Give the collection at `index` properties that were found on previous lines."""
        kind, style, value, _, _ = self.events[index]
        self.events[index] = (kind, style, value, own.anchor, own.tag)
        self.starts[index] = own.start

    def comment_line(self, start: int) -> int:
        """Store the comment at `start`, which ends its line. Returns where the next line begins."""
        found = COMMENT.match(self.text, start)
        assert found is not None  # `start` is at a #
        self.comments.append(found.span(1))
        return found.end()
