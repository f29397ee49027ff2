"""Counts the calls of each tool of the mounted servers, in memory and bounded."""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import UNSET

from kernel.router.generation import RoutedCall
from proto.errors import LinckiaError
from proto.mounts import TOOLS_CALL, MountReply
from proto.wire import frames

KEPT: Final = 100
"""Durations kept of each tool; the median is theirs."""

MOST: Final = 1_000
"""Tools counted of each server; a client may name tools that do not exist."""

MAX_BYTES: Final = 256 * 1024
"""Longer replies are taken for successes: they would take the kernel too long to read."""

_TOOL = re.compile(rf'method={TOOLS_CALL} name=(?:"(?P<quoted>[^"]*)"|(?P<plain>\S+))')


@dataclass
class ToolCalls:
    """The calls of one tool since the kernel started."""

    ended: int = 0
    failed: int = 0
    durations_s: collections.deque[float] = field(default_factory=lambda: collections.deque(maxlen=KEPT))

    @property
    def p50_ms(self) -> float:
        found = sorted(self.durations_s)
        return found[(len(found) - 1) // 2] * 1000


class CallsOfTools:
    """The counts, by the service of the server and the name of the tool there."""

    def __init__(self) -> None:
        self.services: collections.defaultdict[str, dict[str, ToolCalls]] = collections.defaultdict(dict)

    def note(self, call: RoutedCall, duration_s: float, outcome: object) -> None:
        """Count a call to a mounted server, if it calls a tool."""
        if (tool := _TOOL.match(call.target)) is None:
            return
        name, counted = tool["quoted"] or tool["plain"] or "", self.services[call.op.service]
        if name not in counted and len(counted) >= MOST:
            return
        one = counted.setdefault(name, ToolCalls())
        one.ended += 1
        one.failed += _is_failure(outcome)
        one.durations_s.append(duration_s)


class _Result(msgspec.Struct):
    isError: bool = False  # MCP's name


def _is_failure(outcome: object) -> bool:
    """Return whether a call failed, or its tool said that it did."""
    if not isinstance(outcome, bytes) or len(outcome) > MAX_BYTES:
        return isinstance(outcome, LinckiaError)
    try:
        reply = frames.read_body(outcome, MountReply)
        return reply.error is not UNSET or (
            isinstance(reply.result, msgspec.Raw) and msgspec.json.decode(reply.result, type=_Result).isError
        )
    except (msgspec.DecodeError, UnicodeDecodeError, LinckiaError):
        return True
