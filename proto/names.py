"""Names of modules, which differ between a checkout (`kernel.cli`) and an installation (`linckia.kernel.cli`)."""

from __future__ import annotations

from typing import Final

PACKAGE: Final = __name__.removesuffix("proto.names")
"""What precedes the names of Linckia's own modules: nothing in a checkout, `linckia.` in an installation."""


def module(name: str) -> str:
    """Return the full name of one of Linckia's own modules, for `python -m` and for imports at run time."""
    return PACKAGE + name
