"""What `linckia doctor` finds, and whether it is as it should be."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Verdict(enum.StrEnum):
    """What a finding means."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


class Finding(NamedTuple):
    """`remedy` is what to do, where something can be done."""

    what: str
    verdict: Verdict
    found: str
    remedy: str = ""
