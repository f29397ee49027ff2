"""What the fixtures answer and ask: the smallest media there are, and the suite's schemas."""

from __future__ import annotations

import base64
import struct
from typing import Any

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
"""One red pixel."""

WAV = (
    struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 44, b"WAVE", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8, b"data", 8)
    + b"\x80" * 8
)
"""One millisecond of silence."""


def form(message: str, properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    """Parameters of `elicitation/create`."""
    # A JSON Schema: its values are of any form that JSON has.
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required is not None:
        schema["required"] = required
    return {"message": message, "requestedSchema": schema}


def sampling(text: str, max_tokens: int) -> dict[str, Any]:
    """Parameters of `sampling/createMessage`."""
    return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}], "maxTokens": max_tokens}


USER = form(
    "",
    {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    },
    ["username", "email"],
)

DEFAULTS = form(
    "Please review and update the form fields with defaults",
    {
        "name": {"type": "string", "description": "User name", "default": "John Doe"},
        "age": {"type": "integer", "description": "User age", "default": 30},
        "score": {"type": "number", "description": "User score", "default": 95.5},
        "status": {
            "type": "string",
            "description": "User status",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "description": "Verification status", "default": True},
    },
    [],
)


def _titled(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"const": value, "title": title} for value, title in pairs]


ENUMS = form(
    "Please select options from the enum fields",
    {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {
            "type": "string",
            "oneOf": _titled(("value1", "First Option"), ("value2", "Second Option"), ("value3", "Third Option")),
        },
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {
            "type": "array",
            "items": {
                "anyOf": _titled(("value1", "First Choice"), ("value2", "Second Choice"), ("value3", "Third Choice"))
            },
        },
    },
    [],
)

NAME = form("What is your name?", {"name": {"type": "string"}}, ["name"])
CONFIRM = form("Please confirm", {"ok": {"type": "boolean"}}, ["ok"])
STEP_1 = form("Step 1: What is your name?", {"name": {"type": "string"}}, ["name"])
STEP_2 = form("Step 2: What is your favorite color?", {"color": {"type": "string"}}, ["color"])
PROMPT_CONTEXT = form("What context should the prompt use?", {"context": {"type": "string"}}, ["context"])
