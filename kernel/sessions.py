"""What fronts have the kernel keep of sessions over HTTP, so that it outlives them: texts that it never reads."""

from __future__ import annotations

from collections import OrderedDict

MAX_BYTES = 4 * 1024 * 1024
"""In all; what was used least recently goes first.  A session of which nothing is kept goes on with the defaults."""

_EACH_BYTES = 128
"""Beside the text."""


class SessionStates:
    """States by the names of sessions."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._states: OrderedDict[str, str] = OrderedDict()
        self._bytes = 0

    def keep(self, name: str, state: str) -> None:
        self._drop(name)
        self._states[name] = state
        self._bytes += len(state) + _EACH_BYTES
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._states)))

    def kept(self, name: str) -> str | None:
        if name in self._states:
            self._states.move_to_end(name)
        return self._states.get(name)

    def _drop(self, name: str) -> None:
        state = self._states.pop(name, None)
        if state is not None:
            self._bytes -= len(state) + _EACH_BYTES
