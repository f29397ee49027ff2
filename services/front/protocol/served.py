"""A surface as it is served: what answers its clients, with or without the SDK."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from proto.approvals import ApprovalSettings, Rules
from proto.json_types import JsonObject
from services.front.mounted.mounted import Mounted
from services.front.prompts import SHOWN_ON, FilePrompts
from services.front.protocol.handshake import Greeter, server_info
from services.front.surfaces.surface import Surface
from services.runtime.dispatch import Dispatcher


@dataclass(eq=False)
class Served:
    """One surface, and what its clients share.

    Args:
        dispatcher: makes the calls of the clients: composite and long ones, too.
        direct: makes calls of operations that are neither.
        file_prompts: the prompts of the user's files, which only some surfaces have.
        rules: which calls wait for an approval.
        version: Linckia's.
    """

    surface: Surface
    dispatcher: Dispatcher
    direct: Dispatcher
    mounted: Mounted
    file_prompts: FilePrompts
    version: str
    rules: Rules = field(default_factory=lambda: Rules(ApprovalSettings()))

    @cached_property
    def prompts(self) -> FilePrompts:
        """The prompts of files on this surface."""
        return self.file_prompts if self.surface.name in SHOWN_ON else FilePrompts()

    @cached_property
    def greeter(self) -> Greeter:
        return Greeter(self.surface, self.version)

    @cached_property
    def info(self) -> JsonObject:
        """How Linckia presents itself in each result of 2026-07-28."""
        return server_info(self.version)
