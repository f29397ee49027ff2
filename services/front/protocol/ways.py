"""Which messages are answered directly and which by the SDK: the one table that every transport asks.

The SDK can answer everything, and a test has it answer each row's messages as well and compares.  What is here is here
for a reason: a call without the SDK costs a third, a greeting must not wait for a second of imports, and a session over
HTTP is opened without any memory.  A row is a way that may be taken: a message that is not in the ordinary form of its
method, or that a setting, a header or the state of its session make special, is the SDK's after all.
"""

from __future__ import annotations

import enum

import msgspec

from services.front.protocol.messages import TOOLS_CALL, Envelope


class Way(enum.Enum):
    """Who answers."""

    CALL = "services.front.protocol.fast_path"
    GREETING = "services.front.protocol.handshake"
    SDK = "services.front.protocol.server"


class Carrier(enum.Enum):
    """What brings the message: a local client's pipe, before and after the SDK is loaded, or a request over HTTP."""

    LOADING = "stdio, while the SDK loads"
    STDIO = "stdio"
    HTTP = "http"


class Row(msgspec.Struct, frozen=True):
    """`over` are the carriers whose messages of this method take the way; over the others they are the SDK's."""

    method: str
    way: Way
    over: frozenset[Carrier]


_ALL = frozenset(Carrier)

TABLE = (
    Row("initialize", Way.GREETING, frozenset({Carrier.LOADING, Carrier.HTTP})),
    Row("notifications/initialized", Way.GREETING, frozenset({Carrier.LOADING, Carrier.HTTP})),
    Row("server/discover", Way.GREETING, frozenset({Carrier.LOADING})),
    Row("ping", Way.GREETING, _ALL),
    Row("tools/list", Way.GREETING, frozenset({Carrier.LOADING})),
    Row(TOOLS_CALL, Way.CALL, frozenset({Carrier.STDIO, Carrier.HTTP})),
)

_WAYS = {(row.method, carrier): row.way for row in TABLE for carrier in row.over}


def way_of(message: Envelope | None, carrier: Carrier) -> Way:
    """Who answers a message; None is one in no known form."""
    method = None if message is None else message.method
    return _WAYS.get((method, carrier), Way.SDK) if isinstance(method, str) else Way.SDK
