"""Approvals: which calls of clients wait for a person's decision (`[approvals]` of the settings).

The router asks these rules about each call, and a front about the same call, since it has to wait for longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from proto.mounts import TOOLS_CALL, MountRequest, is_name
from proto.operation import CLIENT, Access, Operation
from proto.suggestions import nearest

SERVICE: Final = "approvals"
KERNEL: Final = "kernel"
FRONT: Final = "front"

DESTRUCTIVE: Final = "destructive"
"""Entry of `require`: every operation that irreversibly removes or overwrites something."""
WRITE: Final = "write"
"""Every operation that changes something."""
MOUNTS: Final = "mounts"
"""Every tool of mounted servers that does not only read."""
MOUNT: Final = "mount:"
"""Prefix of a mounted server's name: every tool of that server that does not only read."""
TOOLS: Final = "mcp."
"""Prefix of patterns for tools of mounted servers: `mcp.SERVER.TOOL`, with the server's own names of its tools."""

QUESTION: Final = "approval"
"""Name of the question by which a client's own user is asked."""

GRACE_S: Final = 30.0
"""How much longer than a person's time to decide a call waits for the service `approvals` itself."""


class ApprovalSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[approvals]`: which calls of clients wait for a person, how long, and what happens then."""

    require: tuple[str, ...] = ()
    """Operations that wait: `destructive`, `write`, `mounts`, `mount:NAME`, or patterns of names such as `delete-*` and
    `mcp.github.*`."""
    timeout_s: Annotated[float, Meta(ge=1, le=7 * 86_400)] = 600.0
    """Seconds that a person has to decide."""
    default: Literal["deny", "allow"] = "deny"
    """What happens if nobody has decided by then: deny or allow."""
    elicit: bool = True
    """Whether the client's own user may decide too, if the client can ask (elicitation)."""


class Rules:
    """Decides which calls wait."""

    def __init__(self, settings: ApprovalSettings) -> None:
        self.settings = settings
        entries = set(settings.require)
        self._destructive = DESTRUCTIVE in entries
        self._write = WRITE in entries
        self._mounts = MOUNTS in entries
        self._servers = {entry.removeprefix(MOUNT) for entry in entries if entry.startswith(MOUNT)}
        patterns = [entry for entry in settings.require if not _is_word(entry)]
        self._tools = [pattern for pattern in patterns if pattern.startswith(TOOLS)]
        self._names = [pattern for pattern in patterns if not pattern.startswith(TOOLS)]
        self._known: dict[str, bool] = {}

    def __bool__(self) -> bool:
        """Whether any call has to wait."""
        return bool(self.settings.require)

    @property
    def extra_s(self) -> float:
        """How much longer than its operation's deadline a call that waits may take."""
        return self.settings.timeout_s + GRACE_S

    def depends_on_tool(self, operation: Operation[Any]) -> bool:
        """Whether it depends on the tool of a mounted server that a call of this operation is for."""
        return bool(self._tools) and operation.params is MountRequest and not self._by_kind(operation)

    def choose(self, operation: Operation[Any], tool: str | None = "") -> bool:
        """Return whether a client's call of this operation waits.

        Args:
            operation: as the kernel knows it (`Operation.routed`).
            tool: the tool of a mounted server that is called, if `depends_on_tool`; "" for other requests. None stands
                for an unknown tool, which waits.
        """
        if operation.params is MountRequest:
            return self._by_kind(operation) or (bool(self._tools) and self._by_tool(operation, tool))
        if (found := self._known.get(operation.name)) is None:
            found = self._known[operation.name] = self._by_kind(operation) or any(
                _matches(pattern, operation) for pattern in self._names
            )
        return found

    def _by_kind(self, operation: Operation[Any]) -> bool:
        if operation.access is Access.READ:
            return False
        if self._write or (self._destructive and operation.access is Access.DESTRUCTIVE):
            return True
        return operation.params is MountRequest and (self._mounts or _server(operation) in self._servers)

    def _by_tool(self, operation: Operation[Any], tool: str | None) -> bool:
        if tool is None:
            return True
        name = f"{TOOLS}{_server(operation)}.{tool}"
        return tool != "" and any(fnmatchcase(name, pattern) for pattern in self._tools)


def tool_of(method: str, name: str) -> str | None:
    """Return the tool that a `MountRequest` calls; "" if it calls none, None if it does not say which."""
    return (name or None) if method == TOOLS_CALL else ""


def check(require: Iterable[str], operations: Iterable[Operation[Any]], mounts: Collection[str]) -> None:
    """Check the entries of `require`.

    Args:
        operations: all operations, except those of mounted servers.
        mounts: names of the mounted servers.

    Raises:
        ValueError: an entry is not one, or chooses nothing; the message names it.
    """
    # The router does not see what fronts and the kernel do themselves.
    own = (FRONT, KERNEL)
    called = [operation for operation in operations if operation.admits(CLIENT) and operation.service not in own]
    for entry in require:
        if entry.startswith((MOUNT, TOOLS)):
            prefix = MOUNT if entry.startswith(MOUNT) else TOOLS
            name, dot, _ = entry.removeprefix(prefix).partition(".")
            if prefix == TOOLS and not dot:
                raise ValueError(f"{entry!r} names no tool; write mcp.SERVER.TOOL, such as mcp.github.*")
            # A pattern may be for servers that are mounted later.
            if name not in mounts and (prefix == MOUNT or is_name(name)):
                raise ValueError(f"{entry!r}: no mounted server is named {name!r}{nearest(name, mounts)}")
        elif not _is_word(entry) and not any(_matches(entry, operation) for operation in called):
            words = (DESTRUCTIVE, WRITE, MOUNTS)
            near = nearest(entry, [*words, *(operation.name for operation in called)])
            raise ValueError(f"no operation that clients may call is named {entry!r}{near}")


def _is_word(entry: str) -> bool:
    return entry in (DESTRUCTIVE, WRITE, MOUNTS) or entry.startswith(MOUNT)


def _server(operation: Operation[Any]) -> str:
    return next(iter(operation.surfaces), "")


def _matches(pattern: str, operation: Operation[Any]) -> bool:
    return any(fnmatchcase(name, pattern) for name in (operation.name, operation.step, *operation.former) if name)
