"""Findings of `linckia doctor`, and their verdicts."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Verdict(enum.StrEnum):
    """How good or bad a finding is."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


class Finding(NamedTuple):
    """One result; `remedy` says what to do, if anything can be done."""

    what: str
    verdict: Verdict
    found: str
    remedy: str = ""
