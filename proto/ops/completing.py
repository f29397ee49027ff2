"""Parameters shared by operations that complete an argument of a prompt or resource while a client types it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

NAMES_LIKE = "instr(lower({0}), lower(?1)) > 0 ORDER BY instr(lower({0}), lower(?1)), {0} LIMIT 101"
"""End of a SELECT for the values of a column that contain the typed text, those that start with it first."""


class Completing(msgspec.Struct, frozen=True, kw_only=True):
    """An argument that is being typed."""

    argument: Annotated[str, Meta(max_length=1024, description="Its name")]
    value: Annotated[str, Meta(max_length=8192, description="The text typed so far")] = ""
    context: Annotated[dict[str, str], Meta(description="Arguments that are already set")] = {}
