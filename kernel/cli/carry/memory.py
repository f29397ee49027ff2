"""Memories in an export: `memory/memories.jsonl`, in the order in which they were made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kernel.cli.carry.files import batched, lines, write
from kernel.cli.terminal import patiently
from kernel.control.client import Client
from proto.json_types import JsonObject


def export(client: Client, folder: Path) -> str:
    """Write all of them; answers in words how many that is."""
    return f"{write(folder / 'memories.jsonl', rows(client))} memories"


def rows(client: Client) -> Iterator[JsonObject]:
    """All memories, as an export has them."""
    after = 0
    while (page := patiently(client, "memory_export", {"after": after}))["memories"]:
        after = page["next"]
        yield from page["memories"]


def take(client: Client, folder: Path) -> tuple[str, int]:
    """Keep those that are not there; answers that in words."""
    changed = 0
    for some in batched(lines(folder / "memories.jsonl"), length=lambda row: len(str(row))):
        changed += patiently(client, "memory_import", {"memories": some})["changed"]
    return f"{changed} memories were not there before", 0
