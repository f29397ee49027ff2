"""What an operation that completes a client's typing takes: the argument of a prompt or resource, and its beginning."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

NAMES_LIKE = "instr(lower({0}), lower(?1)) > 0 ORDER BY instr(lower({0}), lower(?1)), {0} LIMIT 101"
"""The names of a column that hold what was typed, those that begin with it first; the end of a SELECT."""


class Completing(msgspec.Struct, frozen=True, kw_only=True):
    """An argument that is being typed."""

    argument: Annotated[str, Meta(max_length=1024, description="Its name")]
    value: Annotated[str, Meta(max_length=8192, description="What is there of it")] = ""
    context: Annotated[dict[str, str], Meta(description="The arguments that are known")] = {}
