"""Texts of a limited length."""

from __future__ import annotations


def shortened(text: str, chars: int) -> str:
    """Return a text of at most `chars` characters (not below 1); a longer one is cut, and ends with an ellipsis."""
    return text if len(text) <= chars else f"{text[: chars - 1]}…"
