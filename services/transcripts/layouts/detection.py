"""Which layout a file has: the first that knows its first record, asked in an order in which none takes another's."""

from __future__ import annotations

from services.transcripts.layouts import Layout, Step
from services.transcripts.layouts.claude import Claude
from services.transcripts.layouts.codex import Codex
from services.transcripts.layouts.exports import Exports
from services.transcripts.layouts.gemini import Gemini
from services.transcripts.providers.wire import Json

LAYOUTS: dict[str, type[Layout]] = {kind.name: kind for kind in (Gemini, Claude, Codex, Exports)}


def detect(record: Json) -> tuple[Layout, list[Step]] | None:
    """A layout that knows `record`, and what that says."""
    kinds: list[type[Layout]] = [Claude] if "uuid" in record and "type" in record else [Gemini, Codex, Exports, Claude]
    for kind in kinds:
        layout = kind()
        steps = layout.read(record)
        if steps is not None:
            return layout, steps
    return None
