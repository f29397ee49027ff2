"""A setting as the operator's page shows it, and why one was not changed."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class SettingShown(msgspec.Struct, frozen=True, kw_only=True):
    """A setting, its value, and where that comes from."""

    name: str
    kind: Annotated[str, Meta(description="boolean, integer, number, string, strings, choice or json")]
    choices: tuple[str, ...] = ()
    text: Annotated[str, Meta(description="What it does")] = ""
    default: Any = None
    value: Any = None
    source: Annotated[str, Meta(description="default, file, environment or command line")] = "default"
    where: Annotated[str, Meta(description="File and line, variable or flag")] = ""
    is_secret: Annotated[bool, Meta(description="Whether the value is not shown, or not the whole of it")] = False
    variable: Annotated[str, Meta(description="Variable of the environment that sets it")] = ""
    service: str = ""
    acts: Annotated[str, Meta(description="What must restart for a change to act; empty: nothing")] = ""


class Refused(Exception):
    """A setting that cannot be changed so; `field` is the parameter that is wrong."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field
