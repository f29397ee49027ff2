"""Which messages are answered directly and which by the SDK: the one table that every transport asks.

The SDK can answer everything, and a test has it answer each row's messages as well and compares.  What is here is here
for a reason: a call without the SDK costs a third, a greeting must not wait for a second of imports, and a session over
HTTP is opened without any memory.  A row is a way that may be taken: a message that is not in the ordinary form of its
method, or that a setting, a header or the state of its session make special, is the SDK's after all.
"""

from __future__ import annotations

import enum

from msgspec import UnsetType

from linckia.services.front.protocol.messages import TOOLS_CALL, Envelope


class Way(enum.Enum):
    """Who answers."""

    CALL = "linckia.services.front.protocol.fast_path"
    GREETING = "linckia.services.front.protocol.handshake"
    SDK = "linckia.services.front.protocol.server"


class Carrier(enum.Enum):
    """What brings the message: a local client's pipe, before and after the SDK is loaded, or a request over HTTP."""

    LOADING = "stdio, while the SDK loads"
    STDIO = "stdio"
    HTTP = "http"


TABLE: dict[str, tuple[Way, frozenset[Carrier]]] = {
    "initialize": (Way.GREETING, frozenset({Carrier.LOADING, Carrier.HTTP})),
    "notifications/initialized": (Way.GREETING, frozenset({Carrier.LOADING, Carrier.HTTP})),
    "server/discover": (Way.GREETING, frozenset({Carrier.LOADING})),
    "ping": (Way.GREETING, frozenset(Carrier)),
    "tools/list": (Way.GREETING, frozenset({Carrier.LOADING})),
    TOOLS_CALL: (Way.CALL, frozenset({Carrier.STDIO, Carrier.HTTP})),
}
"""The way of each method, and the carriers over which it is taken; over the others the SDK answers."""


def way_of(message: Envelope | None, carrier: Carrier) -> Way:
    """Who answers a message; None is one in no known form."""
    method = "" if message is None or isinstance(message.method, UnsetType) else message.method
    way, over = TABLE.get(method, (Way.SDK, ()))
    return way if carrier in over else Way.SDK
