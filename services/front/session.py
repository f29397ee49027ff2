"""The client that a task serves, as transports set it, and what its session has come to beside its handshake."""

from __future__ import annotations

from contextvars import ContextVar

import msgspec

from linckia.services.front.protocol.client_requests import DEFAULT_LEVEL

STDIO = "stdio"

current_peer: ContextVar[str] = ContextVar("peer", default="")
"""`STDIO`, or the address of a client of HTTP; empty where there is none, as for the command line."""

current_key: ContextVar[str] = ContextVar("key", default="")
"""Of the token of a client of HTTP, and no secret; empty for the kernel's own token."""

current_session: ContextVar[str] = ContextVar("session", default="")
"""What services know the session by; empty where there is none.  An opaque name, no secret."""

MAX_CHARACTERS = 8192
"""Of what the kernel keeps of one session; of more subscriptions than fit the oldest are left out."""

MAX_SUBSCRIPTIONS = 4096
"""Of one session; the oldest is given up for another."""


class SessionState(msgspec.Struct, omit_defaults=True):
    """`level` is the lowest of log lines that the client wants, `uris` the resources that it subscribed to; `ended`,
    that it may not be used any more."""

    level: str = DEFAULT_LEVEL
    uris: list[str] = []
    ended: bool = False

    def subscribe(self, uri: str) -> None:
        if uri not in self.uris:
            self.uris.append(uri)
            del self.uris[:-MAX_SUBSCRIPTIONS]

    def unsubscribe(self, uri: str) -> None:
        if uri in self.uris:
            self.uris.remove(uri)

    def become(self, other: SessionState) -> None:
        """What another front was told of the same session."""
        self.level, self.uris[:] = other.level, other.uris

    def written(self) -> str:
        kept = self
        while len(text := msgspec.json.encode(kept).decode()) > MAX_CHARACTERS:
            kept = msgspec.structs.replace(kept, uris=kept.uris[max(1, len(kept.uris) // 8) :])
        return text


read_state = msgspec.json.Decoder(SessionState).decode
"""What `written` came to; raises msgspec.DecodeError."""
