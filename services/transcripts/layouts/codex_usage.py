"""Token usage of model calls in session files of the Codex CLI; each call is counted once.

Two kinds of lines state it. `token_count` events contain the last call (`last_token_usage`) and the session's total
(`total_token_usage`); they are repeated with the same total whenever the screen is refreshed. Newer versions write one
`token_usage_record` line per call, repeated by adjacent events. A forked session copies its parent's lines, so a call
is identified by the first session in the chain of forks and by its figures.
"""

from __future__ import annotations

import msgspec

from services.transcripts.messages import Call
from services.transcripts.providers.wire import Json, child, count, text, usage


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts; `cached` and `written` are part of `sent`."""

    sent: int = 0
    answered: int = 0
    cached: int = 0
    written: int = 0

    def __bool__(self) -> bool:
        return bool(self.sent or self.answered)

    def since(self, before: Figures) -> Figures:
        """Return the difference of two totals."""
        pairs = {name: getattr(self, name) - getattr(before, name) for name in self.__struct_fields__}
        return Figures(**{name: max(0, value) for name, value in pairs.items()})

    def covers(self, other: Figures) -> bool:
        return self.sent >= other.sent and self.answered >= other.answered


def _figures(given: Json) -> Figures:
    return Figures(
        sent=count(given, "input_tokens"),
        answered=count(given, "output_tokens"),
        cached=count(given, "cached_input_tokens"),
        written=count(given, "cache_write_input_tokens"),
    )


class Meter(msgspec.Struct, kw_only=True):
    """The counting state of a session file.

    `total` and `last` come from the last event, and `call` is the last call that was counted. `is_fresh` is True if the
    model has replied since.
    """

    session: str = ""
    number: int = 0
    is_fork: bool = False
    is_fresh: bool = False
    total: Figures | None = None
    last: Figures | None = None
    call: Figures | None = None
    has_records: bool = False

    def begin(self, id_: str, forked_from: str, *, is_fork: bool) -> None:
        """Process a session description: the file's own, or that of a session it was forked from."""
        self.is_fork = self.is_fork or is_fork or bool(forked_from)
        self.session = forked_from or id_ or self.session

    def recorded(self, payload: Json) -> Call | None:
        """Process a `token_usage_record`. Returns None if its call is already counted."""
        spent = _figures(child(payload, "usage"))
        before, self.has_records = self.has_records, True
        if not spent or (not before and spent == self.call):
            # The event came first.
            return None
        self.call = spent
        return self._counted(spent, "record", text(payload, "response_id") or str(self._next()))

    def counted(self, payload: Json) -> Call | None:
        """Process a `token_count` event. Returns None if its call is already counted or it states none."""
        info = child(payload, "info")
        # Early versions state the last call without a name.
        total, last = _figures(child(info, "total_token_usage")), _figures(child(info, "last_token_usage") or payload)
        before, repeated = self.total, self.last
        if total:
            self.total = total
        if total or last:
            self.last = last
        if self.has_records:
            return None
        if not total:
            # Without a total, the same figures again are the same event, unless the model has replied since.
            if not last or (last == repeated and not self.is_fresh):
                return None
            return self._call(last, str(self._next()))
        if before is None:
            # The total of a fork may begin with its parent's.
            return self._call(last if last and self.is_fork else total, repr(total))
        if total == before:
            return None
        grown = total.since(before)
        # If the total grew by more, an event is missing; if it restarted, only the last call is known.
        is_sum = total.covers(before) and grown.covers(last)
        return self._call(grown if is_sum else last or total, repr(total))

    def _call(self, spent: Figures, name: str) -> Call | None:
        self.call = spent
        return self._counted(spent, "event", name) if spent else None

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _counted(self, spent: Figures, kind: str, name: str) -> Call:
        self.is_fresh = False
        figures = usage(
            spent.sent, spent.answered, cache_read_input_tokens=spent.cached, cache_creation_input_tokens=spent.written
        )
        key = "\0".join(("codex", self.session, kind, name, repr(spent)))
        return Call(key=key, session=self.session, model="", usage=figures or {})
