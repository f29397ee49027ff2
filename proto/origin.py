"""Who calls: one record for the whole way of a call.

Whoever lets a call in makes its `Origin`: a transport of the front for a client's request, the control socket for the
command line, `services.runtime.calls` for a service's own calls. It goes on with the call, unchanged but for what the
request itself says of its trace and key. The router trusts it only as far as its maker may say such things: a front
speaks for clients, every other service for itself alone.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.grants import Grant

Name = Annotated[str, Meta(max_length=256)]

Trace = Annotated[str, Meta(max_length=55, pattern=r"\A(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?\Z")]
"""A W3C traceparent, or ''; it is written to logs unchanged."""


class Mandated(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call that a client requested in advance: what it is part of ("plan NAME"), and the client's name."""

    source: Name
    who: Name


class Origin(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Who calls.

    Attributes:
        caller: `client`, `operator`, or the name of the calling service.
        session: an opaque name of the client's session; empty if the call has none (the command line, a service).
        peer: where the client is, `stdio` or an address, for the audit log. Services do not see it.
        grant: what the client on whose behalf the call is made may do; None for everything.
        key: the idempotency key, or ''. Until the router has admitted the call it is the caller's own; then it is what
            `proto.keys.scoped` makes of it.
        trace: a W3C traceparent; '' for a new trace.
        mandate: set by the kernel alone, for a call that a client requested in advance.
    """

    caller: Name
    session: Name = ""
    peer: Name = ""
    grant: Grant | None = None
    key: Name = ""
    trace: Trace = ""
    mandate: Mandated | None = None
