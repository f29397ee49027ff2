"""Sequences of nearly the same length, which share a block."""

from __future__ import annotations


def round_up(length: int) -> int:
    """The length to which a sequence of `length` is filled up where it shares a block with others."""
    step = 8 if length <= 32 else 16 if length <= 256 else 32 if length <= 512 else 64
    return -(-length // step) * step
