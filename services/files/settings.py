"""The settings of the service, `[services.files]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As they may be written."""

    ignore: Annotated[list[str], Meta(description="Patterns, as in .gitignore, of what the index leaves out")] = []
    trash: Annotated[bool, Meta(description="Whether deleted files are kept, so that they can be restored")] = False


def read(table: Mapping[str, Any]) -> Settings:
    """Raises ValueError, which names the setting."""
    try:
        return msgspec.convert(dict(table), Settings)
    except msgspec.ValidationError as error:
        raise ValueError(f"[services.files]: {error}") from None
