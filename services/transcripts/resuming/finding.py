"""Finds the conversation that `linckia resume` or `export-chat` names, and has it converted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from proto.control.client import CallFailed, Client
from proto.control.commands import Failed
from proto.control.terminal import complain, patiently, show_json, show_table
from proto.ops.retrieve import UNLIKELY
from services.transcripts.operations.carry import (
    Converted,
    NewSession,
    Target,
    TranscriptConversations,
    TranscriptConvert,
)
from services.transcripts.operations.conversations import Conversation, TranscriptList, TranscriptsSearch

_NAME = re.compile(r"[0-9a-f]{6,64}")

MOST = 20
"""Conversations shown if several match."""

SIMILAR = 0.8
"""Hits with at least this part of the best one's score match similarly well."""


class Several(Exception):
    """Several conversations match similarly well."""

    def __init__(self, found: Sequence[Conversation]) -> None:
        self.found = list(found)


class Chat(NamedTuple):
    """A conversation, which is read up to the turn `head`."""

    about: Conversation
    head: str


@dataclass(slots=True)
class Counts:
    """How many turns are converted, and how many are left out."""

    turns: int = 0
    system: int = 0
    deleted: int = 0
    side: int = 0
    elsewhere: int = 0

    def add(self, part: Converted) -> None:
        self.turns += part.turns
        self.system += part.system
        self.deleted += part.deleted
        self.side, self.elsewhere = part.side, part.elsewhere


def convert(client: Client, chat: Chat, to: Target, counts: Counts, session: NewSession | None = None) -> Iterator[str]:
    """Yield the parts of a conversation's file, and count its turns. Raises ControlError."""
    after: int | None = 0
    while after is not None:
        asked = TranscriptConvert(about=chat.about, hash=chat.head, to=to, session=session, after=after)
        part = patiently(client, asked)
        counts.add(part)
        yield part.text
        after = part.next


def find(client: Client, words: Sequence[str]) -> Chat:
    """Return the conversation that the words name: by its id, the hash of a turn, or a search; without any, the latest.

    Raises Several, Failed if none is found, ControlError.
    """
    query = " ".join(words).strip()
    turn = ""
    if words and not query:
        raise Failed("the query is blank; name a conversation, or leave the query out for the latest one")
    if not query:
        about = _latest(client)
        if about is None:
            raise Failed("no conversation is stored yet; `linckia import-chats` reads those of your agents")
    else:
        found, turn = _matching(client, query)
        if not found:
            raise Failed(f"no conversation matches {query!r}")
        if len(found) > 1:
            raise Several(found[:MOST])
        (about,) = found
    # A turn that is named is the last one.
    return Chat(about, turn or about.hash)


def show(several: Several, *, as_json: bool = False) -> int:
    """List the conversations that match. Returns the exit code."""
    if as_json:
        show_json({"matches": [{"id": one.id, **_row(one)} for one in several.found]})
        return 1
    complain("several conversations match; name one by its id")
    rows = [[one.id, *_row(one).values()] for one in several.found]
    show_table(["ID", "DATE", "AGENT", "PROJECT", "TITLE"], rows, ["PROJECT"], one_line=True)
    return 1


def _row(one: Conversation) -> dict[str, str]:
    return {"date": one.ended[:16], "agent": one.agent, "project": one.project, "title": one.title}


def _latest(client: Client) -> Conversation | None:
    """Return the newest conversation of the current folder or its repository, or else of all."""
    here = Path.cwd()
    repository = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    for project in dict.fromkeys((str(here), str(repository), "")):
        if found := patiently(client, TranscriptList(project=project, limit=1)).conversations:
            if not project:
                complain(f"no conversation belongs to {here}; this is the latest of all")
            return found[0]
    return None


def _matching(client: Client, query: str) -> tuple[list[Conversation], str]:
    """Return the conversations that match, and the hash of the turn that the query names, if it names one."""
    if _NAME.fullmatch(query):
        named = patiently(client, TranscriptConversations(name=query))
        if named.conversations:
            # A turn may be part of several; a fork begins with the turns of its parent.
            return named.conversations[:1] if named.turn else named.conversations, named.turn
        if not query.isalpha():
            # It is no word.
            return [], ""
    if titled := patiently(client, TranscriptList(query=query[:1024], limit=MOST)).conversations:
        return titled, ""
    try:
        hits = patiently(client, TranscriptsSearch(query=query, top_k=MOST, distinct=True, min_score=UNLIKELY)).results
    except CallFailed as error:
        raise Failed(f"no title has these words, and the search is not available: {error}") from None
    # If none is likely, the nearest ones are there nevertheless.
    best = max((hit.score for hit in hits), default=0.0)
    if best < UNLIKELY:
        return [], ""
    hashes = [hit.hash for hit in hits if hit.score >= SIMILAR * best]
    return patiently(client, TranscriptConversations(hashes=hashes)).conversations, ""
