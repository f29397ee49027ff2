"""What a client's session has come to by what its client said, beside its handshake: kept where it outlives a front."""

from __future__ import annotations

import msgspec

from services.front.protocol.client_requests import DEFAULT_LEVEL

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
        text = _encode(self).decode()
        if len(text) > MAX_CHARACTERS:
            uris = list(self.uris)
            while len(text) > MAX_CHARACTERS:
                del uris[: max(1, len(uris) // 8)]
                text = _encode(msgspec.structs.replace(self, uris=uris)).decode()
        return text


_encode = msgspec.json.Encoder().encode
read_state = msgspec.json.Decoder(SessionState).decode
"""What `written` came to; raises msgspec.DecodeError."""
