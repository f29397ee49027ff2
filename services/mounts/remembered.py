"""What an adapter remembers about its server across its own death, in one file."""

from __future__ import annotations

import contextlib
import logging
import secrets
from pathlib import Path

import msgspec

from proto.host.durable import replace_file

FILE = "state.json"
SESSIONS_MOST = 4096

_log = logging.getLogger("linckia.mount")


class State(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The content of the file."""

    mark: str = ""
    legacy: bool = False
    """Whether the server needs a handshake, so that it is not asked for the other kind of beginning."""
    asks: bool = False
    """Whether it asks clients (sampling, elicitation), so that it serves one session at a time."""
    subscriptions: dict[str, list[str]] = {}
    """Sessions by URI."""
    sessions: list[str] = []
    """Sessions whose state a stateful server has."""
    lost: list[str] = []
    """Sessions whose state was lost, and that do not know it yet."""


class Remembered:
    """The state and its file. A damaged or lost file costs only what it says."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.state = State()
        with contextlib.suppress(OSError, msgspec.DecodeError):
            self.state = msgspec.json.decode(self._path.read_bytes(), type=State)
        if not self.state.mark:
            self.state.mark = secrets.token_hex(16)
            self.save()

    def save(self) -> None:
        """Write the file. Failures are logged: the server works without."""
        try:
            replace_file(self._path, msgspec.json.encode(self.state), sync=False)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._path, error.strerror)

    def used(self, session: str) -> None:
        """Note that a stateful server has state of a session."""
        if session not in self.state.sessions:
            self.state.sessions = [*self.state.sessions, session][-SESSIONS_MOST:]
            self.save()

    def lose(self, sessions: list[str] | None = None) -> None:
        """Note that the state of these sessions, or of all, is gone."""
        gone = self.state.sessions if sessions is None else [s for s in sessions if s in self.state.sessions]
        if gone:
            self.state.lost = [*(s for s in self.state.lost if s not in gone), *gone][-SESSIONS_MOST:]
            self.state.sessions = [s for s in self.state.sessions if s not in gone]
            self.save()

    def tell(self, session: str) -> bool:
        """Return whether a session does not know yet that its state is gone; True only once."""
        if session not in self.state.lost:
            return False
        self.state.lost = [s for s in self.state.lost if s != session]
        self.save()
        return True

    def subscribe(self, uri: str, session: str) -> None:
        """Note that a session subscribes to a resource."""
        if session not in (sessions := self.state.subscriptions.setdefault(uri, [])):
            sessions.append(session)
            self.save()

    def unsubscribe(self, uri: str, session: str) -> bool:
        """Note that a session does not subscribe any more. Returns whether no other does."""
        sessions = self.state.subscriptions.get(uri, [])
        if session in sessions:
            sessions.remove(session)
        if not sessions:
            self.state.subscriptions.pop(uri, None)
        self.save()
        return not sessions
