"""Whose call it is: what a service is told of the client's session, so that it can keep for each what is its own."""

from __future__ import annotations

from contextvars import ContextVar

current: ContextVar[str] = ContextVar("session", default="")
"""Set by the transports; empty where there is none, as for the command line. An opaque name, no secret."""
