"""Chooses the format into which `transcript_convert` converts a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from proto.errors import InvalidParams
from services.transcripts.operations.carry import Target, TranscriptConvert
from services.transcripts.redaction import Redactor
from services.transcripts.writers import LEFT_OUT, Part, Session, claude, codex, gemini
from services.transcripts.writers.pages import markdown, page

_RECORDS = {Target.CLAUDE: claude.records, Target.CODEX: codex.records, Target.GEMINI: gemini.records}
_PAGES = {Target.MARKDOWN: markdown, Target.HTML: page}


class Convert(NamedTuple):
    """Converts parts of a conversation to text. `left_out` are the roles of turns that the format does not take."""

    pieces: Callable[[Part], Iterable[str]]
    left_out: frozenset[str]

    def __call__(self, part: Part) -> str:
        return "".join(self.pieces(part))

    def takes(self, role: str) -> bool:
        return role not in self.left_out


def converter(params: TranscriptConvert, redactor: Callable[[], Redactor]) -> Convert:
    """Return what converts the parts of a conversation. Raises InvalidParams if the session is missing."""
    if params.to in _PAGES:
        make, mask = _PAGES[params.to], redactor()
        about = msgspec.structs.replace(params.about, title=mask.text(params.about.title))
        return Convert(lambda part: make(about, _masked(part, mask)), frozenset())
    if params.session is None:
        raise InvalidParams(f"`session` is required for the file of {params.to}", field="session")
    given, records = params.session, _RECORDS[params.to]
    session = Session(id=given.id, project=given.project, title=params.about.title, at=given.at)
    return Convert(
        lambda part: (f"{msgspec.json.encode(record).decode()}\n" for record in records(session, part)), LEFT_OUT
    )


def _masked(part: Part, redactor: Redactor) -> Part:
    turns = [
        msgspec.structs.replace(turn, content=[redactor.block(block) for block in turn.content]) for turn in part.turns
    ]
    return Part(turns, part.before, part.is_first, part.is_last)
