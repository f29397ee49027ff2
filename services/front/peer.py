"""Where the client is that a task serves: for the audit log, and for what is counted by client."""

from __future__ import annotations

from contextvars import ContextVar

STDIO = "stdio"

current_peer: ContextVar[str] = ContextVar("peer", default="")
"""`STDIO`, or the address of a client of HTTP; empty where there is none, as for the command line.  Transports set
it."""
