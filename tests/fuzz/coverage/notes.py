"""Notes: Markdown with front matter, links, tags and dates; and the terms that texts are searched by."""

from __future__ import annotations

from proto.errors import InvalidParams
from services.documents.text.passages import passages
from services.knowledge.notes.files import Place, decode
from services.knowledge.notes.markdown import parse
from services.knowledge.notes.tags import checked, tagged
from services.retrieve.index.terms import query_terms, terms
from services.shared.date_ranges import date_range
from services.shared.models.measure import ROUGH
from services.shared.text.html import plain
from services.transcripts.redaction import Redactor
from tests.fuzz.coverage import parted

SEEDS = [
    b"---\ntitle: A\ntags: [x, y]\ndate: 2026-01-01\n---\n# One\n\ntext [[b|c]] and [d](e.md#f)\n\0tag, [see: x]",
    b"---\n&a [*a]\n---\n<!-- tags: a, [b: c] -->\n```\n[[x]]\n```\n\0a",
    b"# A\n## B\n- x\n  - y\n> q\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n    code\n\0last 3 days",
    b"Setext\n===\n\n[ref]: <a b.md> 'title'\n![i](p.png)\n<a href=x>y</a>\n\x002026-01..2026-02",
    b"<!-- tags: ab, [ c -->\n\0a",
    b"\xef\xbb\xbftitle\r\n\r\ntext\x00password = 'abc123DEF'",
]

_REDACTOR = Redactor()
_NOW = 1_790_000_000.0


def read(data: bytes) -> None:
    """A note, and some words about it."""
    note, words = parted(data, 2)
    text, said = decode(note), words.decode("utf-8", "replace")
    parse(text, Place("/roots", "a/note.md"), ROUGH)
    for mime in ("text/markdown", "text/plain", "text/html"):
        for passage in passages(plain(text) if mime == "text/html" else text, mime, "", ROUGH):
            plain(passage.text)
    terms(text)
    query_terms(said)
    _REDACTOR.text(text)
    try:
        tags = checked(said.split(";"))
        after = tagged(note, tags)
        # The tags that were added are read back, and adding them once more changes nothing.
        assert set(tags) <= set(after.entries)
        assert tagged(after.data, tags).data == after.data
    except InvalidParams:
        pass
    try:
        date_range(said, _NOW)
    except ValueError:
        return
