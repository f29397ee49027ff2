"""Where the readers put what they find: the growing event list and its spans."""

from services.yaml.events import CLOSING, Event, Stream


class Builder:
    """Appends events to a `Stream`.

    `last_stop` is the end of the last node, where an open collection would end. `lenient` says that a closing bracket
    stood further left than YAML 1.2 allows."""

    def __init__(self, stream: Stream) -> None:
        self.text = stream.text
        self.events = stream.events
        self.starts = stream.starts
        self.bodies = stream.bodies
        self.stops = stream.stops
        self.closes = stream.closes
        self.comments = stream.comments
        self.last_stop = 0
        self.lenient = False

    def node(self, event: Event, start: int, body: int, stop: int) -> None:
        self.events.append(event)
        self.starts.append(start)
        self.bodies.append(body)
        self.stops.append(stop)
        self.last_stop = stop

    def open(self, event: Event, start: int, body: int, index: int) -> None:
        """Open a collection before the event `index`, which is mostly the next one."""
        count = len(self.events)
        if index == count:
            self.events.append(event)
            self.starts.append(start)
            self.bodies.append(body)
            self.stops.append(start)
            return
        # A flow collection turned out to be the first key of a block mapping: its events move up by one.
        self.events.insert(index, event)
        self.starts.insert(index, start)
        self.bodies.insert(index, body)
        self.stops.insert(index, start)
        for moved in range(count - 1, index - 1, -1):
            close = self.closes.pop(moved, None)
            if close is not None:
                self.closes[moved + 1] = close + 1

    def close(self, index: int, kind: int) -> None:
        stop = self.last_stop
        self.stops[index] = stop
        self.closes[index] = len(self.events)
        self.events.append(CLOSING[kind])
        self.starts.append(stop)
        self.bodies.append(stop)
        self.stops.append(stop)

    def rename(self, index: int, anchor: str | None, tag: str | None, start: int) -> None:
        """Give the collection at `index` properties that were found on the lines before it."""
        kind, style, value, _, _ = self.events[index]
        self.events[index] = (kind, style, value, anchor, tag)
        self.starts[index] = start

    def comment(self, start: int, stop: int) -> None:
        text = self.text
        while stop > start and text[stop - 1] in "\r\n":
            stop -= 1
        self.comments.append((start, stop))
