"""Chats in Aider's history, a Markdown file in the folder of each project to which Aider appends.

`# aider chat started at …` begins a chat, `####` marks what the user wrote, and `>` what Aider itself said; the rest is
the model's. An incomplete last line is left for the next time.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from services.transcripts.lenient import Json
from services.transcripts.sources import Opener, Session, whole

_STARTED = "# aider chat started at "
_MODEL = re.compile(r"(?:Main model|Model): (\S+)")
_TOKENS = re.compile(r"Tokens: ([\d.,]+)([kKmM]?) sent, (?:.*?, )?([\d.,]+)([kKmM]?) received")
_UNITS = {"": 1, "k": 1000, "m": 1_000_000}


def sessions(path: str, open_: Opener) -> Iterator[Session]:
    """Yield the chats in a history. Raises OSError."""
    data = whole(path, open_)
    complete = data[: data.rfind(b"\n") + 1].decode("utf-8", "replace")
    folder = os.path.dirname(os.path.abspath(path))
    chats: list[tuple[str, list[str]]] = []
    for line in complete.replace("\r\n", "\n").split("\n"):
        if line.startswith(_STARTED):
            chats.append((line.removeprefix(_STARTED).strip(), []))
        elif chats:
            chats[-1][1].append(line)
    seen: dict[str, int] = {}
    for started, lines in chats:
        # Two chats may begin in the same second.
        number = seen[started] = seen.get(started, 0) + 1
        name = started if number == 1 else f"{started} ({number})"
        session = {"id": f"{folder}/{name}", "project": folder, "created": _time(started)}
        read = [{"session": session}, *_messages(lines)]
        yield Session(f"{path}#{name}", str(len(lines)), "aider", lambda read=read: read)  # type: ignore[misc]


def _time(started: str) -> float | None:
    try:
        # Aider writes the local time.
        return time.mktime(time.strptime(started, "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _messages(lines: list[str]) -> list[Json]:
    found: list[Json] = []
    model = ""
    role, held = "", list[str]()

    def end() -> None:
        nonlocal role, held
        if said := "\n".join(held).strip():
            found.append({"message": {"role": role or "assistant", "text": said, "model": model}})
        role, held = "", []

    for line in lines:
        if line.startswith("####"):
            if role != "user":
                end()
            role = "user"
            held.append(line[4:].strip())
        elif line.startswith(">"):
            if (named := _MODEL.search(line)) is not None:
                model = named[1]
            if (spent := _TOKENS.search(line)) is not None:
                end()
                if found and found[-1]["message"]["role"] == "assistant":
                    last = found[-1]["message"]
                    last["sent"] = last.get("sent", 0) + _count(spent[1], spent[2])
                    last["received"] = last.get("received", 0) + _count(spent[3], spent[4])
        else:
            if role == "user" and line.strip():
                end()
            if role != "user":
                held.append(line)
    end()
    return found


def _count(number: str, unit: str) -> int:
    try:
        return int(float(number.replace(",", "")) * _UNITS[unit.lower()])
    except ValueError:
        return 0
