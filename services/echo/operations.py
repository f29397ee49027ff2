"""Operation of `echo`: the smallest call that crosses every part of the system."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import Family, Params

tool = Family("echo", surfaces=("documents", "compact"), within_roots=True)


class Echo(msgspec.Struct, frozen=True, kw_only=True):
    """The text that was sent."""

    message: str


@tool.read("mcp_echo", deadline_s=10, title="Echo", text="message")
class EchoParams(Params[Echo], frozen=True, kw_only=True):
    """Echo the text that was sent: tests the connection from client to service, nothing else."""

    message: Annotated[str, Meta(description="Any text")]
